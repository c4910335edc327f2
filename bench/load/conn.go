package load

import (
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"

	"golang.org/x/net/http2"

	"github.com/xdstender/tender/bench/h2"
)

// initialWindow is the default flow-control window of HTTP/2 in bytes.
const initialWindow = 65535

// A conn is one connection, with a stream for each of its clients. It is guarded by the mutex of [Load].
type conn struct {
	address netip.AddrPort // of its server
	buffer  int            // the socket's receive buffer; 0 is the system's default
	socket  int            // -1 if closed
	stalled bool           // stops reading
	accepts []string       // header fields with the accepted compression
	clients []*client      // by stream, see h2.StreamIndex
	settled bool           // whether the server's SETTINGS were received

	config  *tls.Config // nil without TLS, as are tls and wire
	session session     // of the last connection
	tls     *tls.Conn
	wire    *wire

	in      []byte // the start of an incomplete frame
	granted uint32 // bytes received since the last WINDOW_UPDATE for the connection

	pending []*client // clients with messages that wait for a flow-control window
	out     []byte    // frames that wait for the socket, or for encryption
	writing bool      // whether the poll waits until the socket is writable
	total   int       // send window of the connection, in bytes
	initial int       // send window of a new stream, from the server's SETTINGS
}

// reset prepares a connection for a new socket, and queues the preface and the calls of all its streams.
func (c *conn) reset(socket int, path string) {
	c.socket, c.settled = socket, false
	c.in, c.granted, c.pending = nil, 0, nil
	c.writing = true // the socket becomes writable when it is connected
	c.out = h2.ClientPreface(path, c.accepts...)
	c.total, c.initial = initialWindow, initialWindow
	for i, client := range c.clients {
		client.reset()
		if i > 0 { // the preface opens the first stream
			c.out = h2.AppendCall(c.out, path, client.stream, c.accepts...)
		}
	}
}

// flush writes as many pending messages and frames as the flow-control windows and the socket accept.
func (c *conn) flush(p *h2.Poll) error {
	c.pending = slices.DeleteFunc(c.pending, c.frameBody)
	unsent, err := c.seal()
	if err != nil || len(*unsent) == 0 {
		return err
	}
	if !c.writing {
		if err := c.write(unsent); err != nil {
			return err
		}
	}
	if wait := len(*unsent) > 0; wait != c.writing {
		c.writing = wait
		return p.Change(c.socket, wait)
	}
	return nil
}

// seal encrypts the frames if the connection uses TLS, and returns the bytes to write to the socket.
func (c *conn) seal() (unsent *[]byte, err error) {
	if c.tls == nil {
		return &c.out, nil
	}
	if len(c.out) > 0 {
		if _, err := c.tls.Write(c.out); err != nil {
			return nil, fmt.Errorf("encrypt: %w", err)
		}
		c.out = c.out[:0]
	}
	return &c.wire.out, nil
}

// write writes as many bytes as the socket accepts, and removes them from unsent.
func (c *conn) write(unsent *[]byte) error {
	n, err := h2.Write(c.socket, *unsent)
	*unsent = (*unsent)[:copy(*unsent, (*unsent)[n:])]
	return err
}

// read reads into b without blocking. It returns 0 bytes if none are available.
func (c *conn) read(b []byte) (int, error) {
	if c.tls == nil {
		return h2.Read(c.socket, b)
	}
	n, err := c.tls.Read(b)
	switch {
	case errors.Is(err, errNothing):
		return n, nil
	case errors.Is(err, io.EOF):
		return n, h2.ErrClosed
	default:
		return n, err
	}
}

// frameBody moves messages of a client into frames, as far as the flow-control windows admit. It reports whether none
// is left.
func (c *conn) frameBody(client *client) (empty bool) {
	sent := 0
	for sent < len(client.body) && min(client.window, c.total) > 0 {
		var n int
		c.out, n = h2.AppendData(c.out, client.stream, client.body[sent:], min(client.window, c.total))
		client.window -= n
		c.total -= n
		sent += n
	}
	client.body = client.body[:copy(client.body, client.body[sent:])]
	return len(client.body) == 0
}

// writable handles the event that the socket is writable.
func (c *conn) writable(p *h2.Poll) error {
	if !c.writing {
		return nil
	}
	c.writing = false
	unsent, err := c.seal()
	if err != nil {
		return err
	}
	if err := c.write(unsent); err != nil {
		return err
	}
	if c.writing = len(*unsent) > 0; !c.writing {
		if err := p.Change(c.socket, false); err != nil {
			return err
		}
	}
	return c.flush(p)
}

// client returns the client of a stream. Errors: the stream was not opened.
func (c *conn) client(stream uint32) (*client, error) {
	i := h2.StreamIndex(stream)
	if stream == 0 || i >= len(c.clients) || c.clients[i].stream != stream {
		return nil, fmt.Errorf("frame of stream %d, which was not opened", stream)
	}
	return c.clients[i], nil
}

// frame handles a frame, and passes responses in it to the sink that to returns. Errors: the server has ended a stream
// or the connection.
func (c *conn) frame(f h2.Frame, to func(*client) sink) error {
	switch f.Type {
	case http2.FrameData:
		client, err := c.client(f.Stream)
		if err != nil {
			return err
		}
		c.grant(uint32(len(f.Payload)))
		client.grant(uint32(len(f.Payload)))
		if err := client.scanner.read(f.Data(), client.sotw, to(client)); err != nil {
			return err
		}
		if f.Flags.Has(http2.FlagDataEndStream) {
			return fmt.Errorf("stream %d ended", f.Stream)
		}
		return nil
	case http2.FrameHeaders:
		if f.Flags.Has(http2.FlagHeadersEndStream) {
			return fmt.Errorf("stream %d ended: %s", f.Stream, h2.Describe(f))
		}
		return nil
	case http2.FrameGoAway, http2.FrameRSTStream:
		return fmt.Errorf("received %v %x", f.Type, f.Payload)
	default:
		return c.control(f)
	}
}

// control handles SETTINGS, PING and WINDOW_UPDATE.
func (c *conn) control(f h2.Frame) error {
	switch f.Type {
	case http2.FrameSettings:
		if !f.Flags.Has(http2.FlagSettingsAck) {
			c.settings(f.Payload)
		}
	case http2.FramePing:
		if !f.Flags.Has(http2.FlagPingAck) {
			c.out = h2.AppendPong(c.out, f.Payload)
		}
	case http2.FrameWindowUpdate:
		if len(f.Payload) == 4 {
			return c.widen(f.Stream, int(binary.BigEndian.Uint32(f.Payload)))
		}
	default: // other frames have no effect on sending
	}
	return nil
}

// grant counts n received bytes, and updates the connection's window when half a stream window is used.
func (c *conn) grant(n uint32) {
	c.granted += n
	if c.granted >= h2.StreamWindow/2 {
		c.out = h2.AppendWindowUpdate(c.out, 0, c.granted)
		c.granted = 0
	}
}

// settings applies and acknowledges the server's SETTINGS.
func (c *conn) settings(payload []byte) {
	c.settled = true
	for ; len(payload) >= 6; payload = payload[6:] {
		if http2.SettingID(binary.BigEndian.Uint16(payload)) == http2.SettingInitialWindowSize {
			initial := int(binary.BigEndian.Uint32(payload[2:]))
			for _, client := range c.clients {
				client.window += initial - c.initial
			}
			c.initial = initial
		}
	}
	c.out = h2.AppendSettingsAck(c.out)
}

// widen applies a WINDOW_UPDATE of n bytes; stream 0 is the connection.
func (c *conn) widen(stream uint32, n int) error {
	if stream == 0 {
		c.total += n
		return nil
	}
	client, err := c.client(stream)
	if err != nil {
		return err
	}
	client.window += n
	return nil
}

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

// initialWindow is a window of HTTP/2 until settings or a WINDOW_UPDATE change it.
const initialWindow = 65535

// A conn is one connection, with a stream for each of its clients. Only [Load] touches it, under its mutex.
type conn struct {
	address netip.AddrPort // of its server
	buffer  int            // the socket's receive buffer; 0 is the system's default
	socket  int            // -1 when it is closed
	stalled bool           // reads nothing
	clients []*client      // by stream, see h2.StreamIndex
	settled bool           // whether the server's settings have come

	config  *tls.Config // nil without TLS, as are tls and wire
	session session     // of the last connection
	tls     *tls.Conn
	wire    *wire

	in      []byte // the start of a frame
	granted uint32 // bytes received since the connection's window was updated last

	pending []*client // whose messages wait for a window
	out     []byte    // frames that wait for the socket, or for their encryption
	writing bool      // whether the poll waits for the socket
	total   int       // bytes that the server lets the connection send
	initial int       // window of a new stream, by the server's settings
}

// reset makes a connection ready to open its streams on a new socket.
func (c *conn) reset(socket int, path string) {
	c.socket, c.settled = socket, false
	c.in, c.granted, c.pending = nil, 0, nil
	c.writing = true // until it is connected
	c.out = h2.ClientPreface(path)
	c.total, c.initial = initialWindow, initialWindow
	for i, client := range c.clients {
		client.reset()
		if i > 0 { // the preface opens the first stream
			c.out = h2.AppendCall(c.out, path, client.stream)
		}
	}
}

// flush writes the pending messages and frames that windows and socket admit.
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

// seal encrypts the frames if the connection has TLS, and returns the bytes for the socket.
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

// write writes what the socket takes, and removes that from unsent.
func (c *conn) write(unsent *[]byte) error {
	n, err := h2.Write(c.socket, *unsent)
	*unsent = (*unsent)[:copy(*unsent, (*unsent)[n:])]
	return err
}

// read reads what is there into b; 0 bytes if that is nothing.
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

// frameBody moves the messages of a client into frames, as far as the windows admit, and reports whether none is left.
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

// writable is called when the socket takes more.
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

// client returns the client of a stream.
func (c *conn) client(stream uint32) (*client, error) {
	i := h2.StreamIndex(stream)
	if stream == 0 || i >= len(c.clients) || c.clients[i].stream != stream {
		return nil, fmt.Errorf("frame of stream %d, which was not opened", stream)
	}
	return c.clients[i], nil
}

// frame handles a frame; the responses in it go to the sink that to returns.
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

// control handles the frames that are about the connection.
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
	default: // nothing else changes what is sent here
	}
	return nil
}

// grant lets the server send on when a good part of the connection's window was used.
func (c *conn) grant(n uint32) {
	c.granted += n
	if c.granted >= h2.StreamWindow/2 {
		c.out = h2.AppendWindowUpdate(c.out, 0, c.granted)
		c.granted = 0
	}
}

// settings applies the server's settings and answers them.
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

// widen applies a WINDOW_UPDATE.
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

package load

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/net/http2"

	"github.com/xdstender/tender/bench/h2"
)

// A client is one connection with one stream. Only [Load] touches it, under its
// mutex.
type client struct {
	number   int
	address  netip.AddrPort // of its server
	buffer   int            // the socket's receive buffer; 0 is the system's default
	socket   int            // -1 when it is closed
	sotw     bool
	stalled  bool // reads nothing
	holdings []*holding

	in      []byte  // the start of a frame
	scanner scanner // the start of a response
	granted uint32  // bytes received since windows were updated last

	body    []byte // messages that wait for a window
	out     []byte // frames that wait for the socket
	writing bool   // whether the poll waits for the socket
	window  int    // bytes that the server lets the stream send, and
	total   int    // the connection
	initial int    // the stream's window as the server's settings have it
}

// reset makes a client ready for a new connection.
func (c *client) reset(socket int, preface []byte) {
	c.socket = socket
	c.in, c.scanner, c.granted = nil, scanner{}, 0
	c.body, c.writing = nil, true // until it is connected
	c.out = slices.Clone(preface)
	c.window, c.total, c.initial = 65535, 65535, 65535
}

// have returns how many resources the client has, and wants.
func (c *client) have() (have, want int) {
	for _, h := range c.holdings {
		have += h.have
		want += h.Count
	}
	return have, want
}

// holding returns what the client has of a type.
func (c *client) holding(typeURL []byte) (*holding, error) {
	for _, h := range c.holdings {
		if h.TypeURL == string(typeURL) {
			return h, nil
		}
	}
	return nil, fmt.Errorf("type %q, which was not asked for", typeURL)
}

// queue appends a message to what is to be sent.
func (c *client) queue(message []byte) {
	c.body = append(h2.AppendMessageHeader(c.body, len(message)), message...)
}

// flush writes what windows and socket take.
func (c *client) flush(p *h2.Poll) error {
	sent := 0
	for sent < len(c.body) && min(c.window, c.total) > 0 {
		var n int
		c.out, n = h2.AppendData(c.out, c.body[sent:], min(c.window, c.total))
		c.window -= n
		c.total -= n
		sent += n
	}
	c.body = c.body[:copy(c.body, c.body[sent:])]
	if len(c.out) == 0 {
		return nil
	}
	n := 0
	if !c.writing {
		var err error
		if n, err = h2.Write(c.socket, c.out); err != nil {
			return err
		}
	}
	c.out = c.out[:copy(c.out, c.out[n:])]
	if wait := len(c.out) > 0; wait != c.writing {
		c.writing = wait
		return p.Change(c.socket, wait)
	}
	return nil
}

// writable is called when the socket takes more.
func (c *client) writable(p *h2.Poll) error {
	if !c.writing {
		return nil
	}
	c.writing = false
	if len(c.out) == 0 && len(c.body) == 0 {
		return p.Change(c.socket, false)
	}
	n, err := h2.Write(c.socket, c.out)
	if err != nil {
		return err
	}
	c.out = c.out[:copy(c.out, c.out[n:])]
	if c.writing = len(c.out) > 0; !c.writing {
		if err := p.Change(c.socket, false); err != nil {
			return err
		}
	}
	return c.flush(p)
}

// frame handles a frame; what it holds of responses goes to a sink.
func (c *client) frame(f h2.Frame, to sink) error {
	switch f.Type {
	case http2.FrameData:
		c.grant(uint32(len(f.Payload)))
		if err := c.scanner.read(f.Data(), c.sotw, to); err != nil {
			return err
		}
		if f.Flags.Has(http2.FlagDataEndStream) {
			return fmt.Errorf("stream of client %d ended", c.number)
		}
		return nil
	case http2.FrameHeaders:
		if f.Flags.Has(http2.FlagHeadersEndStream) {
			return fmt.Errorf("stream of client %d ended: %s", c.number, h2.Describe(f))
		}
		return nil
	case http2.FrameGoAway, http2.FrameRSTStream:
		return fmt.Errorf("client %d received %v %x", c.number, f.Type, f.Payload)
	default:
		c.control(f)
		return nil
	}
}

// control handles the frames that are about the connection.
func (c *client) control(f h2.Frame) {
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
			c.widen(f.Stream, int(binary.BigEndian.Uint32(f.Payload)))
		}
	default: // nothing else changes what is sent here
	}
}

// grant lets the server send on when half a window was used.
func (c *client) grant(n uint32) {
	c.granted += n
	if c.granted >= h2.StreamWindow/2 {
		c.out = h2.AppendWindowUpdate(c.out, h2.Stream, c.granted)
		c.out = h2.AppendWindowUpdate(c.out, 0, c.granted)
		c.granted = 0
	}
}

// settings applies the server's settings and answers them.
func (c *client) settings(payload []byte) {
	for ; len(payload) >= 6; payload = payload[6:] {
		if http2.SettingID(binary.BigEndian.Uint16(payload)) == http2.SettingInitialWindowSize {
			initial := int(binary.BigEndian.Uint32(payload[2:]))
			c.window += initial - c.initial
			c.initial = initial
		}
	}
	c.out = h2.AppendSettingsAck(c.out)
}

// widen applies a WINDOW_UPDATE.
func (c *client) widen(stream uint32, n int) {
	if stream == 0 {
		c.total += n
		return
	}
	c.window += n
}

package load

import (
	"fmt"

	"github.com/xdstender/tender/bench/h2"
)

// A client is one stream of a connection. Only [Load] touches it, under its mutex.
type client struct {
	number   int
	feature  string // a client feature, or empty
	conn     *conn
	stream   uint32
	sotw     bool
	holdings []*holding

	scanner scanner // the start of a response
	granted uint32  // bytes received since the stream's window was updated last
	body    []byte  // messages that wait for a window
	window  int     // bytes that the server lets the stream send
}

// reset makes a client ready for a new connection.
func (c *client) reset() {
	c.scanner, c.granted = scanner{}, 0
	c.body, c.window = nil, initialWindow
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
	if len(c.body) == 0 {
		c.conn.pending = append(c.conn.pending, c)
	}
	c.body = append(h2.AppendMessageHeader(c.body, len(message)), message...)
}

// grant lets the server send on when half of the stream's window was used.
func (c *client) grant(n uint32) {
	c.granted += n
	if c.granted >= h2.StreamWindow/2 {
		c.conn.out = h2.AppendWindowUpdate(c.conn.out, c.stream, c.granted)
		c.granted = 0
	}
}

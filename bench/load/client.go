package load

import (
	"fmt"

	"github.com/xdstender/tender/bench/h2"
)

// A client is one xDS client, on one stream of a connection. It is guarded by the mutex of [Load].
type client struct {
	number   int
	feature  string // client feature in the Node; empty for none
	conn     *conn
	stream   uint32
	sotw     bool
	holdings []*holding

	scanner scanner // holds the start of an incomplete response
	granted uint32  // bytes received since the last WINDOW_UPDATE for the stream
	body    []byte  // messages that wait for a flow-control window
	window  int     // send window of the stream, in bytes
}

// reset prepares a client for a new connection. It keeps the received changes.
func (c *client) reset() {
	c.scanner, c.granted = scanner{}, 0
	c.body, c.window = nil, initialWindow
}

// have returns the number of resources that the client has received, and the number that it subscribes to.
func (c *client) have() (have, want int) {
	for _, h := range c.holdings {
		have += h.have
		want += h.Count
	}
	return have, want
}

// holding returns the holding of a type. Errors: the client does not subscribe to the type.
func (c *client) holding(typeURL []byte) (*holding, error) {
	for _, h := range c.holdings {
		if h.TypeURL == string(typeURL) {
			return h, nil
		}
	}
	return nil, fmt.Errorf("type %q, which was not asked for", typeURL)
}

// queue queues a message. The next flush of the connection sends it, if windows admit it.
func (c *client) queue(message []byte) {
	if len(c.body) == 0 {
		c.conn.pending = append(c.conn.pending, c)
	}
	c.body = append(h2.AppendMessageHeader(c.body, len(message)), message...)
}

// grant counts n received bytes, and updates the stream's window when half of it is used.
func (c *client) grant(n uint32) {
	c.granted += n
	if c.granted >= h2.StreamWindow/2 {
		c.conn.out = h2.AppendWindowUpdate(c.conn.out, c.stream, c.granted)
		c.granted = 0
	}
}

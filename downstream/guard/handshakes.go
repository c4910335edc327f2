package guard

import (
	"net"
	"runtime"
	"sync"
)

// handshakes bound how many TLS handshakes compute at the same time, so that a herd of new connections leaves cores to
// the clients that are served (B.35). A handshake takes a turn for each part of it, and has none while it waits for its
// client: a slow client delays nobody. Handshakes that the server has answered go before new ones, in order of arrival
// each, so that those which have begun end in time, however many there are.
type handshakes struct {
	mu       sync.Mutex
	free     int
	answered []chan struct{} // closed when a turn is handed over
	fresh    []chan struct{}
}

// newHandshakes returns the turns of half of the cores.
func newHandshakes() handshakes { return handshakes{free: max(1, runtime.GOMAXPROCS(0)/2)} }

// take waits for a turn.
func (h *handshakes) take(answered bool) {
	h.mu.Lock()
	if h.free > 0 {
		h.free--
		h.mu.Unlock()
		return
	}
	turn := make(chan struct{})
	if answered {
		h.answered = append(h.answered, turn)
	} else {
		h.fresh = append(h.fresh, turn)
	}
	h.mu.Unlock()
	<-turn
}

// give ends a turn.
func (h *handshakes) give() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, queue := range []*[]chan struct{}{&h.answered, &h.fresh} {
		if len(*queue) > 0 {
			close((*queue)[0])
			*queue = (*queue)[1:]
			return
		}
	}
	h.free++
}

// A handshakeConn is the connection below a TLS handshake, which it gives its turns. Its fields are owned by the
// goroutine of the handshake, until that has called end.
type handshakeConn struct {
	net.Conn
	turns    *handshakes
	has      bool // a turn
	answered bool // the server has written
	over     bool
}

// Read implements net.Conn. What follows a read of a handshake computes.
func (c *handshakeConn) Read(b []byte) (int, error) {
	if c.over {
		return c.Conn.Read(b)
	}
	c.give()
	n, err := c.Conn.Read(b)
	c.turns.take(c.answered)
	c.has = true
	return n, err
}

// Write implements net.Conn. After a write, a handshake waits for its client.
func (c *handshakeConn) Write(b []byte) (int, error) {
	if !c.over {
		c.give()
		c.answered = true
	}
	return c.Conn.Write(b)
}

// end is called once after the handshake.
func (c *handshakeConn) end() {
	c.give()
	c.over = true
}

func (c *handshakeConn) give() {
	if c.has {
		c.has = false
		c.turns.give()
	}
}

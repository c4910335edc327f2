package guard

import (
	"net"
	"runtime"
	"sync"
)

// handshakes limits how many TLS handshakes compute at the same time, so that many new connections leave CPU time to
// connected clients (B.35). A handshake takes a turn for each of its steps and has none while it waits for its client,
// so a slow client does not delay others. Handshakes that the server has answered have priority over new ones, so that
// they complete in time. Both queues are first come, first served.
type handshakes struct {
	// Guarded by mu.
	mu        sync.Mutex
	freeTurns int
	answered  []chan struct{} // each is closed to hand over a turn
	fresh     []chan struct{} // the same, for handshakes that the server has not answered
}

// newHandshakes returns as many turns as half of the cores.
func newHandshakes() handshakes { return handshakes{freeTurns: max(1, runtime.GOMAXPROCS(0)/2)} }

// acquire waits for a turn. answered reports whether the server has answered the handshake.
func (h *handshakes) acquire(answered bool) {
	h.mu.Lock()
	if h.freeTurns > 0 {
		h.freeTurns--
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

// release ends a turn.
func (h *handshakes) release() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, queue := range []*[]chan struct{}{&h.answered, &h.fresh} {
		if len(*queue) > 0 {
			close((*queue)[0])
			*queue = (*queue)[1:]
			return
		}
	}
	h.freeTurns++
}

// A handshakeConn is the connection below a TLS handshake. It acquires and releases the turns of the handshake. The
// goroutine of the handshake owns its fields until it calls end.
type handshakeConn struct {
	net.Conn
	turns    *handshakes
	hasTurn  bool // the handshake may compute
	answered bool // the server has written
	done     bool // end was called
}

// Read implements net.Conn. A handshake computes after a read.
func (c *handshakeConn) Read(b []byte) (int, error) {
	if c.done {
		return c.Conn.Read(b)
	}
	c.releaseTurn()
	n, err := c.Conn.Read(b)
	c.turns.acquire(c.answered)
	c.hasTurn = true
	return n, err
}

// Write implements net.Conn. A handshake waits for its client after a write.
func (c *handshakeConn) Write(b []byte) (int, error) {
	if !c.done {
		c.releaseTurn()
		c.answered = true
	}
	return c.Conn.Write(b)
}

// end ends the handshake. It must be called once.
func (c *handshakeConn) end() {
	c.releaseTurn()
	c.done = true
}

func (c *handshakeConn) releaseTurn() {
	if c.hasTurn {
		c.hasTurn = false
		c.turns.release()
	}
}

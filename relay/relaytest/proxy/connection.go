package proxy

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// pieceBytes is how much a proxy passes on at a time.
const pieceBytes = 16 << 10

// piecesUnderWay is how much of one way of a connection a proxy holds, beside what the
// kernel does. Where a way is held back or slow, its sender is stopped by that.
const piecesUnderWay = 64

// proxied is one connection of a proxy: a client, its target, and the two ways between
// them.
type proxied struct {
	proxy    *Proxy
	client   *net.TCPConn
	up, down *way
	done     chan struct{} // closed once the client's end is

	// Guarded by proxy.mon.
	target *net.TCPConn // nil before it is connected
	ended  bool
	gone   *net.TCPConn // the side that was closed without closing the other; nil if none
}

// A way is one direction of a connection: a queue between its reader and its writer.
type way struct {
	queue chan piece
	count *int64 // of the proxy's state, guarded by its mon

	mu      sync.Mutex
	now     Way           // guarded by mu
	changed chan struct{} // guarded by mu; closed when now is another one
}

// A piece is some bytes under way, and when they were read.
type piece struct {
	at    time.Time
	bytes []byte
	aside bool // sent by the proxy itself: neither held nor counted
}

// newProxied returns a connection that carries nothing yet. Locked.
func newProxied(p *Proxy, client *net.TCPConn) *proxied {
	return &proxied{
		proxy: p, client: client, done: make(chan struct{}),
		up:   newWay(p.link.Up, &p.state.BytesUp),
		down: newWay(p.link.Down, &p.state.BytesDown),
	}
}

func newWay(w Way, count *int64) *way {
	return &way{queue: make(chan piece, piecesUnderWay), now: w, count: count, changed: make(chan struct{})}
}

func (w *way) set(now Way) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = now
	close(w.changed)
	w.changed = make(chan struct{})
}

func (w *way) get() (now Way, changed <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now, w.changed
}

// close ends both sides. Locked, as are reset, orphan, strand and say.
func (c *proxied) close() {
	if c.ended {
		return
	}
	c.ended = true
	close(c.done)
	_ = c.client.Close()
	if c.target != nil {
		_ = c.target.Close()
	}
}

func (c *proxied) reset() {
	abort(c.client)
	if c.target != nil {
		abort(c.target)
	}
	c.close()
}

// abort has the connection end with a reset when it is closed.
func abort(conn *net.TCPConn) {
	_ = conn.SetLinger(0) // fails on a connection that has ended
}

func (c *proxied) orphan() { c.lose(c.target) }

func (c *proxied) strand() { c.lose(c.client) }

// lose ends one side alone.
func (c *proxied) lose(side *net.TCPConn) {
	if c.target == nil || c.ended || c.gone != nil {
		return
	}
	c.gone = side
	abort(side)
	_ = side.Close()
}

func (c *proxied) say(b []byte) {
	select {
	case c.down.queue <- piece{bytes: b, aside: true}:
	default: // the queue is full
	}
}

// carry connects to the target and passes bytes on until either side has ended.
func (c *proxied) carry(target string) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { // ends with this call at the latest
		select {
		case <-c.done:
			cancel()
		case <-ctx.Done():
		}
	}()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", target)
	if err != nil {
		c.end((*proxied).reset) // as near as it comes to being refused
		return
	}
	if !c.connected(conn.(*net.TCPConn)) {
		return
	}
	var ways sync.WaitGroup
	ways.Go(func() { c.read(c.client, c.up) })
	ways.Go(func() { c.read(c.target, c.down) })
	ways.Go(func() { c.write(c.target, c.up) })
	ways.Go(func() { c.write(c.client, c.down) })
	ways.Wait()
}

// connected reports whether the client is still there to be connected.
func (c *proxied) connected(target *net.TCPConn) bool {
	c.proxy.mon.Lock()
	defer c.proxy.mon.Unlock()
	if c.ended {
		_ = target.Close()
		return false
	}
	c.target = target
	return true
}

func (c *proxied) end(how func(*proxied)) {
	c.proxy.mon.Lock()
	defer c.proxy.mon.Unlock()
	how(c)
}

// lost reports whether a side was closed without closing the other.
func (c *proxied) lost(side *net.TCPConn) bool {
	c.proxy.mon.Lock()
	defer c.proxy.mon.Unlock()
	return side == c.gone
}

// read queues the bytes of one side until it is closed.
func (c *proxied) read(from *net.TCPConn, w *way) {
	for {
		b := make([]byte, pieceBytes)
		n, err := from.Read(b)
		p := piece{at: time.Now(), bytes: b[:n]}
		switch {
		case err == nil:
		case c.lost(from):
			return
		case errors.Is(err, io.EOF):
			p.bytes = nil // which is the end
		default:
			c.end((*proxied).reset)
			return
		}
		select {
		case w.queue <- p:
		case <-c.done:
		}
		if err != nil {
			return
		}
	}
}

// write passes on what is queued until the connection ends.
func (c *proxied) write(to *net.TCPConn, w *way) {
	sent := 0 // of what is not aside
	for {
		select {
		case p := <-w.queue:
			if p.aside {
				_, _ = to.Write(p.bytes) // it fails only if the peer has closed
			} else if !c.deliver(to, w, p, &sent) {
				return
			}
		case <-c.done:
			return
		}
	}
}

// deliver writes a piece, after sent bytes of the same way, and reports whether the connection stays open.
func (c *proxied) deliver(to *net.TCPConn, w *way, p piece, sent *int) bool {
	now, ok := c.travel(w, p.at)
	if ok && p.bytes == nil {
		c.end((*proxied).close)
		return false
	}
	for ok && len(p.bytes) > 0 {
		n := now.portion(len(p.bytes), *sent)
		if !c.pass(to, w, now, p.bytes[:n]) {
			return false
		}
		p.bytes, *sent = p.bytes[n:], *sent+n
		if now.ResetAfter > 0 && *sent >= now.ResetAfter {
			c.end((*proxied).reset)
			return false
		}
		now, ok = c.travel(w, p.at)
	}
	return ok
}

// portions is in how many of them a second a bounded rate is spent.
const portions = 20

// portion returns how many of n bytes may go at once.
func (w Way) portion(n, sent int) int {
	if w.Rate > 0 {
		n = min(n, max(1, w.Rate/portions))
	}
	if w.ResetAfter > sent {
		n = min(n, w.ResetAfter-sent)
	}
	return n
}

// travel waits until what was read at a time has arrived, and returns how the way is
// then; not ok: the connection has ended.
func (c *proxied) travel(w *way, at time.Time) (now Way, ok bool) {
	for {
		now, changed := w.get()
		left := time.Until(at.Add(now.Delay))
		if !now.Hold && left <= 0 {
			return now, true
		}
		var late <-chan time.Time
		if !now.Hold {
			late = time.After(left)
		}
		select {
		case <-late:
		case <-changed:
		case <-c.done:
			return Way{}, false
		}
	}
}

// pass writes bytes, and takes the time that they need. It reports whether the
// connection lives.
func (c *proxied) pass(to *net.TCPConn, w *way, now Way, b []byte) bool {
	if now.Rate > 0 {
		select {
		case <-time.After(time.Duration(len(b)) * time.Second / time.Duration(now.Rate)):
		case <-c.done:
			return false
		}
	}
	if _, err := to.Write(b); err != nil {
		if c.lost(to) {
			return true // the bytes are dropped without an error
		}
		c.end((*proxied).reset)
		return false
	}
	c.proxy.passed(w.count, len(b))
	return true
}

package guard

import (
	"sync"
	"time"
)

// connections counts the connections of clients, and bounds them for all and for each host (B.35). Hosts are peers
// whose certificate is not known yet.
type connections struct {
	limits Limits

	// Guarded by mu.
	mu      sync.Mutex
	open    int
	claimed int64               // bytes of MaxUnreadBytes that connections claimed
	peers   map[string]*peerUse // those with an open connection or a budget that is not full
	swept   time.Time           // when sweep last looked through peers
}

// peerUse is what a peer uses. It is guarded by connections.mu.
type peerUse struct {
	connections int
	claimed     int64  // bytes
	frames      budget // of all its connections, and polls
	arrivals    budget // of new connections
	throttled   bool   // its polls or new connections wait
}

func newConnections(l Limits) connections {
	return connections{limits: l, peers: make(map[string]*peerUse)}
}

// enter counts a connection of a peer, empty if it has no address, or rejects it. The connection must call leave when
// it ends.
func (c *connections) enter(peer string) (leave func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	of := c.peers[peer]
	switch {
	case c.open >= c.limits.MaxConnections:
		return nil, Exceeds(LimitConnections, "%d connections are open, as many as allowed", c.open)
	case of != nil && of.connections >= c.limits.MaxPeerConnections:
		return nil, Exceeds(LimitPeerConnections, "%d connections of %s are open, as many as allowed", of.connections, peer)
	}
	c.open++
	if peer != "" {
		c.peer(peer).connections++
	}
	return sync.OnceFunc(func() { c.leave(peer) }), nil
}

// peer returns what a peer uses. c.mu must be held.
func (c *connections) peer(peer string) *peerUse {
	of := c.peers[peer]
	if of == nil {
		of = new(peerUse)
		c.peers[peer] = of
	}
	return of
}

func (c *connections) leave(peer string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open--
	if peer == "" {
		return
	}
	c.peers[peer].connections--
	c.sweep(time.Now())
}

// sweepEvery is the interval at which peers without connections are removed.
const sweepEvery = time.Second

// sweep removes the peers without connections whose budgets are full: a client that reconnects again and again must
// not get a new budget each time. c.mu must be held.
func (c *connections) sweep(now time.Time) {
	if now.Sub(c.swept) < sweepEvery {
		return
	}
	c.swept = now
	for peer, of := range c.peers {
		if of.connections == 0 && of.frames.full(frameBurst, now) && of.arrivals.full(connectionBurst, now) {
			delete(c.peers, peer)
		}
	}
}

// peerRate returns the frames a second of a peer.
func (c *connections) peerRate() int { return peerFrames * c.limits.MaxFrameRate }

// spend takes frames from the budgets of a connection and its peer, and returns how long to wait before the next read.
func (c *connections) spend(a *Account, frames int64, now time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	pause := a.frames.spend(frames, c.limits.MaxFrameRate, now)
	if charged := a.free.takeFree(frames, now); charged > 0 && c.peers[a.peer] != nil {
		pause = max(pause, c.peers[a.peer].frames.spend(charged, c.peerRate(), now))
	}
	return pause
}

// admit takes a new connection from the budget of a peer, and reports whether it is allowed: one that would wait for
// longer than maxPause is not, and costs nothing. began reports that connections of the peer begin to wait.
func (c *connections) admit(peer string, now time.Time) (began, allowed bool) {
	if peer == "" {
		return false, true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	of := c.peer(peer)
	_, began, allowed = of.spend(&of.arrivals, connectionPrice, c.peerRate(), connectionBurst, now)
	return began, allowed
}

// delay returns how long a connection that was admitted has to wait.
func (c *connections) delay(peer string, now time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	of := c.peers[peer]
	if of == nil {
		return 0
	}
	return min(max(of.arrivals.earned.Sub(now), 0), maxPause)
}

// poll takes a poll from the budget of a peer, and returns how long it has to wait, and the same as admit.
func (c *connections) poll(peer string, now time.Time) (wait time.Duration, began, allowed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if of := c.peers[peer]; of != nil {
		return of.spend(&of.frames, pollPrice, c.peerRate(), frameBurst, now)
	}
	return 0, false, true
}

// spend takes frames from one of a peer's budgets, unless that would take longer than maxPause.
func (p *peerUse) spend(b *budget, frames int64, rate int, burst time.Duration, now time.Time) (wait time.Duration, began, allowed bool) {
	before, was := *b, p.throttled
	wait = b.take(frames, rate, burst, now)
	if allowed = wait <= maxPause; !allowed {
		*b = before
	}
	p.throttled = wait > 0
	return wait, p.throttled && !was, allowed
}

// claim claims memory for what a connection holds. The error ends the connection.
func (c *connections) claim(a *Account, now time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if a.ended {
		return nil
	}
	forgiven := min(int64(now.Sub(a.forgivenAt).Seconds()*forgivenUnread), a.held.Load())
	a.forgivenAt = now
	claimed := a.claimed.Load()
	more := a.held.Add(-forgiven) - freeUnread - claimed
	if more <= 0 {
		return nil
	}
	more = (more + unreadStep - 1) / unreadStep * unreadStep
	most := int64(c.limits.MaxUnreadBytes)
	switch of := c.peers[a.peer]; {
	case c.claimed+more > most:
		return Exceeds(LimitUnread, "requests of all clients hold %d bytes, as many as allowed", c.claimed)
	case of != nil && of.claimed+more > most/UnreadOfPeer:
		return Exceeds(LimitUnread, "requests of %s hold %d bytes, as many as allowed", a.peer, of.claimed)
	}
	c.setClaim(a, claimed+more)
	return nil
}

// unclaim gives back all that a connection claimed.
func (c *connections) unclaim(a *Account) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.setClaim(a, 0)
}

// setClaim records what a connection claims. c.mu must be held.
func (c *connections) setClaim(a *Account, claimed int64) {
	more := claimed - a.claimed.Swap(claimed)
	c.claimed += more
	if of := c.peers[a.peer]; of != nil {
		of.claimed += more
	}
}

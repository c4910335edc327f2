package guard

import (
	"cmp"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache/wire"
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

const (
	// freeUnread is what each connection may hold without a claim: small requests take no lock.
	freeUnread = 64 << 10

	// unreadStep is the unit of claims.
	unreadStep = 256 << 10

	// minFrameBytes is what a DATA frame takes at least while gRPC holds it: a client may send its requests in single
	// bytes.
	minFrameBytes = 64

	// forgivenUnread is forgiven each second: frames of streams that had ended, and what small frames were charged
	// beyond the size of their message, are never released.
	forgivenUnread = 64
)

// UnreadOfPeer is the part of [Limits.MaxUnreadBytes] that one peer may claim: one in so many.
const UnreadOfPeer = 4

// An Account is what one connection is charged with: the memory of its requests until they are handled, and the frames
// that it sends. Memory is what gRPC buffers of incomplete requests, requests that wait, and what they became,
// decompressed or decoded. Bytes are charged frame by frame as they come, what is made of them before it is made, and
// both are released request by request, once it was handled.
type Account struct {
	// Read-only after construction.
	connections *connections
	peer        string
	framesOnly  bool // an HTTP server holds and bounds what comes

	// Owned by the reader of the connection.
	skip      int // bytes until the next frame header
	header    [9]byte
	have      int           // bytes of the header
	unpaid    int64         // frames that were not charged yet
	pause     time.Duration // before the next read
	throttled bool          // reads are paused and small

	held        atomic.Int64
	replyFrames atomic.Int64 // frames that may reply to responses
	claimed     atomic.Int64 // written under connections.mu
	rejected    atomic.Bool  // the relay ended the connection

	// Guarded by connections.mu.
	frames     budget
	free       budget // that the peer is not charged for
	forgivenAt time.Time
	ended      bool // nothing is held any more

	closed chan struct{} // closed when the connection is
}

func newAccount(all *connections, peer string) *Account {
	return &Account{connections: all, peer: peer, skip: len(http2Preface), forgivenAt: time.Now(), closed: make(chan struct{})}
}

// received charges for what came on the connection. The error says that the connection holds too much, and ends it.
func (a *Account) received(bytes []byte) error {
	for len(bytes) > 0 {
		if a.skip > 0 {
			n := min(a.skip, len(bytes))
			a.skip, bytes = a.skip-n, bytes[n:]
			continue
		}
		n := copy(a.header[a.have:], bytes)
		a.have, bytes = a.have+n, bytes[n:]
		if a.have < len(a.header) {
			break
		}
		kind := a.header[3]
		length := int(a.header[0])<<16 | int(a.header[1])<<8 | int(a.header[2])
		a.skip, a.have = length, 0
		a.countFrame(kind, length)
		if kind == dataFrame && length > 0 && !a.framesOnly {
			a.held.Add(int64(max(length, minFrameBytes)))
		}
	}
	if a.held.Load() <= a.claimed.Load()+freeUnread {
		return nil
	}
	return a.connections.claim(a, time.Now())
}

// Hold charges for bytes, and implements [wire.Memory].
func (a *Account) Hold(bytes int) error {
	if a == nil || a.held.Add(int64(bytes)) <= a.claimed.Load()+freeUnread {
		return nil
	}
	err := a.connections.claim(a, time.Now())
	select {
	case <-a.closed: // nothing is decoded for a client that has left
		err = cmp.Or(err, status.Error(codes.Unavailable, "the connection has ended"))
	default:
	}
	if err != nil {
		a.Release(bytes)
	}
	return err
}

// Release gives back what a request was charged with, once it was handled.
func (a *Account) Release(bytes int) {
	if a == nil {
		return
	}
	held := a.held.Add(-int64(bytes))
	if held < 0 { // some of it was forgiven
		a.held.CompareAndSwap(held, 0)
	}
	if held <= freeUnread && a.claimed.Load() > 0 {
		a.connections.unclaim(a)
	}
}

// Responded records that a response of so many bytes was sent: the frames that reply to it are free.
func (a *Account) Responded(bytes int) {
	if a != nil {
		a.replyFrames.Add(replyPrice + int64(bytes/frameSize))
	}
}

// Rejected reports whether the relay ended the connection because its requests exceeded a limit.
func (a *Account) Rejected() bool { return a != nil && a.rejected.Load() }

// close gives everything back.
func (a *Account) close() {
	a.connections.mu.Lock()
	defer a.connections.mu.Unlock()
	if a.ended {
		return
	}
	a.ended = true
	close(a.closed)
	a.connections.setClaim(a, 0)
}

// countFrame counts a frame that came.
func (a *Account) countFrame(kind byte, length int) {
	a.unpaid += 1 + int64(length/frameSize)
	switch kind {
	case dataFrame:
		a.unpaid += requestPrice
	case headersFrame:
		a.unpaid += streamPrice
	case resetFrame:
		a.unpaid += resetPrice
	}
}

// countBytes counts bytes of HTTP/1, which has no frames, as frames of frameSize.
func (a *Account) countBytes(n int) { a.unpaid += int64((n + frameSize - 1) / frameSize) }

// throttle charges for the frames that came, and pauses the next read if they exceed a budget. It reports whether the
// connection becomes rate-limited by that.
func (a *Account) throttle() (began bool) {
	if a.unpaid < frameStep {
		return false
	}
	if a.unpaid = a.unsolicited(a.unpaid); a.unpaid < frameStep {
		return false
	}
	a.pause = a.connections.spend(a, a.unpaid, time.Now())
	a.unpaid = 0
	was := a.throttled
	a.throttled = a.pause > 0
	return a.throttled && !was
}

// unsolicited returns how many of the frames reply to no response. The frames that may still reply are kept, but no
// more than a burst: a client need not reply.
func (a *Account) unsolicited(frames int64) int64 {
	free := min(a.replyFrames.Swap(0), int64(a.connections.limits.MaxFrameRate)*int64(frameBurst/time.Second))
	if free > frames {
		a.replyFrames.Add(free - frames)
	}
	return max(frames-free, 0)
}

// awaitRead waits for the end of the pause or of the connection, and returns how much of size to read then.
func (a *Account) awaitRead(size int) int {
	if !a.throttled {
		return size
	}
	if a.pause > 0 {
		select {
		case <-time.After(a.pause):
		case <-a.closed:
		}
		a.pause = 0
	}
	return min(size, throttledRead)
}

// A Charge is what one request was charged with.
type Charge struct {
	account *Account // nil: nothing is charged
	bytes   int
}

// Charged returns the charge of a request of so many bytes, which were charged as they came.
func (a *Account) Charged(bytes int) Charge { return Charge{a, bytes} }

// Hold charges for more bytes, and implements [wire.Memory].
func (c *Charge) Hold(bytes int) error {
	err := c.account.Hold(bytes)
	if err == nil {
		c.bytes += bytes
	}
	return err
}

// Release gives all of it back, once.
func (c *Charge) Release() {
	c.account.Release(c.bytes)
	c.bytes = 0
}

// framedSize returns how many bytes of a stream a message takes.
func framedSize(message any) int {
	m, _ := message.(proto.Message)
	return wire.Framed(proto.Size(m))
}

// A chargedStream is a stream of another service. It releases each message once it was decoded.
type chargedStream struct {
	grpc.ServerStream
	account *Account
}

// RecvMsg implements grpc.ServerStream.
func (s chargedStream) RecvMsg(m any) error {
	err := s.ServerStream.RecvMsg(m)
	if err == nil {
		s.account.Release(framedSize(m))
	}
	return err
}

// SendMsg implements grpc.ServerStream.
func (s chargedStream) SendMsg(m any) error {
	err := s.ServerStream.SendMsg(m)
	if err == nil {
		s.account.Responded(framedSize(m))
	}
	return err
}

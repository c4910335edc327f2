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

// connections counts the connections of clients and limits them, for all clients and for each host (B.35). Its peers
// are hosts, since the certificate of a connection is unknown before the handshake.
type connections struct {
	limits Limits

	// Guarded by mu.
	mu      sync.Mutex
	open    int
	claimed int64               // bytes of MaxUnreadBytes that connections claimed
	peers   map[string]*peerUse // peers with an open connection or a budget that is not full
	swept   time.Time           // time of the last sweep
}

// peerUse is the usage of a peer. It is guarded by connections.mu.
type peerUse struct {
	connections int
	claimed     int64  // bytes
	frames      budget // of all its connections and polls
	arrivals    budget // of new connections
	throttled   bool   // its polls or new connections are rate-limited
}

func newConnections(l Limits) connections {
	return connections{limits: l, peers: make(map[string]*peerUse)}
}

// enter counts a connection of a peer or refuses it. The peer is empty if it has no address. The caller must call leave
// when the connection ends.
func (c *connections) enter(peer string) (leave func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	use := c.peers[peer]
	switch {
	case c.open >= c.limits.MaxConnections:
		return nil, Exceeds(LimitConnections, "%d connections are open, as many as allowed", c.open)
	case use != nil && use.connections >= c.limits.MaxPeerConnections:
		return nil, Exceeds(LimitPeerConnections, "%d connections of %s are open, as many as allowed", use.connections, peer)
	}
	c.open++
	if peer != "" {
		c.useOf(peer).connections++
	}
	return sync.OnceFunc(func() { c.leave(peer) }), nil
}

// useOf returns the usage of a peer, which it creates if needed. c.mu must be held.
func (c *connections) useOf(peer string) *peerUse {
	use := c.peers[peer]
	if use == nil {
		use = new(peerUse)
		c.peers[peer] = use
	}
	return use
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

// sweep removes peers without connections whose budgets are full. Other peers stay, so that a client does not get a new
// budget by reconnecting. c.mu must be held.
func (c *connections) sweep(now time.Time) {
	if now.Sub(c.swept) < sweepEvery {
		return
	}
	c.swept = now
	for peer, use := range c.peers {
		if use.connections == 0 && use.frames.full(frameBurst, now) && use.arrivals.full(connectionBurst, now) {
			delete(c.peers, peer)
		}
	}
}

// peerRate returns the frames a second of a peer. They suffice for as many connections at once as a peer may have, since
// a fleet may be behind one address.
func (c *connections) peerRate() int {
	return max(peerFrames, c.limits.MaxPeerConnections*connectionPrice/int(connectionBurst/time.Second))
}

// charge takes frames from the budgets of a connection and its peer. It returns the pause before the next read.
func (c *connections) charge(a *Account, frames int64, now time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	pause := a.frames.spend(frames, connFrames, now)
	if charged := a.freeBudget.takeFree(frames, now); charged > 0 && c.peers[a.peer] != nil {
		pause = max(pause, c.peers[a.peer].frames.spend(charged, c.peerRate(), now))
	}
	return pause
}

// admit takes a new connection from the budget of a peer. A connection that would wait for longer than maxPause is not
// allowed and costs nothing. began reports that the peer becomes rate-limited.
func (c *connections) admit(peer string, now time.Time) (began, allowed bool) {
	if peer == "" {
		return false, true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	use := c.useOf(peer)
	_, began, allowed = use.spend(&use.arrivals, connectionPrice, c.peerRate(), connectionBurst, now)
	return began, allowed
}

// delay returns how long an admitted connection has to wait.
func (c *connections) delay(peer string, now time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	use := c.peers[peer]
	if use == nil {
		return 0
	}
	return min(max(use.arrivals.tat.Sub(now), 0), maxPause)
}

// admitPoll takes a poll from the budget of a peer and returns how long it has to wait. began and allowed are as for
// admit.
func (c *connections) admitPoll(peer string, now time.Time) (wait time.Duration, began, allowed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if use := c.peers[peer]; use != nil {
		return use.spend(&use.frames, pollPrice, c.peerRate(), frameBurst, now)
	}
	return 0, false, true
}

// spend takes frames from one of a peer's budgets, unless that would take longer than maxPause.
func (p *peerUse) spend(
	b *budget, frames int64, rate int, burst time.Duration, now time.Time,
) (wait time.Duration, began, allowed bool) {
	before, was := *b, p.throttled
	wait = b.take(frames, rate, burst, now)
	if allowed = wait <= maxPause; !allowed {
		*b = before
	}
	p.throttled = wait > 0
	return wait, p.throttled && !was, allowed
}

// claim claims memory for the bytes that a connection holds. The error ends the connection.
func (c *connections) claim(a *Account, now time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if a.ended {
		return nil
	}
	decayed := min(int64(now.Sub(a.decayedAt).Seconds()*unreadDecay), a.held.Load())
	a.decayedAt = now
	claimed := a.claimed.Load()
	more := a.held.Add(-decayed) - freeUnread - claimed
	if more <= 0 {
		return nil
	}
	more = (more + unreadStep - 1) / unreadStep * unreadStep
	most := int64(c.limits.MaxUnreadBytes)
	switch use := c.peers[a.peer]; {
	case c.claimed+more > most:
		return Exceeds(LimitUnread, "requests of all clients hold %d bytes, as many as allowed", c.claimed)
	case use != nil && use.claimed+more > most/UnreadOfPeer:
		return Exceeds(LimitUnread, "requests of %s hold %d bytes, as many as allowed", a.peer, use.claimed)
	}
	c.setClaim(a, claimed+more)
	return nil
}

// unclaim releases all claimed memory of a connection.
func (c *connections) unclaim(a *Account) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.setClaim(a, 0)
}

// setClaim sets the claimed bytes of a connection. c.mu must be held.
func (c *connections) setClaim(a *Account, claimed int64) {
	more := claimed - a.claimed.Swap(claimed)
	c.claimed += more
	if use := c.peers[a.peer]; use != nil {
		use.claimed += more
	}
}

const (
	// freeUnread is how many bytes each connection may hold without a claim, so that small requests take no lock.
	freeUnread = 64 << 10

	// unreadStep is the unit of claims.
	unreadStep = 256 << 10

	// minFrameBytes is the minimum memory of a DATA frame while gRPC holds it. A client may send its requests in frames of
	// a single byte.
	minFrameBytes = 64

	// unreadDecay is the number of bytes a second by which the held bytes of a connection decay. Some charges are never
	// released: frames of streams that had ended, and the minimum for small frames beyond the size of their message.
	unreadDecay = 64
)

// UnreadOfPeer is the divisor for the part of [Limits.MaxUnreadBytes] that one peer may claim.
const UnreadOfPeer = 4

// An Account tracks the resources that one connection uses: the memory of its requests until they are handled, and the
// frames that it sends. Memory includes incomplete requests that gRPC buffers, waiting requests, and decoded ones. Bytes
// are charged when a frame is received, and before a request is decoded. They are released once the request was handled.
type Account struct {
	// Read-only after construction.
	connections *connections
	peer        string
	framesOnly  bool // only frames are charged: the HTTP server limits the memory

	// Owned by the reader of the connection.
	skip      int // bytes before the next frame header
	header    [9]byte
	headerLen int           // received bytes of the header
	uncharged int64         // frames that are not charged yet
	pause     time.Duration // before the next read
	throttled bool          // reads are paused and small

	held        atomic.Int64
	replyFrames atomic.Int64 // frames that may reply to responses
	claimed     atomic.Int64 // written under connections.mu
	refused     atomic.Bool  // the relay closed the connection because of a limit

	// Guarded by connections.mu.
	frames     budget
	freeBudget budget // frames that the peer is not charged for
	decayedAt  time.Time
	ended      bool // nothing is held or claimed any more

	closed chan struct{} // closed by Close
}

// http2Preface is the connection preface of HTTP/2. No HTTP/1 request starts with its first http2PrefixLen bytes.
const (
	http2Preface   = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	http2PrefixLen = len("PRI ")
)

func newAccount(all *connections, peer string) *Account {
	return &Account{
		connections: all, peer: peer, skip: len(http2Preface), decayedAt: time.Now(), closed: make(chan struct{}),
	}
}

// received charges for bytes that were received on the connection. The error means that the connection exceeds a limit,
// and ends it.
func (a *Account) received(bytes []byte) error {
	for len(bytes) > 0 {
		if a.skip > 0 {
			n := min(a.skip, len(bytes))
			a.skip, bytes = a.skip-n, bytes[n:]
			continue
		}
		n := copy(a.header[a.headerLen:], bytes)
		a.headerLen, bytes = a.headerLen+n, bytes[n:]
		if a.headerLen < len(a.header) {
			break
		}
		kind := a.header[3]
		length := int(a.header[0])<<16 | int(a.header[1])<<8 | int(a.header[2])
		a.skip, a.headerLen = length, 0
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
	case <-a.closed: // do not decode for a client that has disconnected
		err = cmp.Or(err, status.Error(codes.Unavailable, "the connection has ended"))
	default:
	}
	if err != nil {
		a.Release(bytes)
	}
	return err
}

// Release releases the bytes of a request that was handled.
func (a *Account) Release(bytes int) {
	if a == nil {
		return
	}
	held := a.held.Add(-int64(bytes))
	if held < 0 { // part of it has decayed
		a.held.CompareAndSwap(held, 0)
	}
	if held <= freeUnread && a.claimed.Load() > 0 {
		a.connections.unclaim(a)
	}
}

// Responded records that a response of so many bytes was sent. The frames that reply to it are not charged.
func (a *Account) Responded(bytes int) {
	if a != nil {
		a.replyFrames.Add(replyPrice + int64(bytes/frameSize))
	}
}

// Refused reports whether the relay ended the connection because its requests exceeded a limit.
func (a *Account) Refused() bool { return a != nil && a.refused.Load() }

// Close releases everything, and ends a pause of [Account.AwaitRead]. It may be called more than once.
func (a *Account) Close() {
	a.connections.mu.Lock()
	defer a.connections.mu.Unlock()
	if a.ended {
		return
	}
	a.ended = true
	close(a.closed)
	a.connections.setClaim(a, 0)
}

// countFrame counts a received frame.
func (a *Account) countFrame(kind byte, length int) {
	a.uncharged += 1 + int64(length/frameSize)
	switch kind {
	case dataFrame:
		a.uncharged += requestPrice
	case headersFrame:
		a.uncharged += streamPrice
	case resetFrame:
		a.uncharged += resetPrice
	}
}

// countBytes counts bytes of HTTP/1, which has no frames, as frames of frameSize.
func (a *Account) countBytes(n int) { a.uncharged += int64((n + frameSize - 1) / frameSize) }

// throttle charges for the received frames, and pauses the next read if they exceed a budget. It reports whether the
// connection becomes rate-limited.
func (a *Account) throttle() (began bool) {
	if a.uncharged < frameStep {
		return false
	}
	if a.uncharged = a.unsolicitedFrames(a.uncharged); a.uncharged < frameStep {
		return false
	}
	a.pause = a.connections.charge(a, a.uncharged, time.Now())
	a.uncharged = 0
	was := a.throttled
	a.throttled = a.pause > 0
	return a.throttled && !was
}

// unsolicitedFrames returns how many of the frames do not reply to a response. It keeps the credit for further replies,
// but no more than a burst, since a client need not reply.
func (a *Account) unsolicitedFrames(frames int64) int64 {
	free := min(a.replyFrames.Swap(0), connFrames*int64(frameBurst/time.Second))
	if free > frames {
		a.replyFrames.Add(free - frames)
	}
	return max(frames-free, 0)
}

// AwaitRead waits until the pause or the connection ends, and returns how many bytes, at most size, to read then.
func (a *Account) AwaitRead(size int) int {
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

// A Charge has the bytes that one request is charged for.
type Charge struct {
	account *Account // nil: nothing is charged
	bytes   int
}

// Charged returns the charge of a request whose bytes were charged when they were received.
func (a *Account) Charged(bytes int) Charge { return Charge{a, bytes} }

// Hold charges for more bytes, and implements [wire.Memory].
func (c *Charge) Hold(bytes int) error {
	err := c.account.Hold(bytes)
	if err == nil {
		c.bytes += bytes
	}
	return err
}

// Release releases all bytes. Further calls do nothing.
func (c *Charge) Release() {
	c.account.Release(c.bytes)
	c.bytes = 0
}

// framedSize returns the size of a message on a stream, with its frame header.
func framedSize(message any) int {
	m, _ := message.(proto.Message)
	return wire.Framed(proto.Size(m))
}

// A chargedStream is a stream of a service that does not release its requests itself. It releases each message once it
// was decoded.
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

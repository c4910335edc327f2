package downstream

import (
	"cmp"
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache/wire"
)

const (
	// unreadFree is what each connection may hold without being counted among all: what
	// small clients send takes no lock.
	freeUnread = 64 << 10

	// unreadStep is what a connection claims at once of what all may hold.
	unreadStep = 256 << 10

	// frameBytes is what a frame of data takes at least while it is held: a client may send its
	// requests in single bytes.
	minFrameBytes = 64

	// unreadLeak is forgiven each second: what came for a stream that had ended is gone,
	// and so is most of what a frame is taken for that has a smaller message in it.
	forgivenUnread = 64
)

// UnreadOfPeer is the part of [Config.MaxUnreadBytes] that one peer may claim: one in so
// many.
const UnreadOfPeer = 4

// A backlog is how much memory the requests of a connection hold that are not handled yet: what has come of those that are not
// whole, which gRPC keeps until they are, whole ones that wait, and what they became, decompressed or decoded. Bytes are
// counted frame by frame as they come, what is made of them before it is made, and both are given back request by request, once
// it was handled.
type Account struct {
	all  *connections
	peer string

	held       atomic.Int64
	framesOnly bool // what comes is held by another, who bounds it

	// Of the one who reads the connection: where it is in the frames.
	skip   int // bytes until the next header
	header [9]byte
	have   int // bytes of the header

	// Of the one who reads the connection too: what came that is not paid for, see pay.
	frames    int64
	pause     time.Duration // before the next read
	throttled bool          // reads are apart

	replyFrames atomic.Int64 // frames that may answer responses
	budget      budget       // guarded by all.mu
	free        budget       // likewise; what the peer is not charged for

	claimed    atomic.Int64  // written under all.mu
	forgivenAt time.Time     // guarded by all.mu
	ended      bool          // likewise; the connection holds nothing any more
	closed     chan struct{} // closed then
}

func newAccount(all *connections, peer string) *Account {
	return &Account{all: all, peer: peer, skip: len(http2Preface), forgivenAt: time.Now(), closed: make(chan struct{})}
}

// came counts what came on the connection. The error says that it holds too much, and ends
// it.
func (b *Account) received(bytes []byte) error {
	for len(bytes) > 0 {
		if b.skip > 0 {
			n := min(b.skip, len(bytes))
			b.skip, bytes = b.skip-n, bytes[n:]
			continue
		}
		n := copy(b.header[b.have:], bytes)
		b.have, bytes = b.have+n, bytes[n:]
		if b.have < len(b.header) {
			break
		}
		kind := b.header[3]
		length := int(b.header[0])<<16 | int(b.header[1])<<8 | int(b.header[2])
		b.skip, b.have = length, 0
		b.countFrame(kind, length)
		if kind == dataFrame && length > 0 && !b.framesOnly {
			b.held.Add(int64(max(length, minFrameBytes)))
		}
	}
	if b.held.Load() <= b.claimed.Load()+freeUnread {
		return nil
	}
	return b.all.claim(b, time.Now())
}

// Hold implements wire.Memory.
func (b *Account) Hold(bytes int) error {
	if b == nil || b.held.Add(int64(bytes)) <= b.claimed.Load()+freeUnread {
		return nil
	}
	err := b.all.claim(b, time.Now())
	select {
	case <-b.closed: // who is not there any more is not decoded for
		err = cmp.Or(err, status.Error(codes.Unavailable, "the connection has ended"))
	default:
	}
	if err != nil {
		b.Release(bytes)
	}
	return err
}

// handled gives back what a request was charged with.
func (b *Account) Release(bytes int) {
	if b == nil {
		return
	}
	held := b.held.Add(-int64(bytes))
	if held < 0 { // some of it was forgiven
		b.held.CompareAndSwap(held, 0)
	}
	if held <= freeUnread && b.claimed.Load() > 0 {
		b.all.unclaim(b)
	}
}

// claim has a connection hold more, or says why it may not.
func (c *connections) claim(b *Account, now time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if b.ended {
		return nil
	}
	forgiven := min(int64(now.Sub(b.forgivenAt).Seconds()*forgivenUnread), b.held.Load())
	b.forgivenAt = now
	claimed := b.claimed.Load()
	more := b.held.Add(-forgiven) - freeUnread - claimed
	if more <= 0 {
		return nil
	}
	more = (more + unreadStep - 1) / unreadStep * unreadStep
	switch of := c.peers[b.peer]; {
	case c.unread+more > c.mostUnread:
		return Exceeds(LimitUnread, "%d bytes of all requests are not read or not whole, as many as allowed", c.unread)
	case of != nil && of.unread+more > c.mostUnread/UnreadOfPeer:
		return Exceeds(LimitUnread, "%d bytes of requests of %s are not read or not whole, as many as allowed", of.unread, b.peer)
	}
	c.grant(b, claimed+more)
	return nil
}

// unclaim gives back all that a connection has claimed.
func (c *connections) unclaim(b *Account) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.grant(b, 0)
}

// end gives it back for good.
func (b *Account) close() {
	b.all.mu.Lock()
	defer b.all.mu.Unlock()
	if b.ended {
		return
	}
	b.ended = true
	close(b.closed)
	b.all.grant(b, 0)
}

// grant notes what a connection claims. c.mu must be held.
func (c *connections) grant(b *Account, claimed int64) {
	more := claimed - b.claimed.Swap(claimed)
	c.unread += more
	if of := c.peers[b.peer]; of != nil {
		of.unread += more
	}
}

// A charge is what a poll, or a message, was charged with.
type Charge struct {
	account *Account // of the connection; nil if nobody counts
	bytes   int
}

// Hold implements wire.Memory.
func (c *Charge) Hold(bytes int) error {
	err := c.account.Hold(bytes)
	if err == nil {
		c.bytes += bytes
	}
	return err
}

// handled gives it back, once.
func (c *Charge) Release() {
	c.account.Release(c.bytes)
	c.bytes = 0
}

// CountUnary is an interceptor that gives back what calls with one request were charged with: those of services that are not the
// server's own.
func (s *Server) CountUnary(ctx context.Context, r any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	b := AccountOf(ctx)
	answer, err := handle(ctx, r)
	b.Release(framedSize(r))
	b.Responded(framedSize(answer))
	return answer, err
}

// framed returns how many bytes of a stream a message takes.
func framedSize(message any) int {
	m, _ := message.(proto.Message)
	return wire.Framed(proto.Size(m))
}

// A countedStream is one of a service that is not the server's own, and gives back what its messages were charged with.
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

// backlogOf returns the backlog of the connection of a stream, nil if that has none.
func AccountOf(ctx context.Context) *Account {
	if p, ok := peer.FromContext(ctx); ok {
		if c, ok := p.AuthInfo.(connInfo); ok {
			return c.account
		}
	}
	return nil
}

package downstream

import (
	"context"
	"time"
)

// Types of frames, as RFC 9113 numbers them.
const (
	dataFrame    = 0x0
	headersFrame = 0x1
	resetFrame   = 0x3
)

// A connection may send so many frames a second beside its answers, and its peer
// framesOfPeer times as many, over all its connections; of both, as many at once as in
// framesAtOnce. More are read later (B.35).
const (
	peerFrames = 4
	frameBurst = 10 * time.Second
)

// arrivalsAtOnce is how many connections a peer may open at once, in time: a fleet behind one address comes back
// as one, but no fleet does so all the time.
const connectionBurst = 50 * time.Second

// What a connection may send without a lock, and what it may without its peer being charged: a fleet may be behind one
// address, and come at once.
const (
	frameStep  = 64
	freeFrames = 50 // a second
	freeBurst  = 20 * time.Second
)

const (
	// frameSize is what counts as one frame more, in those that are larger.
	frameSize = 2 << 10

	// What else is about as much work as so many frames. A reset is more than that: who opens streams to
	// reset them is to be slower than who has use for them.
	requestPrice    = 10 // a frame of data, which may be one
	streamPrice     = 10 // a header, which begins a stream
	resetPrice      = 50
	pollPrice       = 10
	connectionPrice = 100 // see arrivalsAtOnce

	// framesAnswering is what a response may be answered by: the ACK, the credits of the connection's
	// and the stream's window, and the answer to a ping that measures the line.
	replyPrice = 1 + requestPrice + 3

	// framePause is the longest pause between two reads. What would take longer is
	// forgiven: a peer has many connections, and none must seem dead.
	maxPause = 5 * time.Second

	// frameRead is how much is read at once of a connection that makes pauses.
	throttledRead = 256
)

// A frameBudget is what may be spent on frames: the moment at which all that was spent has
// been earned. One that is past by as much as there may be at once is full.
type budget struct{ earned time.Time }

// spend takes frames at a rate of so many a second, and returns for how long nothing more
// may be.
func (b *budget) spend(frames int64, rate int, now time.Time) time.Duration {
	over := b.take(frames, rate, frameBurst, now)
	if over > maxPause {
		b.earned = now.Add(maxPause)
	}
	return min(over, maxPause)
}

// take takes frames, of which there may be as many at once as in some time, and returns how long it takes
// to earn those that were too many.
func (b *budget) take(frames int64, rate int, atOnce time.Duration, now time.Time) time.Duration {
	if full := now.Add(-atOnce); b.earned.Before(full) {
		b.earned = full
	}
	b.earned = b.earned.Add(time.Duration(frames) * time.Second / time.Duration(rate))
	return max(b.earned.Sub(now), 0)
}

// exceed takes frames of those that are free, and returns how many are not.
func (b *budget) takeFree(frames int64, now time.Time) int64 {
	over := b.take(frames, freeFrames, freeBurst, now)
	if over > 0 {
		b.earned = now
	}
	return int64(over / (time.Second / freeFrames))
}

// frame counts a frame that came.
func (b *Account) countFrame(kind byte, length int) {
	b.frames += 1 + int64(length/frameSize)
	switch kind {
	case dataFrame:
		b.frames += requestPrice
	case headersFrame:
		b.frames += streamPrice
	case resetFrame:
		b.frames += resetPrice
	}
}

// bytes counts what came without frames, as HTTP/1 has it: as if it were frames of frameSize.
func (b *Account) countBytes(n int) { b.frames += int64((n + frameSize - 1) / frameSize) }

// wrote counts a response that left: the frames that answer it are free.
func (b *Account) Responded(bytes int) {
	if b != nil {
		b.replyFrames.Add(replyPrice + int64(bytes/frameSize))
	}
}

// pay has the connection pause before its next read, if too much came, and reports whether
// that is news.
func (b *Account) throttle() (news bool) {
	if b.frames < frameStep {
		return false
	}
	if b.frames = b.unsolicited(b.frames); b.frames < frameStep {
		return false
	}
	b.pause = b.all.spend(b, b.frames, time.Now())
	b.frames = 0
	was := b.throttled
	b.throttled = b.pause > 0
	return b.throttled && !was
}

// unanswering returns how many of some frames answer nothing. What may answer still is kept, but not
// for ever: it is no more than may come at once.
func (b *Account) unsolicited(frames int64) int64 {
	free := min(b.replyFrames.Swap(0), int64(b.all.frameRate)*int64(frameBurst/time.Second))
	if free > frames {
		b.replyFrames.Add(free - frames)
	}
	return max(frames-free, 0)
}

// await pauses, and returns how much to read then, of as much as size. The end of the connection ends
// the pause.
func (b *Account) awaitRead(size int) int {
	if !b.throttled {
		return size
	}
	if b.pause > 0 {
		timer := time.NewTimer(b.pause)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-b.closed:
		}
		b.pause = 0
	}
	return min(size, throttledRead)
}

// spend takes frames from what a connection and its peer may send, and returns for how long
// no more of it may be read.
func (c *connections) spend(b *Account, frames int64, now time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	pause := b.budget.spend(frames, c.frameRate, now)
	if charged := b.free.takeFree(frames, now); charged > 0 && c.peers[b.peer] != nil {
		pause = max(pause, c.peers[b.peer].budget.spend(charged, peerFrames*c.frameRate, now))
	}
	return pause
}

// arrive takes a connection from those that a peer may open, and reports whether it may come: one that would have to
// wait for longer than framePause may not, and pays nothing. It is news if connections begin to wait.
func (c *connections) admit(peer string, now time.Time) (news, may bool) {
	if peer == "" {
		return false, true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	of := c.of(peer)
	_, news, may = of.spend(&of.arrivals, connectionPrice, peerFrames*c.frameRate, connectionBurst, now)
	return news, may
}

// due returns for how long a connection that has come has to wait.
func (c *connections) delay(peer string, now time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	of := c.peers[peer]
	if of == nil {
		return 0
	}
	return min(max(of.arrivals.earned.Sub(now), 0), maxPause)
}

// poll takes a poll from what a peer may send beside what its connections do, and returns for how long it has to
// wait, whether that is news, and whether it may come, as arrive does.
func (c *connections) poll(peer string, now time.Time) (wait time.Duration, news, may bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if of := c.peers[peer]; of != nil {
		return of.spend(&of.budget, pollPrice, peerFrames*c.frameRate, frameBurst, now)
	}
	return 0, false, true
}

// spend takes frames from one of a peer's budgets.
func (of *peerUse) spend(b *budget, frames int64, rate int, atOnce time.Duration, now time.Time) (wait time.Duration, news, may bool) {
	before, was := *b, of.slowed
	wait = b.take(frames, rate, atOnce, now)
	if may = wait <= maxPause; !may {
		*b = before
	}
	of.slowed = wait > 0
	return wait, of.slowed && !was, may
}

// rested reports whether nothing is to be remembered of a peer without connections.
func (of *peerUse) rested(now time.Time) bool {
	return !of.budget.earned.After(now.Add(-frameBurst)) && !of.arrivals.earned.After(now.Add(-connectionBurst))
}

// pace has a poll of a peer wait, if that sends more than it may, until ctx ends or the server drains, and reports
// whether it may come.
func (s *Server) pace(ctx context.Context, peer string) bool {
	wait, news, may := s.connections.poll(peer, time.Now())
	if news {
		s.throttled(peer)
	}
	if may {
		s.await(ctx, wait)
	}
	return may
}

// await lets time pass, until ctx ends or the server drains.
func (s *Server) await(ctx context.Context, wait time.Duration) {
	if wait == 0 {
		return
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	case <-s.draining:
	}
}

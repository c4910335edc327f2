package downstream

import (
	"context"
	"time"
)

// A connection may send so many frames a second beside its answers, and its peer
// framesOfPeer times as many, over all its connections; of both, as many at once as in
// framesAtOnce. More are read later (B.35).
const (
	framesOfPeer = 10
	framesAtOnce = 10 * time.Second
)

const (
	// frameStep is how many frames are looked at together: a client that sends few of them beside its
	// answers meets no lock, whatever else its peer sends.
	frameStep = 64

	// frameSize is what counts as one frame, of those that are larger.
	frameSize = 4 << 10

	// frameStream is for how many frames one counts that begins a stream, and framePoll for how
	// many a poll does: about what they cost.
	frameStream = 20
	framePoll   = 10

	// framesAnswering is how many frames a response may be answered by: the ACK, the credits of
	// the connection's and the stream's window, and the answer to a ping that measures the line.
	framesAnswering = 8

	// framePause is the longest pause between two reads. What would take longer is
	// forgiven: a peer has many connections, and none must seem dead.
	framePause = 5 * time.Second

	// frameRead is how much is read at once of a connection that makes pauses.
	frameRead = 256
)

// A frameBudget is what may be spent on frames: the moment at which all that was spent has
// been earned. One that is past by framesAtOnce is full.
type frameBudget struct{ earned time.Time }

// spend takes frames at a rate of so many a second, and returns for how long nothing more
// may be.
func (b *frameBudget) spend(frames int64, rate int, now time.Time) time.Duration {
	if full := now.Add(-framesAtOnce); b.earned.Before(full) {
		b.earned = full
	}
	b.earned = b.earned.Add(time.Duration(frames) * time.Second / time.Duration(rate))
	if latest := now.Add(framePause); b.earned.After(latest) {
		b.earned = latest
	}
	return max(b.earned.Sub(now), 0)
}

// frame counts a frame that came.
func (b *backlog) frame(length int, begins bool) {
	b.frames += 1 + int64(length/frameSize)
	if begins {
		b.frames += frameStream - 1
	}
}

// wrote counts a response that left: the frames that answer it are free.
func (b *backlog) wrote(bytes int) { b.answering.Add(framesAnswering + int64(bytes/frameSize)) }

// pay has the connection pause before its next read, if too much came, and reports whether
// that is news.
func (b *backlog) pay() (news bool) {
	if b.frames < frameStep {
		return false
	}
	if b.frames = b.unanswering(b.frames); b.frames < frameStep {
		return false
	}
	b.pause = b.all.spend(b, b.frames, time.Now())
	b.frames = 0
	was := b.slowed
	b.slowed = b.pause > 0
	return b.slowed && !was
}

// unanswering returns how many of some frames answer nothing. What may answer still is kept, but not
// for ever: it is no more than may come at once.
func (b *backlog) unanswering(frames int64) int64 {
	free := min(b.answering.Swap(0), int64(b.all.frameRate)*int64(framesAtOnce/time.Second))
	if free > frames {
		b.answering.Add(free - frames)
	}
	return max(frames-free, 0)
}

// await pauses, and returns how much to read then, of as much as size. The end of the connection ends
// the pause.
func (b *backlog) await(size int) int {
	if !b.slowed {
		return size
	}
	if b.pause > 0 {
		timer := time.NewTimer(b.pause)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-b.gone:
		}
		b.pause = 0
	}
	return min(size, frameRead)
}

// spend takes frames from what a connection and its peer may send, and returns for how long
// no more of it may be read.
func (c *connections) spend(b *backlog, frames int64, now time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	pause := b.budget.spend(frames, c.frameRate, now)
	if of := c.peers[b.peer]; of != nil {
		pause = max(pause, of.budget.spend(frames, framesOfPeer*c.frameRate, now))
	}
	return pause
}

// spendPoll takes a poll from what a peer may send, and returns for how long it has to wait, and whether
// it is the first that has to.
func (c *connections) spendPoll(peer string, now time.Time) (wait time.Duration, news bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	of := c.peers[peer]
	if of == nil {
		return 0, false
	}
	wait = of.budget.spend(framePoll, framesOfPeer*c.frameRate, now)
	was := of.slowed
	of.slowed = wait > 0
	return wait, of.slowed && !was
}

// pacePoll has a poll wait whose peer sends more than it may.
func (s *Server) pacePoll(ctx context.Context, peer string) {
	wait, news := s.connections.spendPoll(peer, time.Now())
	if news {
		s.slowed(peer)
	}
	if wait > 0 {
		sleep(ctx, wait)
	}
}

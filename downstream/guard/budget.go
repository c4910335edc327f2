package guard

import (
	"time"
)

// Types of HTTP/2 frames (RFC 9113).
const (
	dataFrame    = 0x0
	headersFrame = 0x1
	resetFrame   = 0x3
)

// The budgets of frames that do not answer responses, beside [Limits.MaxFrameRate] for a connection. What exceeds a
// budget is read later (B.35).
const (
	// peerFrames is the budget of a peer, in budgets of a connection.
	peerFrames = 4

	// frameBurst is how long a budget of frames takes to fill.
	frameBurst = 10 * time.Second

	// connectionBurst is how long a peer's budget of new connections takes to fill. It is large, since a fleet behind
	// one address reconnects at once, but does not do so all the time.
	connectionBurst = 50 * time.Second

	// freeFrames is the number of frames a second of each connection that its peer is not charged for, freeBurst how
	// long that budget takes to fill: a fleet may be behind one address, and connect at once.
	freeFrames = 50
	freeBurst  = 20 * time.Second

	// frameStep is how many frames a connection may send before a lock is taken to charge it.
	frameStep = 64

	// maxPause is the longest pause between two reads. What would take longer is forgiven: a peer has many
	// connections, and none must look dead.
	maxPause = 5 * time.Second

	// throttledRead is the size of a read of a rate-limited connection.
	throttledRead = 256
)

// The prices of what clients send, in frames.
const (
	frameSize       = 2 << 10 // bytes; each further one of them is one frame more
	requestPrice    = 10      // a DATA frame, which may be a request
	streamPrice     = 10      // a HEADERS frame, which opens a stream
	resetPrice      = 50      // an RST_STREAM frame; more than opening a stream, so that doing both in a loop is slow
	pollPrice       = 10
	connectionPrice = 100 // of the budget of new connections

	// replyPrice is what a client may send in reply to a response: the ACK, the WINDOW_UPDATE frames of the
	// connection and the stream, and the ACK of a PING.
	replyPrice = 1 + requestPrice + 3
)

// A budget limits a rate. It is the time at which all that was spent is earned again: a budget that is a burst in the
// past is full.
type budget struct{ earned time.Time }

// take spends frames of so many a second, and returns how long it takes to earn those that exceed the burst.
func (b *budget) take(frames int64, rate int, burst time.Duration, now time.Time) time.Duration {
	if b.full(burst, now) {
		b.earned = now.Add(-burst)
	}
	b.earned = b.earned.Add(time.Duration(frames) * time.Second / time.Duration(rate))
	return max(b.earned.Sub(now), 0)
}

// full reports whether a whole burst may be spent.
func (b *budget) full(burst time.Duration, now time.Time) bool {
	return !b.earned.After(now.Add(-burst))
}

// spend takes frames, and returns the pause until more may be read. What would take longer than maxPause is forgiven.
func (b *budget) spend(frames int64, rate int, now time.Time) time.Duration {
	wait := b.take(frames, rate, frameBurst, now)
	if wait > maxPause {
		b.earned = now.Add(maxPause)
	}
	return min(wait, maxPause)
}

// takeFree takes frames that the peer is not charged for, and returns how many it is charged for.
func (b *budget) takeFree(frames int64, now time.Time) int64 {
	over := b.take(frames, freeFrames, freeBurst, now)
	if over > 0 {
		b.earned = now
	}
	return int64(over / (time.Second / freeFrames))
}

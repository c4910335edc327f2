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

// The budgets of frames that do not answer responses. The relay reads frames beyond a budget later (B.35).
const (
	// connFrames is the budget of a connection, in frames a second.
	connFrames = 5000

	// peerFrames is the budget of a peer in frames a second. connections.peerRate raises it for many connections.
	peerFrames = 4 * connFrames

	// frameBurst is the burst of a budget of frames, as the time in which it refills.
	frameBurst = 10 * time.Second

	// connectionBurst is the burst of a peer's budget of new connections, as the time in which it refills. It is large,
	// since a fleet behind one address reconnects at once, but rarely.
	connectionBurst = 50 * time.Second

	// freeFrames is the number of frames a second of each connection that its peer is not charged for, since a fleet may
	// be behind one address. freeBurst is the burst of that, as the time in which it refills.
	freeFrames = 50
	freeBurst  = 20 * time.Second

	// frameStep is the number of frames that are charged at once, which takes a lock.
	frameStep = 64

	// maxPause is the longest pause between two reads. The budget drops any debt beyond it. A peer may have many
	// connections, and a longer pause would make them look dead.
	maxPause = 5 * time.Second

	// throttledRead is the size of a read of a rate-limited connection.
	throttledRead = 256
)

// The costs of frames, polls and connections, in frames.
const (
	frameSize       = 2 << 10 // bytes; each further 2 KiB of a frame cost one more
	requestPrice    = 10      // a DATA frame, which may be a request
	streamPrice     = 10      // a HEADERS frame, which opens a stream
	resetPrice      = 50      // an RST_STREAM frame; more than opening a stream, so that doing both in a loop is slow
	pollPrice       = 10
	connectionPrice = 100 // of the budget of new connections

	// replyPrice is the cost of the frames that a client may send in reply to a response: the ACK, the WINDOW_UPDATE
	// frames of the connection and the stream, and the ACK of a PING.
	replyPrice = 1 + requestPrice + 3
)

// A budget is a rate limit by the generic cell rate algorithm (GCRA). tat is its theoretical arrival time: the budget
// is full if tat is a burst or more in the past, and exhausted if it is in the future.
type budget struct{ tat time.Time }

// take spends frames at a rate of frames a second. It returns how long it takes to refill the excess over the burst.
func (b *budget) take(frames int64, rate int, burst time.Duration, now time.Time) time.Duration {
	if b.full(burst, now) {
		b.tat = now.Add(-burst)
	}
	b.tat = b.tat.Add(time.Duration(frames) * time.Second / time.Duration(rate))
	return max(b.tat.Sub(now), 0)
}

// full reports whether the whole burst is available.
func (b *budget) full(burst time.Duration, now time.Time) bool {
	return !b.tat.After(now.Add(-burst))
}

// spend takes frames and returns the pause before the next read. It drops any debt beyond maxPause.
func (b *budget) spend(frames int64, rate int, now time.Time) time.Duration {
	wait := b.take(frames, rate, frameBurst, now)
	if wait > maxPause {
		b.tat = now.Add(maxPause)
	}
	return min(wait, maxPause)
}

// takeFree takes frames from a connection's free budget. It returns how many exceed it and are charged to the peer.
func (b *budget) takeFree(frames int64, now time.Time) int64 {
	over := b.take(frames, freeFrames, freeBurst, now)
	if over > 0 {
		b.tat = now
	}
	return int64(over / (time.Second / freeFrames))
}

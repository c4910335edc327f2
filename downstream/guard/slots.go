package guard

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// slotsPerCore is how many slots there are for each core.
	slotsPerCore = 64

	// slotTimeout is the time after which a slot is freed even if the client does not read.
	slotTimeout = time.Second
)

// Slots limit how many streams build a first response at the same time if the send may block on the client. A worker
// cannot send those, so each such stream has a goroutine, and thousands at once would need memory for all their
// responses. Streams wait for a slot in the order of their requests (B.35).
type Slots struct {
	taken   chan struct{}
	waiting atomic.Int64
}

// NewSlots returns 64 free slots for each core.
func NewSlots() Slots { return Slots{taken: make(chan struct{}, slotsPerCore*runtime.GOMAXPROCS(0))} }

// Take waits for a slot, and returns the function that frees it.
func (s *Slots) Take() (free func()) {
	s.waiting.Add(1)
	s.taken <- struct{}{} // first come, first served
	s.waiting.Add(-1)
	release := sync.OnceFunc(func() { <-s.taken })
	timer := time.AfterFunc(slotTimeout, release)
	return func() {
		timer.Stop()
		release()
	}
}

// Waiting returns how many streams wait for a slot.
func (s *Slots) Waiting() int { return int(s.waiting.Load()) }

package downstream

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// placesPerCore is how many streams whose client is slow to read may have a first
	// response of a type made and handed over at the same time.
	slotsPerCore = 64

	// placeHeld is how long one of them keeps its place if the client does not read.
	slotTimeout = time.Second
)

// Places are given to streams whose first responses a worker cannot send, since that may
// have to wait for the client: each is made by a goroutine of the stream's own, and thousands
// that do so at once would need memory for all that they make. Who finds no place waits for
// one, in the order of coming (B.35).
type Slots struct {
	taken   chan struct{}
	waiting atomic.Int64
}

func NewSlots() Slots {
	return Slots{taken: make(chan struct{}, slotsPerCore*runtime.GOMAXPROCS(0))}
}

// take waits for a place, and returns the function that frees it; it is free after placeHeld
// in any case.
func (p *Slots) Take() (free func()) {
	p.waiting.Add(1)
	p.taken <- struct{}{} // first come, first served
	p.waiting.Add(-1)
	release := sync.OnceFunc(func() { <-p.taken })
	timer := time.AfterFunc(slotTimeout, release)
	return func() {
		timer.Stop()
		release()
	}
}

// admit waits for a place if the stream has first responses to send.
func (s *stream) admit() (free func()) {
	s.lock.take()
	first := s.unanswered()
	s.lock.leave()
	if !first {
		return func() {}
	}
	return s.server.slots.Take()
}

package downstream

import (
	"sync"
	"time"
)

// A herd is many streams that begin together, as when a fleet or its relay restarts: at least herdStreams, and a quarter
// of all that are open. It has been served once no stream began and nothing was sent for herdPause.
const (
	herdStreams  = 500
	herdFraction = 4
	herdPause    = 250 * time.Millisecond
)

// arrivals says when a herd has been served.
type arrivals struct {
	served func()                          // called for each herd; nil if nobody wants to know
	turns  func() (taken int64, busy bool) // of the queue
	open   func() int64                    // streams

	mu    sync.Mutex
	fresh int64       // streams that came since the last herd was served
	taken int64       // turns, when last looked at
	timer *time.Timer // runs while there may be a herd
}

// arrived counts a stream that begins.
func (a *arrivals) arrived() {
	if a.served == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	switch a.fresh++; {
	case a.fresh < herdStreams:
	case a.timer == nil:
		a.timer = time.AfterFunc(herdPause, a.check)
	default:
		a.timer.Reset(herdPause)
	}
}

// check calls served if a herd has been served.
func (a *arrivals) check() {
	if a.herdServed() {
		a.served()
	}
}

func (a *arrivals) herdServed() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.fresh < max(herdStreams, a.open()/herdFraction) {
		return false
	}
	taken, busy := a.turns()
	if quiet := !busy && taken == a.taken; !quiet {
		a.taken = taken
		a.timer.Reset(herdPause)
		return false
	}
	a.fresh = 0
	return true
}

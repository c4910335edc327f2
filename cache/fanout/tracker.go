package fanout

import (
	"slices"
	"time"
)

// maxOpen is how many changes of a type are followed at the same time. While clients are slow, or changes
// frequent, these stand for the others.
const maxOpen = 16

// GiveUp is how long a change or a response is followed. Clients that have not answered by then are given up.
const GiveUp = time.Minute

// A Tracker has the fan-outs of one writer that have not ended. It belongs to the goroutine of the writer. The zero
// value is empty.
type Tracker struct {
	open []*Fanout
}

// Add begins to follow a change, or sets Unfollowed and returns false if as many changes of the type are followed as
// may be.
func (t *Tracker) Add(f *Fanout) bool {
	t.open = slices.DeleteFunc(t.open, func(f *Fanout) bool { return f.ended.Load() })
	same := 0
	for _, o := range t.open {
		if o.Key == f.Key {
			same++
		}
	}
	if f.Unfollowed = same >= maxOpen; f.Unfollowed {
		return false
	}
	t.open = append(t.open, f)
	return true
}

// EndOld ends the fan-outs that have been followed for GiveUp. The writer calls it now and then.
func (t *Tracker) EndOld(now time.Time) {
	for _, f := range t.open {
		if now.Sub(f.Began) >= GiveUp {
			f.giveUp()
		}
	}
}

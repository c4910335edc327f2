package cache

import (
	"sync/atomic"
	"time"
)

// A question is a request by which an origin was asked for names.
type question struct {
	at       int64        // in Unix nanoseconds
	answered atomic.Int64 // when the origin first said something of one of the names; 0 if it did not
}

// answered records that the origin said something of a name that it was asked for.
func (n *Name) answered(now time.Time) {
	if q := n.asked.Load(); q != nil {
		q.answered.CompareAndSwap(0, now.UnixNano())
	}
}

// RequestAnswered returns when the origin first said something of any of the names that it was asked for by the same
// request as this one, on the connection that is up; zero if it did not.
func (n *Name) RequestAnswered() time.Time {
	if q := n.asked.Load(); q != nil {
		if at := q.answered.Load(); at != 0 {
			return time.Unix(0, at)
		}
	}
	return time.Time{}
}

// An Unanswered name is one that somebody asked for, and of which the view knows nothing.
type Unanswered struct {
	Type string // or the collection, see Collection
	Name *Name
}

// Unanswered returns the names that streams ask for and of which the view knows nothing, not
// even that they do not exist.
func (v *View) Unanswered() (names []Unanswered) {
	h := v.Head()
	x := &v.index
	x.mu.Lock()
	defer x.mu.Unlock()
	for key, t := range x.types {
		typ := h.Type(key)
		for _, n := range t.names {
			if len(n.watchers) == 0 {
				continue
			}
			if e, _ := typ.Lookup(n); e == nil && typ.Errors(Named).Get(n) == nil {
				names = append(names, Unanswered{key, n})
			}
		}
	}
	return names
}

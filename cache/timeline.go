package cache

import (
	"sort"
	"sync"
	"time"
)

// moments is how many changes of a view have their time remembered.
const moments = 256

// A timeline says when the newest changes of a view were made, for who asks how late
// somebody learns of them. Its zero value is empty.
type timeline struct {
	mu   sync.Mutex
	ring [moments]moment // by seq, from next on round to next
	next int
}

// A moment is when a view came to a position.
type moment struct {
	seq Seq
	at  time.Time
}

// passed records that the view has come to p, which is after all that were recorded.
func (l *timeline) passed(p Seq, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ring[l.next] = moment{p, at}
	l.next = (l.next + 1) % moments
}

// when returns when the view came to p, or passed it; the zero time if it never did. Of
// what was too long ago to be remembered, it is the time of the oldest that is.
func (l *timeline) when(p Seq) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if newest := &l.ring[(l.next+moments-1)%moments]; newest.seq < p {
		return time.Time{}
	}
	oldest := 0
	if l.ring[l.next].seq != 0 {
		oldest = l.next
	}
	n := sort.Search(moments, func(i int) bool {
		m := &l.ring[(oldest+i)%moments]
		return m.seq == 0 || m.seq >= p
	})
	return l.ring[(oldest+n)%moments].at
}

// ChangedAfter returns when the oldest change of a type was made that a reader at p has
// not seen, the zero time if there is none. Of the last 256 changes of the view that is
// exact; of what is older, it may be later than it was.
func (v *View) ChangedAfter(t *Type, p Seq) time.Time {
	first := min(t.Members.firstAfter(p), t.Named.firstAfter(p))
	if first == never {
		return time.Time{}
	}
	return v.timeline.when(first)
}

// never is after all positions.
const never = ^Seq(0)

// firstAfter returns the position of the oldest change after p of what is in the log, be
// it that the same name changed again since.
func (s *Set) firstAfter(p Seq) Seq {
	if at := s.after(p); at < len(s.log) {
		return s.log[at].seq
	}
	return never
}

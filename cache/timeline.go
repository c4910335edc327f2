package cache

import (
	"sort"
	"sync"
	"time"
)

// A Cause is what has a writer change its view: as a rule a message of the origin. The
// zero value is a change that the writer makes by itself.
type Cause struct {
	// Received is when the message came in, before it was looked at; zero is when the
	// change is made.
	Received time.Time

	// Trace shows what comes of the message. Nil if nobody looks.
	Trace Trace
}

// receivedBy returns the cause with a time: that of the change if it has none.
func (c Cause) receivedBy(changed time.Time) Cause {
	if c.Received.IsZero() {
		c.Received = changed
	}
	return c
}

// A Trace shows people what comes of one message of an origin. Its methods may be called from any
// goroutine, and while the view is locked: they must not wait.
type Trace interface {
	// Applied is told of a change that readers are about to see, and returns what shows its fan-out, nil if that
	// is not followed.
	Applied(a Application) Span
}

// An Application is one change of a view.
type Application struct {
	Began    time.Time
	Ready    time.Time // to be seen
	Type     *Type     // after it
	Change   Change
	Followed bool // by a Fanout
}

// A Span shows a fan-out.
type Span interface {
	// Sampled reports whether it is shown, and not only what is remarkable about it.
	Sampled() bool
}

// SetCause says what has the writer change its view from now on. What a closed gate
// withholds is caused by what opens it.
func (w *Writer) SetCause(c Cause) { w.cause = c }

// moments is how many changes of a view have their cause remembered.
const moments = 256

// A timeline says what made the newest changes of a view, and when, for who asks how late
// somebody learns of them. Its zero value is empty.
type timeline struct {
	mu   sync.Mutex
	ring [moments]moment // by seq, from next on round to next
	next int
}

// A moment is what brought a view to a position; its cause has a time.
type moment struct {
	seq   Seq
	cause Cause
}

// record records that the view has come to p, which is after all that were recorded.
func (l *timeline) record(p Seq, cause Cause) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ring[l.next] = moment{p, cause}
	l.next = (l.next + 1) % moments
}

// of returns what brought the view to p, or past it; the zero cause if nothing ever did. Of
// what was too long ago to be remembered, it is the cause of the oldest that is.
func (l *timeline) of(p Seq) Cause {
	l.mu.Lock()
	defer l.mu.Unlock()
	if newest := &l.ring[(l.next+moments-1)%moments]; newest.seq < p {
		return Cause{}
	}
	oldest := 0
	if l.ring[l.next].seq != 0 {
		oldest = l.next
	}
	n := sort.Search(moments, func(i int) bool {
		m := &l.ring[(oldest+i)%moments]
		return m.seq == 0 || m.seq >= p
	})
	return l.ring[(oldest+n)%moments].cause
}

// Cause returns what brought the view to p, with the time of it; the zero cause if the
// view is not there yet. Of the last 256 changes of the view that is exact; of what is
// older, it is the cause of a later one.
func (v *View) Cause(p Seq) Cause { return v.timeline.of(p) }

// noSeq is after all positions.
const noSeq = ^Seq(0)

// FirstAfter returns the position of the oldest change after p of what is in the set, be it
// that the same name changed again since; one that no view comes to if there is none.
func (s *Set) FirstAfter(p Seq) Seq {
	if at := s.after(p); at < len(s.log) {
		return s.log[at].seq
	}
	return noSeq
}

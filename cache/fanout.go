package cache

import (
	"slices"
	"sort"
	"sync"
	"sync/atomic"
	"time"
)

// A Cause is what has a writer change its view: as a rule a message of the origin. The
// zero value is a change that the writer makes by itself.
type Cause struct {
	// Received is when the message came in, before it was decoded; zero is when the
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
	// Applied is called for a change that readers are about to see, and returns the span of its fan-out, nil if that
	// is not followed.
	Applied(a Application) Span

	// Waits is called for a change that readers are not about to see: at least one name waits for an edition to be shown. The
	// time is that of Waiting.Changed.
	Waits(at time.Time)
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

// moments is how many changes of a view have their cause remembered.
const moments = 256

// A timeline remembers the causes of the newest changes of a view. Its zero value is empty.
type timeline struct {
	mu      sync.Mutex
	changes []moment // in order; only the newest moments count
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
	if len(l.changes) == 2*moments {
		l.changes = slices.Delete(l.changes, 0, moments)
	}
	l.changes = append(l.changes, moment{p, cause})
}

// of returns what brought the view to p, or past it; the zero cause if nothing ever did. Of
// a change too long ago to be remembered, it is the cause of the oldest that is.
func (l *timeline) of(p Seq) Cause {
	l.mu.Lock()
	defer l.mu.Unlock()
	newest := l.changes[max(len(l.changes)-moments, 0):]
	at := sort.Search(len(newest), func(i int) bool { return newest[i].seq >= p })
	if at == len(newest) {
		return Cause{}
	}
	return newest[at].cause
}

const (
	// maxFanouts is how many changes of a type are followed at the same time. Those that come
	// meanwhile are not: while clients are slow, or changes many, some stand for all.
	maxFanouts = 16

	// followFor is how long a change is followed at least; what has not been answered some
	// time later (at the next Trim) is given up.
	followFor = time.Minute
)

// A Fanout follows one change of a type to the streams that it concerns, until each of them
// has been answered for: by its client, or because there is no need. The streams count it down, so
// it costs the writer a few nanoseconds for each, and a stream that a pointer is handed on. Polls,
// and views that take a share of this one, are not among them.
//
// Its methods may be called from any goroutine.
type Fanout struct {
	Key    string // the type, or the collection
	Seq    Seq    // where the view was brought
	Cause  Cause  // with its time
	Began  time.Time
	Change Change
	Span   Span // nil if nobody looks

	// Unfollowed reports that it was not followed: too many were already.
	Unfollowed bool

	alone      Fanouts // itself and no other
	onEnd      func(*Fanout)
	unanswered atomic.Int64 // streams that have not been answered for
	ended      atomic.Bool
	took       atomic.Int64 // how long after the receipt of the cause the last client answered, in nanoseconds; 0: none did
	counts     [outcomes]atomic.Int64

	// When clients answered, in microseconds after the receipt of the cause, in no order. Nil if
	// nobody looks.
	times []atomic.Uint32
	timed atomic.Int32
	next  atomic.Int64
}

// An Outcome is what became of a change at a stream.
type Outcome int

// The outcomes of a change at a stream.
const (
	Accepted Outcome = iota // by an ACK
	Refused                 // by a NACK
	Needless                // there was nothing to send, or the stream did not want it any more
	Departed                // the stream ended
	outcomes
)

func (o Outcome) String() string {
	return [...]string{"accepted", "refused", "needless", "departed"}[o]
}

// Done counts a stream that was answered for.
func (f *Fanout) Done(o Outcome, now time.Time) {
	f.counts[o].Add(1)
	if took := now.Sub(f.Cause.Received); o <= Refused {
		for last := f.took.Load(); last < int64(took) && !f.took.CompareAndSwap(last, int64(took)); {
			last = f.took.Load()
		}
		if f.times != nil {
			f.times[f.timed.Add(1)-1].Store(uint32(took.Microseconds()))
		}
	}
	f.release()
}

// release ends it if that was the last.
func (f *Fanout) release() {
	if f.unanswered.Add(-1) == 0 {
		f.end()
	}
}

func (f *Fanout) end() {
	if f.ended.CompareAndSwap(false, true) {
		f.onEnd(f)
	}
}

// Streams returns how many streams it concerns.
func (f *Fanout) Streams() int {
	streams := f.Unanswered()
	for o := range outcomes {
		streams += f.Count(o)
	}
	return streams
}

// Count returns at how many streams it had an outcome.
func (f *Fanout) Count(o Outcome) int { return int(f.counts[o].Load()) }

// Unanswered returns how many streams are not answered for; once it is over, those that it was
// given up for.
func (f *Fanout) Unanswered() int { return int(f.unanswered.Load()) }

// Took returns how long after the receipt of its cause the last client answered, zero if none
// has.
func (f *Fanout) Took() time.Duration { return time.Duration(f.took.Load()) }

// Times returns how long after the receipt of its cause each client has answered, in no order, if its span is sampled.
func (f *Fanout) Times() []time.Duration {
	out := make([]time.Duration, min(int(f.timed.Load()), len(f.times)))
	for i := range out {
		out[i] = time.Duration(f.times[i].Load()) * time.Microsecond
	}
	return out
}

// Next numbers the events of the fan-out, from 0.
func (f *Fanout) Next() int64 { return f.next.Add(1) - 1 }

// Fanouts are those that a stream has a part in. The list is immutable.
type Fanouts struct {
	*Fanout
	Others *Fanouts
}

// And returns the list with one more.
func (l *Fanouts) And(f *Fanout) *Fanouts {
	if l == nil {
		return &f.alone
	}
	return &Fanouts{f, l}
}

// Open returns the list without those that are over.
func (l *Fanouts) Open() (open *Fanouts) {
	for ; l != nil; l = l.Others {
		if !l.ended.Load() {
			open = open.And(l.Fanout)
		}
	}
	return open
}

// openFanouts are those of a writer that may not be over.
type openFanouts []*Fanout

// full reports whether as many changes of a type are followed as can be.
func (o *openFanouts) full(key string) bool {
	*o = slices.DeleteFunc(*o, func(f *Fanout) bool { return f.ended.Load() })
	same := 0
	for _, f := range *o {
		if f.Key == key {
			same++
		}
	}
	return same >= maxFanouts
}

// endOld ends fan-outs that are too old.
func (o openFanouts) endOld(now time.Time) {
	for _, f := range o {
		if now.Sub(f.Began) >= followFor {
			f.end()
		}
	}
}

// A Change counts what an Apply has changed.
type Change struct {
	Seen    int      // resources that the set accepts, changed or not
	Changed int      // resources new or with other content
	New     int      // of these, new ones
	Removed int      // resources that were there
	Ignored int      // resources that nobody asked for (R096)
	Same    int      // resources resent without a change, with the version that the set had
	Reused  []string // names whose content changed under an unchanged version (B.2)
	Renewed int      // resources whose time to live was renewed

	// Ambiguous names resources of which an update had several variants for the same
	// parameters (R122).
	Ambiguous []string
}

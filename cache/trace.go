package cache

import (
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/xdstender/tender/cache/fanout"
)

// A Cause is the reason for a change of a view, usually a message of the origin. The zero value stands for a change
// that no message caused.
type Cause struct {
	// Received is when the message was received, before it was decoded. Zero means the time of the change.
	Received time.Time

	// Trace records the processing of the message; nil records nothing.
	Trace Trace
}

// receivedBy returns the cause, with the time of the change if Received is zero.
func (c Cause) receivedBy(changed time.Time) Cause {
	if c.Received.IsZero() {
		c.Received = changed
	}
	return c
}

// applied reports a change to the trace, and returns the span of its fan-out; nil if the fan-out is not measured.
func (c Cause) applied(ed *edit, f *fanout.Fanout) fanout.Span {
	if c.Trace == nil {
		return nil
	}
	made := Application{Began: ed.now, Ready: time.Now(), Type: ed.typ, Change: ed.change, Followed: f != nil}
	if f != nil {
		made.Ready = f.Began
	}
	return c.Trace.Applied(made)
}

// A Trace records the processing of one message of an origin. Its methods may be called from any goroutine, and while
// the view is locked: they must not wait.
type Trace interface {
	// Applied is called for a change before readers see it. It returns the span of the fan-out of the change; nil if
	// the fan-out is not measured.
	Applied(a Application) fanout.Span

	// Waits is called for a change that is withheld from readers: at least one resource waits for an edition to be
	// shown. The time is that of Waiting.Changed.
	Waits(at time.Time)
}

// An Application is one change of a view.
type Application struct {
	Began    time.Time
	Ready    time.Time // when readers can see it
	Type     *Type     // after the change
	Change   Change
	Followed bool // whether a fanout.Fanout measures its fan-out
}

// A Change counts the changes that a response of an origin caused.
type Change struct {
	Seen    int      // resources that the set accepted, changed or not
	Changed int      // resources new or with other content
	New     int      // of these, those that did not exist
	Removed int      // resources that existed
	Ignored int      // resources that the relay did not subscribe to (R096)
	Same    int      // resources resent without a change, with the version that the set had
	Reused  []string // names whose content changed under an unchanged version (B.2)
	Renewed int      // resources whose time to live was renewed

	// Ambiguous names resources of which an update had several variants for the same
	// parameters (R122).
	Ambiguous []string
}

// maxCauses is the number of changes of a view whose cause is recorded.
const maxCauses = 256

// A timeline records the causes of the newest changes of a view. The zero value is empty.
type timeline struct {
	mu      sync.Mutex
	changes []causedChange // in order, the newest last; at most 2*maxCauses; guarded by mu
}

// A causedChange is the cause of the change at a position. Its Received is not zero.
type causedChange struct {
	seq   Seq
	cause Cause
}

// record records the cause of a change at p, which is after all recorded positions.
func (l *timeline) record(p Seq, cause Cause) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.changes) == 2*maxCauses {
		l.changes = slices.Delete(l.changes, 0, maxCauses)
	}
	l.changes = append(l.changes, causedChange{p, cause})
}

// causeAt returns the cause of the first change at p or after it; the zero cause if there is none. If that change is no
// longer recorded, it returns the cause of the oldest recorded one.
func (l *timeline) causeAt(p Seq) Cause {
	l.mu.Lock()
	defer l.mu.Unlock()
	newest := l.changes[max(len(l.changes)-maxCauses, 0):]
	at := sort.Search(len(newest), func(i int) bool { return newest[i].seq >= p })
	if at == len(newest) {
		return Cause{}
	}
	return newest[at].cause
}

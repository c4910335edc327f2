package cache

import (
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/xdstender/tender/cache/fanout"
)

// SetCause sets the cause of the next changes of the writer.
func (p *publisher) SetCause(c Cause) { p.cause = c }

// publish stores an edit, and those of the cohorts that follow it. It unlocks the index and then wakes the streams that the
// change concerns.
func (p *publisher) publish(edited *edit) {
	x := &p.w.view.index
	var follow []*fanout.Fanout
	firstServed := false
	for _, ed := range p.w.follow(edited) {
		f, first := p.publishTo(ed.branch.view, ed)
		firstServed = firstServed || first
		if f != nil {
			follow = append(follow, f)
		}
	}
	p.reuse(edited.changed)
	x.unlock()
	for i, watch := range p.wakes {
		watch.wake()
		p.wakes[i] = nil
	}
	for _, f := range follow {
		f.Release()
	}
	if firstServed {
		p.w.view.cfg.FirstServed()
	}
}

// maxReused is the largest number of names for which memory is kept between edits.
const maxReused = 1 << 14

// reuse keeps the memory of an edit's changed names for the next edit.
func (p *publisher) reuse(changed []*Name) {
	if cap(changed) <= maxReused {
		p.changed = changed[:0]
	}
}

// publishTo publishes an edit to the readers of a view, and adds the watches to wake to p.wakes. It returns the fan-out
// of the change, and whether clients of the type get responses for the first time. The index must be locked.
func (p *publisher) publishTo(view *View, ed *edit) (f *fanout.Fanout, first bool) {
	x, old, from := &view.index, view.current.Load(), len(p.wakes)
	if ed.change.Changed+ed.change.Removed > 0 {
		ed.typ.changed = ed.now
	}
	if !p.w.restoring { // no reader saw the set that was empty before a restore
		ed.typ.Wildcard.recordSum(old.Type(ed.typ.URL).Wildcard.sum, ed.typ.Wildcard.sum, ed.gen.Seq)
	}
	cause := p.cause.receivedBy(ed.now)
	if ed.gen.Seq > old.Seq {
		view.timeline.record(ed.gen.Seq, cause)
	}
	p.hint(ed)
	if ed.wildcardChanged {
		for _, wc := range ed.index.wildcards {
			if wc.watch.view == view {
				p.addWake(ed, wc.watch)
			}
		}
	}
	f = p.followEdit(ed, cause, p.wakes[from:])
	first = view.cfg.FirstServed != nil && ed.typ.serves() && !old.Type(ed.typ.URL).serves()
	for _, o := range x.observers {
		if o.view == view {
			p.wakes = append(p.wakes, o)
		}
	}
	view.current.Store(ed.gen)
	return f, first
}

// hint adds hints to those watches of the changed names that read the edited view, and adds them to p.wakes.
func (p *publisher) hint(ed *edit) {
	if len(ed.changed) == 0 {
		return
	}
	for _, n := range ed.changed {
		n.watchers.changed++
	}
	dropped := &hint{seq: ed.gen.Seq, n: maxHints}
	for _, n := range ed.changed {
		switch s := n.watchers; {
		case s.changed > maxHints: // too many hints for any of these watches: no need to try each name
			p.hintAt(ed, s, dropped, dropped)
			s.changed = 0
		case s.changed > 0:
			p.hintAt(ed, s, &hint{key: ed.typ.URL, name: n, seq: ed.gen.Seq, n: 1}, dropped)
		}
	}
	for _, n := range ed.changed {
		n.watchers.changed = 0
	}
	clear(ed.changed)
}

// hintAt adds a hint to those watches that read the edited view, and adds them to p.wakes.
func (p *publisher) hintAt(ed *edit, s *watchers, h, dropped *hint) {
	for _, id := range s.ids {
		watch := p.w.view.index.watches[id]
		if watch.view != ed.branch.view {
			continue
		}
		if p.addWake(ed, watch); watch.call != nil {
			watch.hint(h, dropped)
		}
	}
}

// addWake adds a watch to p.wakes, once for each edit.
func (p *publisher) addWake(ed *edit, watch *Watch) {
	if watch.wokenFor != ed.gen.Revision {
		watch.wokenFor = ed.gen.Revision
		p.wakes = append(p.wakes, watch)
	}
}

// followEdit records a change in its trace and begins its fan-out to the streams that will be woken. It returns nil
// if fan-outs are not configured, no stream will be woken, or nothing changed. The caller releases the fan-out. The
// index is locked.
func (p *publisher) followEdit(ed *edit, cause Cause, wakes []*Watch) *fanout.Fanout {
	if p.w.view.cfg.Fanout == nil || len(wakes) == 0 || ed.change.Changed+ed.change.Removed == 0 {
		cause.applied(ed, nil)
		return nil
	}
	f := fanout.New(ed.typ.URL, uint64(ed.gen.Seq), p.w.view.cfg.Fanout)
	f.Received, f.Began, f.Removes = cause.Received, time.Now(), ed.change.Removed > 0
	if !p.fanouts.Add(f) {
		cause.applied(ed, nil)
		return f
	}
	if f.Span = cause.applied(ed, f); f.Span != nil && f.Span.Sampled() {
		f.RecordTimes(len(wakes))
	}
	for _, watch := range wakes {
		if watch.call != nil {
			f.Join(&watch.fanouts)
		}
	}
	return f
}

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

	// Waits is called for a change of which at least one resource waits for an edition to be shown, with its time.
	Waits(at time.Time)

	// Waited is called once a change passes that has waited in front of the view, with the reason.
	Waited(reason string, since, until time.Time)
}

// An Application is one change of a view.
type Application struct {
	Began    time.Time
	Ready    time.Time // when readers can see it
	Type     *Type     // after the change
	Change   Change
	Followed bool // whether a fanout.Fanout measures its fan-out
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

// Cause returns the cause of the first change at p or after it; the zero cause if there is none yet. Its Received is
// not zero. It is exact for the last 256 changes of the view. For an older change it returns the cause of a later one.
func (v *View) Cause(p Seq) Cause { return v.timeline.causeAt(p) }

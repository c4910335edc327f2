package reconcile

import (
	"iter"
	"maps"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/pending"
)

const (
	// reportsInterval is the interval of two checks of held names: whether clients still report them, and whether the
	// origin has stated them meanwhile.
	reportsInterval = time.Second

	// droppedGrace is how long after a restart a dropped name is kept until a client reports it again.
	droppedGrace = 5 * time.Minute
)

// ReportsConfig configures Reports.
type ReportsConfig struct {
	Config

	// AnswerTimeout is the time after which a reported name that the origin did not answer counts as missing.
	AnswerTimeout time.Duration

	// CompleteAt returns when a set is complete if no response arrives until then, and when the relay requested the set
	// on the current stream. Both are zero without a stream.
	CompleteAt func(cache.ReportedSet) (at, requestedAt time.Time)

	// AlwaysComplete means that wildcard sets are complete before clients report, as those of a directory are. Reports
	// about them are then evaluated after AnswerTimeout.
	AlwaysComplete bool

	// Verify requests all sets from the origin again.
	Verify func(now time.Time)
}

// Reports decides on the removal of resources that reconnecting clients report and that a view has never received. The
// reports are the last known set of the view (B.7). Reports belongs to the loop of the view.
type Reports struct {
	*Group
	cfg       ReportsConfig
	w         *cache.Writer
	startedAt time.Time
	nextCheck time.Time // of the held names
	batches   map[batchKey]*batch
	lastBatch int // number of the last batch of reports by name
}

// NewReports returns the Reports of a writer's view.
func NewReports(w *cache.Writer, cfg ReportsConfig) *Reports {
	cfg.Reported = true
	return &Reports{
		Group: NewGroup(cfg.Config), cfg: cfg, w: w, startedAt: time.Now(), batches: make(map[batchKey]*batch),
	}
}

// A batchKey identifies a batch. Reports by name have a batch per evaluation, since clients may report further names
// later. Reports about a wildcard set have one batch, number 0, since they are evaluated once.
type batchKey struct {
	of     cache.ReportedSet
	number int
}

// A batch is the missing names of one evaluation, as the content of a set. Each has its own hold time, which later
// reports do not change.
type batch struct {
	*Set
	of       cache.ReportedSet
	reports  *Reports
	reported names // names that clients still report
}

// placeholder stands for a resource of which only the name is known.
var placeholder = new(wire.Resource)

// Get implements Content.
func (b *batch) Get(name string) *wire.Resource {
	_, reported := b.reported[name]
	if reported || b.byName[name].state == dropped && time.Since(b.reports.startedAt) < droppedGrace {
		return placeholder
	}
	return nil
}

// Names implements Content. It yields none: without their content, it is not known what refers to them.
func (b *batch) Names() iter.Seq[string] { return func(func(string) bool) {} }

// Count implements Content.
func (b *batch) Count() int { return 0 }

// CompleteAt implements Content. A batch is created when the set is complete, so only a second look waits.
func (b *batch) CompleteAt() (at time.Time, ok bool) {
	if !b.secondLook {
		return time.Time{}, true
	}
	at, _ = b.reports.cfg.CompleteAt(b.of)
	return at, !at.IsZero()
}

// Known implements Content. The resources of a batch are not stated by the origin.
func (b *batch) Known(time.Time) bool { return false }

// Await implements Content. A batch has no additions.
func (b *batch) Await(_, _ []string) {}

// Cause implements Content. What clients report has none.
func (b *batch) Cause() (c cache.Cause) { return c }

// Apply implements Content. It does nothing: publishHeld makes the view send removals to clients.
func (b *batch) Apply(wire.Update, pending.Delay) (c cache.Change) { return c }

// Evaluate evaluates the reports about a complete set up to a time, and decides on the missing names. For a wildcard
// set, it must be called before the view sets the phase to confirmed.
func (r *Reports) Evaluate(of cache.ReportedSet, upTo, now time.Time) {
	missing := r.w.EvaluateReports(of, upTo)
	for key, b := range r.batches {
		if key.of == of {
			maps.DeleteFunc(missing, func(name string, _ struct{}) bool { return b.HasRemoval(name) })
		}
	}
	if len(missing) == 0 {
		return
	}
	key := batchKey{of: of}
	if of.Kind == cache.ByName {
		r.lastBatch++
		key.number = r.lastBatch
	}
	r.ensureBatch(key).Infer(maps.Keys(missing), true, now)
	r.decideAndPublish(now)
}

// ensureBatch returns a batch, creating it if needed.
func (r *Reports) ensureBatch(key batchKey) *batch {
	b := r.batches[key]
	if b == nil {
		typeURL, _, _ := cache.SplitCollection(key.of.Key)
		b = &batch{of: key.of, reports: r}
		b.Set = r.NewSet(typeURL, "", b)
		r.batches[key] = b
	}
	return b
}

// RecordRemoved records that the origin has removed names of a confirmed set.
func (r *Reports) RecordRemoved(of cache.ReportedSet, names iter.Seq[string]) {
	if len(r.batches) == 0 {
		return
	}
	for key, b := range r.batches {
		if key.of == of {
			for name := range names {
				delete(b.byName, name)
			}
		}
	}
	r.updateCounts()
	r.publishHeld(of)
}

// evaluateDue evaluates the reports that are due: those by name, and with AlwaysComplete those about wildcard sets. The
// caller of Evaluate evaluates the others. It returns when to call it again.
func (r *Reports) evaluateDue(now time.Time) (next time.Time) {
	for of, first := range r.w.Reported() {
		switch {
		case first.IsZero() || of.Kind == cache.Wildcard && !r.cfg.AlwaysComplete:
			continue
		case of.Kind == cache.Wildcard && r.w.Generation().Type(of.Key).Phase < cache.Confirmed:
			continue // the directory was not read yet
		}
		_, requestedAt := r.cfg.CompleteAt(of)
		if requestedAt.IsZero() {
			continue
		}
		if due := later(first, requestedAt).Add(r.cfg.AnswerTimeout); now.Before(due) {
			next = Earlier(next, due)
		} else {
			r.Evaluate(of, now.Add(-r.cfg.AnswerTimeout), now)
		}
	}
	return next
}

// Step performs all evaluations and decisions that are due, and returns when to call it again.
func (r *Reports) Step(now time.Time) (next time.Time) {
	next = r.evaluateDue(now)
	switch {
	case len(r.batches) == 0:
		return next
	case now.Before(r.nextCheck):
		return Earlier(next, r.nextCheck)
	}
	r.nextCheck = now.Add(reportsInterval)
	for _, b := range r.batches {
		for name := range b.byName {
			if r.originAnswered(b.of, name) {
				b.cancelRemoval(name, now)
			}
		}
	}
	for _, b := range r.batches {
		if b.startSecondLook(now) && b.of.Kind == cache.Wildcard { // the relay always subscribes to the names
			r.cfg.Verify(now)
		}
		if b.secondLook && b.Confirmed(now) {
			b.Infer(maps.Keys(b.byName), false, now)
		}
	}
	r.decideAndPublish(now)
	return Earlier(next, r.nextCheck)
}

// decideAndPublish makes all decisions that are possible, and makes the view withhold the removals of the other names.
func (r *Reports) decideAndPublish(now time.Time) {
	r.updateReported()
	r.Decide(now)
	published := make(map[cache.ReportedSet]bool)
	for key, b := range r.batches {
		if len(b.byName) == 0 {
			delete(r.batches, key)
			r.Drop(b.Set)
		}
		published[key.of] = true
	}
	for of := range published {
		r.publishHeld(of)
	}
}

// updateReported updates the names that clients still report.
func (r *Reports) updateReported() {
	reported := make(map[cache.ReportedSet]names)
	for _, b := range r.batches {
		if reported[b.of] == nil {
			reported[b.of] = r.w.StillReported(b.of)
		}
		b.reported = reported[b.of]
	}
}

// publishHeld makes the view withhold the removals of the undecided and the dropped names of a set.
func (r *Reports) publishHeld(of cache.ReportedSet) {
	withheld := make(names)
	for key, b := range r.batches {
		if key.of == of {
			for name := range b.byName {
				withheld[name] = struct{}{}
			}
		}
	}
	r.w.Withhold(of, withheld)
}

// originAnswered reports whether the origin has sent a reported name, or that it does not exist.
func (r *Reports) originAnswered(of cache.ReportedSet, name string) bool {
	t := r.w.Generation().Type(of.Key)
	if name == cache.AllNames {
		return t.Wildcard.Count() > 0
	}
	n := r.w.View().Find(of.Key, []string{name})[0]
	switch {
	case of.Kind == cache.Wildcard && t.Wildcard.Awaits(name):
		return true
	case n == nil:
		return false
	case of.Kind == cache.Wildcard:
		return t.Wildcard.Get(n).Present()
	}
	e, _ := t.Lookup(n)
	return e != nil
}

// Operate executes a command of an operator, and returns the holds to which it applies.
func (r *Reports) Operate(c Command, now time.Time) []Hold {
	if !c.changesNothing() {
		r.updateReported()
		defer r.decideAndPublish(now)
	}
	return r.Group.Operate(c, now)
}

// RestoreDropped records that an operator dropped the removal of a name, before a restart of the relay. hold
// has the type, the operator and the time.
func (r *Reports) RestoreDropped(name string, hold *Hold) {
	typeURL := hold.TypeURL
	key := batchKey{of: cache.ReportedSet{Key: typeURL, Kind: cache.ByName}}
	if glob, ok := wire.GlobOf(name); ok {
		key.of = cache.ReportedSet{Key: cache.Collection(typeURL, glob), Kind: cache.Wildcard}
	} else if wire.FullState(typeURL) {
		key.of.Kind = cache.Wildcard
	}
	r.ensureBatch(key).RestoreDropped(name, hold)
}

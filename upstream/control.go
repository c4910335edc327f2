package upstream

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/tier"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/pending"
	"github.com/xdstender/tender/upstream/reconcile"
)

// A Control passes commands of operators to the loop that maintains a view. Its methods may be called from any
// goroutine, except Begin, End and Calls, which belong to the loop. A command returns once the loop has executed it. It
// does nothing if the loop has ended, or if ctx ends first.
type Control struct {
	frozen   bool                  // the view starts frozen
	rollBack func(*pending.List)   // initial rollback; nil for none
	restored *cache.Snapshot       // from which the view was restored; nil for none
	kept     []reconcile.Hold      // removals that operators dropped before a restart
	dropEnds func()                // see NotifyDropEnd; nil for none
	calls    chan func(Controlled) // unbuffered: the loop executes a call at once
	ended    chan struct{}         // closed when the loop has ended

	holding  atomic.Bool                 // removals are pending or were dropped
	isolated atomic.Pointer[[]Isolation] // see Isolated
	failure  atomic.Pointer[Failure]     // the latest failure of a stream of the loop; nil if there was none

	below below
	halts func(target string, told []byte) // see NotifyHalts
}

// Controlled is the loop of a Control. Only the loop calls its methods.
type Controlled interface {
	// Operate executes a command on pending and dropped removals, and returns those that it applies to.
	Operate(reconcile.Command) []reconcile.Hold
	// List returns the list of pending changes in front of the view.
	List() *pending.List
	// Report replaces the resources that clients of the view reject.
	Report([]Rejection)
	// Keep restores removals that were dropped before a restart, so that their resources stay in the view.
	Keep(dropped []reconcile.Hold)
}

// NewControl returns the control of one loop that is about to start. The view starts frozen, if frozen is set. kept
// lists removals that were dropped before the process restarted.
func NewControl(frozen bool, kept []reconcile.Hold) *Control {
	return &Control{
		frozen: frozen, kept: kept, calls: make(chan func(Controlled)), ended: make(chan struct{}),
		below: below{wake: make(chan struct{}, 1)},
	}
}

// BeginRolledBack makes the loop start with a rollback to the former state of resources (pending.List.RollBack). It must be
// called before the loop starts. formers is nil if the view has that state already, or has never had any resource.
func (c *Control) BeginRolledBack(since time.Time, formers func(*cache.View) []cache.Former) {
	c.rollBack = func(l *pending.List) {
		var all []cache.Former
		if formers != nil {
			all = formers(l.Writer().View())
		}
		l.RollBack(all, since)
	}
}

// Restore makes the loop start with what waited when a snapshot was taken, from which the view was restored
// (pending.List.Restore). It must be called before the loop starts.
func (c *Control) Restore(s *cache.Snapshot) { c.restored = s }

// NotifyDropEnd makes the loop call f when a removal that an operator dropped is no longer dropped, for example because
// the origin has sent the resource. f must not block. NotifyDropEnd must be called before the loop starts.
func (c *Control) NotifyDropEnd(f func()) { c.dropEnds = f }

// NotifyHalts makes the loop ask an origin that is a relay what rollouts have halted, and call f with what a target has told, or
// with nil if the target tells nothing (B.55). f must not block, nor keep told. NotifyHalts must be called before the loop starts.
func (c *Control) NotifyHalts(f func(target string, told []byte)) { c.halts = f }

// Freeze stops the distribution of changes to clients (pending.List.Freeze). Responses of the origin are still acknowledged
// and kept.
func (c *Control) Freeze(ctx context.Context) { c.Edit(ctx, (*pending.List).Freeze) }

// Thaw ends a freeze or a rollback. Clients receive the changes since.
func (c *Control) Thaw(ctx context.Context) { c.Edit(ctx, (*pending.List).Thaw) }

// Edit calls f in the loop with the list of its view. f must not block.
func (c *Control) Edit(ctx context.Context, f func(*pending.List)) {
	c.do(ctx, func(l Controlled) { f(l.List()) })
}

// Operate executes a command on pending and dropped removals, and returns those that it applies to.
func (c *Control) Operate(ctx context.Context, of reconcile.Command) (chosen []reconcile.Hold) {
	c.do(ctx, func(l Controlled) { chosen = l.Operate(of) })
	return chosen
}

// A Rejection is a resource whose current content clients reject.
type Rejection struct {
	TypeURL   string
	Name      string         // under which clients subscribe to it
	Resource  *wire.Resource // with the content that they reject
	Rejecting int            // clients that reject it
	Clients   int            // clients that subscribe to it, and are served this content
	At        time.Time      // of the first of their NACKs
	Err       string         // of that NACK; without what Secrets contain
}

// Report tells the loop which resources clients of its view reject. It replaces those of the last call. The loop of a
// control plane tells its origin (B.9).
func (c *Control) Report(ctx context.Context, rejected []Rejection) {
	c.do(ctx, func(l Controlled) { l.Report(rejected) })
}

// WithoutClients makes the loop report to a relay that the view has no clients: they are those of other views. It must be
// called before the loop starts. It returns c.
func (c *Control) WithoutClients() *Control {
	c.below.none = true
	return c
}

// AcceptsReports reports whether the origin is a relay that accepts reports of the clients of the view. It does not wait for
// the loop.
func (c *Control) AcceptsReports() bool { return c.below.accepts.Load() }

// BeginLook begins a look at what waits in front of the view and at its clients, in this order. It does not wait for the
// loop. Only one goroutine may look.
func (c *Control) BeginLook() (mark uint64) { return c.below.marks.Add(1) }

// EndLook tells the loop what a look found, which the caller must not change afterwards. It does not wait for the loop.
func (c *Control) EndLook(mark uint64, found tier.Report, now time.Time) {
	was := c.below.newest.Swap(&clientsLook{found, mark, now})
	if was != nil && !c.below.lacks.Load() && was.Equal(&found) {
		return
	}
	select {
	case c.below.wake <- struct{}{}:
	default:
	}
}

// Waiting returns the numbers of changes that wait in front of the view, by type. It does not wait for the loop if there are
// none.
func (c *Control) Waiting(ctx context.Context) map[string]int {
	all := make(map[string]int)
	if !c.below.waits.Load() {
		return all
	}
	c.do(ctx, func(l Controlled) {
		if l.List().CountTypes(all); !c.Holding() {
			return
		}
		for _, hold := range l.Operate(reconcile.Command{}) {
			if hold.Reason != reconcile.Interval { // the list has these
				all[hold.TypeURL] += len(hold.Names)
			}
		}
	})
	return all
}

// recordWaiting records whether changes wait in front of the view.
func (c *Control) recordWaiting(l *pending.List) { c.below.waits.Store(c.Holding() || !l.Empty()) }

// Holding reports whether removals are pending or were dropped. The view still contains these resources, but a new
// view would lack them. Holding does not wait for the loop.
func (c *Control) Holding() bool { return c.holding.Load() }

// Isolated returns the subscriptions that have streams of their own, because the origin ends each stream that carries
// them (B.48). It does not wait for the loop.
func (c *Control) Isolated() []Isolation {
	if all := c.isolated.Load(); all != nil {
		return *all
	}
	return nil
}

// Failure returns the latest error of a stream of the loop, or of an attempt to open one; nil if there was none. It
// does not wait for the loop.
func (c *Control) Failure() error {
	if f := c.failure.Load(); f != nil {
		return f.Err
	}
	return nil
}

// do calls a function in the loop and waits for it. The function must not block. It is not called if the loop has ended
// or ctx ends first.
func (c *Control) do(ctx context.Context, call func(Controlled)) {
	done := make(chan struct{})
	select {
	case c.calls <- func(l Controlled) { call(l); close(done) }:
		<-done // does not block: the loop runs a call at once
	case <-c.ended:
	case <-ctx.Done():
	}
}

// recordRemovals records whether removals are pending or were dropped. dropped is the number of those that were dropped,
// and before the number at the last call.
func (c *Control) recordRemovals(any bool, dropped, before int) {
	if c.holding.Store(any); dropped < before && c.dropEnds != nil {
		c.dropEnds()
	}
}

// Begin applies the initial state of the control to a loop. The loop must call End when it returns.
func (c *Control) Begin(l Controlled) {
	if l.Keep(c.kept); c.frozen {
		l.List().Freeze()
	}
	if c.rollBack != nil {
		c.rollBack(l.List())
	}
	if c.restored != nil {
		l.List().Restore(c.restored)
		c.restored = nil // it has all resources
	}
}

// End records that the loop has ended.
func (c *Control) End() { close(c.ended) }

// Calls returns the channel of commands, which the loop must execute.
func (c *Control) Calls() <-chan func(Controlled) { return c.calls }

// An Audit is the difference between a view and the responses of its origin to a second client with an empty view.
type Audit struct {
	Target string // the audited target of the origin
	Took   time.Duration
	Types  []TypeAudit // sorted by type URL; empty if the view has no subscriptions
}

// A TypeAudit is the result for one type.
type TypeAudit struct {
	TypeURL string

	// Equal counts resources that are equal on both sides. Changing counts those that differ, but changed too recently
	// to report.
	Equal, Changing int

	Differences []Difference // sorted by name
}

// A Difference is a resource that differs between the view and the origin.
type Difference struct {
	Name string

	// Glob is the subscription that the resource belongs to: "*" or a collection. It is empty for a subscription to the
	// name itself.
	Glob string

	Kind DifferenceKind

	// Here and There are the versions that the origin sent to the view and to the audit; empty for a missing resource.
	Here, There string

	// Held reports that the difference is expected, since the removal or a breaking change is pending or was dropped.
	Held bool
}

// A DifferenceKind is how a resource differs.
type DifferenceKind string

// The kinds of differences.
const (
	OtherContent DifferenceKind = "content"       // different bytes
	OtherVersion DifferenceKind = "version"       // the same bytes under another version
	MissingHere  DifferenceKind = "missing_here"  // not in the view
	MissingThere DifferenceKind = "missing_there" // not sent by the origin
)

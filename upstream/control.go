package upstream

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/upstream/reconcile"
)

// A Control passes the commands of operators to the loop that keeps a view. Its methods may be called from any goroutine.
// Each returns once the loop has executed the command, and does nothing if the loop has ended or ctx ends before.
type Control struct {
	frozen   bool
	rollBack func(*cache.Writer) // rolls the writer back; nil if nothing does
	kept     []reconcile.Hold
	calls    chan func(Controlled)
	ended    chan struct{}

	holding  atomic.Bool // removals are held back, or were discarded
	breaking atomic.Pointer[[]reconcile.Hold]
	failure  atomic.Pointer[Failure] // of a stream of the loop, the last one; nil if none failed
}

// Controlled is a loop as a Control sees it. Its methods are called by the loop.
type Controlled interface {
	Operate(reconcile.Command) []reconcile.Hold
	Writer() *cache.Writer
	Keep(discarded []reconcile.Hold) // as far as the resources are there
}

// NewControl returns the control of a loop that is about to begin: frozen or not, and with holds
// that were discarded before the process was restarted. It is for one loop.
func NewControl(frozen bool, kept []reconcile.Hold) *Control {
	return &Control{frozen: frozen, kept: kept, calls: make(chan func(Controlled)), ended: make(chan struct{})}
}

// BeginRolledBack has the loop, which is about to begin, show an edition of an earlier generation from the start
// (cache.Writer.RollBack). A nil edition is for a view that shows it already, or has shown nothing.
func (c *Control) BeginRolledBack(since time.Time, edition func(*cache.Writer) *cache.Edition) {
	c.rollBack = func(w *cache.Writer) {
		var e *cache.Edition
		if edition != nil {
			e = edition(w)
		}
		w.RollBack(e, since)
	}
}

// Freeze stops the distribution of changes to clients (cache.Writer.Freeze). Responses of the origin are still
// acknowledged and kept.
func (c *Control) Freeze(ctx context.Context) { c.do(ctx, func(l Controlled) { l.Writer().Freeze() }) }

// Thaw ends that. Clients are sent the difference.
func (c *Control) Thaw(ctx context.Context) { c.do(ctx, func(l Controlled) { l.Writer().Thaw() }) }

// Edit has the loop call f with the writer of its view. The call belongs to the loop: it must not wait.
func (c *Control) Edit(ctx context.Context, f func(*cache.Writer)) {
	c.do(ctx, func(l Controlled) { f(l.Writer()) })
}

// Operate carries out a command about the removals that are held back, and those that were discarded, and returns which
// it is about.
func (c *Control) Operate(ctx context.Context, of reconcile.Command) (chosen []reconcile.Hold) {
	c.do(ctx, func(l Controlled) { chosen = l.Operate(of) })
	return chosen
}

// Holding reports whether removals are held back, or an operator has discarded some: a new view would not have these. It
// does not wait for the loop.
func (c *Control) Holding() bool { return c.holding.Load() }

// Broken returns the changes that are held since they break clients (B.46). It does not wait for the loop.
func (c *Control) Broken() []reconcile.Hold {
	if all := c.breaking.Load(); all != nil {
		return *all
	}
	return nil
}

// setHolds sets what Holding and Broken return. Only the loop may call it.
func (c *Control) setHolds(holding bool, broken []reconcile.Hold) {
	c.holding.Store(holding)
	if len(broken)+len(c.Broken()) > 0 {
		c.breaking.Store(&broken)
	}
}

// Failure returns why the last stream of the loop failed, or the attempt to open one; nil if none has. It does not wait
// for the loop.
func (c *Control) Failure() error {
	if f := c.failure.Load(); f != nil {
		return f.Err
	}
	return nil
}

func (c *Control) do(ctx context.Context, call func(Controlled)) {
	done := make(chan struct{})
	select {
	case c.calls <- func(l Controlled) { call(l); close(done) }:
		<-done // the loop calls it at once
	case <-c.ended:
	case <-ctx.Done():
	}
}

// Begin applies the initial state of the control to a loop, which must call End when it returns.
func (c *Control) Begin(l Controlled) {
	if l.Keep(c.kept); c.frozen {
		l.Writer().Freeze()
	}
	if c.rollBack != nil {
		c.rollBack(l.Writer())
	}
}

// End records that the loop has ended.
func (c *Control) End() { close(c.ended) }

// Calls returns the commands for the loop.
func (c *Control) Calls() <-chan func(Controlled) { return c.calls }

// An Audit is what a view holds beside what its origin says to one who knows nothing.
type Audit struct {
	Target string // of the origin
	Took   time.Duration
	Types  []TypeAudit // by type URL, those that the view asks the origin for; none if nothing
}

// A TypeAudit is what was found of one type.
type TypeAudit struct {
	TypeURL string

	// Equal counts resources that are the same on both sides; Changing those that are not, but
	// changed so lately that this says nothing.
	Equal, Changing int

	Differences []Difference // by name
}

// A Difference is a resource that the view holds in another way than the origin says it.
type Difference struct {
	Name string

	// Glob is what the resource was asked for by: "*", or a collection; empty if by its name.
	Glob string

	Kind DifferenceKind

	// Here and There are the versions that the origin gave, to the view and to the audit.
	Here, There string

	// Held reports that the view knows: the removal is held back, or was discarded.
	Held bool
}

// A DifferenceKind says in what a resource differs.
type DifferenceKind string

// The kinds of differences.
const (
	OtherContent DifferenceKind = "content"       // the origin says other bytes
	OtherVersion DifferenceKind = "version"       // the same bytes, under another version
	MissingHere  DifferenceKind = "missing_here"  // the view does not hold it
	MissingThere DifferenceKind = "missing_there" // the origin does not say it
)

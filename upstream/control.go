package upstream

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/upstream/reconcile"
)

// A decider decides about removals as operators see them.
type decider interface {
	Holds(now time.Time) []reconcile.Hold
	Release(of reconcile.HoldChoice, now time.Time) []reconcile.Hold
	Discard(of reconcile.HoldChoice, now time.Time) []reconcile.Hold
}

// holds returns the removals that wait, and those that were discarded.
func holds(of controlled) (holds []reconcile.Hold) {
	for _, d := range of.held() {
		holds = append(holds, d.Holds(time.Now())...)
	}
	return holds
}

// A Control has the loop that keeps a view do what an operator wants of it. Its methods
// may be called from any goroutine. Each returns once the loop has done it, and does
// nothing if the loop has ended, or ctx ends before.
type Control struct {
	frozen bool
	kept   []reconcile.Hold
	calls  chan func(controlled)
	ended  chan struct{}

	holding atomic.Bool // removals are held back, or were discarded
}

// controlled is a loop as a Control sees it.
type controlled interface {
	held() []decider
	writer() *cache.Writer
	keep(discarded []reconcile.Hold) // as far as the resources are there
}

// NewControl returns the control of a loop that is about to begin: frozen or not, and with holds
// that were discarded before the process was restarted. It is for one loop.
func NewControl(frozen bool, kept []reconcile.Hold) *Control {
	return &Control{frozen: frozen, kept: kept, calls: make(chan func(controlled)), ended: make(chan struct{})}
}

// Freeze has the view show clients what it holds now, whatever the origin changes
// (cache.Writer.Freeze). What the origin says is acknowledged and kept.
func (c *Control) Freeze(ctx context.Context) { c.do(ctx, func(l controlled) { l.writer().Freeze() }) }

// Thaw ends that, and clients are told the difference.
func (c *Control) Thaw(ctx context.Context) { c.do(ctx, func(l controlled) { l.writer().Thaw() }) }

// Holds returns the removals that are held back, and those that were discarded.
func (c *Control) Holds(ctx context.Context) (all []reconcile.Hold) {
	c.do(ctx, func(l controlled) { all = holds(l) })
	return all
}

// Holding reports whether removals are held back, or an operator has discarded some: a view that began anew would not know. It
// does not wait for the loop.
func (c *Control) Holding() bool { return c.holding.Load() }

// setHolding notes what Holding reports. It is for the loop.
func (c *Control) setHolding(holding bool) {
	if c != nil {
		c.holding.Store(holding)
	}
}

// Release has removals made that are held back, and returns which.
func (c *Control) Release(ctx context.Context, of reconcile.HoldChoice) (released []reconcile.Hold) {
	c.do(ctx, func(l controlled) {
		for _, d := range l.held() {
			released = append(released, d.Release(of, time.Now())...)
		}
	})
	return released
}

// Discard has resources kept whose removal is held back, and returns which. That the
// origin goes on being silent about them proves nothing any more; what it says does.
func (c *Control) Discard(ctx context.Context, of reconcile.HoldChoice) (discarded []reconcile.Hold) {
	c.do(ctx, func(l controlled) {
		for _, d := range l.held() {
			discarded = append(discarded, d.Discard(of, time.Now())...)
		}
	})
	return discarded
}

func (c *Control) do(ctx context.Context, call func(controlled)) {
	done := make(chan struct{})
	select {
	case c.calls <- func(l controlled) { call(l); close(done) }:
		<-done // the loop calls it at once
	case <-c.ended:
	case <-ctx.Done():
	}
}

// begin has a loop begin as the control says. The loop that returns calls end.
func (c *Control) begin(l controlled) {
	if c == nil {
		return
	}
	if l.keep(c.kept); c.frozen {
		l.writer().Freeze()
	}
}

func (c *Control) end() {
	if c != nil {
		close(c.ended)
	}
}

// waiting returns what the loop is to do next.
func (c *Control) waiting() <-chan func(controlled) {
	if c == nil {
		return nil
	}
	return c.calls
}

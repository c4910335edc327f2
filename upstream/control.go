package upstream

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/xdstender/tender/cache"
)

// A Hold is removals that the origin may not have meant and that no client has been told of (B.15).
type Hold struct {
	TypeURL string
	Names   []string // in order

	// Since is when the removal was held back, Until when it is decided; zero if that has begun, or has to wait for the
	// origin.
	Since, Until time.Time

	// Unconfirmed reports that the origin has not yet said all of the set on its stream, or that something which is held back
	// needs the resources: nobody has judged the removals.
	Unconfirmed bool

	// Reported reports that the view has never held the resources: returning clients report them, and wait for the decision. The
	// name [cache.AllNames] stands for what clients report without names, by the version of a set.
	Reported bool

	// Discarded reports that an operator had the resources kept: they stay until the
	// origin says something of them itself.
	Discarded bool
}

// A HoldChoice says which holds a command is about.
type HoldChoice struct {
	TypeURL   string // empty for all types
	Discarded bool   // those that were discarded, in place of those that wait
}

// among returns those of holds that the command is about.
func (c HoldChoice) among(holds []Hold) []Hold {
	return slices.DeleteFunc(holds, func(h Hold) bool {
		return c.TypeURL != "" && c.TypeURL != h.TypeURL || h.Discarded != c.Discarded
	})
}

// A docket is the removals from one set, as operators see them and decide on them.
type docket struct {
	removals *removals
	holds    func() []Hold
	decided  func(chosen []Hold, keep bool, now time.Time) // carries out what was decided, which removals know
}

// holdsOf returns what dockets hold.
func holdsOf(all []docket) (holds []Hold) {
	for _, d := range all {
		holds = append(holds, d.holds()...)
	}
	return holds
}

// decide has the removals of a choice made, or the resources kept, and returns which.
func decide(all []docket, of HoldChoice, keep bool, now time.Time) (decided []Hold) {
	if !keep {
		slices.Reverse(all) // what refers to it goes before a cluster
	}
	for _, d := range all {
		chosen := of.among(d.holds())
		switch {
		case len(chosen) == 0:
			continue
		case keep:
			d.removals.discard()
		default:
			d.removals.release(of.Discarded)
		}
		d.decided(chosen, keep, now)
		decided = append(decided, chosen...)
	}
	return decided
}

// A Control has the loop that keeps a view do what an operator wants of it. Its methods
// may be called from any goroutine. Each returns once the loop has done it, and does
// nothing if the loop has ended, or ctx ends before.
type Control struct {
	frozen bool
	kept   []Hold
	calls  chan func(controlled)
	ended  chan struct{}

	holding atomic.Bool // removals are held back, or were discarded
}

// controlled is a loop as a Control sees it.
type controlled interface {
	dockets() []docket
	writer() *cache.Writer
	keep(discarded []Hold) // as far as the resources are there
}

// NewControl returns the control of a loop that is about to begin: frozen or not, and with holds
// that were discarded before the process was restarted. It is for one loop.
func NewControl(frozen bool, kept []Hold) *Control {
	return &Control{frozen: frozen, kept: kept, calls: make(chan func(controlled)), ended: make(chan struct{})}
}

// Freeze has the view show clients what it holds now, whatever the origin changes
// (cache.Writer.Freeze). What the origin says is acknowledged and kept.
func (c *Control) Freeze(ctx context.Context) { c.do(ctx, func(l controlled) { l.writer().Freeze() }) }

// Thaw ends that, and clients are told the difference.
func (c *Control) Thaw(ctx context.Context) { c.do(ctx, func(l controlled) { l.writer().Thaw() }) }

// Holds returns the removals that are held back, and those that were discarded.
func (c *Control) Holds(ctx context.Context) (holds []Hold) {
	c.do(ctx, func(l controlled) { holds = holdsOf(l.dockets()) })
	return holds
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
func (c *Control) Release(ctx context.Context, of HoldChoice) (released []Hold) {
	c.do(ctx, func(l controlled) { released = decide(l.dockets(), of, false, time.Now()) })
	return released
}

// Discard has resources kept whose removal is held back, and returns which. That the
// origin goes on being silent about them proves nothing any more; what it says does.
func (c *Control) Discard(ctx context.Context, of HoldChoice) (discarded []Hold) {
	of.Discarded = false
	c.do(ctx, func(l controlled) { discarded = decide(l.dockets(), of, true, time.Now()) })
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

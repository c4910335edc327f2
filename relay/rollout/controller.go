package rollout

import (
	"context"
	"iter"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/xdstender/tender/downstream"
)

// Pauses of a controller.
const (
	// observeEvery is how often it is looked up, while an edition is served, what clients did with it.
	observeEvery = time.Second

	// leastPause passes between two looks at what has changed: when many clients leave at once, one look is for all.
	leastPause = 50 * time.Millisecond

	// awayAfter is how long an edition waits for a part of which the origin has not confirmed what it has.
	awayAfter = 30 * time.Second
)

// A ControllerConfig shapes the controller of one origin.
type ControllerConfig struct {
	Config
	Origin string // its name
	Check  *Check // nil if none is asked
	Waits  func(typeURL string) bool

	// Observed yields the open streams of clients. It is called while the controller runs.
	Observed func() iter.Seq[downstream.Observed]

	// Frozen reports whether an operator froze the origin.
	Frozen func() bool

	// Decided is called when what Rejected returns has changed, and writes it to the disk.
	Decided func(context.Context)

	// Changed is called when the state, the stage or the edition has changed.
	Changed func(was, is *Status)

	Logger *slog.Logger
}

// A Controller distributes the changes of one origin in stages. Its methods may be called from any goroutine.
//
// Its goroutine, Run, owns the machine and the editions. After each change it collects the facts again and applies the
// machine's decision, so that no event is missed or handled twice.
type Controller struct {
	cfg ControllerConfig

	poked    chan struct{}
	commands chan *command
	verdicts chan answered // of the check
	ended    chan struct{} // closed when Run has returned
	restored *Rejected     // was in force in an earlier process; nil if nothing was

	// Owned by Run.
	machine *Machine
	served  [MaxStages + 1]Edition // by cohort, what its parts were shown
	left    []*Rejected            // editions that cohorts were served no longer; the last may be in force
	about   description            // of the machine's edition
	cold    bool
	awayAt  time.Time // when the next part is away; zero is never
	observation
	inquiry

	mu      sync.Mutex
	parts   []*Part            // in the order in which they joined
	signals *Signals           // of the edition; nil before the first
	streams map[Client]int     // of connected clients
	clients [MaxStages + 1]int // of these, by cohort
	reached int                // how many cohorts are served another edition than the rest
	refused []Refusal          // of the edition; at most MaxRefusals

	status  atomic.Pointer[Status]
	leftNow atomic.Pointer[[]*Rejected]
}

// NewController returns the controller of an origin whose latest is the last good. An earlier process has left what its
// Rejected returned.
func NewController(cfg ControllerConfig, left []*Rejected) *Controller {
	c := &Controller{
		cfg: cfg, machine: NewMachine(cfg.Config), left: left, streams: make(map[Client]int),
		poked: make(chan struct{}, 1), commands: make(chan *command), verdicts: make(chan answered, 1), ended: make(chan struct{}),
	}
	if c.restored = c.inForce(); c.restored != nil {
		c.machine.Restore(Halt{c.restored.Reason, c.restored.At})
		c.about = describe(c.restored.Changes)
	}
	c.leftNow.Store(&left)
	c.cohorts = c.newCohorts()
	c.status.Store(c.newStatus(time.Time{}, Facts{}))
	return c
}

// Status returns the state of the rollout, with the number of clients that are connected now.
func (c *Controller) Status() *Status {
	s := *c.status.Load()
	s.Cohorts = slices.Clone(s.Cohorts)
	c.countClients(s.Cohorts)
	return &s
}

// Poke has the controller look again at what its functions return. It does not wait.
func (c *Controller) Poke() {
	select {
	case c.poked <- struct{}{}:
	default: // it will look
	}
}

// Run distributes changes until ctx ends. It may be called once. cold reports that no snapshot has the last good state.
func (c *Controller) Run(ctx context.Context, cold bool) {
	defer close(c.ended)
	c.cold = cold
	for {
		next := c.advance(ctx)
		var due <-chan time.Time
		if !next.IsZero() {
			due = time.After(time.Until(next))
		}
		select {
		case <-c.poked:
			if !c.pause(ctx) {
				return
			}
		case cmd := <-c.commands:
			if cmd.err = cmd.do(ctx); cmd.err == nil {
				c.serve(ctx, time.Now()) // facts are about what is served
			}
			c.advance(ctx)
			close(cmd.done)
		case v := <-c.verdicts:
			c.take(v)
		case <-due:
		case <-ctx.Done():
			return
		}
	}
}

// pause lets what happens at once be one look. It reports false if ctx has ended.
func (c *Controller) pause(ctx context.Context) bool {
	select {
	case <-time.After(leastPause):
		return true
	case <-ctx.Done():
		return false
	}
}

// advance does what is due, and returns when to look again at the latest; zero is not before something changes.
func (c *Controller) advance(ctx context.Context) (next time.Time) {
	for ctx.Err() == nil {
		now := time.Now()
		facts := c.facts(now)
		cut, due := c.machine.Advance(now, facts)
		if cut {
			c.cut(ctx, now, facts, slices.DeleteFunc(c.joined(), func(p *Part) bool { return p.away }))
			c.rejectAgain(now)
			continue
		}
		again := c.serve(ctx, now)
		asks := earlier(c.ask(ctx, now), c.awayAt)
		c.publish(now, due, facts)
		if !again && (due.IsZero() || due.After(now)) {
			return earlier(earlier(due, c.lookAgain()), earlier(asks, c.forget(now)))
		}
	}
	return time.Time{}
}

// earlier returns the earlier of two times, of which zero is never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// lookAgain returns when the clients are to be looked at again; zero is never.
func (c *Controller) lookAgain() time.Time {
	if c.machine.Stage() == 0 {
		return time.Time{}
	}
	return c.observed.Add(observeEvery)
}

// facts returns what the machine decides by.
func (c *Controller) facts(now time.Time) Facts {
	f := Facts{Frozen: c.cfg.Frozen(), Verdict: c.verdict}
	c.compareParts(now, &f)
	if stage := c.machine.Stage(); stage > 0 && (stage != c.stage || !now.Before(c.lookAgain())) {
		c.observe(now)
	}
	f.Evidence = c.evidence
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.signals != nil && c.reached > 0 {
		f.Halt = c.signals.Halt(c.reached, now.Sub(c.machine.Entered()).Round(time.Second))
	}
	return f
}

// compareParts fills in how latest stands in all parts that are not away.
func (c *Controller) compareParts(now time.Time, f *Facts) {
	parts, settled := c.joined(), true
	c.findAway(parts, now)
	for _, p := range parts {
		w := p.waiting.Load()
		if p.away {
			f.Away = true
			continue
		}
		settled = settled && p.unsettled.IsZero()
		f.Differs = f.Differs || w.Names > 0
		f.Edited = f.Edited || w.Edited > 0
		f.Behind = f.Behind || w.Behind > 0 || w.Names > 0 && c.machine.open() && p.editions[c.machine.Edition()] == nil
		if w.Changed.After(f.Changed) {
			f.Changed = w.Changed
		}
	}
	f.Complete = settled && len(parts) > 0
}

// findAway finds out which parts are away: of what waits in them, the origin has not confirmed what it has for awayAfter, while it has of
// another part. So it refuses their node group, for instance, and editions are formed without them.
func (c *Controller) findAway(parts []*Part, now time.Time) {
	c.awayAt = time.Time{}
	for _, p := range parts {
		if p.away = false; !c.unsettled(p) {
			p.unsettled = time.Time{}
			continue
		}
		if p.unsettled.IsZero() {
			p.unsettled = now
		}
		if c.machine.decided() && p.has(c.machine.Edition()) {
			continue // what becomes of the edition depends on all that it has
		}
		if at := p.unsettled.Add(awayAfter); now.Before(at) {
			c.awayAt = earlier(c.awayAt, at)
		} else {
			p.away = slices.ContainsFunc(parts, (*Part).served)
		}
	}
}

// served reports whether the origin serves the part, and has confirmed what it has.
func (p *Part) served() bool {
	return p.view.Generation().Source(p.source).Connected && p.view.Settled(p.source)
}

// unsettled reports whether the next step of a rollout depends on what a part has, and the origin has not confirmed that.
func (c *Controller) unsettled(p *Part) bool {
	depends := p.waiting.Load().Names > 0 || p.has(c.machine.Edition()) && c.machine.Phase() != Current
	return depends && !p.view.Settled(p.source)
}

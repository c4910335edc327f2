package rollout

import (
	"context"
	"iter"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/xdstender/tender/downstream"
)

// Intervals of a controller.
const (
	// observeEvery is the interval between observations of the clients while an edition is served.
	observeEvery = time.Second

	// minPause is the minimum time between two evaluations, so that many disconnects at once cause one evaluation.
	minPause = 50 * time.Millisecond

	// unavailableAfter is how long an edition waits for the origin to confirm the state of a part.
	unavailableAfter = 30 * time.Second
)

// A ControllerConfig configures the controller of one origin.
type ControllerConfig struct {
	Config
	Origin string                    // the name of the origin
	Check  *Check                    // nil disables the external check
	Judge  Judge                     // nil unless Judged
	Waits  func(typeURL string) bool // reports whether changes of the type are rolled out in stages

	// Observed yields the open streams of clients. It is called while the controller runs.
	Observed func() iter.Seq[downstream.Observed]

	// Frozen reports whether an operator froze the origin.
	Frozen func() bool

	// Decided is called when the result of Withdrawn has changed. It writes the result to disk.
	Decided func(context.Context)

	// Changed is called after a change of the phase, the stage or the edition.
	Changed func(before, after *Status)

	Logger *slog.Logger
}

// A Controller distributes the changes of one origin in stages. Its methods may be called from any goroutine.
//
// Its goroutine, Run, owns the machine and the editions. After each change it collects the facts again and applies the
// machine's decision, so that no event is missed or handled twice.
type Controller struct {
	cfg ControllerConfig

	wake     chan struct{}
	commands chan *command
	ended    chan struct{} // closed when Run returns
	restored *Withdrawn    // the rejection that an earlier process left active; nil if none
	tracker  tracker

	// Owned by Run.
	machine       *Machine
	served        [maxCohorts]Edition // the edition that each cohort is served
	edition       summary             // summary of the machine's edition
	promoted      promotion           // what Undo may have to revert in parts that join later
	cold          bool                // the value of Status.Cold
	unavailableAt time.Time           // when the next part becomes unavailable; zero is never
	rejections    rejections
	checks        checks
	judging       judging
	observation

	status atomic.Pointer[Status]
}

// NewController returns the controller of an origin whose latest is the last good. withdrawn is the result of Withdrawn
// in an earlier process; nil without one.
func NewController(cfg ControllerConfig, withdrawn []*Withdrawn) *Controller {
	c := &Controller{
		cfg: cfg, machine: NewMachine(cfg.Config), rejections: rejections{withdrawn: withdrawn},
		wake: make(chan struct{}, 1), commands: make(chan *command), ended: make(chan struct{}),
	}
	c.tracker.cfg, c.tracker.poke, c.tracker.streams = &c.cfg, c.Poke, make(map[Client]int)
	c.checks = checks{check: cfg.Check, log: cfg.Logger, results: make(chan checkResult, 1), ended: c.ended}
	c.judging.judge, c.judging.log, c.judging.ended = cfg.Judge, cfg.Logger, c.ended
	c.judging.results = make(chan judgeResult, 1)
	if c.restored = c.rejections.activeRejection(); c.restored != nil {
		c.machine.Restore(Halt{c.restored.Reason, c.restored.At})
		c.edition = summarize(c.restored.Changes)
	}
	c.rejections.publish()
	c.cohorts = newCohorts(cfg.Stages)
	c.status.Store(c.newStatus(time.Time{}, Facts{}))
	return c
}

// Status returns the state of the rollout and the current number of connected clients.
func (c *Controller) Status() *Status {
	s := *c.status.Load()
	s.Cohorts = slices.Clone(s.Cohorts)
	c.tracker.countClients(s.Cohorts)
	return &s
}

// Poke makes Run evaluate the facts again. It does not block.
func (c *Controller) Poke() {
	select {
	case c.wake <- struct{}{}:
	default: // an evaluation is already pending
	}
}

// Run distributes changes until ctx ends, and returns once the judge has ended. It may be called once. cold reports that no snapshot of the last good was
// restored.
func (c *Controller) Run(ctx context.Context, cold bool) {
	defer c.judging.goroutines.Wait()
	defer close(c.ended)
	defer c.judging.stop()
	c.cold = cold
	for {
		next := c.advance(ctx)
		var due <-chan time.Time
		if !next.IsZero() {
			due = time.After(time.Until(next))
		}
		select {
		case <-c.wake:
			if !c.coalesce(ctx) {
				return
			}
		case cmd := <-c.commands:
			if cmd.err = cmd.run(ctx); cmd.err == nil {
				c.serve(ctx, time.Now()) // the next facts depend on the served editions
			}
			c.advance(ctx)
			close(cmd.done)
		case v := <-c.checks.results:
			c.checks.record(v, c.machine.State().Edition, c.edition.id)
		case v := <-c.judging.results:
			c.judging.record(v, c.edition.id)
		case <-due:
		case <-ctx.Done():
			return
		}
	}
}

// coalesce waits for minPause, so that simultaneous events cause one evaluation. It returns false if ctx has ended.
func (c *Controller) coalesce(ctx context.Context) bool {
	select {
	case <-time.After(minPause):
		return true
	case <-ctx.Done():
		return false
	}
}

// advance runs all steps that are due. It returns when to call it again at the latest; zero if only an event is a
// reason.
func (c *Controller) advance(ctx context.Context) (next time.Time) {
	for ctx.Err() == nil {
		now := time.Now()
		facts := c.facts(now)
		cut, due := c.machine.Advance(now, facts)
		if cut {
			available := slices.DeleteFunc(c.tracker.joined(), func(p *Part) bool { return p.unavailable })
			c.cutEdition(ctx, now, facts, available)
			c.rejectRepeated(now)
			continue
		}
		changed := c.serve(ctx, now)
		nextCheck := c.checks.start(ctx, now, c.machine.State(), c.newRequest)
		c.judging.follow(ctx, c.machine.State(), c.edition.id, c.subjects)
		c.publish(now, due, facts)
		if changed || !due.IsZero() && !due.After(now) {
			continue
		}
		for _, at := range []time.Time{
			due, c.nextObservation(), nextCheck, c.unavailableAt, c.expireWithdrawn(now),
		} {
			next = earlier(next, at)
		}
		return next
	}
	return time.Time{}
}

// earlier returns the earlier of two times. Zero means never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// nextObservation returns the time of the next observation of the clients; zero is never.
func (c *Controller) nextObservation() time.Time {
	if c.machine.State().Stage == 0 {
		return time.Time{}
	}
	return c.observed.Add(observeEvery)
}

// facts returns the current input of the machine. At most once per observeEvery, it observes the clients first.
func (c *Controller) facts(now time.Time) Facts {
	f := Facts{Frozen: c.cfg.Frozen(), Verdict: c.checks.verdict, Judgement: c.judging.Judgement}
	c.compareParts(now, &f)
	if stage := c.machine.State().Stage; stage > 0 && (stage != c.stage || !now.Before(c.nextObservation())) {
		c.observation = c.tracker.observe(now, stage)
	}
	f.Evidence = c.evidence
	f.HaltReason = c.tracker.haltReason(now.Sub(c.machine.State().Entered).Round(time.Second))
	return f
}

// compareParts adds to f how latest differs in all available parts.
func (c *Controller) compareParts(now time.Time, f *Facts) {
	m, parts, settled := c.machine.State(), c.tracker.joined(), true
	c.updateUnavailable(parts, now)
	for _, p := range parts {
		w := p.waiting.Load()
		if p.unavailable {
			f.Unavailable = true
			continue
		}
		settled = settled && p.unsettledSince.IsZero()
		f.Differs = f.Differs || w.Names > 0
		f.Edited = f.Edited || w.Edited > 0
		notInEdition := m.Phase.inProgress() && p.editions[m.Edition] == nil
		f.Behind = f.Behind || w.Behind > 0 || w.Names > 0 && notInEdition
		if w.Changed.After(f.Changed) {
			f.Changed = w.Changed
		}
	}
	f.Complete = settled && len(parts) > 0
}

// updateUnavailable marks a part as unavailable if the origin has not confirmed its state for unavailableAfter, but
// has confirmed another part. For example, the origin rejects the streams of one node group. Editions do not contain
// unavailable parts.
func (c *Controller) updateUnavailable(parts []*Part, now time.Time) {
	m := c.machine.State()
	c.unavailableAt = time.Time{}
	for _, p := range parts {
		if p.unavailable = false; !p.unsettled(m) {
			p.unsettledSince = time.Time{}
			continue
		}
		if p.unsettledSince.IsZero() {
			p.unsettledSince = now
		}
		if m.Phase.hasEdition() && p.changedBy(m.Edition) {
			continue // the outcome of the edition depends on all of its parts
		}
		if at := p.unsettledSince.Add(unavailableAfter); now.Before(at) {
			c.unavailableAt = earlier(c.unavailableAt, at)
		} else {
			p.unavailable = slices.ContainsFunc(parts, (*Part).connected)
		}
	}
}

// connected reports whether the origin serves the part and has confirmed its state.
func (p *Part) connected() bool {
	return p.view.Generation().Source(p.source).Connected && p.view.Settled(p.source)
}

// unsettled reports whether the next step depends on the state of the part and the origin has not confirmed it.
func (p *Part) unsettled(m State) bool {
	depends := p.waiting.Load().Names > 0 || p.changedBy(m.Edition) && m.Phase != Current
	return depends && !p.view.Settled(p.source)
}

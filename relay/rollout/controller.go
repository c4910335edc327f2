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

	// unavailableAfter is how long an edition waits for the origin to confirm the state of a section.
	unavailableAfter = 30 * time.Second
)

// A ControllerConfig configures the controller of one origin.
type ControllerConfig struct {
	Config
	Origin string                    // the name of the origin
	Check  *Check                    // nil disables the external check
	Judge  Judge                     // nil unless Judged
	Trials *Trials                   // of all origins that have this judge; nil if only this one has
	Waits  func(typeURL string) bool // reports whether changes of the type are rolled out in stages

	// Observed yields the open streams of clients. It is called while the controller runs.
	Observed func() iter.Seq[downstream.Observed]

	// Frozen reports whether an operator froze the origin.
	Frozen func() bool

	// Decided is called when the result of Withdrawn has changed. It writes the result to disk.
	Decided func(context.Context)

	// Changed is called after a change of the phase, the stage or the edition of a part, which has a number.
	Changed func(part int, before, after *Status)

	// Told is called when the result of Decisions has changed.
	Told func()

	Logger *slog.Logger
}

// A Controller distributes the changes of one origin in stages. Its methods may be called from any goroutine.
//
// Its goroutine, Run, owns the parts and their editions. After each change it collects the facts again and applies the
// decisions of the machines, so that no event is missed or handled twice.
type Controller struct {
	cfg ControllerConfig

	wake     chan struct{}
	commands chan *command
	results  chan checkResult
	ended    chan struct{}        // closed when Run returns
	restored map[*part]*Withdrawn // the rejections that an earlier process left active
	tracker  tracker
	peers    peers
	told     atomic.Pointer[Decisions] // result of Decisions; nil before the first one

	// Owned by Run.
	parts         []*part
	free          *part                  // gathers the changes that no part has
	partitioned   stamp                  // when these last were made parts
	joined        map[resourceName]*part // those of them that waited for the end of a part then
	excess        int                    // number of parts that then were not made of them because of maxOpenParts
	phases        uint64                 // number of changes of phases, and of which sections are available
	numbers       int                    // number of parts so far
	promotions    int                    // number of times that the rest was served other editions
	outcomes      Outcomes               // of parts that are gone
	cold          bool                   // the value of Status.Cold
	unavailableAt time.Time              // when the next section becomes unavailable; zero is never
	rejections    rejections
	judging       judging
	promotedHere  []Decision // by operators of this relay, the oldest first

	status atomic.Pointer[Status]
}

// NewController returns the controller of an origin whose latest is the last good. withdrawn is the result of Withdrawn
// in an earlier process; nil without one.
func NewController(cfg ControllerConfig, withdrawn []*Withdrawn) *Controller {
	c := &Controller{
		cfg: cfg, rejections: rejections{withdrawn: slices.Clone(withdrawn)}, wake: make(chan struct{}, 1),
		commands: make(chan *command), results: make(chan checkResult, 1), ended: make(chan struct{}),
		restored: make(map[*part]*Withdrawn),
	}
	c.tracker.cfg, c.tracker.poke, c.tracker.streams = &c.cfg, c.Poke, make(map[Client]int)
	c.judging.judge, c.judging.results, c.judging.ended = cfg.Judge, make(chan judgeResult, 1), c.ended
	if c.judging.trials = cfg.Trials; cfg.Trials == nil {
		c.judging.trials = new(Trials)
	}
	c.free = c.newPart()
	for i, e := range c.rejections.withdrawn {
		if !e.Ended.IsZero() {
			continue
		}
		p, active := c.newPart(), *e
		p.machine.Restore(Halt{Reason: e.Reason, At: e.At, Signaled: e.Signaled})
		if p.follows.halt = e.Peer; e.Peer != nil {
			p.machine.halt.Peer = e.Peer.Address
		}
		p.edition, active.part = summarize(e.Changes), p
		c.rejections.withdrawn[i], c.restored[p] = &active, e
		c.addPart(p)
	}
	c.rejections.publish()
	c.status.Store(c.newStatus())
	return c
}

// Origin returns the name of the origin.
func (c *Controller) Origin() string { return c.cfg.Origin }

// Status returns the state of the rollout and the current number of connected clients.
func (c *Controller) Status() *Status {
	s := c.status.Load().clone()
	for _, of := range append(s.Parts, s) {
		c.tracker.countClients(of.Cohorts)
	}
	return s
}

// Poke makes Run evaluate the facts again. It does not block.
func (c *Controller) Poke() {
	select {
	case c.wake <- struct{}{}:
	default: // an evaluation is already pending
	}
}

// Run distributes changes until ctx ends, and returns once the judge has ended. It may be called once. cold reports that no
// snapshot of the last good was restored.
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
		case v := <-c.results:
			v.part.checks.record(v, v.part.machine.edition, v.part.edition.id)
		case v := <-c.judging.results:
			c.recordJudgement(v)
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
		if c.step(ctx, now) {
			continue
		}
		changed := c.serve(ctx, now)
		c.runJudge(ctx)
		next = earlier(earlier(c.unavailableAt, c.expireWithdrawn(now)), c.tell(now))
		for _, p := range c.machines() {
			changed = changed || !p.due.IsZero() && !p.due.After(now)
			for _, at := range []time.Time{p.due, c.nextObservation(p), c.startCheck(ctx, now, p)} {
				next = earlier(next, at)
			}
		}
		c.publish()
		if !changed {
			return next
		}
	}
	return time.Time{}
}

// machines returns all parts, and the one that gathers what no part has.
func (c *Controller) machines() []*part { return append(slices.Clone(c.parts), c.free) }

// step advances all machines. It returns true if it made editions, after which the facts are others.
func (c *Controller) step(ctx context.Context, now time.Time) (cut bool) {
	if c.collect(ctx, now); !c.cfg.Frozen() {
		c.followPeers(ctx, now)
	}
	gathered, corrected := c.advanceMachines(now)
	if c.resumeAlike(ctx, now, corrected) {
		return true
	}
	switch n := len(gathered) - 1; {
	case n < 0:
	case gathered[n] != c.free:
		cut = c.cut(ctx, now, gathered...)
	default: // those of parts come first
		if cut = c.cut(ctx, now, gathered[:n]...); !cut {
			c.cutFree(ctx, now)
			cut = true
		}
	}
	if cut {
		return true
	}
	if !c.cfg.Frozen() {
		c.nextJudged(now)
	}
	return false
}

// advanceMachines advances all machines. It returns the parts that want an edition, and the halts by signals that have ended
// because the origin has corrected the changes.
func (c *Controller) advanceMachines(now time.Time) (gathered []*part, corrected []Halt) {
	for _, p := range c.machines() {
		var wants bool
		was := p.machine.halt
		if wants, p.due = p.machine.Advance(now, p.facts); wants {
			gathered = append(gathered, p)
		}
		reverted := p.machine.phase == Current && c.restored[p] == nil // an origin may not have stated all after a restart
		if !was.Signaled.IsZero() && (p.machine.phase == Gathering || reverted) {
			corrected = append(corrected, was)
		}
	}
	return gathered, corrected
}

// resumeAlike starts the rollouts of parts again that the same signals have halted as others, which the origin has corrected:
// one of these may have been the only bad one. It reports whether there were any.
func (c *Controller) resumeAlike(ctx context.Context, now time.Time, corrected []Halt) (resumed bool) {
	for _, p := range c.parts {
		halt := p.machine.halt
		alike := func(of Halt) bool { return of.Reason == halt.Reason && of.Signaled.Equal(halt.Signaled) }
		if halt.Signaled.IsZero() || !slices.ContainsFunc(corrected, alike) || p.machine.Resume(now) != nil {
			continue
		}
		resumed = true
		c.allowRejected(ctx, p)
		c.cfg.Logger.Info("rollout resumed, because the origin has corrected what the same signals had halted",
			slog.String("part", p.edition.name))
	}
	return resumed
}

// earlier returns the earlier of two times. Zero means never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// nextObservation returns the time of the next observation of the clients of a part; zero is never.
func (c *Controller) nextObservation(p *part) time.Time {
	if p.machine.State().Stage == 0 {
		return time.Time{}
	}
	return p.observed.Add(observeEvery)
}

// collect collects the current input of all machines. At most once per observeEvery, it observes the clients first.
func (c *Controller) collect(ctx context.Context, now time.Time) {
	c.compareLatest(ctx) // a section may have joined
	c.observe(now)
	sections := c.tracker.joined()
	c.updateUnavailable(sections, now)
	common := Facts{Frozen: c.cfg.Frozen()}
	for _, s := range sections {
		common.Unavailable = common.Unavailable || s.unavailable
	}
	for _, p := range c.parts {
		p.facts = c.partFacts(p, sections, common, now)
	}
	c.free.facts = c.freeFacts(sections, common)
}

// observe observes the clients of all parts that are served to cohorts, if it is time for one of them.
func (c *Controller) observe(now time.Time) {
	var served []*part
	due := false
	for _, p := range c.parts {
		if stage := p.machine.State().Stage; stage > 0 {
			served = append(served, p)
			due = due || stage != p.stage || !now.Before(c.nextObservation(p))
		}
	}
	if due {
		c.tracker.observe(now, served)
	}
}

// available returns the sections that editions contain.
func (c *Controller) available() []*Section {
	return slices.DeleteFunc(c.tracker.joined(), func(s *Section) bool { return s.unavailable })
}

// updateUnavailable marks a section as unavailable if the origin has not confirmed its state for unavailableAfter, but
// has confirmed another section. For example, the origin rejects the streams of one node group. Editions do not contain
// unavailable sections.
func (c *Controller) updateUnavailable(sections []*Section, now time.Time) {
	c.unavailableAt = time.Time{}
	before := c.available()
	defer func() {
		if !slices.Equal(before, c.available()) {
			c.phases++ // what waits in these sections was in no partition
		}
	}()
	for _, s := range sections {
		changed := slices.ContainsFunc(c.parts, func(p *part) bool {
			return p.machine.phase.hasEdition() && s.changedBy(p, p.machine.edition)
		})
		if s.unavailable = false; s.view.Settled(s.source) || !changed && !c.depends(s) {
			s.unsettledSince = time.Time{}
			continue
		}
		if s.unsettledSince.IsZero() {
			s.unsettledSince = now
		}
		if changed {
			continue // the outcome of the edition depends on all of its sections
		}
		if at := s.unsettledSince.Add(unavailableAfter); now.Before(at) {
			c.unavailableAt = earlier(c.unavailableAt, at)
		} else {
			s.unavailable = slices.ContainsFunc(sections, (*Section).connected)
		}
	}
}

// depends reports whether the next step of a rollout depends on the state of a section.
func (c *Controller) depends(s *Section) bool {
	return s.waiting.Load().Names > 0 || slices.ContainsFunc(c.parts, func(p *part) bool {
		return p.machine.phase != Current && s.changedBy(p, p.machine.edition)
	})
}

// connected reports whether the origin serves the section and has confirmed its state.
func (s *Section) connected() bool {
	return s.view.Generation().Source(s.source).Connected && s.view.Settled(s.source)
}

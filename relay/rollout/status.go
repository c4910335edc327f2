package rollout

import (
	"fmt"
	"log/slog"
	"slices"
	"time"
)

// A Status is the state of an origin's rollout. It is immutable.
type Status struct {
	Origin string `json:"origin"`
	Phase  Phase  `json:"state"`

	Edition   string    `json:"edition,omitempty"`   // for operators: replicas may use other ids; empty before the first edition
	Resources int       `json:"resources,omitempty"` // that the edition changes
	Large     bool      `json:"large,omitempty"`     // it removes a large part of a type
	Changed   time.Time `json:"changed,omitzero"`    // time of its newest change, or of its resumption

	Stage int       `json:"stage"`           // number of stages that are served the edition
	Since time.Time `json:"since,omitzero"`  // start of the state or stage
	Until time.Time `json:"until,omitzero"`  // time of the next step; zero if it does not depend on time
	For   string    `json:"waits,omitempty"` // awaited condition other than time, as text
	Await Await     `json:"await,omitempty"` // the same condition as a code; empty while frozen

	Waiting  int       `json:"waiting"`            // resources in which latest differs from the last good
	Oldest   time.Time `json:"oldest,omitzero"`    // time of the oldest pending change
	Halted   *Halt     `json:"halted,omitempty"`   // nil unless the edition was rejected
	Frozen   bool      `json:"frozen,omitempty"`   // an operator froze the origin: rollouts are stopped
	Undoable bool      `json:"undoable"`           // there is a promotion to undo
	Cold     bool      `json:"cold,omitempty"`     // no last good existed at the start, and no edition was promoted since
	Check    string    `json:"check,omitempty"`    // last verdict or error of the check about the edition
	Checked  time.Time `json:"checked,omitzero"`   // time of that request
	Failing  time.Time `json:"failing,omitzero"`   // start of the failures of the check; zero without one
	Refusals []Refusal `json:"refusals,omitempty"` // error details of clients; at most MaxRefusals

	Unobserved bool     `json:"unobserved,omitempty"` // a stage of the edition ended without a client that accepted it
	Cohorts    []Cohort `json:"cohorts"`              // by stage, the rest last
	Outcomes   Outcomes `json:"outcomes"`
}

// An Await is a condition other than time that the next step of a rollout waits for.
type Await string

// Conditions that a rollout may wait for.
const (
	AwaitOrigin   Await = "origin"   // the origin connects and confirms its state
	AwaitHold     Await = "hold"     // the end of the hold: a large part of a type is removed
	AwaitApproval Await = "approval" // approval of an operator
	AwaitAnswers  Await = "answers"  // answers of clients
	AwaitCheck    Await = "check"    // a verdict of the check
)

// Awaits holds all conditions.
var Awaits = []Await{AwaitOrigin, AwaitHold, AwaitApproval, AwaitAnswers, AwaitCheck}

// A Cohort is the clients of one stage, or the rest.
type Cohort struct {
	Name    string `json:"name"`             // the stage as in TENDER_ROLLOUT, or "the rest"
	Clients int    `json:"clients"`          // connected clients
	Served  string `json:"served,omitempty"` // the edition; empty if they are served the same as the rest

	// Numbers of connected clients by their answer to the edition.
	Wanting  int `json:"wanting"` // clients that subscribe to its changes
	Accepted int `json:"accepted"`
	Refused  int `json:"refused"`

	// Left counts clients that disconnected in this stage and had accepted the last good before the edition.
	Left int `json:"left"`
}

// Outcomes count editions by outcome since the relay started.
type Outcomes struct {
	Promoted   int64 `json:"promoted"`
	Halted     int64 `json:"halted"`
	Reverted   int64 `json:"reverted"`   // by the origin
	Superseded int64 `json:"superseded"` // by a newer one
	Undone     int64 `json:"undone"`
}

// MaxRefusals is the maximum number of refusals in a Status.
const MaxRefusals = 20

// Phases holds all phases.
var Phases = []Phase{Current, Gathering, Held, Rolling, Halted}

// MarshalText returns the phase's name.
func (p Phase) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText reads what MarshalText returns.
func (p *Phase) UnmarshalText(text []byte) error {
	for is := Current; is <= Halted; is++ {
		if is.String() == string(text) {
			*p = is
			return nil
		}
	}
	return fmt.Errorf("%q is no state of a rollout", text)
}

// publish publishes the state of the rollout. due is the time of the machine's next step; zero if there is none.
func (c *Controller) publish(now, due time.Time, f Facts) {
	was, is := c.status.Load(), c.newStatus(due, f)
	if c.status.Store(is); was.Phase == is.Phase && was.Stage == is.Stage && was.Edition == is.Edition {
		return
	}
	if is.Outcomes.Promoted > was.Outcomes.Promoted {
		c.cold = false
	}
	c.logTransition(now, was, is)
	c.cfg.Changed(was, is)
}

func (c *Controller) newStatus(due time.Time, f Facts) *Status {
	m := c.machine.State()
	s := &Status{
		Origin: c.cfg.Origin, Phase: m.Phase, Edition: c.edition.id, Resources: c.edition.resources, Large: c.edition.large,
		Changed: m.Changed, Stage: m.Stage, Since: m.Entered, Until: due, Oldest: m.Pending, Frozen: f.Frozen,
		Undoable: m.Previous != nil, Cold: c.cold, Check: c.detail, Checked: c.asked, Failing: c.failingSince,
		Unobserved: m.Unobserved, Cohorts: slices.Clone(c.cohorts), Outcomes: m.Outcomes,
	}
	if s.Phase == Halted {
		s.Halted = &m.Halt
	}
	if s.Await, s.For = c.awaitedCondition(f); s.Frozen {
		s.Until, s.Await, s.For = time.Time{}, "", "a thaw: the origin is frozen"
	}
	for _, p := range c.partition().joined() {
		s.Waiting += p.waiting.Load().Names
	}
	c.observer().countClients(s.Cohorts)
	for cohort := range c.cfg.Stages {
		if e := c.served[cohort]; e != m.LastGood && e == m.Edition {
			s.Cohorts[cohort].Served = c.edition.id
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s.Refusals = slices.Clone(c.refused)
	return s
}

// awaitedCondition returns the condition other than time that the next step waits for, and its text for operators.
// Both are empty without one.
func (c *Controller) awaitedCondition(f Facts) (Await, string) {
	m := c.machine.State()
	switch {
	case m.Phase == Gathering && !f.Complete:
		return AwaitOrigin, "the origin: it is not connected, or has not confirmed its state"
	case m.Phase == Rolling && c.cfg.Stages[m.Stage-1].Approve:
		return AwaitApproval, "approval"
	case m.Phase.inProgress() && !m.CheckSince.IsZero():
		return AwaitCheck, "the check"
	case m.Phase == Held:
		return AwaitHold, "the end of the hold: a large part of a type is removed"
	case m.Overdue:
		return AwaitAnswers, fmt.Sprintf("answers: %d of %s answered, and %d accepted", f.Evidence.Answered, plural(f.Evidence.Wanting, "client"), f.Evidence.Accepted)
	case f.Unavailable:
		return "", "the origin: it has not confirmed the state of some node groups; rollouts proceed without these"
	case c.coldAndUnconfirmed():
		return "", "the origin: it has not confirmed its state, and the relay has no last good"
	default:
		return "", ""
	}
}

// coldAndUnconfirmed reports whether the relay started without a last good, clients are served latest, and the origin
// has not confirmed latest.
func (c *Controller) coldAndUnconfirmed() bool {
	return c.cold && c.machine.State().Phase == Current && slices.ContainsFunc(c.partition().joined(), func(p *Part) bool { return !p.view.Settled(p.source) })
}

// logTransition logs a change of the state, the stage or the edition.
func (c *Controller) logTransition(now time.Time, was, is *Status) {
	log := c.cfg.Logger.With(slog.String("edition", is.Edition), slog.Int("resources", is.Resources))
	switch {
	case is.Phase == Halted:
		log.Error("rollout halted; clients are served the last good", slog.String("reason", is.Halted.Reason), slog.Int("stage", was.Stage))
	case is.Outcomes.Promoted > was.Outcomes.Promoted:
		log.Info("rollout promoted: all clients are served the edition", slog.Bool("unobserved", is.Unobserved), slog.Duration("took", now.Sub(was.Oldest).Round(time.Millisecond)))
	case is.Phase == Rolling:
		log.Info("rollout reached a stage", slog.Int("stage", is.Stage), slog.String("clients", is.Cohorts[is.Stage-1].Name), slog.Bool("unobserved", is.Unobserved))
	case is.Phase == Held && is.Await == AwaitHold:
		log.Warn("rollout waits before the first stage", slog.String("for", is.For))
	case is.Phase == Held:
		log.Info("rollout waits before the first stage", slog.String("for", is.For))
	case is.Outcomes.Superseded > was.Outcomes.Superseded:
		log.Info("rollout superseded: the origin changed resources of the edition")
	case is.Phase == Gathering:
		c.cfg.Logger.Info("rollout gathers changes")
	case is.Phase == Current && was.Phase != Current:
		log.Info("rollout reverted: latest equals the last good")
	}
}

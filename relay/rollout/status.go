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

	Edition   string    `json:"edition,omitempty"`   // id for operators, not unique; empty before the first edition
	Resources int       `json:"resources,omitempty"` // number of resources that the edition changes
	Large     bool      `json:"large,omitempty"`     // the edition removes a large part of a type
	Changed   time.Time `json:"changed,omitzero"`    // time of its newest change, or of its resumption

	Stage    int       `json:"stage"`           // number of stages that are served the edition
	Since    time.Time `json:"since,omitzero"`  // start of the phase or stage
	Until    time.Time `json:"until,omitzero"`  // time of the next step; zero if it does not depend on time
	WaitsFor string    `json:"waits,omitempty"` // awaited condition other than time, as text
	Await    Await     `json:"await,omitempty"` // the same condition as a code; empty while frozen

	Waiting    int         `json:"waiting"`              // resources in which latest differs from the last good
	Oldest     time.Time   `json:"oldest,omitzero"`      // time of the oldest pending change
	Halted     *Halt       `json:"halted,omitempty"`     // nil unless the edition was rejected
	Frozen     bool        `json:"frozen,omitempty"`     // an operator froze the origin: no step of a rollout happens
	Undoable   bool        `json:"undoable"`             // an operator can undo the last promotion
	Cold       bool        `json:"cold,omitempty"`       // no last good existed at the start, and no edition was promoted since
	Check      string      `json:"check,omitempty"`      // last verdict of the check about the edition, or its last error
	Checked    time.Time   `json:"checked,omitzero"`     // time of that request
	Failing    time.Time   `json:"failing,omitzero"`     // start of the failures of the check; zero without one
	Envoy      string      `json:"envoy,omitempty"`      // result of the check by a local Envoy of the edition
	Rejections []Rejection `json:"rejections,omitempty"` // error details of clients; at most MaxRejections

	Unobserved bool     `json:"unobserved,omitempty"` // a stage of the edition ended without a client or Envoy that accepted it
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
	AwaitEnvoy    Await = "envoy"    // the answer of a local Envoy
)

// Awaits holds all conditions.
var Awaits = []Await{AwaitOrigin, AwaitHold, AwaitApproval, AwaitAnswers, AwaitCheck, AwaitEnvoy}

// A Cohort counts the clients of one stage, or of the rest.
type Cohort struct {
	Name    string `json:"name"`             // the stage as in TENDER_ROLLOUT, or "the rest"
	Clients int    `json:"clients"`          // connected clients
	Served  string `json:"served,omitempty"` // id of the edition; empty if it is served the same as the rest

	// Numbers of connected clients by their answer to the edition.
	Subscribed int `json:"wanting"` // clients that subscribe to a resource that the edition changes
	Accepted   int `json:"accepted"`
	Rejected   int `json:"rejected"`

	// Disconnected counts clients that disconnected in this stage and had accepted the last good before the edition.
	Disconnected int `json:"left"`
}

// Outcomes counts editions by outcome since the relay started.
type Outcomes struct {
	Promoted   int64 `json:"promoted"`
	Halted     int64 `json:"halted"`
	Reverted   int64 `json:"reverted"`   // by the origin
	Superseded int64 `json:"superseded"` // by a newer edition
	Undone     int64 `json:"undone"`     // by an operator, after the promotion
}

// MaxRejections is the maximum number of rejections in a Status.
const MaxRejections = 20

// Phases holds all phases.
var Phases = []Phase{Current, Gathering, Held, Rolling, Halted}

// MarshalText returns the phase's name.
func (p Phase) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText parses the name of a phase.
func (p *Phase) UnmarshalText(text []byte) error {
	for _, phase := range Phases {
		if phase.String() == string(text) {
			*p = phase
			return nil
		}
	}
	return fmt.Errorf("%q is not a state of a rollout; the states are %v", text, Phases)
}

// publish publishes the status of the rollout and logs a transition. due is the time of the machine's next step; zero
// without one.
func (c *Controller) publish(now, due time.Time, f Facts) {
	before, after := c.status.Load(), c.newStatus(due, f)
	c.status.Store(after)
	if before.Phase == after.Phase && before.Stage == after.Stage && before.Edition == after.Edition {
		return
	}
	if after.Outcomes.Promoted > before.Outcomes.Promoted {
		c.cold = false
	}
	c.logTransition(now, before, after)
	c.cfg.Changed(before, after)
}

// newStatus returns the current status.
func (c *Controller) newStatus(due time.Time, f Facts) *Status {
	m := c.machine.State()
	s := &Status{
		Origin: c.cfg.Origin, Phase: m.Phase, Edition: c.edition.id, Resources: c.edition.resources, Large: c.edition.large,
		Changed: m.Changed, Stage: m.Stage, Since: m.Entered, Until: due, Oldest: m.Pending, Frozen: f.Frozen,
		Undoable: m.Previous != nil, Cold: c.cold, Rejections: c.tracker.shownRejections(), Unobserved: m.Unobserved,
		Check: c.checks.detail, Checked: c.checks.requestedAt, Failing: c.checks.failingSince,
		Envoy:   c.judging.detail(m),
		Cohorts: slices.Clone(c.cohorts), Outcomes: m.Outcomes,
	}
	if s.Phase == Halted {
		s.Halted = &m.Halt
	}
	if s.Await, s.WaitsFor = c.awaitedCondition(f); s.Frozen {
		s.Until, s.Await, s.WaitsFor = time.Time{}, "", "a thaw: an operator froze the origin"
	}
	for _, p := range c.tracker.joined() {
		s.Waiting += p.waiting.Load().Names
	}
	c.tracker.countClients(s.Cohorts)
	for cohort := range c.cfg.Stages {
		if e := c.served[cohort]; e != m.LastGood && e == m.Edition {
			s.Cohorts[cohort].Served = c.edition.id
		}
	}
	return s
}

// awaitedCondition returns the condition other than time that the next step waits for, and its text for operators.
// Both are empty without one.
func (c *Controller) awaitedCondition(f Facts) (Await, string) {
	m := c.machine.State()
	switch {
	case m.Phase == Gathering && !f.Complete:
		return AwaitOrigin, "the origin: it is not connected or has not confirmed its state"
	case m.Phase == Rolling && c.cfg.Stages[m.Stage-1].Approve:
		return AwaitApproval, "approval"
	case m.Judging:
		return AwaitEnvoy, "the answer of the local Envoy"
	case m.Phase.inProgress() && !m.CheckSince.IsZero():
		return AwaitCheck, "the check"
	case m.Phase == Held:
		return AwaitHold, "the end of the hold: a large part of a type is removed"
	default:
		return c.awaitedClients(f)
	}
}

// awaitedClients returns what awaitedCondition returns for conditions that clients, or some node groups, have yet to meet.
func (c *Controller) awaitedClients(f Facts) (Await, string) {
	switch m := c.machine.State(); {
	case m.Overdue:
		e := f.Evidence
		return AwaitAnswers, fmt.Sprintf("answers: %d of %s answered, and %d accepted",
			e.Answered, pluralClients(e.Subscribed), e.Accepted)
	case f.Unavailable:
		return "", "the origin: it has not confirmed the state of some node groups; rollouts exclude these groups"
	case c.coldAndUnconfirmed():
		return "", "the origin: it has not confirmed its state, and no last good was restored"
	default:
		return "", ""
	}
}

// coldAndUnconfirmed reports whether the relay started without a last good, clients are served latest, and the origin
// has not confirmed latest.
func (c *Controller) coldAndUnconfirmed() bool {
	unconfirmed := func(p *Part) bool { return !p.view.Settled(p.source) }
	return c.cold && c.machine.State().Phase == Current && slices.ContainsFunc(c.tracker.joined(), unconfirmed)
}

// logTransition logs a change of the phase, the stage or the edition.
func (c *Controller) logTransition(now time.Time, before, after *Status) {
	log := c.cfg.Logger.With(slog.String("edition", after.Edition), slog.Int("resources", after.Resources))
	unobserved := slog.Bool("unobserved", after.Unobserved)
	switch {
	case after.Phase == Halted:
		log.Error("rollout halted; serving the last good",
			slog.String("reason", after.Halted.Reason), slog.Int("stage", before.Stage))
	case after.Outcomes.Promoted > before.Outcomes.Promoted:
		log.Info("rollout promoted to all clients",
			unobserved, slog.Duration("took", now.Sub(before.Oldest).Round(time.Millisecond)))
	case after.Phase == Rolling:
		log.Info("rollout stage started",
			slog.Int("stage", after.Stage), slog.String("clients", after.Cohorts[after.Stage-1].Name), unobserved)
	case after.Phase == Held && after.Await == AwaitHold:
		log.Warn("rollout waiting before the first stage", slog.String("for", after.WaitsFor))
	case after.Phase == Held:
		log.Info("rollout waiting before the first stage", slog.String("for", after.WaitsFor))
	case after.Outcomes.Superseded > before.Outcomes.Superseded:
		log.Info("rollout superseded by an origin change")
	case after.Phase == Gathering:
		c.cfg.Logger.Info("rollout collecting changes")
	case after.Phase == Current && before.Phase != Current:
		log.Info("rollout reverted by the origin")
	}
}

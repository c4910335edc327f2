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

	Edition   string    `json:"edition,omitempty"`   // for humans: replicas may hold other names; empty before the first
	Resources int       `json:"resources,omitempty"` // that the edition changes
	Large     bool      `json:"large,omitempty"`     // it removes a large part of a type
	Changed   time.Time `json:"changed,omitzero"`    // when its newest change came, or it was resumed

	Stage int       `json:"stage"`           // how many stages are served the edition
	Since time.Time `json:"since,omitzero"`  // when the state, or the stage, began
	Until time.Time `json:"until,omitzero"`  // when the next step is due by time; zero if it is not
	For   string    `json:"waits,omitempty"` // what it waits for besides, in words
	Await Await     `json:"await,omitempty"` // the same, for programs; empty while the origin is frozen

	Waiting  int       `json:"waiting"`            // resources that the rest is not served as the origin has them
	Oldest   time.Time `json:"oldest,omitzero"`    // since when the oldest of them waits
	Halted   *Halt     `json:"halted,omitempty"`   // nil unless the edition was rejected
	Frozen   bool      `json:"frozen,omitempty"`   // the origin is: nothing moves
	Undoable bool      `json:"undoable"`           // there is a promotion to undo
	Cold     bool      `json:"cold,omitempty"`     // the relay began without a last good, and has not promoted an edition since
	Check    string    `json:"check,omitempty"`    // the newest answer of the check about the edition, or why there is none
	Checked  time.Time `json:"checked,omitzero"`   // when it was asked for that
	Failing  time.Time `json:"failing,omitzero"`   // since when the check gives no answer; zero if it does
	Refusals []Refusal `json:"refusals,omitempty"` // of the edition, in the clients' words; at most MaxRefusals

	Unobserved bool     `json:"unobserved,omitempty"` // a stage of the edition ended without a client that accepted it
	Cohorts    []Cohort `json:"cohorts"`              // by stage, the rest last
	Outcomes   Outcomes `json:"outcomes"`
}

// An Await is what the next step of a rollout waits for besides time.
type Await string

// Conditions that a rollout may wait for.
const (
	AwaitOrigin   Await = "origin"   // to be connected, and to confirm what it has
	AwaitHold     Await = "hold"     // the end of the hold: a large part of a type is removed
	AwaitApproval Await = "approval" // of an operator
	AwaitAnswers  Await = "answers"  // of clients
	AwaitCheck    Await = "check"    // to answer
)

// Awaits has all of these.
var Awaits = []Await{AwaitOrigin, AwaitHold, AwaitApproval, AwaitAnswers, AwaitCheck}

// A Cohort is the clients of one stage, or the rest.
type Cohort struct {
	Name    string `json:"name"`             // the stage as TENDER_ROLLOUT has it; "the rest"
	Clients int    `json:"clients"`          // that are connected
	Served  string `json:"served,omitempty"` // the edition, if they are served it and the rest is not

	// Of these, what they did with the edition.
	Wanting  int `json:"wanting"` // subscribe to something that it changes
	Accepted int `json:"accepted"`
	Refused  int `json:"refused"`

	// Clients that closed their streams in this stage, of those that had accepted the last good before the edition.
	Left int `json:"left"`
}

// Outcomes count editions since the relay began, by what became of them.
type Outcomes struct {
	Promoted   int64 `json:"promoted"`
	Halted     int64 `json:"halted"`
	Reverted   int64 `json:"reverted"`   // by the origin
	Superseded int64 `json:"superseded"` // by a newer one
	Undone     int64 `json:"undone"`
}

// MaxRefusals is how many refusals a Status has.
const MaxRefusals = 20

// Phases has all phases.
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
	c.log(now, was, is)
	c.cfg.Changed(was, is)
}

func (c *Controller) newStatus(due time.Time, f Facts) *Status {
	m := c.machine
	s := &Status{
		Origin: c.cfg.Origin, Phase: m.Phase(), Edition: c.about.id, Resources: c.about.resources, Large: c.about.large,
		Changed: m.Changed(), Stage: m.Stage(), Since: m.Entered(), Until: due, Oldest: m.Waiting(), Frozen: f.Frozen, Cold: c.cold,
		Check: c.words, Checked: c.asked, Failing: c.failing, Unobserved: m.Unobserved(), Cohorts: slices.Clone(c.cohorts), Outcomes: m.Outcomes(),
	}
	_, s.Undoable = m.Before()
	if s.Phase == Halted {
		halt := m.Halt()
		s.Halted = &halt
	}
	if s.Await, s.For = c.awaits(f); s.Frozen {
		s.Until, s.Await, s.For = time.Time{}, "", "a thaw: the origin is frozen"
	}
	for _, p := range c.joined() {
		s.Waiting += p.waiting.Load().Names
	}
	c.countClients(s.Cohorts)
	for cohort := range c.cfg.Stages {
		if e := c.served[cohort]; e != m.Good() && e == m.Edition() {
			s.Cohorts[cohort].Served = c.about.id
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s.Refusals = slices.Clone(c.refused)
	return s
}

// awaits returns what the next step waits for besides time, also in words; both empty if it does for nothing.
func (c *Controller) awaits(f Facts) (Await, string) {
	m := c.machine
	switch {
	case m.Phase() == Gathering && !f.Complete:
		return AwaitOrigin, "the origin: it is not connected, or has not confirmed what it has"
	case m.Phase() == Rolling && c.cfg.Stages[m.Stage()-1].Approve:
		return AwaitApproval, "approval"
	case m.open() && !m.Ripe().IsZero():
		return AwaitCheck, "the check"
	case m.Phase() == Held:
		return AwaitHold, "the end of the hold: a large part of a type is removed"
	case m.Overdue():
		return AwaitAnswers, fmt.Sprintf("answers: %d of %s answered, and %d accepted", f.Evidence.Answered, counted(f.Evidence.Wanting, "client"), f.Evidence.Accepted)
	case f.Away:
		return "", "the origin: it has not confirmed what it has of some node groups, and rollouts go on without these"
	case c.unconfirmed():
		return "", "the origin: it has not confirmed what it has, and the relay has no last good"
	default:
		return "", ""
	}
}

// unconfirmed reports whether clients are served what the origin has, the relay began without a last good, and the origin has not
// confirmed that this is all.
func (c *Controller) unconfirmed() bool {
	return c.cold && c.machine.Phase() == Current && slices.ContainsFunc(c.joined(), func(p *Part) bool { return !p.view.Settled(p.source) })
}

// log logs a step of the rollout.
func (c *Controller) log(now time.Time, was, is *Status) {
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
		log.Info("rollout superseded: the origin changed what the edition changes")
	case is.Phase == Gathering:
		c.cfg.Logger.Info("rollout gathers changes")
	case is.Phase == Current && was.Phase != Current:
		log.Info("rollout reverted: the origin has what clients are served")
	}
}

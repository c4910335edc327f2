package rollout

import (
	"fmt"
	"log/slog"
	"slices"
	"time"
)

// A Status is the state of an origin's rollout, or of a part of it. It is immutable.
type Status struct {
	Origin string `json:"origin"`
	Part   string `json:"part,omitempty"` // the resource that the part is named after, such as "rds/checkout"
	Phase  Phase  `json:"state"`

	Edition   string    `json:"edition,omitempty"`   // id for operators, not unique; empty before the first edition
	Resources int       `json:"resources,omitempty"` // number of resources that the edition changes
	Large     bool      `json:"large,omitempty"`     // the edition removes a large part of a type
	Changed   time.Time `json:"changed,omitzero"`    // time of its newest change, or of its resumption

	Stage    int       `json:"stage"`           // number of stages that are served the edition
	Since    time.Time `json:"since,omitzero"`  // start of the phase or stage
	Until    time.Time `json:"until,omitzero"`  // time of the next step; absent if it does not depend on time
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
	Failing    time.Time   `json:"failing,omitzero"`     // start of the failures of the check; absent without one
	Envoy      string      `json:"envoy,omitempty"`      // result of the check by a local Envoy of the edition
	Rejections []Rejection `json:"rejections,omitempty"` // error details of clients; at most MaxRejections

	Unobserved bool     `json:"unobserved,omitempty"` // a stage of the edition ended without a client or Envoy that accepted it
	Cohorts    []Cohort `json:"cohorts"`              // by stage, the rest last
	Outcomes   Outcomes `json:"outcomes"`

	// Parts are the parts of the rollout, the most urgent first: those that are open, and those whose promotion can be
	// undone. The fields above are those of the first one; waiting, oldest, undoable and outcomes are of all.
	Parts []*Status `json:"parts,omitempty"`

	// Full describes the changes that wait or share a part because 64 parts are open, the maximum; empty without any.
	Full string `json:"full,omitempty"`

	// Peers are the relays of TENDER_PEERS that do not answer: what they have halted is unknown.
	Peers []PeerFailure `json:"unreachable_peers,omitempty"`
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
	Served  string `json:"served,omitempty"` // ID of the edition; empty if it is served the same as the rest

	// Numbers of connected clients by their answer to the edition.
	Subscribed int `json:"subscribed"` // clients that subscribe to a resource that the edition changes
	Accepted   int `json:"accepted"`
	Rejected   int `json:"rejected"`

	// Disconnected counts clients that disconnected in this stage and had accepted the last good before the edition.
	Disconnected int `json:"disconnected"`
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

// urgency orders phases for operators, the most urgent first.
func (p Phase) urgency() int {
	return slices.Index([]Phase{Halted, Rolling, Held, Gathering, Current}, p)
}

// clone returns a copy of a status and of its parts, whose cohorts may be modified.
func (s *Status) clone() *Status {
	copied := *s
	copied.Cohorts, copied.Parts = slices.Clone(s.Cohorts), nil
	for _, of := range s.Parts {
		copied.Parts = append(copied.Parts, of.clone())
	}
	return &copied
}

// publish publishes the status of the rollout and logs the transitions of parts.
func (c *Controller) publish() {
	for _, p := range c.machines() {
		c.publishPart(p)
	}
	c.status.Store(c.newStatus())
}

// publishPart publishes the status of a part and logs its transition.
func (c *Controller) publishPart(p *part) {
	before, after := p.status, c.partStatus(p)
	if before == nil {
		before = &Status{Origin: c.cfg.Origin}
	}
	p.status = after
	if before.Phase == after.Phase && before.Stage == after.Stage && before.Edition == after.Edition {
		return
	}
	if after.Outcomes.Promoted > before.Outcomes.Promoted {
		c.cold = false
	}
	c.logTransition(p, before, after)
	c.cfg.Changed(p.number, before, after)
}

// newStatus returns the current status: that of the most urgent part, or of the one that was promoted last, with the sums
// of all.
func (c *Controller) newStatus() *Status {
	var all []*Status
	outcomes := c.outcomes
	most := c.free
	for _, p := range c.machines() {
		of := c.partStatus(p)
		outcomes.add(of.Outcomes)
		if p != c.free || of.Phase == Gathering {
			all = append(all, of)
		}
		u, v := p.machine.phase.urgency(), most.machine.phase.urgency()
		if u < v || u == v && (most == c.free || p.promotedAt > most.promotedAt && p != c.free) {
			most = p
		}
	}
	slices.SortStableFunc(all, func(a, b *Status) int { return a.Phase.urgency() - b.Phase.urgency() })
	s := c.partStatus(most)
	s.Parts, s.Outcomes, s.Oldest, s.Full, s.Peers = all, outcomes, c.oldest(), c.full(), c.peers.failures()
	for _, of := range all {
		s.Undoable = s.Undoable || of.Undoable
	}
	s.Waiting = 0
	for _, of := range c.tracker.joined() {
		s.Waiting += of.waiting.Load().Names
	}
	return s
}

// full returns the value of Status.Full.
func (c *Controller) full() (text string) {
	add := func(format string, args ...any) {
		if text == "" {
			text = fmt.Sprintf("%d parts are open, the maximum", maxOpenParts)
		}
		text += fmt.Sprintf("; "+format, args...)
	}
	for _, p := range c.parts {
		if p.bundled > 1 && p.machine.phase != Current {
			add("%s has the changes of %d parts", p.edition.name, p.bundled)
		}
	}
	if c.excess > 0 {
		add("changes of %d more wait for the end of one", c.excess)
	}
	return text
}

// oldest returns the time of the oldest pending change; zero without one.
func (c *Controller) oldest() (at time.Time) {
	for _, p := range c.machines() {
		at = earlier(earlier(at, p.machine.pendingSince), p.joinedSince)
	}
	return at
}

// partStatus returns the status of a part.
func (c *Controller) partStatus(p *part) *Status {
	m, f := p.machine.State(), p.facts
	s := &Status{
		Origin: c.cfg.Origin, Part: p.edition.name, Phase: m.Phase, Edition: p.edition.id,
		Resources: p.edition.resources, Large: p.edition.large,
		Changed: m.Changed, Stage: m.Stage, Since: m.Entered, Until: p.due, Oldest: m.Pending, Frozen: c.frozen(p),
		Undoable: m.Previous != nil, Cold: c.cold, Rejections: c.tracker.shownRejections(p), Unobserved: m.Unobserved,
		Check: p.checks.detail, Checked: p.checks.requestedAt, Failing: p.checks.failingSince,
		Envoy:   p.judgement.detail(m),
		Cohorts: slices.Clone(p.cohorts), Outcomes: m.Outcomes,
	}
	if s.Phase == Halted {
		s.Halted = &m.Halt
	}
	if s.Await, s.WaitsFor = c.awaitedCondition(p, f); s.Frozen {
		s.Until, s.Await, s.WaitsFor = time.Time{}, "", "a thaw: an operator froze the origin"
	}
	for _, of := range c.tracker.joined() {
		if p == c.free {
			s.Waiting += of.waiting.Load().Free.Names
		} else {
			s.Waiting += of.countOf(p).Names
		}
	}
	c.tracker.countClients(s.Cohorts)
	for cohort := range c.cfg.Stages {
		if e := p.served[cohort]; e != m.LastGood && e == m.Edition {
			s.Cohorts[cohort].Served = p.edition.id
		}
	}
	return s
}

// frozen reports whether the last evaluation of a part found the origin frozen.
func (c *Controller) frozen(p *part) bool { return p.facts.Frozen || c.free.facts.Frozen }

// add adds the outcomes of other editions.
func (o *Outcomes) add(other Outcomes) {
	o.Promoted += other.Promoted
	o.Halted += other.Halted
	o.Reverted += other.Reverted
	o.Superseded += other.Superseded
	o.Undone += other.Undone
}

// awaitedCondition returns the condition other than time that the next step of a part waits for, and its text for
// operators. Both are empty without one.
func (c *Controller) awaitedCondition(p *part, f Facts) (Await, string) {
	m := p.machine.State()
	switch {
	case m.Phase == Gathering:
		return p.awaitedByGathering(f)
	case m.Phase == Rolling && c.cfg.Stages[m.Stage-1].Approve:
		return AwaitApproval, "approval"
	case m.Judging:
		return AwaitEnvoy, "the answer of the local Envoy"
	case m.Queued:
		return AwaitEnvoy, "the local Envoy, which tries other parts first"
	case m.Phase.inProgress() && !m.CheckSince.IsZero():
		return AwaitCheck, "the check"
	case m.Phase == Held:
		return AwaitHold, "the end of the hold: a large part of a type is removed"
	default:
		return c.awaitedClients(p, f)
	}
}

// awaitedClients returns what awaitedCondition returns for conditions that clients, or some node groups, have yet to meet.
func (c *Controller) awaitedClients(p *part, f Facts) (Await, string) {
	switch m := p.machine.State(); {
	case m.Overdue:
		e := f.Evidence
		return AwaitAnswers, fmt.Sprintf("answers: %d of %s answered, and %d accepted",
			e.Answered, pluralClients(e.Subscribed), e.Accepted)
	case f.Unavailable:
		return "", "the origin: it has not confirmed the state of some node groups; rollouts exclude these groups"
	case c.coldAndUnconfirmed(m.Phase):
		return "", "the origin: it has not confirmed its state, and no last good was restored"
	default:
		return "", ""
	}
}

// awaitedByGathering is awaitedCondition in phase Gathering.
func (p *part) awaitedByGathering(f Facts) (Await, string) {
	switch {
	case !f.Complete:
		return AwaitOrigin, "the origin: it is not connected or has not confirmed its state"
	case p.blockedBy != "":
		return "", "the end of " + p.blockedBy + ", to which the changes belong, too"
	case f.Unavailable:
		return "", "the origin: it has not confirmed the state of some node groups; rollouts exclude these groups"
	}
	return "", ""
}

// coldAndUnconfirmed reports whether the relay started without a last good, clients are served latest, and the origin
// has not confirmed latest.
func (c *Controller) coldAndUnconfirmed(phase Phase) bool {
	unconfirmed := func(s *Section) bool { return !s.view.Settled(s.source) }
	return c.cold && phase == Current && slices.ContainsFunc(c.tracker.joined(), unconfirmed)
}

// logTransition logs a change of the phase, the stage or the edition.
func (c *Controller) logTransition(p *part, before, after *Status) {
	log := c.cfg.Logger.With(slog.String("part", after.Part), slog.String("edition", after.Edition),
		slog.Int("resources", after.Resources))
	unobserved := slog.Bool("unobserved", after.Unobserved)
	switch {
	case after.Phase == Halted:
		log.Error("rollout halted; serving the last good",
			slog.String("reason", after.Halted.Reason), slog.Int("stage", before.Stage))
	case after.Outcomes.Promoted > before.Outcomes.Promoted:
		log.Info("rollout promoted to all clients",
			unobserved, slog.Duration("took", p.machine.took.Round(time.Millisecond)))
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
		c.cfg.Logger.Info("rollout gathering changes")
	case after.Outcomes.Reverted > before.Outcomes.Reverted:
		log.Info("rollout reverted by the origin")
	}
}

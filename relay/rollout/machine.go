package rollout

import (
	"cmp"
	"fmt"
	"time"
)

// A Phase is the phase of an origin's rollout.
type Phase int

// The phases.
const (
	Current   Phase = iota // latest is the last good
	Gathering              // changes wait for the edition that they will be part of
	Held                   // an edition was cut and is not served yet: see Machine.Waits
	Rolling                // an edition is served to cohorts
	Halted                 // an edition was rejected
)

func (p Phase) String() string {
	return [...]string{"current", "gathering", "held", "rolling", "halted"}[p]
}

// How long changes are gathered: until none came for settled, but not for longer than settleMost.
const (
	settled    = 2 * time.Second
	settleMost = 30 * time.Second
)

// Config shapes a machine.
type Config struct {
	Stages   Stages        // at least one
	Refusals int           // clients that may refuse an edition
	Hold     time.Duration // how long an edition that removes much is held; zero holds none
	Checked  bool          // an external check is asked
}

// A Halt is why an edition was rejected, and when.
type Halt struct {
	Reason string    `json:"reason"`
	At     time.Time `json:"at"`
}

// An Edition is a number of a machine's editions, which rise. Zero is what was served before the first.
type Edition uint64

// A Machine is the state machine of one origin's rollouts. Its inputs are the time and [Facts]; it never sees the content
// of editions. Its methods must be called from one goroutine.
//
// The caller calls Advance whenever facts change or the time that Advance returned has come. If Advance asks for a cut,
// the caller pins latest. Then it serves each cohort the edition of Serves.
type Machine struct {
	cfg Config

	phase   Phase
	stage   int      // of Rolling: cohorts 0 to stage are served the edition
	last    Edition  // the number that was given last
	edition Edition  // that is on its way, or was rejected
	good    Edition  // what the rest is served
	before  *Edition // what good replaced, for Undo; nil if there is nothing to undo
	kept    *Edition // what cohort 0 is still served while a newer edition is awaited; nil for the last good

	first   time.Time // when the oldest change came that waits
	behind  time.Time // of these, the oldest that is not in the edition; zero if all are
	entered time.Time // when the phase, or the stage, began
	held    time.Time // since when editions remove much; zero if the newest does not
	ripe    time.Time // since when only the check keeps the stage from ending; zero if more does
	frozen  time.Time // since when the clocks stand; zero if they run
	changed time.Time // when the edition's newest change came, or it was resumed
	resumed time.Time // when Resume was called last
	ended   time.Time // when Halted ended last; zero if it never did
	edited  time.Time // of Halted: since when latest has other content than what was rejected; zero if it has not

	outcomes Outcomes

	overdue    bool // the stage is over, but clients have not answered
	unobserved bool // a stage of the edition ended without a client that accepted it
	halt       Halt // zero unless Halted
}

// Facts are what a machine decides by.
type Facts struct {
	Differs  bool      // some name that waits differs between latest and the last good
	Edited   bool      // latest differs from the edition, or from the rejected one, in one of its names
	Behind   bool      // latest differs from the edition in some name that waits
	Changed  time.Time // when a name that waits changed last in latest
	Complete bool      // the origin is connected, and its sets are confirmed
	Away     bool      // changes of some node groups wait, which the facts above leave out
	Frozen   bool      // an operator froze the origin

	Evidence Evidence // of the cohorts that are served the edition
	Halt     string   // what Signals found of an edition that is served; empty if nothing
	Verdict  Verdict  // of the check about the edition; zero if it was not asked
}

// Evidence is what connected clients of the cohorts reached did with the edition.
type Evidence struct {
	Wanting  int // clients that subscribe to something that the edition changes
	Known    int // clients that had accepted the last good; other clients cannot delay a stage
	Answered int // of those that want it, those that accepted or refused all of it
	Accepted int // of these
}

// A Verdict is an answer of the check.
type Verdict struct {
	Asked  time.Time // when; zero if it was not
	Go     bool
	Refuse string // why the edition must not go on; empty if it may
}

// NewMachine returns a machine of an origin whose latest is the last good.
func NewMachine(cfg Config) *Machine { return &Machine{cfg: cfg} }

// restoredEdition is the number of an edition that an earlier process rejected.
const restoredEdition Edition = 1

// Restore has a new machine begin halted, as an earlier process left it.
func (m *Machine) Restore(h Halt) {
	m.phase, m.halt, m.last, m.edition = Halted, h, restoredEdition, restoredEdition
}

// Phase returns the phase.
func (m *Machine) Phase() Phase { return m.phase }

// Stage returns how many cohorts are served the edition.
func (m *Machine) Stage() int {
	if m.phase == Rolling {
		return m.stage + 1
	}
	return 0
}

// Edition returns the edition that is on its way, or was rejected or promoted last.
func (m *Machine) Edition() Edition { return m.edition }

// Outcomes returns what became of editions.
func (m *Machine) Outcomes() Outcomes { return m.outcomes }

// Overdue reports whether the stage is over but for what clients answer.
func (m *Machine) Overdue() bool { return m.overdue }

// Entered returns when the phase, or the stage, began.
func (m *Machine) Entered() time.Time { return m.entered }

// Good returns the edition that the rest is served.
func (m *Machine) Good() Edition { return m.good }

// Before returns the edition that Undo would serve everybody, and whether there is one.
func (m *Machine) Before() (e Edition, any bool) {
	if m.before == nil {
		return 0, false
	}
	return *m.before, true
}

// Next returns the number of the next edition.
func (m *Machine) Next() Edition { return m.last + 1 }

// Waiting returns since when the oldest change waits; zero if none does.
func (m *Machine) Waiting() time.Time { return m.first }

// Changed returns when the newest change of the edition came, or when the edition was resumed.
func (m *Machine) Changed() time.Time { return m.changed }

// Unobserved reports whether a stage of the edition ended without a client that accepted it: none wants what it changes, or none whose
// signals count.
func (m *Machine) Unobserved() bool { return m.unobserved }

// Halt returns why and when the edition was rejected; zero unless it is.
func (m *Machine) Halt() Halt { return m.halt }

// Serves returns the edition that a cohort is served.
func (m *Machine) Serves(cohort int) Edition {
	switch {
	case m.phase == Rolling && cohort <= m.stage && cohort < len(m.cfg.Stages):
		return m.edition
	case m.kept != nil && cohort == 0:
		return *m.kept
	default:
		return m.good
	}
}

// Advance does what is due. It reports whether latest is to be cut now: the caller pins it as the next edition, and
// calls Cut before anything else. Otherwise it returns when to call again at the latest; zero is not before facts change.
func (m *Machine) Advance(now time.Time, f Facts) (cut bool, next time.Time) {
	if m.freeze(now, f.Frozen) {
		return false, time.Time{}
	}
	m.note(now, f)
	m.judge(now, f)
	m.follow(now, f)
	switch m.phase {
	case Gathering:
		return m.gathered(now, f)
	case Held:
		return false, m.hold(now, f)
	case Rolling:
		return false, m.roll(now, f)
	case Halted:
		if !m.edited.IsZero() {
			next = m.edited.Add(settled)
		}
	}
	return false, next
}

// judge rejects what clients or the check refused.
func (m *Machine) judge(now time.Time, f Facts) {
	switch {
	case m.phase == Rolling && f.Halt != "":
		m.reject(now, f.Halt)
	case m.open() && f.Verdict.Refuse != "":
		m.reject(now, "the check refused it: "+f.Verdict.Refuse)
	case f.Halt != "":
		m.kept = nil
	}
}

// follow takes what the origin changed.
func (m *Machine) follow(now time.Time, f Facts) {
	switch {
	case m.phase != Current && !f.Differs && f.Complete:
		m.revert(now, f)
	case m.phase == Current && f.Differs:
		m.gather(now)
	case m.phase == Halted:
		m.reconsider(now, f)
	case m.open() && f.Edited && m.supersedable(now):
		m.supersede(now)
	}
}

// reconsider ends Halted once the origin has had other content than the rejected edition for a while. A shorter
// difference may be a repetition after a restart.
func (m *Machine) reconsider(now time.Time, f Facts) {
	switch {
	case !f.Edited || !f.Complete:
		m.edited = time.Time{}
	case m.edited.IsZero():
		m.edited = now
	case !now.Before(m.edited.Add(settled)):
		m.gather(m.edited)
	}
}

// note remembers since when changes wait.
func (m *Machine) note(now time.Time, f Facts) {
	if f.Differs && m.first.IsZero() {
		m.first = now
	}
	if m.open() && f.Behind && m.behind.IsZero() {
		m.behind = now
	}
}

// freeze stops the clocks, or has them go on, and reports whether they stand.
func (m *Machine) freeze(now time.Time, frozen bool) bool {
	switch {
	case frozen && m.frozen.IsZero():
		m.frozen = now
	case !frozen && !m.frozen.IsZero():
		stood := now.Sub(m.frozen)
		for _, at := range []*time.Time{&m.first, &m.behind, &m.entered, &m.held, &m.ripe, &m.edited, &m.ended} {
			if !at.IsZero() {
				*at = at.Add(min(stood, now.Sub(*at))) // less if a command came while they stood
			}
		}
		m.frozen = time.Time{}
	}
	return frozen
}

// decided reports whether an edition is on its way, or was rejected.
func (m *Machine) decided() bool { return m.open() || m.phase == Halted }

// open reports whether an edition is on its way.
func (m *Machine) open() bool { return m.phase == Held || m.phase == Rolling }

// enter begins a phase, or a stage of Rolling.
func (m *Machine) enter(phase Phase, now time.Time) {
	m.phase, m.entered, m.ripe, m.edited, m.overdue = phase, now, time.Time{}, time.Time{}, false
}

// revert ends the rollout, because the origin took the changes back, or their node groups are disconnected.
func (m *Machine) revert(now time.Time, f Facts) {
	if !f.Away {
		m.outcomes.Reverted++
	}
	m.enter(Current, now)
	m.first, m.held, m.kept, m.halt = time.Time{}, time.Time{}, nil, Halt{}
}

func (m *Machine) gather(now time.Time) {
	if m.phase == Halted {
		m.ended = now
	}
	m.enter(Gathering, now)
	m.halt = Halt{}
}

// supersede collects changes for an edition that replaces the current one. Content that the origin took back must not
// spread, but clients that have it keep it: two changes in a row would be worse.
func (m *Machine) supersede(now time.Time) {
	m.outcomes.Superseded++
	if m.phase == Rolling {
		superseded := m.edition
		m.kept = &superseded
	}
	m.gather(now)
}

// supersedable reports whether a newer edition may take the place of the one on its way. Changes that came without end
// would keep the oldest one waiting for ever; an operator, however, is not asked to approve what was taken back. While the
// rollout was halted, nothing was superseded: that time does not count.
func (m *Machine) supersedable(now time.Time) bool {
	since := m.first
	if m.ended.After(since) {
		since = m.ended
	}
	return m.phase == Held || m.cfg.Stages[m.stage].Approve || now.Sub(since) < 2*m.cfg.Stages.Lasts()
}

func (m *Machine) gathered(now time.Time, f Facts) (cut bool, next time.Time) {
	due := m.entered.Add(settleMost)
	if quiet := f.Changed.Add(settled); quiet.Before(due) {
		due = quiet
	}
	if now.Before(due) {
		return false, due
	}
	return f.Complete, time.Time{}
}

// Cut makes the pinned generation the next edition. large reports whether it removes many resources; changed is the time
// of its newest change. The caller then calls Advance.
func (m *Machine) Cut(now, changed time.Time, large bool) Edition {
	m.last++
	m.edition, m.changed, m.behind, m.unobserved = m.last, changed, time.Time{}, false
	if m.resumed.After(changed) {
		m.changed = m.resumed
	}
	switch {
	case !large || m.cfg.Hold == 0:
		m.held = time.Time{}
	case m.held.IsZero():
		m.held = now
	}
	m.enter(Held, now)
	return m.edition
}

// hold ends Held if neither removals nor the check keep the edition back.
func (m *Machine) hold(now time.Time, f Facts) (next time.Time) {
	if until := m.held.Add(m.cfg.Hold); !m.held.IsZero() && now.Before(until) {
		return until
	}
	if !m.checked(now, f) {
		return time.Time{}
	}
	m.begin(now)
	return m.roll(now, f)
}

// begin serves the edition to the first cohort.
func (m *Machine) begin(now time.Time) {
	m.enter(Rolling, now)
	m.stage, m.kept, m.held = 0, nil, time.Time{}
}

// checked reports whether the check allowed what nothing else prevents.
func (m *Machine) checked(now time.Time, f Facts) bool {
	if !m.cfg.Checked {
		return true
	}
	if m.ripe.IsZero() {
		m.ripe = now
	}
	return f.Verdict.Go && !f.Verdict.Asked.Before(m.ripe)
}

// Ripe returns since when only the check keeps the edition from going on, and so is to be asked; zero if more does.
func (m *Machine) Ripe() time.Time { return m.ripe }

// roll ends the stage if that is due.
func (m *Machine) roll(now time.Time, f Facts) (next time.Time) {
	stage := m.cfg.Stages[m.stage]
	if stage.Approve {
		return time.Time{}
	}
	over, most := m.entered.Add(stage.Lasts), m.entered.Add(2*stage.Lasts)
	if now.Before(over) {
		return over
	}
	if !f.Evidence.enough() {
		if now.Before(most) {
			m.ripe, m.overdue = time.Time{}, true
			return most
		}
		if f.Evidence.Accepted == 0 && f.Evidence.Known > 0 { // a forged Node halts nothing
			m.reject(now, fmt.Sprintf("none of %s accepted it in %v", counted(f.Evidence.Known, "client"), 2*stage.Lasts))
			return time.Time{}
		}
	}
	if !m.checked(now, f) {
		return time.Time{}
	}
	m.unobserved = m.unobserved || f.Evidence.Accepted == 0
	m.advance(now, f)
	return now // the next stage has a time of its own
}

// enough reports whether the stage may end: a client accepted the edition, and nine of ten answered, of those that want
// what it changes.
func (e Evidence) enough() bool {
	return e.Wanting == 0 || e.Accepted > 0 && 10*e.Answered >= 9*e.Wanting
}

// advance serves the edition to the next cohort, or to the rest.
func (m *Machine) advance(now time.Time, f Facts) {
	if m.stage+1 < len(m.cfg.Stages) {
		m.stage++
		m.enter(Rolling, now)
		return
	}
	m.promoted(now, f.Behind)
}

// promoted has the edition be the last good. Changes that came meanwhile form the next edition.
func (m *Machine) promoted(now time.Time, behind bool) {
	was := m.good
	m.before, m.good, m.kept, m.halt, m.held = &was, m.edition, nil, Halt{}, time.Time{}
	m.first = time.Time{}
	m.outcomes.Promoted++
	m.enter(Current, now)
	if behind {
		m.first = cmp.Or(m.behind, now)
		m.gather(now)
	}
}

// reject serves everybody the last good, until the origin changes what was rejected.
func (m *Machine) reject(now time.Time, reason string) {
	m.enter(Halted, now)
	m.outcomes.Halted++
	m.kept, m.held, m.halt = nil, time.Time{}, Halt{reason, now}
}

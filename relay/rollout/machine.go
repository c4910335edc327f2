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
	Current   Phase = iota // latest equals the last good
	Gathering              // changes are collected for the next edition
	Held                   // an edition was cut and is not served to a cohort yet
	Rolling                // an edition is served to cohorts
	Halted                 // an edition was rejected
)

// String returns the name of the phase in logs and in the API.
func (p Phase) String() string {
	return [...]string{"current", "gathering", "held", "rolling", "halted"}[p]
}

// inProgress reports whether an edition is in progress.
func (p Phase) inProgress() bool { return p == Held || p == Rolling }

// hasEdition reports whether an edition is in progress or was rejected.
func (p Phase) hasEdition() bool { return p.inProgress() || p == Halted }

// Gathering ends when no change has arrived for quietTime, and after maxGathering at the latest.
const (
	quietTime    = 2 * time.Second
	maxGathering = 30 * time.Second
)

// Config configures a machine.
type Config struct {
	Stages         Stages        // none only if Judged
	RejectionLimit int           // number of clients that may reject an edition before it is rejected
	Hold           time.Duration // hold time of an edition that removes many resources; zero disables the hold
	Checked        bool          // an external check must permit each stage
	Judged         bool          // a local Envoy receives an edition before the first stage
}

// On reports whether changes wait for editions.
func (c *Config) On() bool { return len(c.Stages) > 0 || c.Judged }

// rest returns the number of the cohort that stands for the rest.
func (c *Config) rest() int { return len(c.Stages) }

// judge returns the number of the cohort that stands for the judge, see [Judge]. Only a configuration with Judged has it.
// It is none of the cohorts of clients.
func (c *Config) judge() int { return len(c.Stages) + 1 }

// maxCohorts is the maximum number of cohorts, with the rest and the judge.
const maxCohorts = MaxStages + 2

// cohorts returns the numbers of all cohorts in the order in which they are served another edition: the rest, the stages
// from the last, and the judge.
func (c *Config) cohorts() (all []int) {
	for cohort := c.rest(); cohort >= 0; cohort-- {
		all = append(all, cohort)
	}
	if c.Judged {
		all = append(all, c.judge())
	}
	return all
}

// Views returns the number of views that a view with rollouts has in addition to that of the rest.
func (c *Config) Views() int {
	if c.Judged {
		return len(c.Stages) + 1
	}
	return len(c.Stages)
}

// JudgeView returns the number of the view of the judge.
func (c *Config) JudgeView() int { return len(c.Stages) }

// ViewOf returns the number of the view of a cohort of clients, or of the judge. That of the rest is the last one.
func (c *Config) ViewOf(cohort int) int {
	switch cohort {
	case c.rest():
		return c.Views()
	case c.judge():
		return c.JudgeView()
	default:
		return cohort
	}
}

// totalDuration returns the total duration of the steps of an edition that end by time.
func (c *Config) totalDuration() time.Duration {
	if c.Judged {
		return c.Stages.TotalDuration() + JudgeLimit
	}
	return c.Stages.TotalDuration()
}

// A Halt is the reason and the time of a rejection.
type Halt struct {
	Reason string    `json:"reason"`
	At     time.Time `json:"at"`
	Peer   string    `json:"peer,omitempty"` // the address of the relay that has halted it; empty for this one

	// Signaled is when signals of clients first halted it; zero if they did not. Of several parts that the same signals have
	// halted, one may be bad.
	Signaled time.Time `json:"-"`
}

// An Edition is the number of an edition of one machine. Numbers increase. Zero is the state before the first edition.
type Edition uint64

// A Machine is the state machine of the rollouts of one part. Its inputs are the time and [Facts]; it has no access
// to the content of editions. Its methods must be called from one goroutine.
//
// The caller calls Advance when facts have changed, and at the time that Advance returned. If Advance requests a cut,
// the caller pins latest and calls Cut. Then the caller serves each cohort the edition that Serves returns.
type Machine struct {
	cfg Config

	phase    Phase
	cohort   int      // in Rolling: the last cohort that is served the edition
	newest   Edition  // the newest number that was assigned
	edition  Edition  // the edition in progress, or the rejected or promoted one
	lastGood Edition  // the edition that the rest is served
	previous *Edition // the edition before lastGood, for Undo; nil without one
	retained *Edition // superseded edition that cohort 0 keeps until the next one; nil without one

	pendingSince time.Time     // time of the oldest pending change
	took         time.Duration // how long the oldest change of the last good had waited
	behindSince  time.Time     // time of the oldest pending change that the edition lacks; zero without one
	entered      time.Time     // start of the phase or stage
	holdSince    time.Time     // since when editions remove many resources; zero if the newest does not
	checkSince   time.Time     // since when only the check delays the next step; zero if other conditions do
	queuedSince  time.Time     // in Held: since when the edition waits for the judge; zero before
	judgeSince   time.Time     // in Held: since when the judge is served the edition; zero before
	frozenSince  time.Time     // start of the freeze; zero without one
	changed      time.Time     // time of the edition's newest change, or of its resumption
	resumed      time.Time     // time of the last Resume
	haltEnded    time.Time     // end of the last phase Halted; zero without one
	editedSince  time.Time     // in Halted: since when latest differs from the rejected edition; zero if it does not

	outcomes Outcomes

	judged     bool   // in Held: the judge has answered, or its time is over
	unanswered string // why the judge has not answered about the edition in its time; empty if it has, or may yet
	overdue    bool   // the stage has lasted its time, but clients have not answered
	unobserved bool   // a stage of the edition ended without a client that accepted it, or the judge did not judge it
	halt       Halt   // zero unless Halted
}

// NewMachine returns a machine in phase Current.
func NewMachine(cfg Config) *Machine { return &Machine{cfg: cfg} }

// restoredEdition is the number of an edition that an earlier process rejected.
const restoredEdition Edition = 1

// Restore sets a new machine to phase Halted, because an earlier process rejected restoredEdition.
func (m *Machine) Restore(h Halt) {
	m.phase, m.halt, m.newest, m.edition = Halted, h, restoredEdition, restoredEdition
}

// A State is a snapshot of a machine.
type State struct {
	Phase      Phase
	Stage      int       // number of cohorts that are served the edition
	Entered    time.Time // start of the phase or the stage
	Overdue    bool      // the stage has lasted its time and waits for answers of clients
	CheckSince time.Time // since when only the check delays the next step; zero if other conditions do
	Judging    bool      // the judge is served the edition, and has not answered
	Queued     bool      // the edition waits until the judge is served it

	Edition    Edition   // the edition that is in progress, or that was rejected or promoted last
	Changed    time.Time // time of the newest change of the edition, or of its resumption
	Unobserved bool      // a stage of the edition ended without a client that accepted it, or the judge did not judge it
	Halt       Halt      // zero outside phase Halted

	Next     Edition   // the number of the next edition
	LastGood Edition   // the edition that the rest is served
	Previous *Edition  // the edition that Undo would serve to all clients; nil without one
	Pending  time.Time // time of the oldest pending change; zero without one

	Outcomes Outcomes
}

// State returns a snapshot of the machine.
func (m *Machine) State() State {
	s := State{
		Phase: m.phase, Entered: m.entered, Overdue: m.overdue, CheckSince: m.checkSince, Judging: m.judging(),
		Queued:  m.awaitsJudge() && !m.judging(),
		Edition: m.edition, Changed: m.changed, Unobserved: m.unobserved, Halt: m.halt,
		Next: m.newest + 1, LastGood: m.lastGood, Previous: m.previous, Pending: m.pendingSince, Outcomes: m.outcomes,
	}
	if m.phase == Rolling {
		s.Stage = m.cohort + 1
	}
	return s
}

// Serves returns the edition that a cohort is served.
func (m *Machine) Serves(cohort int) Edition {
	switch {
	case m.phase == Rolling && cohort <= m.cohort && cohort < len(m.cfg.Stages), cohort == m.cfg.judge() && m.judging():
		return m.edition
	case m.retained != nil && cohort == 0:
		return *m.retained
	default:
		return m.lastGood
	}
}

// Advance runs the steps that are due. If cut is true, the caller must pin latest as the next edition and call Cut.
// Otherwise next is when to call Advance again at the latest; zero if only a change of the facts is a reason.
func (m *Machine) Advance(now time.Time, f Facts) (cut bool, next time.Time) {
	if m.updateFreeze(now, f.Frozen) {
		return false, time.Time{}
	}
	m.recordPending(now, f)
	m.applyRejections(now, f)
	m.applyOriginChanges(now, f)
	switch m.phase {
	case Gathering:
		return m.advanceGathering(now, f)
	case Held:
		return false, m.advanceHeld(now, f)
	case Rolling:
		return false, m.advanceRolling(now, f)
	case Halted:
		if !m.editedSince.IsZero() {
			next = m.editedSince.Add(quietTime)
		}
	}
	return false, next
}

// applyRejections rejects an edition because of signals or the check. While a newer edition is not served yet, signals
// withdraw the superseded edition from cohort 0.
func (m *Machine) applyRejections(now time.Time, f Facts) {
	switch {
	case m.phase == Rolling && f.HaltReason != "":
		m.reject(now, f.HaltReason)
		m.halt.Signaled = now
	case m.judging() && f.Judgement.Rejected != "":
		m.reject(now, f.Judgement.Rejected)
	case m.phase.inProgress() && f.Verdict.RejectReason != "":
		m.reject(now, "the check rejected the edition: "+f.Verdict.RejectReason)
	case f.HaltReason != "":
		m.retained = nil
	}
}

// applyOriginChanges ends, starts or supersedes a rollout because of changes of latest.
func (m *Machine) applyOriginChanges(now time.Time, f Facts) {
	switch {
	case m.phase != Current && !f.Differs && f.Complete:
		m.revert(now, f)
	case m.phase == Current && f.Differs:
		m.startGathering(now)
	case m.phase == Halted:
		m.reconsider(now, f)
	case m.phase.inProgress() && f.Edited && m.supersedable(now):
		m.supersede(now)
	}
}

// reconsider ends phase Halted once latest has differed from the rejected edition for quietTime. After a restart,
// latest may differ for a shorter time while the origin loads.
func (m *Machine) reconsider(now time.Time, f Facts) {
	switch {
	case !f.Edited || !f.Complete:
		m.editedSince = time.Time{}
	case m.editedSince.IsZero():
		m.editedSince = now
	case !now.Before(m.editedSince.Add(quietTime)):
		m.startGathering(m.editedSince)
	}
}

// recordPending records the time of the oldest pending change.
func (m *Machine) recordPending(now time.Time, f Facts) {
	if f.Differs && m.pendingSince.IsZero() {
		m.pendingSince = now
	}
	if m.phase.inProgress() && f.Behind && m.behindSince.IsZero() {
		m.behindSince = now
	}
}

// updateFreeze records the start of a freeze. At its end, it adds the duration of the freeze to all times from which
// the machine measures, so that the freeze does not count. It returns frozen.
func (m *Machine) updateFreeze(now time.Time, frozen bool) bool {
	switch {
	case frozen && m.frozenSince.IsZero():
		m.frozenSince = now
	case !frozen && !m.frozenSince.IsZero():
		lasted := now.Sub(m.frozenSince)
		for _, at := range []*time.Time{
			&m.pendingSince, &m.behindSince, &m.entered, &m.holdSince, &m.checkSince, &m.queuedSince, &m.judgeSince,
			&m.editedSince, &m.haltEnded,
		} {
			if !at.IsZero() {
				*at = at.Add(min(lasted, now.Sub(*at))) // less if a command during the freeze set it
			}
		}
		m.frozenSince = time.Time{}
	}
	return frozen
}

// enter starts a phase, or a stage of phase Rolling.
func (m *Machine) enter(phase Phase, now time.Time) {
	m.phase, m.entered, m.checkSince, m.editedSince, m.overdue = phase, now, time.Time{}, time.Time{}, false
	m.queuedSince, m.judgeSince, m.judged = time.Time{}, time.Time{}, false
}

// revert ends the rollout, because the origin reverted the changes or their node groups are unavailable.
func (m *Machine) revert(now time.Time, f Facts) {
	if !f.Unavailable {
		m.outcomes.Reverted++
	}
	m.enter(Current, now)
	m.pendingSince, m.holdSince, m.retained, m.halt = time.Time{}, time.Time{}, nil, Halt{}
}

// startGathering starts phase Gathering at a time that may be in the past.
func (m *Machine) startGathering(now time.Time) {
	if m.phase == Halted {
		m.haltEnded = now
	}
	m.enter(Gathering, now)
	m.halt = Halt{}
}

// gather makes a machine in phase Current gather the changes that another machine has gathered.
func (m *Machine) gather(from *Machine) {
	m.enter(Gathering, from.entered)
	m.pendingSince, m.frozenSince = from.pendingSince, from.frozenSince
}

// absorb makes a machine gather also the changes that another one gathers.
func (m *Machine) absorb(other *Machine) {
	m.pendingSince = earlier(m.pendingSince, other.pendingSince)
	if other.haltEnded.After(m.haltEnded) {
		m.haltEnded = other.haltEnded
	}
	other.dissolve()
}

// dissolve ends the rollout and the possibility to undo the last promotion: the changes belong to another machine now.
func (m *Machine) dissolve() {
	m.enter(Current, m.entered)
	m.previous, m.retained, m.halt = nil, nil, Halt{}
}

// supersede gathers changes for an edition that replaces the current one. No further cohort receives the superseded
// edition. Cohort 0 keeps it until the next edition, to avoid two changes in a row.
func (m *Machine) supersede(now time.Time) {
	m.outcomes.Superseded++
	if m.phase == Rolling {
		superseded := m.edition
		m.retained = &superseded
	}
	m.startGathering(now)
}

// supersedable reports whether a newer edition may replace the edition in progress. A time limit ensures that the
// oldest change is distributed even if the origin never stops changing. The limit does not apply to stages that an
// operator approves, and to held editions unless they wait for the judge. Time in phase Halted does not count.
func (m *Machine) supersedable(now time.Time) bool {
	since := m.pendingSince
	if m.haltEnded.After(since) {
		since = m.haltEnded
	}
	unlimited := m.phase == Held && !m.awaitsJudge() || m.phase == Rolling && m.cfg.Stages[m.cohort].Approve
	return unlimited || now.Sub(since) < 2*m.cfg.totalDuration()
}

// advanceGathering requests a cut at the end of phase Gathering.
func (m *Machine) advanceGathering(now time.Time, f Facts) (cut bool, next time.Time) {
	due := m.entered.Add(maxGathering)
	if quiet := f.Changed.Add(quietTime); quiet.Before(due) {
		due = quiet
	}
	if now.Before(due) {
		return false, due
	}
	return f.Complete, time.Time{}
}

// Cut makes the pinned state the next edition and returns its number. changed is the time of its newest change. large
// reports that it removes many resources. The caller then calls Advance again.
func (m *Machine) Cut(now, changed time.Time, large bool) Edition {
	m.newest++
	m.edition, m.changed, m.behindSince = m.newest, changed, time.Time{}
	m.unobserved, m.unanswered = false, ""
	if m.resumed.After(changed) {
		m.changed = m.resumed
	}
	switch {
	case !large || m.cfg.Hold == 0:
		m.holdSince = time.Time{}
	case m.holdSince.IsZero():
		m.holdSince = now
	}
	m.enter(Held, now)
	return m.edition
}

// advanceHeld ends Held after the hold time, once the judge has answered and the check permits the edition.
func (m *Machine) advanceHeld(now time.Time, f Facts) (next time.Time) {
	if until := m.holdSince.Add(m.cfg.Hold); !m.holdSince.IsZero() && now.Before(until) {
		return until
	}
	if until := m.awaitJudge(now, f); !until.IsZero() {
		return until
	}
	if !m.checkPassed(now, f) {
		return time.Time{}
	}
	m.leaveHeld(now, f)
	return now // evaluate the first stage at once
}

// judging reports whether the judge is served the edition and has not answered.
func (m *Machine) judging() bool { return !m.judgeSince.IsZero() && !m.judged }

// awaitsJudge reports whether the edition waits for the judge: for its answer, or until it is served the edition.
func (m *Machine) awaitsJudge() bool { return !m.queuedSince.IsZero() && !m.judged }

// awaitJudge makes the edition wait for the judge. It returns until when; zero if the judge has answered, or if there is none.
// A judge that does not answer is not a reason to stop an edition: it is then unobserved.
func (m *Machine) awaitJudge(now time.Time, f Facts) (until time.Time) {
	switch {
	case !m.cfg.Judged || m.judged:
		return time.Time{}
	case m.queuedSince.IsZero():
		m.queuedSince = now
	}
	late := fmt.Sprintf("other parts took all of the time for %v", JudgeQueue)
	if until = m.queuedSince.Add(JudgeQueue); m.judging() {
		until = m.judgeSince.Add(JudgeLimit + judgeGrace)
		late = fmt.Sprintf("no answer in %v", JudgeLimit+judgeGrace)
	}
	switch {
	case m.judging() && f.Judgement.Done:
	case now.Before(until):
		return until
	default:
		m.unanswered = late
	}
	m.judged, m.unobserved = true, m.unanswered != "" || f.Judgement.NotJudged != ""
	return time.Time{}
}

// StartJudging serves the judge the edition, which waits for it. It returns when to call Advance again at the latest.
func (m *Machine) StartJudging(now time.Time) (next time.Time) {
	m.judgeSince = now
	return now.Add(JudgeLimit + judgeGrace)
}

// leaveHeld serves the edition to the first cohort, or to the rest without stages.
func (m *Machine) leaveHeld(now time.Time, f Facts) {
	if len(m.cfg.Stages) == 0 {
		m.finishPromotion(now, f.Behind)
		return
	}
	m.startRolling(now)
}

// startRolling serves the edition to the first cohort.
func (m *Machine) startRolling(now time.Time) {
	m.enter(Rolling, now)
	m.cohort, m.retained, m.holdSince = 0, nil, time.Time{}
}

// checkPassed reports whether the check permits the next step. The caller has verified all other conditions.
func (m *Machine) checkPassed(now time.Time, f Facts) bool {
	if !m.cfg.Checked {
		return true
	}
	if m.checkSince.IsZero() {
		m.checkSince = now
	}
	return f.Verdict.Allowed && !f.Verdict.RequestedAt.Before(m.checkSince)
}

// advanceRolling ends the stage if its conditions are met: its time, the evidence and the check.
func (m *Machine) advanceRolling(now time.Time, f Facts) (next time.Time) {
	stage := m.cfg.Stages[m.cohort]
	if stage.Approve {
		return time.Time{}
	}
	end, deadline := m.entered.Add(stage.Duration), m.entered.Add(2*stage.Duration)
	if now.Before(end) {
		return end
	}
	if !f.Evidence.sufficient() {
		if now.Before(deadline) {
			m.checkSince, m.overdue = time.Time{}, true
			return deadline
		}
		if f.Evidence.Accepted == 0 && f.Evidence.Trusted > 0 { // forged Nodes alone must not halt a rollout
			m.reject(now, fmt.Sprintf("none of %s accepted the edition in %v",
				pluralClients(f.Evidence.Trusted), 2*stage.Duration))
			return time.Time{}
		}
	}
	if !m.checkPassed(now, f) {
		return time.Time{}
	}
	m.unobserved = m.unobserved || f.Evidence.Accepted == 0
	m.nextStage(now, f)
	return now // evaluate the next stage at once
}

// nextStage serves the edition to the next cohort, or to the rest after the last one.
func (m *Machine) nextStage(now time.Time, f Facts) {
	if m.cohort+1 < len(m.cfg.Stages) {
		m.cohort++
		m.enter(Rolling, now)
		return
	}
	m.finishPromotion(now, f.Behind)
}

// finishPromotion makes the edition the last good. If behind is set, changes since the cut form the next edition.
func (m *Machine) finishPromotion(now time.Time, behind bool) {
	previous := m.lastGood
	m.previous, m.lastGood, m.retained, m.halt, m.holdSince = &previous, m.edition, nil, Halt{}, time.Time{}
	m.took, m.pendingSince = now.Sub(cmp.Or(m.pendingSince, now)), time.Time{}
	m.outcomes.Promoted++
	m.enter(Current, now)
	if behind {
		m.pendingSince = cmp.Or(m.behindSince, now)
		m.startGathering(now)
	}
}

// reject serves all clients the last good until the origin changes a resource that the edition changes.
func (m *Machine) reject(now time.Time, reason string) {
	m.enter(Halted, now)
	m.outcomes.Halted++
	m.retained, m.holdSince, m.halt = nil, time.Time{}, Halt{Reason: reason, At: now}
}

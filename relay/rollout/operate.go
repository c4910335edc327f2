package rollout

import (
	"errors"
	"fmt"
	"time"
)

// Errors of commands.
var (
	ErrNothingOpen   = errors.New("no rollout is open")
	ErrNotHalted     = errors.New("the rollout is not halted")
	ErrNothingToUndo = errors.New("there is no promotion to undo")
)

// Promote serves the edition to the next cohort, or to the rest after the last one, without evidence. Errors:
// ErrNothingOpen.
func (m *Machine) Promote(now time.Time, f Facts) error {
	switch m.phase {
	case Held:
		m.leaveHeld(now, f)
	case Rolling:
		m.nextStage(now, f)
	default:
		return fmt.Errorf("%w: the state is %v", ErrNothingOpen, m.phase)
	}
	return nil
}

// PromoteAll serves all clients the edition that was just cut, in any phase.
func (m *Machine) PromoteAll(now time.Time) { m.finishPromotion(now, false) }

// Abort rejects the edition. In phase Gathering, the caller calls Cut first. Errors: ErrNothingOpen.
func (m *Machine) Abort(now time.Time, reason string) error {
	if !m.phase.inProgress() {
		return fmt.Errorf("%w: the state is %v", ErrNothingOpen, m.phase)
	}
	m.reject(now, reason)
	return nil
}

// Resume starts a rollout of latest, including the rejected changes. Errors: ErrNotHalted.
func (m *Machine) Resume(now time.Time) error {
	if m.phase != Halted {
		return fmt.Errorf("%w: the state is %v", ErrNotHalted, m.phase)
	}
	m.resumed = now
	m.startGathering(now)
	return nil
}

// RollBack replaces the last good and the previous edition by new numbers: from is the edition that the rest is served
// now, to is the edition that Undo returns to. The caller then calls Undo.
func (m *Machine) RollBack() (to, from Edition) {
	to, from = m.newest+1, m.newest+2
	m.newest, m.previous, m.lastGood = from, &to, from
	return to, from
}

// Undo serves all clients the edition before the newest promotion and rejects the promoted edition. Errors:
// ErrNothingToUndo.
func (m *Machine) Undo(now time.Time, reason string) error {
	if m.previous == nil {
		return ErrNothingToUndo
	}
	m.edition, m.lastGood, m.previous = m.lastGood, *m.previous, nil
	m.outcomes.Undone++
	m.reject(now, reason)
	return nil
}

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

// Promote serves the edition to the next cohort, or to the rest, whatever is missing. Errors: ErrNothingOpen.
func (m *Machine) Promote(now time.Time, f Facts) error {
	switch m.phase {
	case Held:
		m.begin(now)
	case Rolling:
		m.advance(now, f)
	default:
		return fmt.Errorf("%w: the state is %v", ErrNothingOpen, m.phase)
	}
	return nil
}

// PromoteAll serves everybody an edition that was just cut (Cut), in whatever phase.
func (m *Machine) PromoteAll(now time.Time) { m.promoted(now, false) }

// Abort rejects the edition. If changes are still gathered, the caller cuts first. Errors: ErrNothingOpen.
func (m *Machine) Abort(now time.Time, reason string) error {
	if !m.open() {
		return fmt.Errorf("%w: the state is %v", ErrNothingOpen, m.phase)
	}
	m.reject(now, reason)
	return nil
}

// Resume begins a rollout of latest again, with what was rejected. Errors: ErrNotHalted.
func (m *Machine) Resume(now time.Time) error {
	if m.phase != Halted {
		return fmt.Errorf("%w: the state is %v", ErrNotHalted, m.phase)
	}
	m.resumed = now
	m.gather(now)
	return nil
}

// RollBack numbers what the rest is served anew, as an edition that was promoted after another one, which Undo returns to.
func (m *Machine) RollBack() (to, from Edition) {
	to, from = m.last+1, m.last+2
	m.last, m.before, m.good = from, &to, from
	return to, from
}

// Undo serves everybody what they were served before the newest promotion, and rejects what was promoted. Errors:
// ErrNothingToUndo.
func (m *Machine) Undo(now time.Time, reason string) error {
	if m.before == nil {
		return ErrNothingToUndo
	}
	m.edition, m.good, m.before = m.good, *m.before, nil
	m.outcomes.Undone++
	m.reject(now, reason)
	return nil
}

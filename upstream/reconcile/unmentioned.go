package reconcile

import (
	"time"

	"github.com/xdstender/tender/cache/wire"
)

// mentionTimeout is the time without a new mention after which the relay requests unmentioned resources by name. It is
// also the time limit for the answer (B.15).
const mentionTimeout = 15 * time.Second

// names are names of resources.
type names = map[string]struct{}

// unmentioned are the resources that the set had when the stream started and that the origin has not mentioned since.
// They may have been removed. An origin that received initial resource versions states removals. From another origin,
// the relay requests the names (B.15). Resources that an operator kept are excluded.
type unmentioned struct {
	began  time.Time
	told   names     // reported to the origin as initial resource versions
	untold names     // not reported
	last   time.Time // last response with a first mention since began; zero without one

	// foreign are names that a previous origin has stated and the connected one has not, on any stream.
	foreign names

	// State of the request by name.
	askedAt         time.Time // zero if it is not
	asked           []string  // with the control
	suspects        names     // of these, those that were unmentioned
	unanswered      names     // of these, those that the origin has not answered for
	control         string    // a resource that is known to exist; empty without one
	controlWanted   bool      // a client had already requested the control
	controlAnswered bool      // the origin has sent the control, or has stated a removal
}

// total returns the number of unmentioned names.
func (m *unmentioned) total() int { return len(m.told) + len(m.untold) }

// Asking reports whether the relay is asking the origin for names.
func (m *unmentioned) Asking() bool { return !m.askedAt.IsZero() }

// Asked returns the names that the relay is asking the origin for.
func (m *unmentioned) Asked() []string { return m.asked }

// Covered reports whether the origin has mentioned all resources of the set.
func (m *unmentioned) Covered() bool { return m.total() == 0 }

// Foreign returns the names that only a previous origin has stated. Their versions have no meaning to the connected
// one.
func (m *unmentioned) Foreign() names { return m.foreign }

// Known records that a list has confirmed all resources of the set.
func (m *unmentioned) Known() { m.untold = nil }

// Distrust records that the origin ignores the resources that the relay reported to it. It returns false, and changes
// nothing, later than ConfirmMax after the start of the set: then a resend has another reason.
func (m *unmentioned) Distrust(now time.Time) (first bool) {
	if now.Sub(m.began) > ConfirmMax {
		return false
	}
	for name := range m.told {
		put(&m.untold, name, struct{}{})
	}
	m.told = nil
	return true
}

// has reports whether a name is unmentioned.
func (m *unmentioned) has(name string) bool {
	_, told := m.told[name]
	_, untold := m.untold[name]
	return told || untold
}

// asks reports whether the relay is asking the origin for a name.
func (m *unmentioned) asks(name string) bool {
	_, asked := m.suspects[name]
	return asked
}

// mention records that the origin has mentioned a name.
func (m *unmentioned) mention(name string) {
	delete(m.told, name)
	delete(m.untold, name)
	delete(m.unanswered, name)
	delete(m.foreign, name)
}

// mentions records that the origin has mentioned all names of an update.
func (m *unmentioned) mentions(u wire.Update) {
	for _, r := range u.Resources {
		m.mention(r.Name)
		for _, alias := range r.Aliases {
			m.mention(alias)
		}
	}
	for name := range u.RemovedNames() {
		m.mention(name)
	}
}

// put adds an entry to a map, which may be nil.
func put[V any](m *map[string]V, name string, v V) {
	if *m == nil {
		*m = make(map[string]V)
	}
	(*m)[name] = v
}

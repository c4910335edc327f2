package reconcile

import (
	"time"

	"github.com/xdstender/tender/cache/wire"
)

// silence is how long an origin must have said nothing new before what it has not mentioned is asked
// for by name, and then how long it may be silent on a name that it was asked for (B.15).
const silence = 15 * time.Second

// names are names of resources.
type names = map[string]struct{}

// Unmentioned are the resources of a set that the origin has not mentioned on its stream, but that the
// set held when the stream began: they may be gone. An origin that was told what is held says so; another
// one leaves them out, and is asked for them by name (B.15). Those that an operator had kept are not among
// them.
type unmentioned struct {
	began  time.Time
	told   names     // the origin was told that they are held
	untold names     // it was not
	last   time.Time // response that said something for the first time since began; zero if none came

	// foreign are the names that another origin has stated, and not the one that is connected, on any stream.
	foreign names

	// Of the names that the origin is asked for.
	askedAt  time.Time // zero if it is not
	asked    []string  // with the control
	suspects names     // of these, those that were unmentioned
	silent   names     // of these, those that the origin has not answered for
	control  string    // a resource that is known to be there; "" if none is
	repeated bool      // the control was asked for before, for a client
	alive    bool      // the origin has answered for the control, or has said that a suspect is gone
}

// count returns how many there are.
func (m *unmentioned) total() int { return len(m.told) + len(m.untold) }

// Asking reports whether the relay is asking the origin for names.
func (m *unmentioned) Asking() bool { return !m.askedAt.IsZero() }

// Asked returns the names that the relay is asking the origin for.
func (m *unmentioned) Asked() []string { return m.asked }

// Covered reports whether the origin has mentioned all resources of the set.
func (m *unmentioned) Covered() bool { return m.total() == 0 }

// Foreign returns the names that only a previous origin has stated. Their versions have no meaning to the connected one.
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

// asks reports whether the origin is being asked for a name.
func (m *unmentioned) asks(name string) bool {
	_, asked := m.suspects[name]
	return asked
}

// mention takes that the origin has mentioned a name.
func (m *unmentioned) mention(name string) {
	delete(m.told, name)
	delete(m.untold, name)
	delete(m.silent, name)
	delete(m.foreign, name)
}

// mentions takes that the origin has mentioned all names of an update.
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

// put puts into a map that may not exist yet.
func put[V any](m *map[string]V, name string, v V) {
	if *m == nil {
		*m = make(map[string]V)
	}
	(*m)[name] = v
}

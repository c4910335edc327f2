package reconcile

import (
	"maps"
	"slices"
	"time"

	"github.com/xdstender/tender/cache"
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
func (m *unmentioned) count() int { return len(m.told) + len(m.untold) }

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

// asking reports whether the origin is being asked for names.
func (m *unmentioned) asking() bool { return !m.askedAt.IsZero() }

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

// responded takes a response that has changed a set of which so much was unmentioned before. It reports
// whether the response showed that the origin does not look at what it was told.
func (m *unmentioned) responded(told, count int, u wire.Update, c cache.Change, fails bool, now time.Time) (ignores bool) {
	if count+len(m.foreign) == 0 {
		return false
	}
	if told > 0 && c.Same > 0 {
		ignores = m.distrust(now)
	}
	m.mentions(u)
	// An origin may say for ever of what it has mentioned that it lives on. That the set as a whole failed
	// says nothing about its members.
	if m.count() < count || c.Changed > 0 || m.last.IsZero() && !fails {
		m.last = now
	}
	return ignores
}

// distrust has it that the origin does not look at what it was told, if these are its first answers: much
// later, a resend has another reason. It reports whether they are.
func (m *unmentioned) distrust(now time.Time) (first bool) {
	if now.Sub(m.began) > ConfirmMax {
		return false
	}
	for name := range m.told {
		put(&m.untold, name, struct{}{})
	}
	m.told = nil
	return true
}

// doubts returns the names that may be gone, and until when that is not known at the latest. Of an origin
// that says nothing at all of a set, it may not be known for ever: then nothing waits for it. Trusted is
// whether what the origin was told is in no doubt.
func (m *unmentioned) doubts(trusted bool, now time.Time) (may names, until time.Time) {
	switch may = m.untold; {
	case trusted || len(m.told) == 0:
	case len(may) == 0:
		may = m.told
	default:
		may = maps.Clone(may)
		maps.Copy(may, m.told)
	}
	switch until = m.began.Add(ConfirmMax); {
	case len(may) == 0:
		return nil, time.Time{}
	case m.asking():
		return may, m.askedAt.Add(silence)
	case len(m.untold) > 0 && !m.last.IsZero():
		return may, m.last.Add(2 * silence)
	case now.Before(until):
		return may, until
	}
	return nil, time.Time{}
}

// due reports whether it is time to ask for what was not mentioned, and if not, when it may be. Of a set of
// which nothing was said at all, that is so only if silence may say that it is empty.
func (m *unmentioned) due(silent bool, now time.Time) (due bool, next time.Time) {
	last := m.last
	switch {
	case len(m.untold) == 0 || m.asking():
		return false, time.Time{}
	case last.IsZero() && silent:
		last = m.began
	case last.IsZero():
		_, next = m.doubts(true, now)
		return false, next
	}
	next = last.Add(silence)
	return !now.Before(next), next
}

// ask begins to ask for the names, or asks again on a stream that was opened anew, and returns them.
func (m *unmentioned) ask(now time.Time) []string {
	if !m.asking() {
		m.suspects, m.silent = maps.Clone(m.untold), maps.Clone(m.untold)
	}
	m.askedAt, m.alive = now, false
	m.asked = slices.Sorted(maps.Keys(m.silent))
	if m.control != "" {
		m.asked = append(m.asked, m.control)
	}
	return m.asked
}

// over reports whether all names are answered for, or the origin had the time for it; and if not, when it
// will have had.
func (m *unmentioned) over(now time.Time) (over bool, next time.Time) {
	next = m.askedAt.Add(silence)
	return len(m.silent) == 0 || !now.Before(next), next
}

// gone returns the names that are gone since the origin is silent on them where silence says something: not
// if it was silent on the control, too, nor on a name that clients had asked for before. Unproven is set if
// there was no control.
func (m *unmentioned) gone(wanted names) (gone names, unproven bool) {
	noControl := m.control == "" || m.repeated && !m.alive
	if !noControl && !m.alive {
		return nil, false
	}
	maps.DeleteFunc(m.silent, func(name string, _ struct{}) bool { _, asked := wanted[name]; return asked })
	return m.silent, noControl && len(m.silent) > 0
}

// put puts into a map that may not exist yet.
func put[V any](m *map[string]V, name string, v V) {
	if *m == nil {
		*m = make(map[string]V)
	}
	(*m)[name] = v
}

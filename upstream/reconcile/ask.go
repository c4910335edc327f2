package reconcile

import (
	"maps"
	"time"

	"github.com/xdstender/tender/cache/wire"
)

// Due reports whether it is time to ask the origin by name for what it has not mentioned of a set that it was asked
// for as a whole, and if not, when it may be.
func (s *Set) Due(now time.Time) (due bool, next time.Time) {
	return s.unmentioned.due(s.whole != wire.Wildcard, now)
}

// Ask begins to ask for what was not mentioned, or asks again on a new stream, and returns the names. Of a
// wildcard set, the origin is also asked for a control: a resource that is known to be there. It is one that
// clients did not ask for by name (wanted) if there is any: go-control-plane does not say again what a stream
// is subscribed to already.
func (s *Set) Ask(wanted names, now time.Time) []string {
	if !s.Asking() && s.whole == wire.Wildcard {
		for name := range s.content.Names() {
			if s.unmentioned.has(name) || s.Suspects(name) {
				continue
			}
			s.unmentioned.control = name
			if _, s.unmentioned.repeated = wanted[name]; !s.unmentioned.repeated {
				break
			}
		}
	}
	return s.unmentioned.ask(now)
}

// Asked returns the names that the origin is being asked for.
func (s *Set) Asked() []string { return s.unmentioned.asked }

// Answered takes a response to names that the origin is asked for, on the stream of another set.
func (s *Set) Answered(u wire.Update, now time.Time) {
	m := &s.unmentioned
	for _, r := range u.Resources {
		m.alive = m.alive || r.Name == m.control
		if m.asks(r.Name) {
			m.mention(r.Name)
			s.Mention(r.Name, now)
		}
	}
	for name := range u.RemovedNames() {
		if m.asks(name) {
			m.alive = true
			m.mention(name)
			s.suspect(name, removal{stated: true}, true)
			s.group.noteBusy(s)
		}
	}
}

// End reports whether the origin has answered for all that it was asked for by name, or had the time for
// it; if not, it returns when it will have had. The caller calls Rest then. Of a wildcard set, silence may say
// that resources are gone, unless clients had asked for them by name (wanted) before. What of the members of a
// collection an origin is silent on stays.
func (s *Set) End(wanted func() names, now time.Time) (over bool, next time.Time) {
	over, next = s.unmentioned.over(now)
	if !over {
		return false, next
	}
	if s.whole == wire.Wildcard {
		gone, unproven := s.unmentioned.gone(wanted())
		s.Infer(maps.Keys(gone), unproven)
	}
	return true, time.Time{}
}

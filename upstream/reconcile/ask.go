package reconcile

import (
	"maps"
	"slices"
	"time"

	"github.com/xdstender/tender/cache/wire"
)

// Due reports whether the relay must now request the unmentioned names of the set; otherwise it returns the time. A
// wildcard set without any response is never due, because its origin may still be loading.
func (s *Set) Due(now time.Time) (due bool, next time.Time) {
	m := &s.unmentioned
	last := m.last
	switch {
	case len(m.untold) == 0 || s.Asking():
		return false, time.Time{}
	case last.IsZero() && s.whole != wire.Wildcard:
		last = m.began
	case last.IsZero():
		_, next = s.doubtful(now)
		return false, next
	}
	next = last.Add(mentionTimeout)
	return !now.Before(next), next
}

// Ask begins to ask for what was not mentioned, or asks again on a new stream, and returns the names. Of a
// wildcard set, the origin is also asked for a control: a resource that is known to be there. It is one that
// clients did not ask for by name (wanted) if there is any: go-control-plane does not say again what a stream
// is subscribed to already.
func (s *Set) Ask(wanted names, now time.Time) []string {
	m := &s.unmentioned
	if !s.Asking() {
		m.suspects, m.unanswered = maps.Clone(m.untold), maps.Clone(m.untold)
		if s.whole == wire.Wildcard {
			s.chooseControl(wanted)
		}
	}
	m.askedAt, m.controlAnswered = now, false
	m.asked = slices.Sorted(maps.Keys(m.unanswered))
	if m.control != "" {
		m.asked = append(m.asked, m.control)
	}
	return m.asked
}

func (s *Set) chooseControl(wanted names) {
	m := &s.unmentioned
	for name := range s.content.Names() {
		if m.has(name) || s.Suspects(name) {
			continue
		}
		m.control = name
		if _, m.controlWanted = wanted[name]; !m.controlWanted {
			return
		}
	}
}

// Answered records a response to requested names, on the stream of another set.
func (s *Set) Answered(u wire.Update, now time.Time) {
	m := &s.unmentioned
	for _, r := range u.Resources {
		m.controlAnswered = m.controlAnswered || r.Name == m.control
		if m.asks(r.Name) {
			m.mention(r.Name)
			s.Mention(r.Name, now)
		}
	}
	for name := range u.RemovedNames() {
		if m.asks(name) {
			m.controlAnswered = true
			m.mention(name)
			s.suspect(name, removal{stated: true}, true)
		}
	}
}

// End reports whether the origin has answered for all that it was asked for by name, or had the time for
// it; if not, it returns when it will have had. The caller calls Rest then. Of a wildcard set, silence says that
// resources are gone if the origin has answered for others, but not of names that clients had asked for (wanted)
// before. Without a control, they may be gone. What of the members of a collection an origin is silent on stays.
func (s *Set) End(wanted func() names, now time.Time) (over bool, next time.Time) {
	m := &s.unmentioned
	if next = m.askedAt.Add(mentionTimeout); len(m.unanswered) > 0 && now.Before(next) {
		return false, next
	}
	if noControl := m.control == "" || m.controlWanted && !m.controlAnswered; s.whole == wire.Wildcard && (m.controlAnswered || noControl) {
		asked := wanted()
		maps.DeleteFunc(m.unanswered, func(name string, _ struct{}) bool { _, is := asked[name]; return is })
		s.Infer(maps.Keys(m.unanswered), noControl)
	}
	return true, time.Time{}
}

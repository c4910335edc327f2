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

// Ask returns the names to request: the unmentioned ones, or on a new stream the unanswered ones once more. For a wildcard set
// it adds a control: a resource that the origin is known to have. If possible, it is one to which no client subscribes by name
// (wanted), since go-control-plane does not send a resource again to which a stream is subscribed already.
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

// End reports whether the request of Ask is over: the origin has answered for all names, or had enough time. Otherwise it
// returns when the time will have passed. The caller then calls Rest. Unanswered names of a wildcard set become suspect if
// the origin has answered for the control, or if there is no control; names to which clients subscribe (wanted) do not. In a
// collection, unanswered names stay.
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

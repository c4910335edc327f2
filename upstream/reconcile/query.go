package reconcile

import (
	"maps"
	"slices"
	"time"

	"github.com/xdstender/tender/cache/wire"
)

// QueryDue reports whether a query for the unmentioned names of the set is due, or returns when it will be. A wildcard
// set without any response is never due, because its origin may still be loading.
func (s *Set) QueryDue(now time.Time) (due bool, next time.Time) {
	m := &s.unmentioned
	if len(m.withoutVersion) == 0 || s.Querying() {
		return false, time.Time{}
	}
	omitted := s.inferOmitted(now)
	due, next = s.queryDue(now)
	return due, Earlier(next, omitted)
}

// inferOmitted makes names suspected that this stream and previous ones of one server have omitted for mentionTimeout, if
// these ended before a query. A single one may have ended because the relay looks again. An origin that honours versions
// omits what has not changed. inferOmitted returns when to call it again; zero if a response decides that.
func (s *Set) inferOmitted(now time.Time) (next time.Time) {
	p := &s.Progress
	switch {
	case s.pattern != wire.Wildcard || !p.responded() || p.growing() || !s.statesAll:
		return time.Time{}
	case !p.answered(now):
		return p.answeredAt()
	}
	for name := range s.withoutVersion {
		s.noteMissing(name, now)
		since := s.missing[name].since
		switch at := since.Add(mentionTimeout); {
		case !since.Before(s.began) || s.cutShort < 2:
		case now.Before(at):
			next = Earlier(next, at)
		default:
			delete(s.withoutVersion, name)
			s.suspect(name, removal{}, true, now)
		}
	}
	return next
}

func (s *Set) queryDue(now time.Time) (due bool, next time.Time) {
	m := &s.unmentioned
	last := m.lastMention
	switch {
	case len(m.withoutVersion) == 0:
		return false, time.Time{}
	case last.IsZero() && s.pattern != wire.Wildcard:
		last = m.began
	case last.IsZero():
		_, next = s.possiblyRemoved(now)
		return false, next
	}
	next = last.Add(mentionTimeout)
	if since := s.oldestWait(); !since.IsZero() { // for the answer about a resource that excludes it
		next = Earlier(next, since.Add(min(s.group.cfg.ColdWait, mentionTimeout)))
	}
	return !now.Before(next), next
}

// StartQuery starts a query and returns the names to request. On a new stream it restarts the query with the unanswered
// names.
//
// For a wildcard set, the names include a control: a resource that the origin is known to have. If the origin answers
// for the control only, the other names do not exist. The control is not one of the names to which clients subscribe
// (subscribed), if possible. go-control-plane does not send a resource again to a stream that is subscribed to it.
func (s *Set) StartQuery(subscribed names, now time.Time) []string {
	m := &s.unmentioned
	if !s.Querying() {
		m.targets, m.unanswered = maps.Clone(m.withoutVersion), maps.Clone(m.withoutVersion)
		if s.pattern == wire.Wildcard {
			s.chooseControl(subscribed)
		}
	}
	m.queriedAt, m.controlAnswered = now, false
	m.queried = slices.Sorted(maps.Keys(m.unanswered))
	if m.control != "" {
		m.queried = append(m.queried, m.control)
	}
	return m.queried
}

func (s *Set) chooseControl(subscribed names) {
	m := &s.unmentioned
	for name := range s.content.Names() {
		if m.isUnmentioned(name) || s.HasRemoval(name) {
			continue
		}
		m.control = name
		if _, m.controlSubscribed = subscribed[name]; !m.controlSubscribed {
			return
		}
	}
}

// RecordAnswers records a response on the stream of the query. Removals of queried names become suspected.
func (s *Set) RecordAnswers(u wire.Update, now time.Time) {
	m := &s.unmentioned
	for _, r := range u.Resources {
		m.controlAnswered = m.controlAnswered || r.Name == m.control
		if m.isQueried(r.Name) {
			m.markMentioned(r.Name)
			if !s.byName[r.Name].isHeldUpdate() { // the stream of the set states what it is
				s.cancelRemoval(r.Name, now)
			}
		}
	}
	for name := range u.RemovedNames() {
		if m.isQueried(name) {
			m.controlAnswered = true
			m.markMentioned(name)
			s.suspect(name, removal{explicit: true, asked: true}, true, now)
		}
	}
}

// FinishQuery reports whether the query is finished: the origin has answered for all names, or mentionTimeout has
// passed. Otherwise it returns when the time will have passed. The caller of a finished query calls ClearUnmentioned.
//
// Unanswered names of a wildcard set become suspected if the origin has answered for the control, or if there is no
// control. Names to which clients subscribe (subscribed) do not, and neither do names of a collection.
func (s *Set) FinishQuery(subscribed func() names, now time.Time) (finished bool, next time.Time) {
	m := &s.unmentioned
	if next = m.queriedAt.Add(mentionTimeout); len(m.unanswered) > 0 && now.Before(next) {
		return false, next
	}
	noControl := m.control == "" || m.controlSubscribed && !m.controlAnswered
	if s.pattern == wire.Wildcard && (m.controlAnswered || noControl) {
		excluded := subscribed()
		maps.DeleteFunc(m.unanswered, func(name string, _ struct{}) bool { _, ok := excluded[name]; return ok })
		s.infer(maps.Keys(m.unanswered), removal{asked: !noControl}, noControl, now)
	}
	return true, time.Time{}
}

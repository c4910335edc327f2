package reconcile

import (
	"time"

	"github.com/xdstender/tender/cache/wire"
)

// mentionTimeout is the time without a new mention after which the relay queries unmentioned resources by name. It is
// also the time limit for the answers (B.15).
const mentionTimeout = 15 * time.Second

// names is a set of resource names.
type names = map[string]struct{}

// unmentioned are the resources that the set contained when the stream started and that the origin has not mentioned
// since. They may have been removed. An origin that received their versions states removals; from another origin, the
// relay queries the names (B.15). Resources whose removal an operator dropped are excluded.
type unmentioned struct {
	began          time.Time // start of the stream, or of the last Restart
	withVersion    names     // sent to the origin in initial_resource_versions
	withoutVersion names     // not sent, so that the origin does not state their removal
	requestedAgain names     // see RequestAgain
	lastMention    time.Time // last response since began with a first mention; zero without one
	statesAll      bool      // the origin mentions all that it has: it was sent no versions, or states what has not changed

	// foreign are names that a previous origin has stated and the connected one has not, on any stream.
	foreign names

	// State of the query by name.
	queriedAt         time.Time // zero if there is no query
	queried           []string  // the targets, and the control
	targets           names     // unmentioned names when the query started
	unanswered        names     // targets for which the origin has not answered
	control           string    // a resource that the origin is known to have; empty without one
	controlSubscribed bool      // a client subscribes to the control by name, so that the origin may not resend it
	controlAnswered   bool      // the origin has sent the control, or has stated a removal
}

// unmentionedCount returns the number of unmentioned names.
func (m *unmentioned) unmentionedCount() int { return len(m.withVersion) + len(m.withoutVersion) }

// Querying reports whether the relay is querying names of the set.
func (m *unmentioned) Querying() bool { return !m.queriedAt.IsZero() }

// Queried returns the names of the current query, including the control.
func (m *unmentioned) Queried() []string { return m.queried }

// Covered reports whether the origin has mentioned all resources of the set.
func (m *unmentioned) Covered() bool { return m.unmentionedCount() == 0 }

// Foreign returns the names that only a previous origin has stated. Their versions mean nothing to the connected one.
func (m *unmentioned) Foreign() names { return m.foreign }

// SkipQuery drops the names that a query would request: a complete list shows which of them exist.
func (m *unmentioned) SkipQuery() { m.withoutVersion = nil }

// NoteVersionsIgnored records that the origin ignores the versions that the relay sent, so that it does not state
// removals. Later than ConfirmMax after the start of the set, it changes nothing and returns false: then a resend has
// another reason.
func (m *unmentioned) NoteVersionsIgnored(now time.Time) (noted bool) {
	if now.Sub(m.began) > ConfirmMax {
		return false
	}
	for name := range m.withVersion {
		put(&m.withoutVersion, name, struct{}{})
	}
	m.withVersion = nil
	return true
}

func (m *unmentioned) isUnmentioned(name string) bool {
	_, with := m.withVersion[name]
	_, without := m.withoutVersion[name]
	return with || without
}

// RequestAgain records that the origin states a name although it may not have changed: the name has moved from another stream,
// or the relay did not send the version of its state.
func (m *unmentioned) RequestAgain(name string) { put(&m.requestedAgain, name, struct{}{}) }

// isRequestedAgain reports whether the relay has requested a name again, and the origin has not mentioned it since.
func (m *unmentioned) isRequestedAgain(name string) bool {
	_, again := m.requestedAgain[name]
	return again
}

// isQueried reports whether a name is a target of the current query.
func (m *unmentioned) isQueried(name string) bool {
	_, queried := m.targets[name]
	return queried
}

// markMentioned records that the origin has mentioned a name.
func (m *unmentioned) markMentioned(name string) {
	delete(m.withVersion, name)
	delete(m.withoutVersion, name)
	delete(m.requestedAgain, name)
	delete(m.unanswered, name)
	delete(m.foreign, name)
}

// markUpdate records that the origin has mentioned all names and aliases of an update.
func (m *unmentioned) markUpdate(u wire.Update) {
	for _, r := range u.Resources {
		m.markMentioned(r.Name)
		for _, alias := range r.Aliases {
			m.markMentioned(alias)
		}
	}
	for name := range u.RemovedNames() {
		m.markMentioned(name)
	}
}

// put adds an entry to a map, which may be nil.
func put[V any](m *map[string]V, name string, v V) {
	if *m == nil {
		*m = make(map[string]V)
	}
	(*m)[name] = v
}

// has reports whether a name is in a set.
func has(in names, name string) bool {
	_, ok := in[name]
	return ok
}

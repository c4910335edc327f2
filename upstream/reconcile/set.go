package reconcile

import (
	"iter"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/cache/wire/schema"
	"github.com/xdstender/tender/pending"
)

// A Content is the resources of a set and the state of their transfer from the origin.
type Content interface {
	// Get returns the resource of a name; nil if there is none.
	Get(name string) *wire.Resource
	// Names yields the names of all resources.
	Names() iter.Seq[string]
	// Count returns the number of resources of this origin.
	Count() int
	// CompleteAt returns when the set is complete if no response arrives until then. It returns false if no stream
	// carries the set.
	CompleteAt() (at time.Time, ok bool)
	// Known reports whether the set was complete before, possibly in an earlier process. Otherwise what the origin states is
	// its first state.
	Known(now time.Time) bool
	// Await records additions that the origin states and that wait, so that clients which report them keep them. ended are
	// those that the origin states no longer. It is also called after others were applied.
	Await(names, ended []string)
	// Cause returns the cause of what the origin states at present; the zero cause if it states nothing.
	Cause() cache.Cause
	// Apply applies the changes of a response. Decided removals come without a type URL and a version. waited is the
	// delay of the oldest change that has waited; the zero value if none has.
	Apply(u wire.Update, waited pending.Delay) cache.Change
}

// A Set decides which removals from one set reach clients.
type Set struct {
	TypeURL  string
	Progress Progress

	// QueriesFor is the set whose unmentioned names the relay queries on the stream of this one; nil without one. The
	// removal of such a name answers the query. It is no change at the origin.
	QueriesFor *Set

	unmentioned
	removals
	content Content
	group   *Group

	// pattern is the name that subscribes to the whole set: "*" or a glob. It is empty if the relay subscribes to each
	// name, or if the origin is no xDS server.
	pattern string

	hadContent bool      // the set had resources when its stream started
	newNames   names     // if so, names that were added before the set is complete
	lastAdded  additions // by the last response to the complete set

	missing  map[string]absence // resources that consecutive streams of one server have removed or omitted
	cutShort int                // streams in a row that ended before a query for what they omitted
	open     bool               // a stream has begun and not ended
	endedAt  time.Time          // when the last stream ended

	index   keyIndex
	waiting map[string]waiting // additions and changes that wait for a removal, by name

	breakingChecked validity // of the last check of the changes that would break clients

	awaited names // additions of which the content was told that they wait
}

// Config configures a group.
type Config struct {
	// HoldTime is how long a large removal is held (B.15).
	HoldTime time.Duration

	// HoldExplicit also holds large removals that the origin states in a complete set.
	HoldExplicit bool

	// ColdWait is the time without a new name after which a set is complete.
	ColdWait time.Duration

	// Required reports whether only an operator removes a resource of a type; nil if the origin removes all.
	Required func(typeURL, name string) bool

	// Growth limits what may grow in one change. What grows more is held for HoldTime (B.51).
	Growth GrowthLimit

	// Reported means that reconnecting clients report the names of the sets (Hold.Reported).
	Reported bool

	// Check finds changes that would break clients; nil disables the check.
	Check Checker

	// AllResources means that each set contains all resources of its type, independent of subscriptions.
	AllResources bool

	Counts *Counts
	Logger *slog.Logger
}

// A Group is the sets of a view, or of a directory. While a resource is held, the resources that it refers to stay.
type Group struct {
	// ComparisonPending means that the origin may be another server than the one whose versions the relay sent. The
	// content has not been compared yet.
	ComparisonPending bool

	cfg  Config
	sets map[string]map[*Set]struct{} // by type URL

	withRemovals map[*Set]struct{} // sets with pending or dropped changes, or with additions that wait
	pending      [reasons]int      // this group's part of Counts.pending

	clusterChanges int   // updates of clusters, and of types that name clusters
	usage          usage // of clusters
}

// NewGroup returns a group without sets.
func NewGroup(cfg Config) *Group {
	return &Group{cfg: cfg, sets: make(map[string]map[*Set]struct{}), withRemovals: make(map[*Set]struct{})}
}

// NewSet returns a set of resources of a type. The pattern is the name that subscribes to the whole set. It is empty if
// the relay subscribes to each name.
func (g *Group) NewSet(typeURL, pattern string, content Content) *Set {
	s := &Set{TypeURL: typeURL, pattern: pattern, content: content, group: g}
	if g.sets[typeURL] == nil {
		g.sets[typeURL] = make(map[*Set]struct{})
	}
	g.sets[typeURL][s] = struct{}{}
	return s
}

// retainedResources returns the resources that may refer to those of a type, and whose change is pending or dropped.
// Clients still receive them, so they must receive what these refer to. With includePossible, it adds the resources
// that the origin may have removed, because their removal may be held later.
func (g *Group) retainedResources(
	typeURL string, includePossible bool, now time.Time,
) (resources []*wire.Resource) {
	for _, referrer := range schema.ReferrersOf(typeURL) {
		for s := range g.sets[referrer] {
			var retained names
			if includePossible && keepsReferents(typeURL) {
				possible, _ := s.possiblyRemoved(now)
				retained = maps.Clone(possible)
			}
			for name, change := range s.byName {
				if keepsReferents(typeURL) || change.state == grown {
					put(&retained, name, struct{}{})
				}
			}
			for name := range retained {
				if r := s.content.Get(name); r != nil {
					resources = append(resources, r)
				}
			}
		}
	}
	return resources
}

// possiblyRemoved returns the names that the origin may have removed, because it has not mentioned them on this stream.
// It also returns when their removal is decided at the latest. If the origin sends nothing for the set, there are no
// such names after ConfirmMax: otherwise other resources would wait for ever.
func (s *Set) possiblyRemoved(now time.Time) (possible names, until time.Time) {
	m := &s.unmentioned
	switch possible = m.withoutVersion; {
	case s.pattern == "":
		return nil, time.Time{}
	case !s.group.ComparisonPending || len(m.withVersion) == 0:
	case len(possible) == 0:
		possible = m.withVersion
	default:
		possible = maps.Clone(possible)
		maps.Copy(possible, m.withVersion)
	}
	switch until = m.began.Add(ConfirmMax); {
	case len(possible) == 0:
		return nil, time.Time{}
	case s.Querying():
		return possible, m.queriedAt.Add(mentionTimeout)
	case len(m.withoutVersion) > 0 && !m.lastMention.IsZero():
		return possible, m.lastMention.Add(2 * mentionTimeout)
	case now.Before(until):
		return possible, until
	}
	return nil, time.Time{}
}

// Begin resets the set for a new stream, on which removals must be suspected again. They keep the age that they have on
// consecutive streams of one server, so that removals are also applied if streams end early.
//
// The function versionSent reports whether the relay sends the version of a name in initial_resource_versions. It is
// nil if the relay sends none. If resumed is set, the origin sends only the difference, so that a second look in
// progress has to start again. If silenceConfirms is set, the versions are those of a snapshot, and an origin that
// sends nothing confirms its content.
func (s *Set) Begin(versionSent func(name string) bool, resumed, silenceConfirms bool, now time.Time) {
	s.End(now) // unless the stream has ended: the set moves to another one
	if s.cutShort++; !s.Progress.responded() || !now.Before(s.began.Add(mentionTimeout)) {
		s.cutShort = 0
	}
	if s.open = true; now.Sub(s.endedAt) >= mentionTimeout {
		s.missing = nil // the server may have started since
	}
	s.Restart(versionSent, now)
	s.statesAll, s.Progress = !resumed, Progress{}
	if silenceConfirms {
		s.Progress.versionsSent = now
	}
	s.hadContent, s.newNames, s.lastAdded = s.content.Count() > 0, nil, additions{}
	maps.DeleteFunc(s.byName, func(_ string, change removal) bool {
		return change.state == suspected || change.state == breaking || change.state == blocked || change.growth == beside && change.state == grown
	})
	s.expectGrowth()
	s.alwaysHold, s.secondLook = false, s.secondLook && !resumed
}

// End records the end of the stream. What the origin has not removed or omitted on it, it has, if it said anything, or
// would have had the time. The silence of second looks adds up, so that short streams can confirm removals.
func (s *Set) End(now time.Time) {
	if !s.open {
		return
	}
	lived := now.Sub(s.began)
	if s.open, s.endedAt = false, now; s.Progress.responded() || lived >= settleMax && !s.secondLook {
		maps.DeleteFunc(s.missing, func(_ string, a absence) bool { return a.noted.Before(s.began) })
	}
	if s.secondLook && !s.Progress.responded() {
		s.silence += lived
	}
}

// Restart records a request for the whole set, possibly on the same stream. versionSent is as in Begin.
func (s *Set) Restart(versionSent func(name string) bool, now time.Time) {
	s.unmentioned = unmentioned{began: now, foreign: s.foreign, statesAll: versionSent == nil}
	s.waiting = nil // the origin sends what waited again
	for name := range s.content.Names() {
		switch {
		case s.byName[name].state == dropped && s.byName[name].detail == "":
		case versionSent != nil && versionSent(name):
			put(&s.withVersion, name, struct{}{})
		default:
			put(&s.withoutVersion, name, struct{}{})
		}
	}
}

// Confirmed reports whether the set is complete: the origin has sent all of it.
func (s *Set) Confirmed(now time.Time) bool {
	at, ok := s.content.CompleteAt()
	return ok && !now.Before(at)
}

// RecordList records that a response lists the whole set, and the names in it. missing are subscribed names that it
// omits: their removal is inferred. If the list is empty, the origin may have just started, so that even a small removal
// is held. A list that lacks no resource completes the set, except those whose removal was dropped.
func (s *Set) RecordList(listed, missing names, now time.Time) {
	s.Infer(maps.Keys(missing), len(listed) == 0, now)
	for name, change := range s.byName {
		if change.state != dropped && !has(listed, name) {
			return
		}
	}
	s.Progress.listed = s.Progress.listed || len(listed) > 0
}

// NoteServerChange records that another server than that of the previous stream answers: what that one has removed or
// omitted proves nothing.
func (s *Set) NoteServerChange() { s.missing = nil }

// An absence is a resource that the origin has removed or omitted since a time.
type absence struct{ since, noted time.Time }

// noteMissing records that a stream removes or omits a resource of the set.
func (s *Set) noteMissing(name string, now time.Time) {
	a, known := s.missing[name]
	if a.noted = now; !known {
		a.since = now
	}
	put(&s.missing, name, a)
}

// ClearUnmentioned drops all unmentioned names and the query for them. A collection keeps its foreign names.
func (s *Set) ClearUnmentioned() {
	foreign := s.foreign
	if s.unmentioned = (unmentioned{began: s.began}); s.pattern != wire.Wildcard {
		s.foreign = foreign
	}
}

// NoteOriginChange records that another origin than the connected one has stated the content of the set.
func (s *Set) NoteOriginChange() {
	s.foreign = nil
	for name := range s.content.Names() {
		put(&s.foreign, name, struct{}{})
	}
}

// A filter decides which changes of a set are applied at one time, and records the others.
type filter struct {
	set       *Set
	now       time.Time
	connected bool // a stream carries the set
	confirmed bool // the set is complete

	neededNames, possiblyNeeded names // see needed and mayBeNeeded; nil until one of these is asked

	update    wire.Update // as the origin stated it; the zero value if the filter is not for one
	replacing names       // resources that replace others

	delays map[string]pending.Delay // of changes that wait no longer for what they waited for, by name
}

func (s *Set) newFilter(now time.Time) *filter {
	at, connected := s.content.CompleteAt()
	return &filter{set: s, now: now, connected: connected, confirmed: connected && !now.Before(at)}
}

// needed reports whether a retained resource refers to a name of the set (see retainedResources).
func (f *filter) needed(name string) bool { return has(f.named(&f.neededNames, false), name) }

// mayBeNeeded is needed, but also considers resources that the origin may have removed.
func (f *filter) mayBeNeeded(name string) bool { return has(f.named(&f.possiblyNeeded, true), name) }

// named returns the names of the set to which retained resources refer. It finds them once.
func (f *filter) named(found *names, includePossible bool) names {
	if *found == nil {
		retained := f.set.group.retainedResources(f.set.TypeURL, includePossible, f.now)
		*found = references(retained, f.set.content.Names())
	}
	return *found
}

// reached reports whether a stream carries the set, and a time has come. A zero time never comes.
func (f *filter) reached(at time.Time) bool {
	return f.connected && !at.IsZero() && !f.now.Before(at)
}

// moveTo moves the changes that chosen selects to an update.
func (f *filter) moveTo(u *wire.Update, chosen func(name string, change removal) bool) {
	s := f.set
	for name, change := range s.byName {
		if !chosen(name, change) {
			continue
		}
		delete(s.byName, name)
		put(&f.delays, name, pending.Delay{Cause: change.cause, Since: change.since, Reason: string(s.reason(change.state))})
		if change.replacement != nil {
			u.Resources = append(u.Resources, change.replacement)
		} else {
			u.Removed = append(u.Removed, name)
		}
		if change.originError != nil {
			u.Errors = append(u.Errors, change.originError)
		}
	}
}

// waitsSince returns since when a change waits that is recorded, and its cause. It may have waited for something else before.
func (f *filter) waitsSince(name string) (time.Time, cache.Cause) {
	if d := f.delays[name]; !d.Since.IsZero() {
		return d.Since, d.Cause
	}
	return f.now, f.set.cause(f.now)
}

// delayOf returns the delay of the oldest change in an update that has waited.
func (f *filter) delayOf(u wire.Update) (oldest pending.Delay) {
	if len(f.delays) == 0 {
		return oldest
	}
	for _, r := range u.Resources {
		oldest = oldest.Oldest(f.delays[r.Name])
	}
	for name := range u.RemovedNames() {
		oldest = oldest.Oldest(f.delays[name])
	}
	return oldest
}

// answersQuery reports whether the origin mentions a name because the relay queries it, or requests it again.
func (f *filter) answersQuery(name string) bool {
	s := f.set
	return s.isRequestedAgain(name) || s.isQueried(name) || s.QueriesFor != nil && s.QueriesFor.isQueried(name)
}

// mayRepeat reports whether the removal of a name may repeat an earlier one, because the relay has requested the name
// again.
func (f *filter) mayRepeat(name string) bool { return !f.confirmed || f.answersQuery(name) }

// mustWait reports whether the removal of a name must wait. If the origin may still be stating the set, it must if the
// name is unmentioned. In any set, it must if it answers a query, if it repeats one, or if a retained resource refers to
// the name.
func (f *filter) mustWait(name string, stating bool) bool {
	return stating && f.set.isUnmentioned(name) || f.repeats(name) || f.answersQuery(name) || f.needed(name)
}

// repeats reports whether the origin states a removal again that waits, or was dropped before the set is complete: it
// has not changed.
func (f *filter) repeats(name string) bool {
	change, ok := f.set.byName[name]
	stated := change.explicit && change.replacement == nil && (change.state == held || change.state == suspected)
	return ok && (stated || !f.confirmed)
}

// mustHold reports whether the stated removal of a name must wait, or may be held.
func (f *filter) mustHold(name string) bool {
	return f.mustWait(name, !f.confirmed && !f.answered()) ||
		f.set.group.cfg.HoldExplicit && !cache.RemovalsAreData(f.set.TypeURL)
}

// answered reports whether the origin has stated what it has on the stream before the present response, so that a stated
// removal is a change: it has answered, or was silent, as it is if nothing has changed. An origin that is loading states
// endpoints one by one.
func (f *filter) answered() bool {
	s := f.set
	answered := s.Progress.answered(f.now) && !cache.RemovalsAreData(s.TypeURL)
	return f.connected && (answered || s.silent(f.now))
}

// silent reports whether the origin has sent nothing for the set since the stream began, for so long that it will not.
func (s *Set) silent(now time.Time) bool {
	return !s.Progress.responded() && !now.Before(s.began.Add(confirmSilence))
}

// fewNames is the largest number of removals that are not held for an operator, but only until a second look. An origin
// that has lost its state usually lacks more.
const fewNames = 2

// few reports whether the pending removals are, and have been, so few that a second look decides, even if they are all
// resources of the type. It does not for what clients report, since it tells what the origin has and not what it had,
// nor for files: a directory that was deleted by mistake is as empty when it is read again.
func (s *Set) few() bool {
	cfg := &s.group.cfg
	return !s.large && !cfg.Reported && !cfg.AllResources && s.group.lacksFew(s.TypeURL)
}

// lacksFew reports whether the pending removals of a type are few, in all of its sets, and those of other types are not
// large: otherwise the origin may have lost its state.
func (g *Group) lacksFew(typeURL string) bool {
	var lacking names
	for s := range g.withRemovals {
		n := 0
		for name, change := range s.byName {
			decided := change.state == dropped || change.state == required || change.state == grown
			if decided || change.isHeldUpdate() {
				continue // no removal, or decided
			}
			if n++; s.TypeURL == typeURL {
				put(&lacking, name, struct{}{})
			}
		}
		large := s.large || n > fewNames && s.added().large(s.TypeURL, n, s.content.Count())
		if large || len(lacking) > fewNames {
			return false
		}
	}
	return true
}

// holdTime returns how long held removals wait for the origin until the second look.
func (s *Set) holdTime() time.Duration {
	if s.few() {
		return min(s.group.cfg.ColdWait, s.group.cfg.HoldTime)
	}
	return s.group.cfg.HoldTime
}

// cancelRemoval drops the pending or dropped change of a resource that the origin has. If it was held, the hold time
// of the others restarts, because the origin may send more.
func (s *Set) cancelRemoval(name string, now time.Time) {
	change, ok := s.byName[name]
	delete(s.byName, name)
	delete(s.missing, name)
	if ok && change.state == held {
		s.startHold(now, s.holdTime())
	}
}

// MoveTo moves the state of a name to another set of its type: another stream carries the name from now on. There the
// relay requests it again, so a removal in the answer is no change at the origin.
func (s *Set) MoveTo(to *Set, name string) {
	change, pending := s.byName[name]
	_, foreign := s.foreign[name]
	s.markMentioned(name)
	delete(s.byName, name)
	delete(s.missing, name)
	delete(s.waiting, name)
	delete(s.newNames, name)
	if to.RequestAgain(name); foreign {
		put(&to.foreign, name, struct{}{})
	}
	if !pending {
		return
	}
	if change.state == held && to.heldUntil.Before(s.heldUntil) {
		to.heldSince, to.heldUntil, to.heldAlarm.at, to.secondLook = s.heldSince, s.heldUntil, s.heldAlarm.at, false
	}
	to.large = to.large || change.state == held && s.large
	to.record(name, change)
	s.group.withRemovals[s] = struct{}{} // to log the end of its hold
}

// Infer records removals that the origin did not state. With alwaysHold, they are held even if they are few.
func (s *Set) Infer(removed iter.Seq[string], alwaysHold bool, now time.Time) {
	s.infer(removed, removal{}, alwaysHold, now)
}

// infer is Infer for removals that are recorded as change.
func (s *Set) infer(removed iter.Seq[string], change removal, alwaysHold bool, now time.Time) {
	for name := range removed {
		delete(s.newNames, name)
		if old := s.byName[name]; alwaysHold && old.growth == beside && old.state == grown { // what may replace it is gone, too
			old.state, old.growth, old.detail, old.explicit = suspected, 0, "", false
			s.byName[name] = old
		}
		s.suspect(name, change, true, now)
		s.alwaysHold = s.alwaysHold || alwaysHold && s.byName[name].state == suspected
	}
}

// RestoreDropped records that an operator dropped the removal of a resource, before a restart of the relay. hold has the
// operator and the time.
func (s *Set) RestoreDropped(name string, hold *Hold) {
	s.record(name, removal{state: dropped, since: hold.Since, by: hold.By})
}

// suspect records a change as suspected. A held change stays held. A dropped change stays dropped if repeated is
// set, or if the new one has the same content. A removal does not repeat a dropped update.
func (s *Set) suspect(name string, change removal, repeated bool, now time.Time) {
	s.noteMissing(name, now)
	old, ok := s.byName[name]
	repeated = repeated || change.sameUpdate(old)
	change.state = suspected
	change.follow(old, s.cause(now), now)
	switch {
	case ok && old.state == held:
		change.state, change.explicit = held, change.explicit || old.explicit
		change.inferredIn, change.originError = s.secondLooks, old.originError
	case repeated && old.state == dropped && (change.replacement != nil || !old.isHeldUpdate()):
		return
	case change.replacement == nil && old.holdsRemoval():
		return
	}
	s.record(name, change)
}

// cause returns the cause of a change that begins to wait.
func (s *Set) cause(now time.Time) cache.Cause {
	c := s.content.Cause()
	if c.Received.IsZero() {
		c.Received = now
	}
	return c
}

// heldAttrs returns log attributes of the changes in a state.
func (s *Set) heldAttrs(in state) []slog.Attr {
	return append([]slog.Attr{slog.String("type_url", s.TypeURL)}, s.attrs(in)...)
}

// record stores a change and marks the set for a decision.
func (s *Set) record(name string, change removal) {
	put(&s.byName, name, change)
	s.group.withRemovals[s] = struct{}{}
}

// apply applies an update to the content. An update of clusters, or of a type that names clusters, invalidates the
// cluster usage of the group. Endpoints, which change most often, do not.
func (s *Set) apply(u wire.Update, waited pending.Delay) cache.Change {
	if concernsChecked(s.TypeURL) {
		s.group.clusterChanges++
	}
	c := s.content.Apply(u, waited)
	s.index.update(u, s.content.Get, s.content.Count)
	for name := range u.RemovedNames() {
		delete(s.missing, name)
	}
	return c
}

// added returns how many resources the origin added since the stream of the set began.
func (s *Set) added() additions {
	a := s.lastAdded
	for name := range s.newNames {
		a.count(s.content.Get(name))
	}
	return a
}

// without returns the elements of a slice that remove does not select. It does not modify the slice.
func without[E any](all []E, remove func(E) bool) []E {
	if !slices.ContainsFunc(all, remove) {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), remove)
}

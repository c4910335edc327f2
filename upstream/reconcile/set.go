package reconcile

import (
	"iter"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// A Content is the resources of a set and the state of their transfer from the origin.
type Content interface {
	// Get returns the resource of a name; nil if there is none.
	Get(name string) *wire.Resource
	// Names yields the names of all resources.
	Names() iter.Seq[string]
	// Count returns how many resources there are of this origin.
	Count() int
	// Complete returns when the set is complete if no response arrives until then. It returns false if no stream
	// carries the set.
	Complete() (at time.Time, ok bool)
	// Apply applies the changes of a response. Removals that were held have no type URL and no version.
	Apply(wire.Update) cache.Change
}

// A Set decides which removals from one set reach clients.
type Set struct {
	TypeURL  string
	Progress Progress

	// Asker is the set whose unmentioned names the relay requests on the stream of this one; nil without one. The
	// removal of such a name is an answer to the request, not a change at the origin.
	Asker *Set

	unmentioned
	removals
	content Content
	group   *Group

	// whole is the subscribed name of the whole set: "*" or a glob. It is empty if the relay subscribes to each name,
	// or if the origin is no xDS server.
	whole string

	hadContent bool  // the set had resources when its stream started
	fresh      names // if so, new resources until the set is complete
	added      int   // new resources in the last response of a complete set

	checkedAsOf asOf // the last check of held changes that break clients
}

// Config configures a group.
type Config struct {
	// Hold is the hold time of a large removal (B.15).
	Hold time.Duration

	// HoldExplicit also holds large removals that the origin states in a complete set.
	HoldExplicit bool

	// ColdWait is the time without a new name after which a set is complete.
	ColdWait time.Duration

	// Reported says that the sets hold names that reconnecting clients report (Hold.Reported).
	Reported bool

	// Check finds changes that break clients; nil disables the check.
	Check Checker

	// Whole says that each set has all resources of its type, independent of the subscriptions.
	Whole bool

	Counts *Counts
	Logger *slog.Logger
}

// A Group is the sets of a view, or of a directory. A held resource also keeps the resources that it refers to.
type Group struct {
	// Untrusted says that the content that the relay reported to the origin was not compared yet.
	Untrusted bool

	cfg     Config
	sets    map[string]map[*Set]struct{} // by type URL
	busy    map[*Set]struct{}            // sets with pending decisions
	holding int                          // share of this group in Counts.Holding
	broken  []Hold                       // changes that break clients; never modified
	listed  int                          // changes in broken; -1 if others are held now

	changes int   // updates of clusters, and of types that name clusters
	usage   usage // of clusters
}

// NewGroup returns a group without sets.
func NewGroup(cfg Config) *Group {
	return &Group{cfg: cfg, sets: make(map[string]map[*Set]struct{}), busy: make(map[*Set]struct{})}
}

// NewSet returns a set of resources of a type. whole is the subscribed name of the whole set; empty if the relay
// subscribes to each name.
func (g *Group) NewSet(typeURL, whole string, content Content) *Set {
	s := &Set{TypeURL: typeURL, whole: whole, content: content, group: g}
	if g.sets[typeURL] == nil {
		g.sets[typeURL] = make(map[*Set]struct{})
	}
	g.sets[typeURL][s] = struct{}{}
	return s
}

// needed returns a function that reports whether a held resource refers to a name of s. With doubtful, resources that
// may be held later count too: they are served, so the resources that they refer to must be served.
func (g *Group) needed(s *Set, doubtful bool, now time.Time) func(name string) bool {
	var found names // computed on the first call, because most responses remove nothing
	return func(name string) bool {
		if found == nil {
			found = references(g.retainedResources(s.TypeURL, doubtful, now), s.content.Names())
		}
		_, is := found[name]
		return is
	}
}

// retainedResources returns the resources that may need those of a type, and that are there although the origin seems
// to have removed them, or with doubtful, may have.
func (g *Group) retainedResources(typeURL string, doubtful bool, now time.Time) (resources []*wire.Resource) {
	for _, needer := range needers[typeURL] {
		for s := range g.sets[needer] {
			var staying names
			if doubtful {
				doubted, _ := s.doubtful(now)
				staying = maps.Clone(doubted)
			}
			for name := range s.byName {
				put(&staying, name, struct{}{})
			}
			for name := range staying {
				if r := s.content.Get(name); r != nil {
					resources = append(resources, r)
				}
			}
		}
	}
	return resources
}

// doubtful returns the members of a set that may be gone, and until when that is not known at the latest. Of an origin
// that says nothing at all of a set, it may not be known for ever: then nothing waits for it.
func (s *Set) doubtful(now time.Time) (may names, until time.Time) {
	m := &s.unmentioned
	switch may = m.untold; {
	case s.whole == "":
		return nil, time.Time{}
	case !s.group.Untrusted || len(m.told) == 0:
	case len(may) == 0:
		may = m.told
	default:
		may = maps.Clone(may)
		maps.Copy(may, m.told)
	}
	switch until = m.began.Add(ConfirmMax); {
	case len(may) == 0:
		return nil, time.Time{}
	case s.Asking():
		return may, m.askedAt.Add(mentionTimeout)
	case len(m.untold) > 0 && !m.last.IsZero():
		return may, m.last.Add(2 * mentionTimeout)
	case now.Before(until):
		return may, until
	}
	return nil, time.Time{}
}

// Begin resets the set for a new stream. told returns whether the relay reports a name to the origin as an initial
// resource version; nil reports none. resumed says that the relay does not request the whole set; this restarts a
// second look. Suspected removals must be confirmed on this stream. silence says that the relay reported the content of
// a snapshot: then an origin that sends nothing confirms it.
func (s *Set) Begin(told func(name string) bool, resumed, silence bool, now time.Time) {
	s.Restart(told, now)
	s.Progress = Progress{}
	if silence {
		s.Progress.told = now
	}
	s.hadContent, s.fresh, s.added = s.content.Count() > 0, nil, 0
	maps.DeleteFunc(s.byName, func(_ string, as removal) bool { return as.state == suspected || as.state == breaking })
	s.unproven, s.secondLook = false, s.secondLook && !resumed
}

// Restart records a request for the whole set, possibly on the same stream. told is as in Begin.
func (s *Set) Restart(told func(name string) bool, now time.Time) {
	s.unmentioned = unmentioned{began: now, foreign: s.foreign}
	for name := range s.content.Names() {
		switch {
		case s.byName[name].state == kept && s.byName[name].breakReason == "":
		case told != nil && told(name):
			put(&s.told, name, struct{}{})
		default:
			put(&s.untold, name, struct{}{})
		}
	}
}

// Confirmed reports whether the origin has stated all of the set.
func (s *Set) Confirmed(now time.Time) bool {
	at, ok := s.content.Complete()
	return ok && !now.Before(at)
}

// Listed records that a response lists the whole set. missing are requested names that are absent from it: they are
// removed. An empty list may instead come from an origin that has just started.
func (s *Set) Listed(missing names, empty bool) {
	s.Progress.complete = s.Progress.complete || !empty
	s.Infer(maps.Keys(missing), empty)
}

// Rest drops all unmentioned names, because the relay requests no name of the set any more. A collection keeps its
// foreign names.
func (s *Set) Rest() {
	foreign := s.foreign
	if s.unmentioned = (unmentioned{}); s.whole != wire.Wildcard {
		s.foreign = foreign
	}
}

// Changed records that the connected origin is not the one that stated the content of the set.
func (s *Set) Changed() {
	s.foreign = nil
	for name := range s.content.Names() {
		put(&s.foreign, name, struct{}{})
	}
}

// A look is the state of a set at one time, for decisions on its removals.
type look struct {
	set                 *Set
	now                 time.Time
	confirmed           bool
	needed, mayBeNeeded func(name string) bool
}

func (s *Set) look(now time.Time) look {
	return look{s, now, s.Confirmed(now), s.group.needed(s, false, now), s.group.needed(s, true, now)}
}

// Mention drops the recorded removal of a resource that exists. If the removal was held, the hold time of the others
// restarts, because the origin may send more.
func (s *Set) Mention(name string, now time.Time) {
	if as, is := s.byName[name]; is && as.state == held {
		s.startHold(now, s.group.cfg.Hold)
	}
	delete(s.byName, name)
}

// Infer records removals that the origin did not state. unproven means that they must be held.
func (s *Set) Infer(gone iter.Seq[string], unproven bool) {
	for name := range gone {
		delete(s.fresh, name)
		s.suspect(name, removal{}, true)
		s.unproven = s.unproven || unproven && s.byName[name].state == suspected
	}
}

// Keep records that an operator discarded the removal of a resource.
func (s *Set) Keep(name string) { s.record(name, removal{state: kept}) }

// suspect records a removal. A held removal stays held. A resource that an operator kept stays kept if repeats is true,
// or if the change equals the discarded one.
func (s *Set) suspect(name string, as removal, repeats bool) {
	old, is := s.byName[name]
	as.state = suspected
	switch repeats = repeats || as.replacement != nil && old.replacement != nil && as.replacement.SameContent(old.replacement); {
	case is && old.state == held:
		as.state, as.stated, as.inferredIn, as.reason = held, as.stated || old.stated, s.secondLooks, old.reason
	case old.state == kept && repeats:
		return
	case old.state == breaking && old.replacement == nil && as.replacement == nil:
		return // the removal is held already
	}
	s.record(name, as)
}

// record stores the state of a removal and marks the set for a decision.
func (s *Set) record(name string, as removal) {
	put(&s.byName, name, as)
	s.group.busy[s] = struct{}{}
}

// apply applies an update to the content. Clusters and their users invalidate the cluster usage of the group.
// Endpoints, which change most often, do not.
func (s *Set) apply(u wire.Update) cache.Change {
	if s.TypeURL == wire.ClusterType || slices.Contains(clusterUsers, s.TypeURL) {
		s.group.changes++
	}
	return s.content.Apply(u)
}

// without returns the elements of a slice of which out is false, and leaves the slice as it is.
func without[E any](all []E, out func(E) bool) []E {
	if !slices.ContainsFunc(all, out) {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), out)
}

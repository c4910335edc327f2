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

// A Content is what a set holds, and how it stands with its origin.
type Content interface {
	// Get returns the resource of a name; nil if there is none.
	Get(name string) *wire.Resource
	// Names yields the names of all resources.
	Names() iter.Seq[string]
	// Count returns how many resources there are of this origin.
	Count() int
	// Complete returns when the origin will have stated all of the set, if nothing more comes; false if it
	// is not known when, since no stream carries the set.
	Complete() (at time.Time, ok bool)
	// Apply makes the changes of a response. Removals that have waited have no type URL and no version.
	Apply(wire.Update) cache.Change
}

// A Set decides which removals from one set reach clients.
type Set struct {
	TypeURL  string
	Progress Progress

	// Asker is the set whose unmentioned names the relay asks for on the stream of this one; nil if none is. A removal
	// of such a name is an answer, and not one that the origin makes.
	Asker *Set

	unmentioned
	removals
	content Content
	group   *Group

	// whole is the name by which the origin is asked for all of the set: "*", a glob, or nothing if it is
	// asked for each name, or is no xDS server.
	whole string

	earlier bool  // the set held something when its stream began
	fresh   names // new resources that are there still, if so, until the set is complete
	added   int   // new resources in the last response since it is

	mendedAsOf asOf // when held changes that break clients were last looked at
}

// Config says how a group decides.
type Config struct {
	// Hold is how long removals that are too many to be believed are held (B.15).
	Hold time.Duration

	// HoldExplicit holds them also if the origin states them when it has stated all of the set.
	HoldExplicit bool

	// ColdWait is how long a set has to be without a new name to be complete.
	ColdWait time.Duration

	// Reported says that the sets are what returning clients report (Hold.Reported).
	Reported bool

	// Check has changes held that break clients; nil holds none.
	Check Checker

	// Whole says that each set has all resources of its type that there are, whatever the origin is asked for.
	Whole bool

	Counts *Counts
	Logger *slog.Logger
}

// A Group is the sets of a view, or of a directory. What is held of one type keeps what it refers to.
type Group struct {
	// Untrusted says that what the origin was told is held is in doubt: its content was not compared yet.
	Untrusted bool

	cfg     Config
	sets    map[string]map[*Set]struct{} // by type URL
	busy    map[*Set]struct{}            // those with something to decide
	holding int                          // what of Counts.Holding is of this group
	broken  []Hold                       // changes that break clients; never modified
	listed  int                          // changes in broken; -1 if others are held now

	changes int   // updates of clusters, and of types that name clusters
	usage   usage // of clusters
}

// NewGroup returns a group without sets.
func NewGroup(cfg Config) *Group {
	return &Group{cfg: cfg, sets: make(map[string]map[*Set]struct{}), busy: make(map[*Set]struct{})}
}

// NewSet returns a set of resources of a type. Whole is the name by which an origin is asked for all of it,
// empty if it is asked for each name.
func (g *Group) NewSet(typeURL, whole string, content Content) *Set {
	s := &Set{TypeURL: typeURL, whole: whole, content: content, group: g}
	if g.sets[typeURL] == nil {
		g.sets[typeURL] = make(map[*Set]struct{})
	}
	g.sets[typeURL][s] = struct{}{}
	return s
}

// needed returns whether a name of a set is needed by what stays, and with doubtful, also by what may be gone
// and may be held then: such a resource is served, and what it refers to must be.
func (g *Group) needed(s *Set, doubtful bool, now time.Time) func(name string) bool {
	var found names // made when it is called first: most responses remove nothing
	return func(name string) bool {
		if found == nil {
			found = references(g.staying(s.TypeURL, doubtful, now), s.content.Names())
		}
		_, is := found[name]
		return is
	}
}

// staying returns the resources that may need those of a type, and that are there although the origin seems to
// have removed them, or with doubtful, may have.
func (g *Group) staying(typeURL string, doubtful bool, now time.Time) (resources []*wire.Resource) {
	for _, needer := range needers[typeURL] {
		for s := range g.sets[needer] {
			var staying names
			if doubtful {
				doubted, _ := s.doubts(now)
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

// doubts returns the members of a set that may be gone, and until when that is not known at the latest. Of an origin
// that says nothing at all of a set, it may not be known for ever: then nothing waits for it.
func (s *Set) doubts(now time.Time) (may names, until time.Time) {
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
		return may, m.askedAt.Add(silence)
	case len(m.untold) > 0 && !m.last.IsZero():
		return may, m.last.Add(2 * silence)
	case now.Before(until):
		return may, until
	}
	return nil, time.Time{}
}

// Begin notes that the set is about to be stated on a new stream. Told returns whether the origin is told that a
// name is held; nil if it is told of none. Resumed reports that the relay does not ask for everything: that
// interrupts a second look, which then begins anew. What was suspect is so only if it is seen to be gone on this
// stream too: an origin that is told of what is held need not mention it. Silence reports that the origin was
// told what a snapshot holds: its silence confirms that.
func (s *Set) Begin(told func(name string) bool, resumed, silence bool, now time.Time) {
	s.Restart(told, now)
	s.Progress = Progress{}
	if silence {
		s.Progress.told = now
	}
	s.earlier, s.fresh, s.added = s.content.Count() > 0, nil, 0
	maps.DeleteFunc(s.byName, func(_ string, as removal) bool { return as.state == suspected || as.state == breaking })
	s.unproven, s.looking = false, s.looking && !resumed
}

// Restart notes that the origin was asked for all of the set, maybe once more on the same stream. Told is that of Begin.
func (s *Set) Restart(told func(name string) bool, now time.Time) {
	s.unmentioned = unmentioned{began: now, foreign: s.unmentioned.foreign}
	for name := range s.content.Names() {
		switch {
		case s.byName[name].state == kept && s.byName[name].broken == "":
		case told != nil && told(name):
			put(&s.unmentioned.told, name, struct{}{})
		default:
			put(&s.unmentioned.untold, name, struct{}{})
		}
	}
}

// Confirmed reports whether the origin has stated all of the set.
func (s *Set) Confirmed(now time.Time) bool {
	at, ok := s.content.Complete()
	return ok && !now.Before(at)
}

// Listed notes that a response lists all of the set. Missing are names that it lacks, and that were asked for
// before: they are gone, or the origin has just started if it lists nothing.
func (s *Set) Listed(missing names, empty bool) {
	s.Progress.complete = s.Progress.complete || !empty
	s.Infer(maps.Keys(missing), empty)
}

// Rest ends all doubt about what the set held: the relay asks for nothing of it any more. A collection may go
// on to hold what an origin has never mentioned.
func (s *Set) Rest() {
	foreign := s.unmentioned.foreign
	if s.unmentioned = (unmentioned{}); s.whole != wire.Wildcard {
		s.unmentioned.foreign = foreign
	}
}

// Changed notes that another origin answers than the one that has stated what the set holds.
func (s *Set) Changed() {
	s.unmentioned.foreign = nil
	for name := range s.content.Names() {
		put(&s.unmentioned.foreign, name, struct{}{})
	}
}

// A look is what is known of a set at one time to decide about removals from it.
type look struct {
	set                 *Set
	now                 time.Time
	confirmed           bool
	needed, mayBeNeeded func(name string) bool
}

func (s *Set) look(now time.Time) look {
	return look{s, now, s.Confirmed(now), s.group.needed(s, false, now), s.group.needed(s, true, now)}
}

// Mention ends every suspicion of a resource that is there. If its removal was held, the origin may be about
// to say more: the time for the others begins anew.
func (s *Set) Mention(name string, now time.Time) {
	if as, is := s.byName[name]; is && as.state == held {
		s.hold(now, s.group.cfg.Hold)
	}
	delete(s.byName, name)
}

// Infer records that resources seem to be gone. Unproven means that not one of them may be believed at once.
func (s *Set) Infer(gone iter.Seq[string], unproven bool) {
	for name := range gone {
		delete(s.fresh, name)
		s.suspect(name, removal{}, true)
		s.unproven = s.unproven || unproven && s.byName[name].state == suspected
	}
}

// Keep notes that an operator had a resource kept.
func (s *Set) Keep(name string) { s.record(name, removal{state: kept}) }

// suspect records a removal. One that is held stays so, and what an operator had kept stays kept, unless the
// origin removes it once more, which does not repeat what the operator decided on.
func (s *Set) suspect(name string, as removal, repeats bool) {
	old, is := s.byName[name]
	as.state = suspected
	switch repeats = repeats || as.replacement != nil && old.replacement != nil && as.replacement.SameContent(old.replacement); {
	case is && old.state == held:
		as.state, as.stated, as.again, as.reason = held, as.stated || old.stated, s.looks, old.reason
	case old.state == kept && repeats:
		return
	case old.state == breaking && old.replacement == nil && as.replacement == nil:
		return // the removal is held already
	}
	s.record(name, as)
}

// record records how a removal stands. There is something to decide then.
func (s *Set) record(name string, as removal) {
	put(&s.byName, name, as)
	s.group.busy[s] = struct{}{}
}

// apply applies an update to what is served. What the group knows of clusters is out of date if the type has a part in that:
// endpoints, which change most often, do not.
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

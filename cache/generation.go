package cache

import (
	"cmp"
	"iter"
	"slices"
	"sync/atomic"
	"time"
)

// A Generation is one immutable version of a view: a cut across all its types.
type Generation struct {
	// Seq is the position that a reader of the whole head is brought to.
	Seq Seq

	// Revision numbers the heads of a view that differ in what their types hold.
	Revision uint64

	types         types
	sources       []Source
	route         func(typeURL, name string) int
	originChanges uint64 // how often a source came or went
}

// A Source is how one of a view's origins stands.
type Source struct {
	// Connected reports whether the origin's stream is up.
	Connected bool

	// Since is when that last changed; zero if it never did.
	Since time.Time

	// Responded reports whether the origin has said anything on the stream that is up.
	Responded bool

	// Lost is when the origin was lost; zero if it never was. Streams on which it said
	// nothing do not bring it back: the first that ends so counts, those that follow
	// it do not.
	Lost time.Time

	// Restored is when the snapshot was taken that the source began with; zero if it
	// began with nothing.
	Restored         time.Time
	lastStreamSilent bool // the last stream ended, and the origin had said nothing on it

	// Reused reports that the origin was seen to give different content the same
	// version: its versions then prove nothing about what a client holds (B.2).
	Reused bool

	// Identifier is the control_plane.identifier that the origin gave last.
	Identifier string

	// Target is the address of the origin at which all that is held has the versions
	// that it has here; empty if there is none, or it is not known.
	Target string

	// Frozen is since when readers are not shown what the origin changes; zero if
	// they are (Writer.Freeze).
	Frozen time.Time

	epoch uint32 // counts the upstream connections
}

// WildcardSource returns how the origin stands that chooses the members of a type, or
// of a collection.
func (g *Generation) WildcardSource(key string) *Source {
	typeURL, glob, _ := SplitCollection(key)
	return &g.sources[g.route(typeURL, glob)]
}

// Stale returns for how long the origin has not been there to correct what it said, if
// only to an earlier process; zero if it is there, or never said anything.
func (s *Source) Stale(now time.Time) time.Duration {
	since := s.Lost
	if since.IsZero() {
		since = s.Restored
	}
	if s.Connected || since.IsZero() {
		return 0
	}
	return max(now.Sub(since), 1)
}

// Stale reports whether the view holds resources and an origin is not there to correct what it said, or has not confirmed yet what
// was restored: a view that began anew would not have them.
func (v *View) Stale(now time.Time) bool {
	g := v.Generation()
	lost := slices.ContainsFunc(g.sources, func(s Source) bool { return s.Stale(now) > 0 })
	for t := range g.ChangedSince(0) {
		if t.Wildcard.Count()+t.ByName.Count() > 0 && (lost || t.Restored) {
			return true
		}
	}
	return false
}

// Source returns how one of the view's origins stands, by its number.
func (g *Generation) Source(source int) *Source { return &g.sources[source] }

// ownSource returns a source of a generation that is not published yet, for writing.
func (g *Generation) ownSource(source int) *Source {
	g.sources = slices.Clone(g.sources)
	return &g.sources[source]
}

// OriginChanges returns a number that is another whenever an origin has come or gone, and never
// zero.
func (g *Generation) OriginChanges() uint64 { return 1 + g.originChanges }

// First returns how the view's first origin stands.
func (g *Generation) First() *Source { return &g.sources[0] }

// From returns how the origin stands that answers for a name.
func (g *Generation) From(n *Name) *Source { return &g.sources[n.source] }

// A Phase is how much a view knows of the members of a type (B.7).
type Phase int

// The phases of a wildcard subscription, in order.
const (
	// Unknown: the origin has not answered. Nobody is told anything.
	Unknown Phase = iota
	// Settled: the first answer seems complete. Clients without state are answered.
	Settled
	// Confirmed: the set is complete. Only now may a client that holds state learn
	// from an absence.
	Confirmed
)

func (p Phase) String() string { return [...]string{"unknown", "settled", "confirmed"}[p] }

// A Type is what a head holds of one resource type.
type Type struct {
	URL      string // or the collection, see Collection
	Wildcard Set    // what the origin chose for a wildcard
	ByName   Set    // what was asked for by name
	Phase    Phase  // of Wildcard

	// Restored reports that the members are those of a snapshot, all that there were
	// then, which the origin has not confirmed yet (B.42).
	Restored bool

	// Covered reports that they are Restored, not confirmed yet, and that the origin has said each of them anew: nothing that was
	// last known is missing.
	Covered bool

	errors   *[2]Set // what is wrong with resources of each set, by Kind; nil if it never was
	source   int     // that has the members
	revision uint64  // of the first head that held this
	changed  time.Time
	shared   *memo
}

var noType = &Type{}

// serves reports whether there is anything to serve of the type.
func (t *Type) serves() bool { return t.Phase >= Settled || t.ByName.Count() > 0 }

// Source returns the number of the source that has the members of the type.
func (t *Type) Source() int { return t.source }

// Changed returns when a resource of the type last came, changed or went.
func (t *Type) Changed() time.Time { return t.changed }

func (t *Type) set(kind Kind) *Set {
	if kind == ByName {
		return &t.ByName
	}
	return &t.Wildcard
}

// Type returns what the head holds of a type; never nil.
func (g *Generation) Type(typeURL string) *Type {
	if t := g.types.get(typeURL); t != nil {
		return t
	}
	return noType
}

// ChangedSince returns the types and collections of which anything changed after an
// edition, in the order in which it last did: of many, a reader need not look at each.
func (g *Generation) ChangedSince(edition uint64) iter.Seq[*Type] { return g.types.since(edition) }

// Types returns the number of types and collections that the view knows.
func (g *Generation) Types() int { return g.types.n }

// Last returns the position of the type's newest change of a resource.
func (t *Type) Last() Seq { return max(t.Wildcard.last, t.ByName.last) }

// Failed returns the position of the newest error.
func (t *Type) Failed() Seq { return max(t.Errors(Wildcard).last, t.Errors(ByName).last) }

var noErrors = new([2]Set)

// Errors returns what the origin said is wrong with the resources of one of the type's
// sets.
func (t *Type) Errors(of Kind) *Set { return &cmp.Or(t.errors, noErrors)[of] }

// System returns the origin's own version of the type, for people (R091).
func (t *Type) System() string {
	if t.Wildcard.last >= t.ByName.last && t.Wildcard.system != "" {
		return t.Wildcard.system
	}
	return t.ByName.system
}

// Lookup returns what a stream that named n sees, and when that last changed: what the
// origin said of it by name, be it that it is gone; the member if the origin said nothing
// by name, or never had the resource there, or its time was up; an absent entry if there is
// none; nil if the origin has not said (B.5). The two come on two streams of the origin, of which either
// may lag, so a reader follows one of them. Another origin's member of that name
// is not what was asked for (R129).
func (t *Type) Lookup(n *Name) (*Entry, Seq) {
	member, named := t.member(n), t.ByName.Get(n)
	switch {
	case named.Present() && !named.yields:
		return sendable(named, member), named.since
	case member.Present() && (named == nil || named.yields):
		return member, changed(member, named)
	case named != nil && !named.Present():
		return named, named.Seq // it is newer than a member that hid it and went
	default:
		return nil, 0 // a tombstone among the members says nothing of the name
	}
}

// sendable returns the named entry, but the member if that is the same and only its content
// is still here.
func sendable(named, member *Entry) *Entry {
	if named.Resource.ContentDropped() && member.shows(named.Resource) && !member.Resource.ContentDropped() {
		return member
	}
	return named
}

// member returns what those who named n may be shown of the members.
func (t *Type) member(n *Name) *Entry {
	if n.source != t.source {
		return nil
	}
	return t.Wildcard.Get(n)
}

// changed returns when the member became what readers see: when the time of the named
// resource was up, if until then they saw that. The same content from the other set is no
// change (R040).
func changed(member, named *Entry) Seq {
	if named != nil && named.replaced > member.Seq {
		return named.since
	}
	return member.since
}

// Absent reports whether the origin has said, on the connection that is up now,
// that the name does not exist. What it said before a disconnect must be said
// again before a client may be told (B.7). What has expired is gone whatever
// became of the connection (R107).
func (g *Generation) Absent(e *Entry) bool {
	if e == nil || e.Resource != nil {
		return false
	}
	from := g.From(e.Name)
	return e.Expired || from.Connected && e.epoch == from.epoch
}

// SharedSlots is how many different values a type keeps for its readers. Most
// streams are at the same position, or at the one before.
const SharedSlots = 4

// memo holds values that readers of one version of a type share, such as encoded
// responses.
type memo struct {
	slots [SharedSlots]atomic.Pointer[memoized]
}

type memoized struct {
	key   any
	value any
}

// Shared returns the value that another reader of this very version of the type
// made under the same key, or else makes it. Several readers may make it at
// once; one of the values is kept, in the slot, until another takes its place. A
// value must not be modified.
func (t *Type) Shared(key any, slot int, make func() any) any {
	if t.shared == nil {
		return make()
	}
	at := &t.shared.slots[slot%SharedSlots]
	if m := at.Load(); m != nil && m.key == key {
		return m.value
	}
	m := &memoized{key, make()}
	at.Store(m)
	return m.value
}

package cache

import (
	"cmp"
	"iter"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/xdstender/tender/cache/immutable"
	"github.com/xdstender/tender/cache/wire"
)

// Collection returns the key of what a glob stands for: wherever a view takes a type
// URL, it also takes this, and the collection's members are those resources of the
// type that the glob matches (R132). They are a set of their own, with a phase, a
// log and watchers of its own.
func Collection(typeURL, glob string) string { return typeURL + wire.Separator + glob }

// resourceType returns the type of the resources of a type or collection.
func resourceType(key string) string {
	typeURL, _, _ := SplitCollection(key)
	return typeURL
}

// SplitCollection returns the type URL and the glob of a collection, or a type URL as
// it is.
func SplitCollection(key string) (typeURL, glob string, is bool) {
	return strings.Cut(key, wire.Separator)
}

// types has a generation's types and collections, of which clients may invent thousands, and the order in which they last changed.
type types struct {
	byKey immutable.Map[Type]
	log   immutable.Log[string, uint64] // by revision
}

func (t *types) get(key string) *Type { return t.byKey.Get(key) }

// put records a type that changed.
func (t *types) put(typ *Type) {
	t.byKey.Set(typ.URL, typ)
	t.log.Append(typ.URL, typ.revision)
	t.log.Compact(t.byKey.Len(), func(c immutable.Change[string, uint64]) bool { return t.at(c) != nil })
}

// drop removes a type.
func (t *types) drop(key string) { t.byKey.Delete(key) }

// at returns the type that an item of the log stands for, nil if the type changed again or was dropped.
func (t *types) at(c immutable.Change[string, uint64]) *Type {
	if typ := t.get(c.Key); typ != nil && typ.revision == c.At {
		return typ
	}
	return nil
}

// since returns the types that changed after a revision, oldest change first.
func (t *types) since(revision uint64) iter.Seq[*Type] {
	return func(yield func(*Type) bool) {
		for _, c := range t.log[t.log.After(revision):] {
			if typ := t.at(c); typ != nil && !yield(typ) {
				return
			}
		}
	}
}

// A Generation is one immutable version of a view: a cut across all its types.
type Generation struct {
	// Seq is the position of a reader that has read the whole generation.
	Seq Seq

	// Revision numbers the generations of a view that differ in a type.
	Revision uint64

	types         types
	sources       []Source
	route         func(typeURL, name string) int
	originChanges uint64 // how often a source came or went

	deferred []deferredType // see Sendable; nil mostly
}

// A Source is how one of a view's origins stands.
type Source struct {
	// Connected reports whether the origin's stream is up.
	Connected bool

	// Since is when that last changed; zero if it never did.
	Since time.Time

	// Responded reports whether the origin has sent a response on the open stream.
	Responded bool

	// Lost is when the origin was lost; zero if it never was. Streams on which it sent
	// nothing do not bring it back: the first that ends so counts, those that follow
	// it do not.
	Lost time.Time

	// Restored is when the snapshot was taken that the source began with; zero if it
	// began with nothing.
	Restored         time.Time
	lastStreamSilent bool // the last stream ended without a response of the origin

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

	// RolledBack is since when readers are shown an earlier generation; zero if they are not (Writer.RollBack).
	RolledBack time.Time

	epoch uint32 // counts the upstream connections
}

// WildcardSource returns the state of the origin that has the wildcard set of a type, or of a collection.
func (g *Generation) WildcardSource(key string) *Source {
	typeURL, glob, _ := SplitCollection(key)
	return &g.sources[g.route(typeURL, glob)]
}

// Stale returns how long the origin has been unable to correct the state that it sent, if only to an earlier process;
// zero if it is connected, or never sent anything.
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

// Source returns how one of the view's origins stands, by its number.
func (g *Generation) Source(source int) *Source { return &g.sources[source] }

// ownSource returns a source of a generation that is not published yet, for writing.
func (g *Generation) ownSource(source int) *Source {
	g.sources = slices.Clone(g.sources)
	return &g.sources[source]
}

// OriginChanges returns a number that changes whenever an origin connects or disconnects. It is never zero.
func (g *Generation) OriginChanges() uint64 { return 1 + g.originChanges }

// First returns how the view's first origin stands.
func (g *Generation) First() *Source { return &g.sources[0] }

// From returns how the origin stands that answers for a name.
func (g *Generation) From(n *Name) *Source { return &g.sources[n.source] }

// A Phase is how complete the wildcard set of a type is known to be (B.7).
type Phase int

// The phases of a wildcard subscription, in order.
const (
	// Unknown: the origin has not responded. Clients get no response.
	Unknown Phase = iota
	// Settled: the first answer seems complete. Clients without state are answered.
	Settled
	// Confirmed: the set is complete. Only now may a client that holds state learn
	// from an absence.
	Confirmed
)

func (p Phase) String() string { return [...]string{"unknown", "settled", "confirmed"}[p] }

// A Type is the state of one resource type in a generation.
type Type struct {
	URL      string // or the collection, see Collection
	Wildcard Set    // what the origin chose for a wildcard
	ByName   Set    // what was asked for by name
	Phase    Phase  // of Wildcard

	// Restored reports that the wildcard set is that of a snapshot, complete
	// then, which the origin has not confirmed yet (B.42).
	Restored bool

	// Covered reports that the set is Restored, not confirmed yet, and that the origin has sent each of its resources again:
	// none of the last known set is missing.
	Covered bool

	errors   *[2]Set // what is wrong with resources of each set, by Kind; nil if it never was
	source   int     // that has the wildcard set
	era      uint64  // of the wildcard set: see indexType
	revision uint64  // of the first generation with this state
	changed  time.Time
	shared   *memo
}

var noType = &Type{}

// serves reports whether there is anything to serve of the type.
func (t *Type) serves() bool { return t.Phase >= Settled || t.ByName.Count() > 0 }

// Source returns the number of the source that has the wildcard set of the type.
func (t *Type) Source() int { return t.source }

// Changed returns when a resource of the type last came, changed or went.
func (t *Type) Changed() time.Time { return t.changed }

func (t *Type) set(kind Kind) *Set {
	if kind == ByName {
		return &t.ByName
	}
	return &t.Wildcard
}

// Type returns the state of a type; never nil.
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
func (g *Generation) Types() int { return g.types.byKey.Len() }

// Last returns the position of the type's newest change of a resource.
func (t *Type) Last() Seq { return max(t.Wildcard.last, t.ByName.last) }

// Failed returns the position of the newest error.
func (t *Type) Failed() Seq { return max(t.Errors(Wildcard).last, t.Errors(ByName).last) }

var noErrors = new([2]Set)

// Errors returns the errors of the resources of one of the type's sets.
func (t *Type) Errors(of Kind) *Set { return &cmp.Or(t.errors, noErrors)[of] }

// System returns the origin's own version of the type, for people (R091).
func (t *Type) System() string {
	if t.Wildcard.last >= t.ByName.last && t.Wildcard.system != "" {
		return t.Wildcard.system
	}
	return t.ByName.system
}

// SumsByName reports whether the sum of what subscribers to names see is that of the entries in the set of names, and changes only with
// their positions (Entry.SumSince).
func (t *Type) SumsByName() bool {
	return t.Wildcard.last == 0 && !t.ByName.aliased && !t.ByName.unsteady && t.Errors(ByName).last == 0
}

// Lookup returns the entry that a subscriber to the name n sees, and when that last changed: the entry of the set of
// names, also if it is absent; the entry of the wildcard set if the origin sent nothing by name, or never had the
// resource there, or it expired; nil if the origin has not responded (B.5). The two sets come on two streams of the
// origin, either of which may lag, so a reader follows one of them. A resource of that name in another origin's
// wildcard set is not a response to the subscription (R129).
func (t *Type) Lookup(n *Name) (*Entry, Seq) {
	member, named := t.member(n), t.ByName.Get(n)
	switch {
	case named.Present() && !named.yields:
		return sendable(named, member), named.since
	case member.Present() && (named == nil || named.yields):
		return member, changed(member, named)
	case named != nil && !named.Present():
		return named, named.Seq // it is newer than the entry of the wildcard set that took precedence and was removed
	default:
		return nil, 0 // a tombstone of the wildcard set does not answer a subscription to the name
	}
}

// sendable returns the named entry, but the entry of the wildcard set if that has the same content and only its
// content is still here.
func sendable(named, member *Entry) *Entry {
	if named.Resource.ContentDropped() && member.shows(named.Resource) && !member.Resource.ContentDropped() {
		return member
	}
	return named
}

// member returns the entry of the wildcard set that subscribers to n may be sent.
func (t *Type) member(n *Name) *Entry {
	if n.source != t.source {
		return nil
	}
	return t.Wildcard.Get(n)
}

// changed returns when an entry of the wildcard set became what subscribers to its name see: when the named resource
// expired, if they saw that until then. The same content from the other set is no change (R040).
func changed(member, named *Entry) Seq {
	if named != nil && named.replaced > member.Seq {
		return named.since
	}
	return member.since
}

// Absent reports whether the origin has said, on the open connection, that the name does not exist. After a
// disconnect it must say so again before a client may be sent a removal (B.7). An expired resource is absent on any
// connection (R107).
func (g *Generation) Absent(e *Entry) bool {
	if e == nil || e.Resource != nil {
		return false
	}
	from := g.From(e.Name)
	return e.Expired || from.Connected && e.epoch == from.epoch
}

// Sharing is what the values are that readers of a type share.
type Sharing int

// What readers share.
const (
	SharedSets    Sharing = iota // complete sets, in each form in which clients are sent them
	SharedChanges                // what changed after a position
)

// MaxShared is how many values of a Sharing one version of a type keeps. Most streams are at the same position, or at the one before.
const MaxShared = 8

// memo holds values that readers of one version of a type share, such as encoded
// responses, by Sharing.
type memo [SharedChanges + 1]atomic.Pointer[[]*memoized]

type memoized struct {
	key   any
	once  sync.Once
	value any
}

// Shared returns the value that another reader of this very version of a type made under the same key, or else makes
// it. Others that want it meanwhile wait for it. It is kept until there are MaxShared newer ones. A value must not be
// modified. The key has a type of its own, so that to look for a value needs no memory.
func Shared[K comparable](t *Type, of Sharing, key K, make func() any) any {
	if t.shared == nil {
		return make()
	}
	m := find(t.shared, of, key)
	m.once.Do(func() { m.value = make() })
	return m.value
}

// find returns what is kept under a key, which may not be made yet.
func find[K comparable](m *memo, of Sharing, key K) *memoized {
	for {
		var kept []*memoized
		old := m[of].Load()
		if old != nil {
			kept = *old
		}
		for _, is := range kept {
			if k, same := is.key.(K); same && k == key {
				return is
			}
		}
		added := &memoized{key: key}
		now := append([]*memoized{added}, kept[:min(len(kept), MaxShared-1)]...)
		if m[of].CompareAndSwap(old, &now) {
			return added
		}
	}
}

// has reports whether there is a resource of a name, which may be nil.
func (t *Type) has(n *Name) bool {
	if n == nil {
		return false
	}
	e, _ := t.Lookup(n)
	return e.Present()
}

// Kind names one of a type's two sets.
type Kind int

// The sets of a type.
const (
	Wildcard Kind = iota
	ByName
)

var kinds = [...]Kind{Wildcard, ByName}

// holds returns in how many sets of a kind, that of errors included, a name has an entry.
func (t *Type) holds(kind Kind, n *Name) (entries int) {
	for _, set := range []*Set{t.set(kind), t.Errors(kind)} {
		if set.Get(n) != nil {
			entries++
		}
	}
	return entries
}

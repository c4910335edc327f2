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

// Collection returns the key of a glob collection: the resources of a type whose names a glob matches (R132). A view
// accepts such a key wherever it accepts a type URL, and keeps the collection as a set of its own, with a phase, a
// log and watchers.
func Collection(typeURL, glob string) string { return typeURL + wire.Separator + glob }

// resourceType returns the type URL of a type or collection.
func resourceType(key string) string {
	typeURL, _, _ := SplitCollection(key)
	return typeURL
}

// SplitCollection returns the type URL and the glob of a collection; for a type URL, the type URL and an empty glob.
func SplitCollection(key string) (typeURL, glob string, ok bool) {
	return strings.Cut(key, wire.Separator)
}

// types contains the types and collections of a generation, and the order in which they last changed. Clients can
// create thousands of collections.
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
	// Seq is the position of the newest change.
	Seq Seq

	// Revision numbers the generations of a view that differ in a type.
	Revision uint64

	types         types
	sources       []Source
	route         func(typeURL, name string) int
	originChanges uint64 // number of times that a source has connected or disconnected
}

// A Source is the connection state of one of a view's origins.
type Source struct {
	// Connected reports whether the origin's stream is up.
	Connected bool

	// Since is when Connected last changed; zero if it never did.
	Since time.Time

	// Responded reports whether the origin has sent a response on the open stream.
	Responded bool

	// Lost is when the connection was lost; zero if it never was. If several streams in a row end without a response,
	// it is the end of the first.
	Lost time.Time

	// Restored is when the snapshot was taken from which the source was restored; zero if there was none.
	Restored         time.Time
	lastStreamSilent bool // the last stream ended without a response of the origin

	// Reused reports that the origin gave different content the same version. An equal version then does not prove that
	// a client has the same content (B.2).
	Reused bool

	// Identifier is the control_plane.identifier of the origin's last response.
	Identifier string

	// Target is the address of the origin that sent all resources in their present versions; empty if there are
	// several, or it is unknown.
	Target string

	// Frozen is the time since which changes of the origin are withheld from readers; zero if they are not
	// (Writer.SetFrozen).
	Frozen time.Time

	// RolledBack is the time since which readers are shown an earlier generation; zero if they are not
	// (Writer.SetFrozen).
	RolledBack time.Time

	epoch uint32 // counts the upstream connections
}

// WildcardSource returns the source that has the wildcard set of a type or collection.
func (g *Generation) WildcardSource(key string) *Source {
	typeURL, glob, _ := SplitCollection(key)
	return &g.sources[g.route(typeURL, glob)]
}

// Stale returns how long the state of the origin has been stale: since the connection was lost, or since the snapshot
// was taken. It returns zero if the origin is connected, or if it never sent anything.
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

// Source returns a source by its number.
func (g *Generation) Source(source int) *Source { return &g.sources[source] }

// mutableSource returns a source of a generation that is not published yet. The caller may change the source.
func (g *Generation) mutableSource(source int) *Source {
	g.sources = slices.Clone(g.sources)
	return &g.sources[source]
}

// OriginChanges returns a number that changes whenever an origin connects or disconnects. It is never zero.
func (g *Generation) OriginChanges() uint64 { return 1 + g.originChanges }

// First returns the first source.
func (g *Generation) First() *Source { return &g.sources[0] }

// From returns the source that answers for a name.
func (g *Generation) From(n *Name) *Source { return &g.sources[n.source] }

// A Phase is the confirmed completeness of the wildcard set of a type (B.7).
type Phase int

// The phases of a wildcard subscription, in order.
const (
	// Unknown: the origin has not responded. Clients get no response.
	Unknown Phase = iota
	// Settled: the first response seems complete. Clients that report no resources get responses.
	Settled
	// Confirmed: the set is complete. Only now may the relay send removals to clients that reported resources.
	Confirmed
)

func (p Phase) String() string { return [...]string{"unknown", "settled", "confirmed"}[p] }

// A Type is the state of one resource type in a generation.
type Type struct {
	URL      string // or the collection, see Collection
	Wildcard Set    // the resources that the origin sent for a wildcard subscription
	ByName   Set    // the resources that were subscribed to by name
	Phase    Phase  // of Wildcard

	// Restored reports that the wildcard set was restored from a snapshot of a complete set, and that the origin has
	// not confirmed it yet (B.42).
	Restored bool

	// Presumed reports that the set is settled and probably complete, so that clients which may hold resources of it are
	// sent it: it is Restored, and the origin has sent each of its resources since, or the origin had enough time.
	Presumed bool

	errors   *[2]Set // errors of the resources of each set, by Kind; nil if there never were any
	source   int     // number of the source that has the wildcard set
	era      uint64  // of the wildcard set: see indexType
	revision uint64  // of the first generation with this state
	changed  time.Time
	shared   *memo
}

var noType = &Type{}

// serves reports whether clients of the type get responses.
func (t *Type) serves() bool { return t.Phase >= Settled || t.ByName.Count() > 0 }

// Source returns the number of the source that has the wildcard set of the type.
func (t *Type) Source() int { return t.source }

// Changed returns when a resource of the type was last added, changed or removed.
func (t *Type) Changed() time.Time { return t.changed }

// Set returns one of the sets of the type.
func (t *Type) Set(kind Kind) *Set {
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

// ChangedSince returns the types and collections that changed after a revision, in the order of their last change. A
// reader of many types calls it instead of comparing each type.
func (g *Generation) ChangedSince(revision uint64) iter.Seq[*Type] { return g.types.since(revision) }

// Types returns the number of types and collections.
func (g *Generation) Types() int { return g.types.byKey.Len() }

// Last returns the position of the type's newest change of a resource.
func (t *Type) Last() Seq { return max(t.Wildcard.last, t.ByName.last) }

// Failed returns the position of the newest error.
func (t *Type) Failed() Seq { return max(t.Errors(Wildcard).last, t.Errors(ByName).last) }

var noErrors = new([2]Set)

// Errors returns the errors of the resources of one of the type's sets.
func (t *Type) Errors(of Kind) *Set { return &cmp.Or(t.errors, noErrors)[of] }

// System returns the origin's own version of the type, which is only shown (R091).
func (t *Type) System() string {
	if t.Wildcard.last >= t.ByName.last && t.Wildcard.system != "" {
		return t.Wildcard.system
	}
	return t.ByName.system
}

// SumsByName reports whether Entry.SumSince is valid for subscribers to names: they see only the entries of the set
// of names, and each change of a summand has a new Seq.
func (t *Type) SumsByName() bool {
	return t.Wildcard.last == 0 && !t.ByName.aliased && !t.ByName.unsteady && t.Errors(ByName).last == 0
}

// Lookup returns the entry that a subscriber to the name n sees, and when that last changed (B.5):
//
//   - the entry of the set of names, even if the resource does not exist;
//   - the entry of the wildcard set, if the set of names has no entry, or a shadowed one: of a resource that never
//     existed there, that expired, or that may be older;
//   - nil, if the origin has not responded.
//
// The origin sends the two sets on two streams, either of which may lag, so a reader follows one of them. A resource
// of that name in the wildcard set of another origin is not a response to the subscription (R129).
func (t *Type) Lookup(n *Name) (*Entry, Seq) {
	member, named := t.wildcardEntry(n), t.ByName.Get(n)
	switch {
	case named.Present() && !named.shadowed:
		return sendable(named, member), named.visibleSince
	case member.Present() && (named == nil || named.shadowed):
		return member, changed(member, named)
	case named != nil && !named.Present():
		return named, named.Seq // newer than the entry of the wildcard set, which took precedence and was removed
	default:
		return nil, 0 // a tombstone of the wildcard set is no response to a subscription to the name
	}
}

// sendable returns the named entry. If its content was dropped and the entry of the wildcard set has the same
// content, it returns that.
func sendable(named, member *Entry) *Entry {
	if named.Resource.ContentDropped() && member.hasContentOf(named.Resource) && !member.Resource.ContentDropped() {
		return member
	}
	return named
}

// wildcardEntry returns the entry of the wildcard set that subscribers to n may see.
func (t *Type) wildcardEntry(n *Name) *Entry {
	if n.source != t.source {
		return nil
	}
	return t.Wildcard.Get(n)
}

// changed returns when subscribers to a name began to see the entry of the wildcard set: when the named resource
// expired, if they saw that before. Equal content in the other set is no change (R040).
func changed(member, named *Entry) Seq {
	if named != nil && named.replacedSeq > member.Seq {
		return named.visibleSince
	}
	return member.visibleSince
}

// Absent reports whether the origin has reported on the open connection that a resource does not exist. After a
// reconnect it must report it again before clients are sent a removal (B.7). On any connection, an expired resource is
// absent (R107), and so is one whose absence was frozen.
func (g *Generation) Absent(e *Entry) bool {
	if e == nil || e.Resource != nil {
		return false
	}
	from := g.From(e.Name)
	return e.Expired || !from.Frozen.IsZero() || from.Connected && e.epoch == from.epoch
}

// Era identifies the wildcard set of the type. It changes when the set is forgotten.
func (t *Type) Era() uint64 { return t.era }

// HasLastGood reports whether a set of the type is a last good state. It is false for an incomplete first state.
func (t *Type) HasLastGood(kind Kind) bool {
	return kind == ByName || t.Phase == Confirmed || t.Restored
}

// SetFrozen reports whether a wildcard set is frozen: it is the last good state of a frozen origin. Until the thaw, this
// is what clients have, whatever the origin has (B.7).
func (g *Generation) SetFrozen(key string) bool {
	return !g.WildcardSource(key).Frozen.IsZero() && g.Type(key).HasLastGood(Wildcard)
}

// Sharing is the kind of a value that readers of a type share.
type Sharing int

// The kinds of shared values.
const (
	SharedSets       Sharing = iota // encoded complete sets
	SharedChanges                   // encoded changes after a position
	SharedReferences                // what changes after a position refer to
)

// MaxShared is how many values of one kind a version of a type keeps. Most streams are at the newest position or at
// the one before.
const MaxShared = 8

// memo holds values that readers of one version of a type share, such as encoded
// responses, by Sharing.
type memo [SharedReferences + 1]atomic.Pointer[[]*memoized]

type memoized struct {
	key   any
	once  sync.Once
	value any
}

// Shared returns the value that another reader of the same version of a type made under the same key, or calls make.
// Concurrent callers with the same key wait for that call. A value is kept until there are MaxShared newer ones, and
// must not be modified. K is a type parameter so that a lookup does not allocate.
func Shared[K comparable](t *Type, of Sharing, key K, make func() any) any {
	if t.shared == nil {
		return make()
	}
	m := find(t.shared, of, key)
	m.once.Do(func() { m.value = make() })
	return m.value
}

// find returns the memoized value of a key, whose make may not have been called yet. It adds one if there is none.
func find[K comparable](m *memo, of Sharing, key K) *memoized {
	for {
		var kept []*memoized
		old := m[of].Load()
		if old != nil {
			kept = *old
		}
		for _, candidate := range kept {
			if k, ok := candidate.key.(K); ok && k == key {
				return candidate
			}
		}
		added := &memoized{key: key}
		now := append([]*memoized{added}, kept[:min(len(kept), MaxShared-1)]...)
		if m[of].CompareAndSwap(old, &now) {
			return added
		}
	}
}

// exists reports whether subscribers to a name, which may be nil, see a resource.
func (t *Type) exists(n *Name) bool {
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

// countEntries returns the number of entries of a name in one of the sets and in the errors of that set.
func (t *Type) countEntries(kind Kind, n *Name) (entries int) {
	for _, set := range []*Set{t.Set(kind), t.Errors(kind)} {
		if set.Get(n) != nil {
			entries++
		}
	}
	return entries
}

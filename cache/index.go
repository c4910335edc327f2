package cache

import (
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/xdstender/tender/cache/quota"
	"github.com/xdstender/tender/cache/wire"
)

// The index of interest has the watchers of each name. It is at once the wake list of a change, the reference count
// of the upstream subscriptions, and the place where names become small numbers.
type index struct {
	mu            sync.Mutex
	types         map[string]*indexType
	collections   int                     // of types, those that are collections
	followed      int                     // of these, those that somebody follows
	eras          uint64                  // how many indexType.era there were
	watches       []*Watch                // by id; nil where free
	free          []uint32                // ids of watches
	observers     []*Watch                // of watches, those that Observe made
	reported      map[*indexType]struct{} // those of which clients have reported what they hold
	namesLeft     int                     // names in reports whose clients have left
	pokes         uint64                  // sources whose demand has changed since unlock, one bit for each
	typesOpenedBy map[string]int          // by peer, of types that the protocol does not know, those that it was the first to ask for

	route     func(typeURL, name string) int // of Config; never nil
	sources   []*source
	anonymous []*quota.Share // by source, in their quotas, of watches whose peer is unknown
}

// A source is where the demand waits that one origin has to satisfy.
type source struct {
	demand []Demand      // changed since its writer took it; guarded by index.mu
	poke   chan struct{} // one slot: there is something to take
	quota  quota.Names

	// reportsUntil is until when reports of clients count although the wildcard set is confirmed. Guarded by index.mu.
	reportsUntil time.Time

	withheld atomic.Int64 // names with changes that a gate withholds
	restored int          // names that are Name.restored; guarded by index.mu
}

type indexType struct {
	url       string
	source    int // that has the wildcard set
	names     map[string]*Name
	variants  map[string][]*Name // those that have dynamic parameters, by the name without
	ids       uint32             // next id of a name
	freeIDs   []uint32           // of forgotten names
	wildcards []*WildcardWatch
	watched   int  // sum of the names' watchers
	queued    bool // the wildcard is in a source's demand
	tracked   bool // the session subscribed to the wildcard, or lets the subscription linger
	refetch   bool // the origin is to be asked again for the wildcard set
	restored  bool // demand does not say yet that the wildcard set is restored

	// era changes when the wildcard set is forgotten: what was known of it before says nothing of it now.
	era uint64

	collections int    // of a type, those that there are of it
	openedBy    string // the peer that was the first to ask for it; empty if that is not known, or need not be

	refetchedAt time.Time // when the wildcard set was last asked for because of dropped content

	// lastKnown reports that the wildcard set was confirmed, or restored: it is the last known set.
	lastKnown bool
	reporting [2]reporting // by Kind
}

// countFollowed counts the subscribers to a collection: somebody began to follow it, or nobody does any more. Other
// types are not counted.
func (x *index) countFollowed(t *indexType, by int) {
	if _, _, is := SplitCollection(t.url); is {
		x.followed += by
	}
}

// A Demand is a change in what streams want of a type: its wildcard set, or one name.
type Demand struct {
	TypeURL string // or the collection, see Collection
	Name    *Name  // nil: the wildcard
	Wanted  bool
	Refetch bool // subscribed to before, and to be asked for again

	// Restored reports that the wildcard set is restored: the session has to
	// follow them as if a client had just ceased to, or did still. Names are tracked from
	// the start, and need no word of it.
	Restored bool

	// By is the first subscriber, and At is when it subscribed; nil if that is not known.
	By *Subscriber
	At time.Time
}

// MaxSources is how many sources a view can have.
const MaxSources = 64

// want queues a change of demand. Who unlocks the index calls unlock.
func (x *index) want(t *indexType, n *Name) { x.wantFor(nil, t, n) }

// wantFor is want for what a watch, which may be nil, subscribes to.
func (x *index) wantFor(w *Watch, t *indexType, n *Name) {
	queued, from := &t.queued, t.source
	if n != nil {
		queued, from = &n.queued, n.source
	}
	if *queued {
		return
	}
	*queued = true
	d := Demand{TypeURL: t.url, Name: n}
	if w != nil && w.by != nil {
		d.By, d.At = w.by, time.Now()
	}
	x.sources[from].demand = append(x.sources[from].demand, d)
	x.pokes |= 1 << from
}

// unlock unlocks the index, and pokes the sources whose demand has changed.
func (x *index) unlock() {
	p := x.pokes
	x.pokes = 0
	x.mu.Unlock()
	x.poke(p)
}

// poke informs the sources. The index must not be locked.
func (x *index) poke(p uint64) {
	for ; p != 0; p &= p - 1 {
		select {
		case x.sources[bits.TrailingZeros64(p)].poke <- struct{}{}:
		default: // a poke is waiting already
		}
	}
}

func (x *index) typ(key string) *indexType {
	t := x.types[key]
	if t == nil {
		typeURL, glob, is := SplitCollection(key)
		if is {
			x.collections++
			x.typ(typeURL).collections++ // which is bounded, however many globs of it there are
		}
		x.eras++
		t = &indexType{url: key, source: x.route(typeURL, glob), names: make(map[string]*Name), era: x.eras}
		x.types[key] = t
	}
	return t
}

// typForWatch is typ for what a watch subscribes to.
func (x *index) typForWatch(w *Watch, key string) *indexType {
	base := resourceType(key)
	if x.types[base] == nil && !wire.Known(base) && w.peer != "" {
		x.typ(base).openedBy = w.peer
		x.typesOpenedBy[w.peer]++
	}
	return x.typ(key)
}

// idle reports whether a type or collection can be forgotten, given the generation that readers see: nobody
// subscribes to it, no session follows it, and nothing is held of it. Types of the protocol stay.
func (x *index) idle(t *indexType, g *Generation) bool {
	if len(t.wildcards)+len(t.names)+t.collections > 0 || t.tracked {
		return false
	}
	_, _, is := SplitCollection(t.url)
	return is || !wire.Known(t.url) && g.Type(t.url).Phase == Unknown
}

// forget drops a type or collection that is idle, and returns the type of a collection if that is idle now, too.
func (x *index) forget(t *indexType) (of *indexType) {
	x.dropReports(t, Wildcard)
	x.dropReports(t, ByName)
	delete(x.reported, t)
	delete(x.types, t.url)
	if typeURL, _, is := SplitCollection(t.url); is {
		x.collections--
		of = x.types[typeURL]
		of.collections--
	}
	if t.openedBy != "" {
		if x.typesOpenedBy[t.openedBy]--; x.typesOpenedBy[t.openedBy] == 0 {
			delete(x.typesOpenedBy, t.openedBy)
		}
	}
	return of
}

// name returns the Name for a text of a type, making one if need be.
func (x *index) name(t *indexType, text string) *Name {
	if n := t.names[text]; n != nil {
		return n
	}
	typeURL, _, _ := SplitCollection(t.url)
	n := &Name{text: text, source: x.route(typeURL, text)}
	if plain := wire.PlainName(text); plain != text {
		if t.variants == nil {
			t.variants = make(map[string][]*Name)
		}
		t.variants[plain] = append(t.variants[plain], n)
	}
	if k := len(t.freeIDs); k > 0 {
		n.id, t.freeIDs = t.freeIDs[k-1], t.freeIDs[:k-1]
	} else {
		n.id = t.ids
		t.ids++
	}
	t.names[text] = n
	return n
}

// release forgets a name that nobody holds any more. Heads that still hold an
// entry of it are not confused when its id is given away: entries carry their
// name.
func (t *indexType) release(n *Name) {
	if n.watchers == nil && n.entries == 0 && !n.queued && !n.tracked && t.names[n.text] == n {
		delete(t.names, n.text)
		n.forgotten = true
		t.freeIDs = append(t.freeIDs, n.id)
		t.releaseVariant(n)
	}
}

func (t *indexType) releaseVariant(n *Name) {
	plain := wire.PlainName(n.text)
	if plain == n.text {
		return
	}
	left := slices.DeleteFunc(t.variants[plain], func(v *Name) bool { return v == n })
	if t.variants[plain] = left; len(left) == 0 {
		delete(t.variants, plain)
	}
}

// all appends all watches to wakes.
func (x *index) all(wakes []*Watch) []*Watch {
	for _, w := range x.watches {
		if w != nil {
			wakes = append(wakes, w)
		}
	}
	return wakes
}

// sharesOf opens the shares of a peer in the quotas of all sources, nil where nothing is counted.
func (x *index) sharesOf(peer string) []*quota.Share {
	shares := make([]*quota.Share, len(x.sources))
	for i, s := range x.sources {
		same := slices.IndexFunc(x.sources, func(o *source) bool { return o.quota.SamePool(s.quota) })
		if same < i {
			shares[i] = shares[same]
		} else {
			shares[i] = s.quota.Open(peer)
		}
	}
	return shares
}

// closeShares undoes sharesOf.
func closeShares(shares []*quota.Share) {
	for i, s := range shares {
		if s != nil && slices.Index(shares, s) == i {
			s.Close()
		}
	}
}

// charge charges the peer of a watch for a name, instead of the present one; no peer if w is nil. mu must be held.
func (x *index) charge(n *Name, w *Watch) {
	was, names := n.chargedTo, x.sources[n.source].quota
	if n.chargedTo = nil; w != nil {
		n.chargedTo = w.shares[n.source]
	}
	names.Charge(n.chargedTo, 1)
	names.Charge(was, -1)
}

// find returns the Name for a text, nil if there is none, or no such type.
func (t *indexType) find(text string) *Name {
	if t == nil {
		return nil
	}
	return t.names[text]
}

// watchers are the watches of a name. Names to which the same streams subscribed by the same requests share one: what a change of many
// names costs is then their number and that of the streams, not the product. It is guarded by index.mu.
type watchers struct {
	ids   []uint32 // of watches, sorted; never empty
	names int      // that have it

	changed int // how often names of it changed in the edit that is being published

	// While a watch is added to names, or removed from them:
	moving int       // names that have it still, and will not
	moved  *watchers // what they will have; nil if that is not made yet
}

// has reports whether a watch is among them. Nil has none.
func (s *watchers) has(id uint32) bool {
	if s == nil {
		return false
	}
	_, is := slices.BinarySearch(s.ids, id)
	return is
}

// addWatch adds a watch to names, which may repeat, and returns those that it did not watch before.
func addWatch(id uint32, names []*Name) (added []*Name) {
	var first *watchers
	added = startMove(id, names, false)
	for _, n := range added {
		if n.watchers != nil {
			n.watchers = n.watchers.move(func(ids []uint32) []uint32 {
				at, _ := slices.BinarySearch(ids, id)
				return slices.Insert(ids, at, id)
			})
			continue
		}
		if first == nil {
			first = &watchers{ids: []uint32{id}}
		}
		first.names++
		n.watchers = first
	}
	return added
}

// removeWatch removes a watch from names, which may repeat, and returns those that it watched.
func removeWatch(id uint32, names []*Name) (removed []*Name) {
	removed = startMove(id, names, true)
	for _, n := range removed {
		n.watchers = n.watchers.move(func(ids []uint32) []uint32 {
			at, _ := slices.BinarySearch(ids, id)
			return slices.Delete(ids, at, at+1)
		})
		if len(n.watchers.ids) == 0 {
			n.watchers = nil
		}
	}
	return removed
}

// startMove returns those of names, each once, that a watch watches or not, and counts them as moving.
func startMove(id uint32, names []*Name, watched bool) (moving []*Name) {
	for i, n := range names {
		if n.moving || n.watchers.has(id) != watched {
			continue
		}
		if n.moving = true; moving == nil {
			moving = make([]*Name, 0, len(names)-i)
		}
		if moving = append(moving, n); n.watchers != nil {
			n.watchers.moving++
		}
	}
	for _, n := range moving {
		n.moving = false
	}
	return moving
}

// move returns what one of the moving names has from now on: the same, edited, if all names that have it move.
func (s *watchers) move(edit func(ids []uint32) []uint32) *watchers {
	switch {
	case s.moved != nil:
	case s.moving == s.names:
		s.ids, s.moved = edit(s.ids), s
	default:
		s.moved = &watchers{ids: edit(slices.Clone(s.ids))}
	}
	to := s.moved
	s.names--
	to.names++
	if s.moving--; s.moving == 0 {
		s.moved = nil
	}
	return to
}

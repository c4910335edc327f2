package cache

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// The index of interest says who watches what. It is at once the wake list of a
// change, the reference count of the upstream subscriptions, and the place where
// names become small numbers.
type index struct {
	mu      sync.Mutex
	types   map[string]*indexType
	watches []*Watch // by id; nil where free
	free    []uint32 // ids of watches

	demand []Demand      // changed since the session took it
	poke   chan struct{} // one slot: there is demand to take
}

type indexType struct {
	url       string
	names     map[string]*Name
	ids       uint32   // next id of a name
	freeIDs   []uint32 // of names that are gone
	wildcards []*Wildcard
	queued    bool // the wildcard is in index.demand
}

// A Name is a resource name that somebody watches, or that a set holds. Streams
// keep names as pointers: eight bytes, and equal if and only if the names are.
type Name struct {
	text string
	id   uint32

	// asked is when the origin was asked for the name on the connection that is
	// up, in Unix nanoseconds; 0 if it was not.
	asked atomic.Int64

	// Guarded by index.mu.
	watchers []uint32 // sorted ids of watches
	entries  int      // of the two sets
	queued   bool     // in index.demand
	tracked  bool     // the session subscribed to it, or lets it linger
}

// String returns the name itself.
func (n *Name) String() string { return n.text }

// Compare orders names in some fixed order that costs nothing to find out.
func (n *Name) Compare(o *Name) int { return int(int64(n.id) - int64(o.id)) }

// Asked returns when the origin was asked for the name on the connection that is
// up; zero if it was not.
func (n *Name) Asked() time.Time {
	if at := n.asked.Load(); at != 0 {
		return time.Unix(0, at)
	}
	return time.Time{}
}

// A Watch is one stream's place in the index. C receives after anything that the
// stream watches has changed; a wake-up may be late or without need, but none is
// lost.
type Watch struct {
	C chan struct{}

	view *View
	id   uint32
}

// A Wildcard is a watch's subscription to all members of a type.
type Wildcard struct {
	watch *Watch
	typ   *indexType
	at    int // in typ.wildcards
	// passed is up to where the stream needs no removal any more.
	passed atomic.Uint64
}

// Passed records that the stream was told all removals up to p, which the set
// may then forget.
func (w *Wildcard) Passed(p Seq) { w.passed.Store(uint64(p)) }

// Watch registers a stream. Close it when the stream ends.
func (v *View) Watch() *Watch {
	w := &Watch{C: make(chan struct{}, 1), view: v}
	x := &v.index
	x.mu.Lock()
	defer x.mu.Unlock()
	if n := len(x.free); n > 0 {
		w.id, x.free = x.free[n-1], x.free[:n-1]
		x.watches[w.id] = w
	} else {
		w.id = uint32(len(x.watches))
		x.watches = append(x.watches, w)
	}
	return w
}

// Close ends the watch. Everything subscribed through it must have been
// unsubscribed.
func (w *Watch) Close() {
	x := &w.view.index
	x.mu.Lock()
	defer x.mu.Unlock()
	x.watches[w.id] = nil
	x.free = append(x.free, w.id)
}

// SubscribeAll watches the members of a type.
func (w *Watch) SubscribeAll(typeURL string) *Wildcard {
	x := &w.view.index
	x.mu.Lock()
	t := x.typ(typeURL)
	wc := &Wildcard{watch: w, typ: t, at: len(t.wildcards)}
	t.wildcards = append(t.wildcards, wc)
	poke := len(t.wildcards) == 1 && x.want(t, nil)
	x.mu.Unlock()
	x.pokeIf(poke)
	return wc
}

// UnsubscribeAll ends what SubscribeAll began.
func (w *Watch) UnsubscribeAll(wc *Wildcard) {
	x := &w.view.index
	x.mu.Lock()
	t := wc.typ
	last := len(t.wildcards) - 1
	t.wildcards[wc.at] = t.wildcards[last]
	t.wildcards[wc.at].at = wc.at
	t.wildcards[last] = nil
	t.wildcards = t.wildcards[:last]
	poke := last == 0 && x.want(t, nil)
	x.mu.Unlock()
	x.pokeIf(poke)
}

// Subscribe watches names of a type, those that it watches already included. It
// returns them in the order given.
func (w *Watch) Subscribe(typeURL string, names []string) []*Name {
	out := make([]*Name, len(names))
	poke := false
	x := &w.view.index
	x.mu.Lock()
	t := x.typ(typeURL)
	for i, text := range names {
		n := t.name(text)
		out[i] = n
		at, watched := slices.BinarySearch(n.watchers, w.id)
		if watched {
			continue
		}
		n.watchers = slices.Insert(n.watchers, at, w.id)
		if len(n.watchers) == 1 && x.want(t, n) {
			poke = true
		}
	}
	x.mu.Unlock()
	x.pokeIf(poke)
	return out
}

// Find returns the index's names for texts; nil stands for one that nobody
// knows.
func (v *View) Find(typeURL string, texts []string) []*Name {
	out := make([]*Name, len(texts))
	x := &v.index
	x.mu.Lock()
	defer x.mu.Unlock()
	if t := x.types[typeURL]; t != nil {
		for i, text := range texts {
			out[i] = t.names[text]
		}
	}
	return out
}

// Head returns the newest version of the view.
func (w *Watch) Head() *Head { return w.view.Head() }

// Find returns the index's names for texts, as View.Find does.
func (w *Watch) Find(typeURL string, texts []string) []*Name { return w.view.Find(typeURL, texts) }

// HasType reports whether anybody has ever watched the type, or the origin has
// spoken of it; and how many such types there are.
func (v *View) HasType(typeURL string) (known bool, types int) {
	x := &v.index
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.types[typeURL] != nil, len(x.types)
}

// Unsubscribe ends the watch of names.
func (w *Watch) Unsubscribe(typeURL string, names []*Name) {
	poke := false
	x := &w.view.index
	x.mu.Lock()
	t := x.typ(typeURL)
	for _, n := range names {
		if at, ok := slices.BinarySearch(n.watchers, w.id); ok {
			n.watchers = slices.Delete(n.watchers, at, at+1)
		}
		if len(n.watchers) > 0 {
			continue
		}
		n.watchers = nil
		if n.tracked && x.want(t, n) {
			poke = true
		}
		t.release(n)
	}
	x.mu.Unlock()
	x.pokeIf(poke)
}

// A Demand is a change in what streams want of a type: its members, or one name.
type Demand struct {
	TypeURL string
	Name    *Name // nil: the members
	Wanted  bool
}

// want queues a change of demand and reports whether the session must be poked.
func (x *index) want(t *indexType, n *Name) bool {
	queued := &t.queued
	if n != nil {
		queued = &n.queued
	}
	if *queued {
		return false
	}
	*queued = true
	x.demand = append(x.demand, Demand{TypeURL: t.url, Name: n})
	return true
}

func (x *index) pokeIf(poke bool) {
	if !poke {
		return
	}
	select {
	case x.poke <- struct{}{}:
	default: // a poke is waiting already
	}
}

func (x *index) typ(url string) *indexType {
	t := x.types[url]
	if t == nil {
		t = &indexType{url: url, names: make(map[string]*Name)}
		x.types[url] = t
	}
	return t
}

// name returns the type's Name for a text, making one if need be.
func (t *indexType) name(text string) *Name {
	if n := t.names[text]; n != nil {
		return n
	}
	n := &Name{text: text}
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
	if len(n.watchers) == 0 && n.entries == 0 && !n.queued && !n.tracked && t.names[n.text] == n {
		delete(t.names, n.text)
		t.freeIDs = append(t.freeIDs, n.id)
	}
}

// watchersOf appends the watches of a name to wakes.
func (x *index) watchersOf(n *Name, wakes []*Watch) []*Watch {
	for _, id := range n.watchers {
		wakes = append(wakes, x.watches[id])
	}
	return wakes
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

func (w *Watch) wake() {
	select {
	case w.C <- struct{}{}:
	default: // awake already
	}
}

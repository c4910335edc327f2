package cache

import (
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/xdstender/tender/cache/fanout"
	"github.com/xdstender/tender/cache/quota"
)

// A Watch is one stream's place in the index. C receives after anything that the
// stream watches has changed; a wake-up may be late or without need, but none is
// lost.
type Watch struct {
	C chan struct{} // nil if the watch calls a function instead

	view  *View
	id    uint32
	call  func()
	hints atomic.Pointer[hint] // only of one that calls a function

	by      *Subscriber                 // see SetSubscriber
	fanouts atomic.Pointer[fanout.List] // only of one that calls a function
	noted   uint64                      // the revision of the newest generation for which it was woken; guarded by index.mu

	peer   string         // whose names it subscribes to, and
	shares []*quota.Share // by source, what that has of their quotas: see SetPeer
}

// A WildcardWatch is a watch's subscription to the wildcard set of a type.
type WildcardWatch struct {
	watch *Watch
	typ   *indexType
	at    int // in typ.wildcards
	// passed is up to where the stream needs no removal any more.
	passed atomic.Uint64
}

// Passed records that the stream was sent all removals up to p, which the set
// may then forget.
func (w *WildcardWatch) Passed(p Seq) { w.passed.Store(uint64(p)) }

// Watch registers a stream. Close it when the stream ends.
func (v *View) Watch() *Watch { return v.register(&Watch{C: make(chan struct{}, 1), view: v}) }

// WatchFunc is Watch for a stream that is called and does not receive. The function is
// called on the goroutine of the writer, so it must not wait; a call may come after Close.
// Such a watch has hints, which its stream must pass by and by (PassHints).
func (v *View) WatchFunc(wake func()) *Watch { return v.register(&Watch{call: wake, view: v}) }

// Observe is woken by every new generation of the view and subscribes to nothing.
func (v *View) Observe() *Watch {
	w := v.Watch()
	v.index.mu.Lock()
	defer v.index.mu.Unlock()
	v.index.observers = append(v.index.observers, w)
	return w
}

func (v *View) register(w *Watch) *Watch {
	x := &v.index
	x.mu.Lock()
	defer x.mu.Unlock()
	w.shares = x.anonymous
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
	closeShares(w.shares)
	x.watches[w.id] = nil
	x.free = append(x.free, w.id)
	x.observers = slices.DeleteFunc(x.observers, func(o *Watch) bool { return o == w })
}

// SubscribeAll watches the wildcard set of a type.
func (w *Watch) SubscribeAll(typeURL string) *WildcardWatch {
	x := &w.view.index
	x.mu.Lock()
	defer x.unlock()
	t := x.typForWatch(w, typeURL)
	wc := &WildcardWatch{watch: w, typ: t, at: len(t.wildcards)}
	t.wildcards = append(t.wildcards, wc)
	w.view.intervals.subscribed(w, typeURL)
	if len(t.wildcards) == 1 {
		x.countFollowed(t, 1)
		x.wantFor(w, t, nil)
	}
	return wc
}

// UnsubscribeAll ends what SubscribeAll began.
func (w *Watch) UnsubscribeAll(wc *WildcardWatch) {
	x := &w.view.index
	x.mu.Lock()
	defer x.unlock()
	t := wc.typ
	last := len(t.wildcards) - 1
	t.wildcards[wc.at] = t.wildcards[last]
	t.wildcards[wc.at].at = wc.at
	t.wildcards = slices.Delete(t.wildcards, last, last+1)
	if last == 0 {
		x.countFollowed(t, -1)
		x.want(t, nil)
	}
}

// Unfollowed returns how many of some collections nobody subscribes to, and to how many collections
// somebody does.
func (w *Watch) Unfollowed(keys []string) (unfollowed, followed int) {
	x := &w.view.index
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, key := range keys {
		if t := x.types[key]; t == nil || len(t.wildcards) == 0 {
			unfollowed++
		}
	}
	return unfollowed, x.followed
}

// Subscribe watches names of a type, including those that it watches already. It
// returns them in the order given.
func (w *Watch) Subscribe(typeURL string, names []string) []*Name {
	if len(names) == 0 {
		return nil
	}
	out := make([]*Name, len(names))
	x := &w.view.index
	x.mu.Lock()
	defer x.unlock()
	t := x.typForWatch(w, typeURL)
	for i, text := range names {
		out[i] = x.name(t, text)
	}
	added := addWatch(w.id, out)
	t.watched += len(added)
	w.view.intervals.subscribed(w, typeURL)
	for _, n := range added {
		if len(n.watchers.ids) == 1 {
			x.charge(n, w)
			x.wantFor(w, t, n)
		}
	}
	for _, n := range out {
		if n.stale {
			n.refetch = true
			n.asked.Store(nil)
			x.wantFor(w, t, n)
		}
	}
	return out
}

// Refetch has the origin asked again for a name, or for the wildcard set of the type if n is nil, because dropped
// content is needed (R125); but not if it was asked after the content was dropped.
func (w *Watch) Refetch(typeURL string, n *Name, dropped time.Time) {
	x := &w.view.index
	x.mu.Lock()
	defer x.unlock()
	t := x.typ(typeURL)
	switch {
	case n == nil && before(t.refetchedAt, dropped):
		t.refetch, t.refetchedAt = true, time.Now()
		x.want(t, nil)
	case n != nil && before(n.Asked(), dropped):
		n.refetch = true
		x.want(t, n)
	}
}

// before reports whether the origin was asked, if ever, before content was dropped.
func before(asked, dropped time.Time) bool { return asked.IsZero() || asked.Before(dropped) }

// RefetchStale has the origin asked again for those of the names, which the stream watches, for which its answer is
// no longer valid.
func (w *Watch) RefetchStale(typeURL string, names []*Name) {
	if len(names) == 0 {
		return
	}
	x := &w.view.index
	x.mu.Lock()
	defer x.unlock()
	t := x.typ(typeURL)
	for _, n := range names {
		if n.stale {
			n.refetch = true
			x.want(t, n)
		}
	}
}

// View returns the view that the watch is of.
func (w *Watch) View() *View { return w.view }

// Generation returns the newest version of the view.
func (w *Watch) Generation() *Generation { return w.view.Generation() }

// Find returns the index's names for texts, as View.Find does.
func (w *Watch) Find(typeURL string, texts []string) []*Name { return w.view.Find(typeURL, texts) }

// Unsubscribe ends the watch of names.
func (w *Watch) Unsubscribe(typeURL string, names []*Name) {
	if len(names) == 0 {
		return
	}
	x := &w.view.index
	x.mu.Lock()
	defer x.unlock()
	t := x.typ(typeURL)
	removed := removeWatch(w.id, names)
	t.watched -= len(removed)
	for _, n := range removed {
		switch {
		case n.watchers == nil:
			x.charge(n, nil)
		case n.chargedTo == w.shares[n.source]:
			x.charge(n, x.watches[n.watchers.ids[0]])
		}
	}
	for _, n := range names {
		if n.watchers != nil {
			continue
		}
		if n.tracked {
			x.want(t, n)
		}
		t.release(n)
	}
}

// A Subscriber is whose subscriptions a watch has, for people. It is immutable.
type Subscriber struct {
	Node, Group string
	Stream      uint64 // its number
}

// SetSubscriber sets the subscriber that Demand shows from now on. Nil, as at first, is none. The goroutine that
// subscribes calls it.
func (w *Watch) SetSubscriber(by *Subscriber) { w.by = by }

func (w *Watch) wake() {
	if w.call != nil {
		w.call()
		return
	}
	select {
	case w.C <- struct{}{}:
	default: // awake already
	}
}

// maxHints bounds the hints of a watch: a stream whose client is slow must not cost more
// than another (B.12).
const maxHints = 8

// A hint is a name that a stream watches and that changed, so that the stream need not check all of its names. Those
// of a watch are a list, newest first. Hints are immutable, and streams share them.
type hint struct {
	key   string // of the type
	name  *Name  // nil: this and all older hints were dropped
	seq   Seq    // of the first generation with the change
	older *hint
	n     int // of the list, this one included
}

// hint adds a hint to a watch. The index is locked, and the generation of the change is not published yet: whoever
// reads that generation finds the hint. If there are too many hints, or h is lost itself, lost replaces them.
func (w *Watch) hint(h, lost *hint) {
	for {
		top, next := w.hints.Load(), h
		switch {
		case top == nil:
		case top == lost:
			return
		case top.n >= maxHints, h == lost:
			next = lost
		default:
			next = &hint{key: h.key, name: h.name, seq: h.seq, older: top, n: top.n + 1}
		}
		if w.hints.CompareAndSwap(top, next) {
			return
		}
	}
}

// Hinted appends to names those that the stream watches of a type and that changed after p, some perhaps twice, as
// far as that is known for the generation that the caller has loaded before. It reports false if it is not known, and
// the logs must be read.
func (w *Watch) Hinted(typeURL string, p Seq, names []*Name) (_ []*Name, known bool) {
	if w.call == nil {
		return nil, false
	}
	for h := w.hints.Load(); h != nil && h.seq > p; h = h.older {
		switch {
		case h.name == nil:
			return nil, false
		case h.key == typeURL:
			names = append(names, h.name)
		}
	}
	return names, true
}

// FirstHint returns the position of the oldest hint at a name of a type, or of one that stands
// for several that were too many to be kept, after p and up to upTo; one that no view comes to if there is
// none.
func (w *Watch) FirstHint(typeURL string, p, upTo Seq) Seq {
	first := noSeq
	for h := w.hints.Load(); h != nil && h.seq > p; h = h.older {
		if h.seq <= upTo && (h.name == nil || h.key == typeURL) {
			first = h.seq
		}
	}
	return first
}

// PassHints drops the hints up to p, which the stream must have followed. One goroutine at
// a time may call it. Hints stay as long as newer ones do.
func (w *Watch) PassHints(p Seq) {
	if top := w.hints.Load(); top != nil && top.seq <= p {
		w.hints.CompareAndSwap(top, nil) // or there is a newer one now
	}
}

// SetPeer sets the peer that is charged for the names of the watch, before it subscribes to any. Without it only the
// quotas' totals bound them.
func (w *Watch) SetPeer(peer string) {
	w.peer = peer
	w.shares = w.view.index.sharesOf(peer)
}

// Peer returns whose names the watch subscribes to.
func (w *Watch) Peer() string { return w.peer }

// Room returns how many names more the watch's peer may want, whichever of the view's origins they
// are of.
func (w *Watch) Room() int {
	room := math.MaxInt
	for _, s := range w.shares {
		if s != nil {
			room = min(room, s.Room())
		}
	}
	return room
}

// OverQuota returns which of the names that the watch would begin to watch, of a type, are more than its peer may want of an
// origin, in order; and which bound of one of the origins there is. The watch would cease
// to watch some others at the same time. Names that somebody wants already, or goes on wanting, make no difference, and none that
// the view holds is over a bound: that others want what does not exist must not take it from anybody. As
// nothing is reserved, requests at the same time may exceed a bound together.
func (w *Watch) OverQuota(typeURL string, begins, ceases []string) (over []string, why quota.Exceeded) {
	if len(begins) <= w.Room() {
		return nil, quota.Exceeded{} // as nearly always
	}
	begins, ceases = sortedSet(begins), sortedSet(ceases)
	x := &w.view.index
	x.mu.Lock()
	defer x.mu.Unlock()
	more := make(map[*quota.Share]*demanded)
	for _, share := range w.shares {
		more[share] = new(demanded)
	}
	t, held := x.types[typeURL], w.view.Generation().Type(typeURL)
	for _, text := range ceases {
		if _, stays := slices.BinarySearch(begins, text); !stays {
			w.cease(more, t.find(text))
		}
	}
	for _, text := range begins {
		n := t.find(text)
		share := w.shares[x.route(typeURL, text)]
		if share == nil || n != nil && n.watchers != nil {
			continue
		}
		by := more[share]
		if by.all >= 0 && share.RoomAfter(by.all, by.own) == 0 && !held.has(n) {
			over, why = append(over, text), share.Exceeded(by.all, by.own)
		}
		by.all, by.own = by.all+1, by.own+1
	}
	why.Used++ // as it would be
	return over, why
}

// demanded is how many names more there would be, of all and of those that a peer is charged for.
type demanded struct{ all, own int }

// cease counts a name, which may be nil, as unsubscribed by the watch.
func (w *Watch) cease(more map[*quota.Share]*demanded, n *Name) {
	if n == nil || !n.watchers.has(w.id) {
		return
	}
	by := more[w.shares[n.source]]
	if n.chargedTo == w.shares[n.source] {
		by.own--
	}
	if len(n.watchers.ids) == 1 {
		by.all--
	}
}

// sortedSet returns texts in order, each once.
func sortedSet(texts []string) []string { return slices.Compact(slices.Sorted(slices.Values(texts))) }

// TakeFanouts returns those that the watch's stream has become part of since the last call: at
// least all those of generations that were loaded before. The stream must call Done for each.
func (w *Watch) TakeFanouts() *fanout.List {
	if w.fanouts.Load() == nil {
		return nil
	}
	return w.fanouts.Swap(nil)
}

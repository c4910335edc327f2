package cache

import (
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/xdstender/tender/cache/fanout"
	"github.com/xdstender/tender/cache/quota"
)

// A Watch has the subscriptions of one stream. C receives after a resource that the stream subscribes to has changed.
// A wake-up may be late or unneeded, but none is lost. A Watch belongs to one goroutine; any goroutine may receive
// from C.
type Watch struct {
	C chan struct{} // nil if the watch calls a function instead

	// Set at creation.
	view *View
	id   uint32
	call func() // wakes the stream; nil if C does

	// Atomic, and used only with call.
	hints   atomic.Pointer[hint]
	fanouts atomic.Pointer[fanout.List]

	// Owned by the goroutine that subscribes.
	by     *Subscriber    // nil if unknown
	peer   string         // empty if unknown
	shares []*quota.Share // of the peer, by source

	noted uint64 // revision of the newest generation for which the stream was woken; guarded by index.mu
}

// Watch registers a stream. The caller closes the watch when the stream ends.
func (v *View) Watch() *Watch { return v.register(&Watch{C: make(chan struct{}, 1), view: v}) }

// WatchFunc is Watch for a stream that is woken by a function instead of C. A writer calls it, so it must not wait,
// and it may be called once more after Close. Such a watch has hints, which the stream must drop from time to time
// (PassHints).
func (v *View) WatchFunc(wake func()) *Watch { return v.register(&Watch{call: wake, view: v}) }

// Observe registers a watch that is woken by each new generation of the view and subscribes to nothing.
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

// Close ends the watch. All of its subscriptions must have ended.
func (w *Watch) Close() {
	x := &w.view.index
	x.mu.Lock()
	defer x.mu.Unlock()
	closeShares(w.shares)
	x.watches[w.id] = nil
	x.free = append(x.free, w.id)
	x.observers = slices.DeleteFunc(x.observers, func(o *Watch) bool { return o == w })
}

// SubscribeAll subscribes to the wildcard set of a type.
func (w *Watch) SubscribeAll(typeURL string) *WildcardWatch {
	x := &w.view.index
	x.mu.Lock()
	defer x.unlock()
	t := x.ensureTypeFor(w, typeURL)
	wc := &WildcardWatch{watch: w, typ: t, at: len(t.wildcards)}
	t.wildcards = append(t.wildcards, wc)
	w.view.intervals.subscribed(w, typeURL)
	if len(t.wildcards) == 1 {
		x.countFollowed(t, 1)
		x.queueDemandFor(w, t, nil)
	}
	return wc
}

// UnsubscribeAll ends a subscription to a wildcard set.
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
		x.queueDemand(t, nil)
	}
}

// Unfollowed returns how many of the collections have no subscriber, and how many collections of the view have one.
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

// Subscribe subscribes to names of a type, and returns their Names in the same order. The stream may be subscribed to
// some already.
func (w *Watch) Subscribe(typeURL string, names []string) []*Name {
	if len(names) == 0 {
		return nil
	}
	out := make([]*Name, len(names))
	x := &w.view.index
	x.mu.Lock()
	defer x.unlock()
	t := x.ensureTypeFor(w, typeURL)
	for i, text := range names {
		n := t.names[text]
		if n == nil {
			n = x.name(t, strings.Clone(text)) // it may be a part of a larger string
		}
		out[i] = n
	}
	added := addWatch(w.id, out)
	t.watched += len(added)
	w.view.intervals.subscribed(w, typeURL)
	for _, n := range added {
		if len(n.watchers.ids) == 1 {
			x.charge(n, w)
			x.queueDemandFor(w, t, n)
		}
	}
	for _, n := range out {
		if n.stale {
			n.refetch = true
			n.asked.Store(nil)
			x.queueDemandFor(w, t, n)
		}
	}
	return out
}

// Refetch requests a name again from the origin, or the wildcard set of the type if n is nil, because dropped content
// is needed (R125). It has no effect if the origin was asked after the content was dropped.
func (w *Watch) Refetch(typeURL string, n *Name, dropped time.Time) {
	x := &w.view.index
	x.mu.Lock()
	defer x.unlock()
	t := x.ensureType(typeURL)
	switch {
	case n == nil && before(t.refetchedAt, dropped):
		t.refetch, t.refetchedAt = true, time.Now()
		x.queueDemand(t, nil)
	case n != nil && before(n.Asked(), dropped):
		n.refetch = true
		x.queueDemand(t, n)
	}
}

// before reports whether the last request was made before content was dropped. A zero time is no request.
func before(asked, dropped time.Time) bool { return asked.IsZero() || asked.Before(dropped) }

// RefetchStale requests again from the origin those of the stream's names for which its answer is no longer valid.
func (w *Watch) RefetchStale(typeURL string, names []*Name) {
	if len(names) == 0 {
		return
	}
	x := &w.view.index
	x.mu.Lock()
	defer x.unlock()
	t := x.ensureType(typeURL)
	for _, n := range names {
		if n.stale {
			n.refetch = true
			x.queueDemand(t, n)
		}
	}
}

// View returns the view that the watch is of.
func (w *Watch) View() *View { return w.view }

// Generation returns the newest version of the view.
func (w *Watch) Generation() *Generation { return w.view.Generation() }

// Find is View.Find.
func (w *Watch) Find(typeURL string, texts []string) []*Name { return w.view.Find(typeURL, texts) }

// Unsubscribe ends subscriptions to names.
func (w *Watch) Unsubscribe(typeURL string, names []*Name) {
	if len(names) == 0 {
		return
	}
	x := &w.view.index
	x.mu.Lock()
	defer x.unlock()
	t := x.ensureType(typeURL)
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
			x.queueDemand(t, n)
		}
		t.release(n)
	}
}

// SetSubscriber sets the subscriber of later Demand; nil, which is the default, is none.
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

// maxHints limits the hints of a watch: a stream with a slow client must not use more memory than others (B.12).
const maxHints = 8

// A hint is a changed name of a stream, so that the stream need not check all of its names. The hints of a watch are
// a list, newest first. Hints are immutable, and streams share them.
type hint struct {
	key   string // of the type
	name  *Name  // nil: this and all older hints were dropped
	seq   Seq    // of the first generation with the change
	older *hint
	n     int // length of the list, this hint included
}

// hint adds a hint to a watch, or replaces all hints by lost if there are too many, or if h is lost. The index is
// locked, and the generation of the change is not published yet: a reader of that generation finds the hint.
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

// Hinted appends the names of the stream, of one type, that changed after p up to the generation that the caller has
// loaded before, some perhaps twice. It returns false if the hints were dropped, and the logs must be read.
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

// FirstHint returns the position of the oldest hint after p and up to upTo that is about a type, or that stands for
// dropped hints. If there is none, it returns a position after all others.
func (w *Watch) FirstHint(typeURL string, p, upTo Seq) Seq {
	first := noSeq
	for h := w.hints.Load(); h != nil && h.seq > p; h = h.older {
		if h.seq <= upTo && (h.name == nil || h.key == typeURL) {
			first = h.seq
		}
	}
	return first
}

// PassHints drops the hints up to p, whose changes the stream has processed. It drops none while there are newer
// ones. One goroutine at a time may call it.
func (w *Watch) PassHints(p Seq) {
	if top := w.hints.Load(); top != nil && top.seq <= p {
		w.hints.CompareAndSwap(top, nil) // or there is a newer one now
	}
}

// SetPeer sets the peer that is charged for the names of the watch, before it subscribes to any. Without a peer only
// the totals of the quotas limit them.
func (w *Watch) SetPeer(peer string) {
	w.peer = peer
	w.shares = w.view.index.sharesOf(peer)
}

// Peer returns the peer that is charged for the names of the watch.
func (w *Watch) Peer() string { return w.peer }

// Room returns how many more names the peer may subscribe to, whatever their origin.
func (w *Watch) Room() int {
	room := math.MaxInt
	for _, s := range w.shares {
		if s != nil {
			room = min(room, s.Room())
		}
	}
	return room
}

// OverQuota returns, in order, the names that exceed a quota if the watch subscribes to the names in begins and
// unsubscribes from those in ceases, and the limit that is exceeded. A name with another subscriber does not count. A
// resource that the view has exceeds no quota: names that do not exist must not take it from anybody. Nothing is
// reserved, so concurrent requests may exceed a limit together.
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

// demanded is by how much the numbers of names would grow: of all peers, and of the charged one.
type demanded struct{ all, own int }

// cease counts that the watch unsubscribes from a name, which may be nil.
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

// TakeFanouts returns the fan-outs that the stream has joined since the last call: at least those of all generations
// that were loaded before. The stream must call Done for each.
func (w *Watch) TakeFanouts() *fanout.List {
	if w.fanouts.Load() == nil {
		return nil
	}
	return w.fanouts.Swap(nil)
}

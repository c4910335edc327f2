package cache

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/xdstender/tender/cache/fanout"
	"github.com/xdstender/tender/cache/quota"
)

// Watch registers a stream. The caller closes the watch when the stream ends.
func (v *View) Watch() *Watch { return v.register(&Watch{C: make(chan struct{}, 1), view: v}) }

// WatchFunc is Watch for a stream that is woken by a function instead of C. Writers call the function, so it must not
// block. It may be called once more after Close. Such a watch collects hints, which the stream must drop from time to
// time (PassHints).
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
	if len(t.wildcards) == 1 {
		x.addSubscribedCollections(t, 1)
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
		x.addSubscribedCollections(t, -1)
		x.queueDemand(t, nil)
	}
}

// CountUnsubscribed returns the number of the given collections without a subscriber, and the number of collections of
// the view with one.
func (w *Watch) CountUnsubscribed(keys []string) (unsubscribed, subscribed int) {
	x := &w.view.index
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, key := range keys {
		if t := x.types[key]; t == nil || len(t.wildcards) == 0 {
			unsubscribed++
		}
	}
	return unsubscribed, x.subscribedCollections
}

// Subscribe subscribes to names of a type, and returns their Names in the same order. The stream may already be
// subscribed to some of them.
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
			n = x.name(t, strings.Clone(text)) // text may be part of a larger string, which must not stay in memory
		}
		out[i] = n
	}
	added := addWatch(w.id, out)
	t.watched += len(added)
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
// is needed (R125). It has no effect if the last request was made after the content was dropped.
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

// RefetchStale requests those of the stream's names again for which the origin's response is no longer valid.
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

// View returns the view of the watch.
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

// SetSubscriber sets the subscriber that later Demand names; nil, the default, means that it is unknown.
func (w *Watch) SetSubscriber(by *Subscriber) { w.by = by }

// SetPeer sets the peer that is charged for the names of the watch. It must be called before the watch subscribes to
// any. Without a peer, only the total limits of the quotas apply.
func (w *Watch) SetPeer(peer string) {
	w.peer = peer
	w.shares = w.view.index.sharesOf(peer)
}

// Peer returns the peer that is charged for the names of the watch.
func (w *Watch) Peer() string { return w.peer }

// Room returns the number of further names that the peer may subscribe to, at any origin.
func (w *Watch) Room() int {
	room := math.MaxInt
	for _, s := range w.shares {
		if s != nil {
			room = min(room, s.Room())
		}
	}
	return room
}

// OverQuota returns, in order, the names that would exceed a quota if the watch subscribed and unsubscribed as given,
// and the limit that they exceed. A name with another subscriber does not count. A name of an existing resource exceeds
// no quota, so that subscriptions to names that do not exist cannot block others. Nothing is reserved, so concurrent
// requests may exceed a limit together.
func (w *Watch) OverQuota(typeURL string, subscribe, unsubscribe []string) (over []string, why quota.Exceeded) {
	if len(subscribe) <= w.Room() {
		return nil, quota.Exceeded{} // the usual case
	}
	subscribe, unsubscribe = sortedSet(subscribe), sortedSet(unsubscribe)
	x := &w.view.index
	x.mu.Lock()
	defer x.mu.Unlock()
	more := make(map[*quota.Share]*demanded)
	for _, share := range w.shares {
		more[share] = new(demanded)
	}
	t, state := x.types[typeURL], w.view.Generation().Type(typeURL)
	for _, text := range unsubscribe {
		if _, kept := slices.BinarySearch(subscribe, text); !kept {
			w.countUnsubscribe(more, t.find(text))
		}
	}
	for _, text := range subscribe {
		n := t.find(text)
		share := w.shares[x.route(typeURL, text)]
		if share == nil || n != nil && n.watchers != nil {
			continue
		}
		by := more[share]
		if by.total >= 0 && share.RoomAfter(by.total, by.peer) == 0 && !state.exists(n) {
			over, why = append(over, text), share.Exceeded(by.total, by.peer)
		}
		by.total, by.peer = by.total+1, by.peer+1
	}
	why.Used++ // including the first name that exceeds the limit
	return over, why
}

// demanded is the number of names that a request would add: for all peers together, and for the charged peer.
type demanded struct{ total, peer int }

// countUnsubscribe subtracts a name from which the watch unsubscribes; n may be nil.
func (w *Watch) countUnsubscribe(more map[*quota.Share]*demanded, n *Name) {
	if n == nil || !n.watchers.contains(w.id) {
		return
	}
	by := more[w.shares[n.source]]
	if n.chargedTo == w.shares[n.source] {
		by.peer--
	}
	if len(n.watchers.ids) == 1 {
		by.total--
	}
}

// sortedSet returns the texts sorted and without duplicates.
func sortedSet(texts []string) []string { return slices.Compact(slices.Sorted(slices.Values(texts))) }

// TakeFanouts returns the fan-outs that the stream has joined since the last call, including those of all generations
// that it loaded before this call. The stream must call Done for each.
func (w *Watch) TakeFanouts() *fanout.List {
	if w.fanouts.Load() == nil {
		return nil
	}
	return w.fanouts.Swap(nil)
}

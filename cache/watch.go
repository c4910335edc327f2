package cache

import (
	"slices"
	"sync/atomic"
	"time"
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

	by       *Subscriber             // see SetSubscriber
	fanouts  atomic.Pointer[Fanouts] // likewise
	followed Seq                     // of the newest of them; guarded by index.mu

	peer   string   // whose names it subscribes to, and
	shares []*Share // by source, what that has of their quotas: see SetPeer
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
// called by whoever changed something, so it must not wait; a call may come after Close.
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
		n := x.name(t, text)
		out[i] = n
		at, watched := slices.BinarySearch(n.watchers, w.id)
		if !watched {
			n.watchers = slices.Insert(n.watchers, at, w.id)
			t.watched++
			if len(n.watchers) == 1 {
				x.charge(n, w)
			}
		}
		if n.stale {
			n.refetch = true
			n.asked.Store(nil)
		}
		if !watched && len(n.watchers) == 1 || n.stale {
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
	for _, n := range names {
		if at, ok := slices.BinarySearch(n.watchers, w.id); ok {
			n.watchers = slices.Delete(n.watchers, at, at+1)
			t.watched--
			switch {
			case len(n.watchers) == 0:
				x.charge(n, nil)
			case n.chargedTo == w.shares[n.source]:
				x.charge(n, x.watches[n.watchers[0]])
			}
		}
		if len(n.watchers) > 0 {
			continue
		}
		n.watchers = nil
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

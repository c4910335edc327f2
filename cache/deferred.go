package cache

import (
	"iter"
	"math/bits"
	"slices"
	"time"

	"github.com/xdstender/tender/cache/wire"
)

// intervals defers changes of a view, so that readers are sent the changes of a type at most once in an interval
// (B.45). Its fields and those of its waitingTypes are guarded by index.mu.
//
// It defers types, not clients: the readers of a view share positions, so each of them is woken once, when the interval
// ends. A change waits for the interval of its type. A type that refers to clusters also waits while clusters or endpoints
// wait, and removals wait while a type that may refer to the resources waits (B.11).
type intervals struct {
	view     *View
	interval func(typeURL string) time.Duration
	sent     map[string]time.Time // when readers were last shown a change, by type URL

	waiting []*waitingType
	timer   *time.Timer // ends the earliest wait; nil before the first
}

// A waitingType is a deferred type whose changes wait until a time.
type waitingType struct {
	deferredType
	until   time.Time
	removes bool     // resources were removed
	wakes   watchSet // watches to wake when the wait ends
}

func newIntervals(v *View) *intervals {
	return &intervals{view: v, interval: v.cfg.PushInterval, sent: make(map[string]time.Time)}
}

// endsWait reports whether first state of one type ends the wait of another type: the resources of one may refer to
// those of the other, or need its endpoints.
func endsWait(first, waiting string) bool {
	return first == waiting || involvesClusters(first) && (involvesClusters(waiting) || waiting == wire.EndpointType)
}

// involvesClusters reports whether resources of the type are clusters or refer to clusters.
func involvesClusters(typeURL string) bool {
	return typeURL == wire.ClusterType || wire.RefersToClusters(typeURL)
}

// until returns when a change of a type may be sent, and whether it has to wait. It waits for the interval of its type,
// and for all waiting types that must be sent before it, even if their intervals are over.
func (p *intervals) until(typeURL string, removes bool, now time.Time) (until time.Time, waits bool) {
	if at, sent := p.sent[typeURL]; sent {
		until = at.Add(p.interval(typeURL))
	}
	waits = until.After(now)
	for _, w := range p.waiting {
		if waitsFor(typeURL, removes, w.typeURL) {
			until, waits = latest(until, w.until), true
		}
	}
	return until, waits
}

// waitsFor reports whether a change of a type, with or without removals, waits while another type waits.
func waitsFor(typeURL string, removes bool, waiting string) bool {
	behind := waiting == wire.ClusterType || waiting == wire.EndpointType
	return behind && wire.RefersToClusters(typeURL) || removes && wire.RemovedAfter(typeURL, waiting)
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

func (p *intervals) find(typeURL string) *waitingType {
	for _, w := range p.waiting {
		if w.typeURL == typeURL {
			return w
		}
	}
	return nil
}

// wait defers a change of a type.
func (p *intervals) wait(typeURL string, old *Generation, until time.Time, removes bool) *waitingType {
	w := p.find(typeURL)
	if w == nil {
		from := *old
		from.deferred = nil // otherwise each generation would keep the one before it in memory
		w = &waitingType{deferredType: deferredType{typeURL, &from}}
		p.waiting = append(p.waiting, w)
	}
	w.until, w.removes = latest(w.until, until), w.removes || removes
	p.align()
	p.arm()
	return w
}

// align delays the end of each wait until the waits on which it depends have ended. It terminates, because it never
// sets a time later than the latest existing one.
func (p *intervals) align() {
	for moved := true; moved; {
		moved = false
		for _, w := range p.waiting {
			for _, other := range p.waiting {
				if other.until.After(w.until) && waitsFor(w.typeURL, w.removes, other.typeURL) {
					w.until, moved = other.until, true
				}
			}
		}
	}
}

// arm sets the timer for the end of the earliest wait.
func (p *intervals) arm() {
	if len(p.waiting) == 0 {
		return
	}
	first := slices.MinFunc(p.waiting, func(a, b *waitingType) int { return a.until.Compare(b.until) })
	if wait := time.Until(first.until); p.timer == nil {
		p.timer = time.AfterFunc(wait, p.endDue)
	} else {
		p.timer.Reset(wait)
	}
}

// end ends the waits that match, and returns the watches to wake.
func (p *intervals) end(now time.Time, match func(*waitingType) bool) (wakes watchSet) {
	p.waiting = slices.DeleteFunc(p.waiting, func(w *waitingType) bool {
		if !match(w) {
			return false
		}
		p.sent[w.typeURL] = now
		wakes.addAll(w.wakes)
		return true
	})
	return wakes
}

// endDue ends the waits whose time is over, and wakes their watches.
func (p *intervals) endDue() {
	x := &p.view.index
	x.mu.Lock()
	now := time.Now()
	ended := p.end(now, func(w *waitingType) bool { return !w.until.After(now) })
	generation := *p.view.current.Load()
	generation.deferred = p.deferred()
	p.view.current.Store(&generation)
	var wakes []*Watch
	for watch := range x.openWatches(ended) {
		wakes = append(wakes, watch)
	}
	p.arm()
	x.mu.Unlock()
	for _, watch := range wakes {
		watch.wake()
	}
}

// endAll ends all waits in a generation that is about to be stored. The caller wakes all watches.
func (p *intervals) endAll(g *Generation) {
	if p != nil {
		p.end(time.Now(), func(*waitingType) bool { return true })
		g.deferred = nil
	}
}

// subscribed handles the subscription of a watch to a type. If the type waits, the watch reads an older generation
// until the wait ends, and is woken then. Its hints are dropped, because it has none for the changes that wait.
func (p *intervals) subscribed(w *Watch, key string) {
	if p == nil || len(p.waiting) == 0 {
		return
	}
	waiting := p.find(resourceType(key))
	if waiting == nil {
		return
	}
	if waiting.wakes.add(w.id); w.call != nil {
		dropped := &hint{seq: p.view.current.Load().Seq, n: maxHints}
		w.hint(dropped, dropped)
	}
}

// deferred returns the types that wait, with the generations from which readers are sent them.
func (p *intervals) deferred() []deferredType {
	if len(p.waiting) == 0 {
		return nil
	}
	out := make([]deferredType, len(p.waiting))
	for i, w := range p.waiting {
		out[i] = w.deferredType
	}
	return out
}

// A watchSet is a set of watches, with one bit for each id. If the id of a closed watch is reused, another watch is
// woken unnecessarily.
type watchSet []uint64

func (s *watchSet) add(id uint32) {
	if missing := int(id/64) + 1 - len(*s); missing > 0 {
		*s = append(*s, make([]uint64, missing)...)
	}
	(*s)[id/64] |= 1 << (id % 64)
}

func (s *watchSet) addAll(of watchSet) {
	if missing := len(of) - len(*s); missing > 0 {
		*s = append(*s, make([]uint64, missing)...)
	}
	for i, word := range of {
		(*s)[i] |= word
	}
}

// openWatches yields the watches of a set that are open.
func (x *index) openWatches(s watchSet) iter.Seq[*Watch] {
	return func(yield func(*Watch) bool) {
		for i, word := range s {
			for ; word != 0; word &= word - 1 {
				watch := x.watches[i*64+bits.TrailingZeros64(word)]
				if watch != nil && !yield(watch) {
					return
				}
			}
		}
	}
}

package pending

import (
	"slices"
	"sync"
	"time"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/cache/wire/schema"
)

// A Clock paces the changes of one view: clients are sent those of a type at most once in the interval of the type, and types in
// order. The lists of all origins of the view share it. Any goroutine may use it.
type Clock struct {
	interval func(typeURL string) time.Duration

	mu     sync.Mutex
	passed map[string]time.Time // when changes last passed, by type URL; guarded by mu
	waits  []*wait              // guarded by mu
}

// NewClock returns a clock with the interval of each type. Changes of a type with interval zero wait only for other types.
func NewClock(interval func(typeURL string) time.Duration) *Clock {
	return &Clock{interval: interval, passed: make(map[string]time.Time)}
}

// A part is what waits together: the additions and changes of a type, or its removals. Removals may have to wait longer. Where
// resources exclude one another, a removal makes room for an addition, and both are one part (B.11).
type part struct {
	typeURL  string
	removals bool
}

// An owner is a list, as the channel on which it is woken.
type owner chan struct{}

// A wait is a part of the changes in one list that waits. Its fields are guarded by the mutex of the clock.
type wait struct {
	part
	owner   owner
	until   time.Time
	removes bool // it has removals

	overtaken bool // a part that it follows has passed meanwhile
	released  bool // it follows no other part any longer: those that wait began later
}

// removalsOf returns the part to which the removals of a type belong.
func removalsOf(typeURL string) part { return part{typeURL, !wire.HasKeys(typeURL)} }

// follows reports whether a part waits while another one does. It is no cycle: additions follow those of clusters and endpoints,
// and removals follow what may refer to the removed.
func (w *wait) follows(other *wait) bool {
	switch {
	case w.removals && w.typeURL == other.typeURL:
		return !other.removals
	case !w.removals && !other.removals && wire.OrderOf(w.typeURL) == schema.AfterClusters && wire.OrderOf(other.typeURL).LateRemovals():
		return true
	case !w.removes:
		return false
	case wire.IsEndpoints(w.typeURL):
		return wire.OrderOf(other.typeURL) == schema.Clusters
	default:
		return wire.RemovedAfter(w.typeURL, other.typeURL)
	}
}

// admit reports whether a change of a part waits. If it does, the part waits in the list from now on.
func (c *Clock) admit(by owner, p part, removes bool, now time.Time) (waits bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.find(by, p)
	added := &wait{part: p, owner: by, removes: removes}
	if at, passed := c.passed[p.typeURL]; passed {
		added.until = at.Add(c.interval(p.typeURL))
	}
	switch {
	case w != nil:
		w.removes, w.released = w.removes || removes, false
	case added.until.After(now) || c.isBlocked(added):
		c.waits = append(c.waits, added)
		c.align(added, now)
	default:
		return false
	}
	return true
}

// align lets the parts that others follow pass together with a new one, if they have passed in turn: clusters and endpoints
// that both change in each interval would otherwise leave no moment for listeners. mu must be held.
func (c *Clock) align(added *wait, now time.Time) {
	for _, w := range c.waits {
		if !w.overtaken || w.until.After(now) || !w.follows(added) {
			continue
		}
		until := added.until
		for _, other := range c.waits {
			if w.follows(other) && other.until.After(until) {
				until = other.until
			}
		}
		for _, other := range c.waits {
			if w.follows(other) && other.until.After(now) { // otherwise it is due already
				other.until = until
			}
		}
	}
}

// find returns the wait of a part in a list; nil if it does not wait. mu must be held.
func (c *Clock) find(by owner, p part) *wait {
	for _, w := range c.waits {
		if w.owner == by && w.part == p {
			return w
		}
	}
	return nil
}

// isBlocked reports whether a wait follows another one. mu must be held.
func (c *Clock) isBlocked(w *wait) bool {
	return !w.released && slices.ContainsFunc(c.waits, w.follows)
}

// due returns the next part of a list that may pass. Without one, next is when to ask again even if the list is not woken; zero
// if nothing waits.
func (c *Clock) due(by owner, now time.Time) (due *wait, next time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range c.waits {
		switch {
		case w.owner != by || c.isBlocked(w): // the end of what it follows wakes the list
		case w.until.After(now):
			next = earlier(next, w.until)
		case due == nil || wire.Rank(w.typeURL) < wire.Rank(due.typeURL):
			due = w
		}
	}
	return due, next
}

// end ends the wait of a part whose rows have passed, and wakes the lists with a part that may have followed it. What another
// list can pass now does not wait for what is stated before that list runs.
func (c *Clock) end(ended *wait, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.passed[ended.typeURL] = now
	c.waits = slices.DeleteFunc(c.waits, func(w *wait) bool { return w == ended })
	c.wake(func(w *wait) bool {
		if !w.follows(ended) {
			return false
		}
		w.overtaken = true
		w.released = w.owner != ended.owner && !w.until.After(now) && !c.isBlocked(w)
		return w.owner != ended.owner
	})
}

// until returns until when a part of a list waits, and what it follows; zero if it does not wait.
func (c *Clock) until(by owner, p part) (until time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w := c.find(by, p); w != nil {
		until = c.last(w)
	}
	return until
}

// last returns until when a wait and those that it follows last. mu must be held.
func (c *Clock) last(w *wait) (until time.Time) {
	until = w.until
	for _, other := range c.waits {
		if w.follows(other) {
			if at := c.last(other); at.After(until) {
				until = at
			}
		}
	}
	return until
}

// record records that changes of a type have passed.
func (c *Clock) record(typeURL string, now time.Time) {
	if c.interval(typeURL) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.passed[typeURL] = now
}

// hasten makes the parts that match due, and wakes their lists.
func (c *Clock) hasten(match func(*wait) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wake(func(w *wait) bool {
		if !match(w) {
			return false
		}
		w.until = time.Time{}
		return true
	})
}

// drop ends all waits of a list that match, as if their changes had not been made.
func (c *Clock) drop(by owner, match func(*wait) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := len(c.waits)
	c.waits = slices.DeleteFunc(c.waits, func(w *wait) bool { return w.owner == by && match(w) })
	if len(c.waits) < before {
		c.wake(func(w *wait) bool { return w.owner != by })
	}
}

// wake wakes the lists of the waits that match. mu must be held.
func (c *Clock) wake(match func(*wait) bool) {
	for _, w := range c.waits {
		if match(w) {
			select {
			case w.owner <- struct{}{}:
			default:
			}
		}
	}
}

// dependsOn reports whether first state of one type ends the wait of another one: the resources of one may refer to those of the
// other, or need its endpoints.
func dependsOn(first, waiting string) bool {
	return first == waiting || wire.OrderOf(first).InvolvesClusters() && wire.OrderOf(waiting) != schema.AnyOrder
}

// earlier returns the earlier of two times, of which zero is never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

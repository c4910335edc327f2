package cache

import (
	"sync/atomic"
	"time"
)

// InterestStats say what the streams of a view want of a type now.
type InterestStats struct {
	Wildcards int // wildcard subscriptions, also to collections
	Names     int // subscriptions to names: a name that two streams want counts twice
}

// Plus returns the sums of both.
func (s InterestStats) Plus(o InterestStats) InterestStats {
	return InterestStats{s.Wildcards + o.Wildcards, s.Names + o.Names}
}

// Interest returns what streams want, by type URL. It takes as long as there are types and
// collections, and for that long keeps streams from subscribing.
func (v *View) Interest() map[string]InterestStats {
	x := &v.index
	x.mu.Lock()
	defer x.mu.Unlock()
	stats := make(map[string]InterestStats)
	for key, t := range x.types {
		typeURL, _, _ := SplitCollection(key)
		of := stats[typeURL]
		of.Wildcards += len(t.wildcards)
		of.Names += t.watched
		stats[typeURL] = of
	}
	return stats
}

// An originRequest is a request by which an origin was asked for names.
type originRequest struct {
	at       time.Time
	answered atomic.Pointer[time.Time] // when the origin first answered for one of the names; nil if it did not
}

// answered records that the origin answered for a name that it was asked for.
func (n *Name) answered(now time.Time) {
	if q := n.asked.Load(); q != nil && q.answered.Load() == nil {
		at := now // a copy, so that only the first answer allocates
		q.answered.CompareAndSwap(nil, &at)
	}
}

// RequestAnswered returns when the origin first answered for any of the names that it was asked for by the same
// request as this one, on the open connection; zero if it did not.
func (n *Name) RequestAnswered() time.Time {
	if q := n.asked.Load(); q != nil {
		if at := q.answered.Load(); at != nil {
			return *at
		}
	}
	return time.Time{}
}

// An Unanswered name is one that somebody asked for, and of which the view knows nothing.
type Unanswered struct {
	Type string // or the collection, see Collection
	Name *Name
}

// Unanswered returns the names that streams ask for and of which the view knows nothing, not
// even that they do not exist.
func (v *View) Unanswered() (names []Unanswered) {
	g := v.Generation()
	x := &v.index
	x.mu.Lock()
	defer x.mu.Unlock()
	for key, t := range x.types {
		typ := g.Type(key)
		for _, n := range t.names {
			if len(n.watchers) == 0 {
				continue
			}
			if e, _ := typ.Lookup(n); e == nil && typ.Errors(ByName).Get(n) == nil {
				names = append(names, Unanswered{key, n})
			}
		}
	}
	return names
}

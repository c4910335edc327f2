package upstream

import (
	"container/heap"
	"math"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/xdstender/tender/cache"
)

// lingering holds the subscribed names that no client uses, oldest first. A name stays until Config.Linger ends, or
// until the limits are exceeded (B.6). Names in use are never in it, so a client never loses a resource by eviction.
type lingering struct {
	names    *simplelru.LRU[*cache.Name, lingeringName]
	bytes    int // sum over names
	maxNames int
	maxBytes int
}

// A lingeringName is the entry of an unused name.
type lingeringName struct {
	typeURL string
	until   time.Time // when the linger time ends
	bytes   int       // size of the cached resource; zero if there is none
}

// newLingering returns an empty lingering with limits on the number of names and on the size of their resources.
func newLingering(maxNames, maxBytes int) *lingering {
	// expired enforces the limits, not the LRU: the view sync must unsubscribe from evicted names.
	names, err := simplelru.NewLRU[*cache.Name, lingeringName](math.MaxInt, nil)
	if err != nil {
		panic(err) // only for a size that is not positive
	}
	return &lingering{names: names, maxNames: maxNames, maxBytes: maxBytes}
}

// add makes a name the newest one. It replaces an earlier entry of the name.
func (l *lingering) add(n *cache.Name, entry lingeringName) {
	l.remove(n)
	l.names.Add(n, entry)
	l.bytes += entry.bytes
}

// remove removes a name, if it is there.
func (l *lingering) remove(n *cache.Name) {
	if entry, ok := l.names.Peek(n); ok {
		l.names.Remove(n)
		l.bytes -= entry.bytes
	}
}

// expired removes and returns the names that have expired, and the oldest ones over the limits. It returns when to call
// it again; zero if there is no name or the view is frozen. While a view is frozen, names do not expire, so that
// returning clients find their resources.
func (l *lingering) expired(now time.Time, frozen bool) (out map[string][]*cache.Name, next time.Time) {
	for {
		n, entry, ok := l.names.GetOldest()
		if !ok {
			return out, time.Time{}
		}
		if (frozen || now.Before(entry.until)) && l.names.Len() <= l.maxNames && l.bytes <= l.maxBytes {
			if frozen {
				return out, time.Time{}
			}
			return out, entry.until
		}
		l.remove(n)
		if out == nil {
			out = make(map[string][]*cache.Name)
		}
		out[entry.typeURL] = append(out[entry.typeURL], n)
	}
}

// An agenda is a heap of collections, by the time of their next check. It implements heap.Interface. A view may have
// thousands of collections, of which few have a check pending.
type agenda []*collection

// Len implements heap.Interface.
func (a agenda) Len() int { return len(a) }

// Less implements heap.Interface: the earliest check is first.
func (a agenda) Less(i, j int) bool { return a[i].checkAt.Before(a[j].checkAt) }

// Swap implements heap.Interface.
func (a agenda) Swap(i, j int) {
	a[i], a[j] = a[j], a[i]
	a[i].heapIndex, a[j].heapIndex = i, j
}

// Push implements heap.Interface. Use schedule to add a collection.
func (a *agenda) Push(x any) {
	c := x.(*collection)
	c.heapIndex = len(*a)
	*a = append(*a, c)
}

// Pop implements heap.Interface. The collection is no longer scheduled.
func (a *agenda) Pop() any {
	last := len(*a) - 1
	c := (*a)[last]
	(*a)[last] = nil
	*a, c.checkAt = (*a)[:last], time.Time{}
	return c
}

// schedule sets the next check of a collection to a time, unless an earlier check is scheduled. A zero time does
// nothing.
func (a *agenda) schedule(c *collection, at time.Time) {
	switch {
	case at.IsZero() || !c.checkAt.IsZero() && !at.Before(c.checkAt):
	case c.checkAt.IsZero():
		c.checkAt = at
		heap.Push(a, c)
	default:
		c.checkAt = at
		heap.Fix(a, c.heapIndex)
	}
}

// remove removes a collection, if it is scheduled.
func (a *agenda) remove(c *collection) {
	if !c.checkAt.IsZero() {
		heap.Remove(a, c.heapIndex)
	}
}

// due removes the collections whose check is due, and adds them to the due list of their subscriptions.
func (a *agenda) due(now time.Time) {
	for len(*a) > 0 && !now.Before((*a)[0].checkAt) {
		c := heap.Pop(a).(*collection)
		c.sub.due = append(c.sub.due, c)
	}
}

// next returns the time of the earliest check; zero if there is none.
func (a agenda) next() time.Time {
	if len(a) == 0 {
		return time.Time{}
	}
	return a[0].checkAt
}

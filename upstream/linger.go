package upstream

import (
	"container/heap"
	"math"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/xdstender/tender/cache"
)

// lingering holds the names that no client wants any more, oldest first, until
// they have been unwanted for a while or are too many (B.6). Names that clients
// want are never in it, so nothing is ever evicted under a client.
type lingering struct {
	names    *simplelru.LRU[*cache.Name, lingeringName]
	bytes    int
	maxNames int
	maxBytes int
}

type lingeringName struct {
	sub   *subscription
	until time.Time
	bytes int
}

func newLingering(maxNames, maxBytes int) *lingering {
	// The bounds are kept by expired: evicting by itself, the list could not say what
	// it evicted before the view sync is ready for it.
	names, err := simplelru.NewLRU[*cache.Name, lingeringName](math.MaxInt, nil)
	if err != nil {
		panic(err) // only of a size that is not positive
	}
	return &lingering{names: names, maxNames: maxNames, maxBytes: maxBytes}
}

func (l *lingering) add(n *cache.Name, who lingeringName) {
	l.remove(n)
	l.names.Add(n, who)
	l.bytes += who.bytes
}

func (l *lingering) remove(n *cache.Name) {
	if who, ok := l.names.Peek(n); ok {
		l.names.Remove(n)
		l.bytes -= who.bytes
	}
}

// expired removes and returns names whose time is up, and the oldest ones of too
// many. It returns when to look again. While a view is frozen time stands still: those who
// come back are to find what there was.
func (l *lingering) expired(now time.Time, frozen bool) (out map[*subscription][]*cache.Name, next time.Time) {
	for {
		n, who, ok := l.names.GetOldest()
		if !ok {
			return out, time.Time{}
		}
		if (frozen || now.Before(who.until)) && l.names.Len() <= l.maxNames && l.bytes <= l.maxBytes {
			if frozen {
				return out, time.Time{}
			}
			return out, who.until
		}
		l.remove(n)
		if out == nil {
			out = make(map[*subscription][]*cache.Name)
		}
		out[who.sub] = append(out[who.sub], n)
	}
}

// An agenda says when to look at which collection, the next one first: of thousands,
// few have anything to wait for.
type agenda []*collection

func (a agenda) Len() int           { return len(a) }
func (a agenda) Less(i, j int) bool { return a[i].checkAt.Before(a[j].checkAt) }

func (a agenda) Swap(i, j int) {
	a[i], a[j] = a[j], a[i]
	a[i].heapIndex, a[j].heapIndex = i, j
}

func (a *agenda) Push(x any) {
	c := x.(*collection)
	c.heapIndex = len(*a)
	*a = append(*a, c)
}

func (a *agenda) Pop() any {
	last := len(*a) - 1
	c := (*a)[last]
	(*a)[last] = nil
	*a, c.checkAt = (*a)[:last], time.Time{}
	return c
}

// put has a collection looked at by some time; a zero time is never.
func (a *agenda) schedule(c *collection, by time.Time) {
	switch {
	case by.IsZero() || !c.checkAt.IsZero() && !by.Before(c.checkAt):
	case c.checkAt.IsZero():
		c.checkAt = by
		heap.Push(a, c)
	default:
		c.checkAt = by
		heap.Fix(a, c.heapIndex)
	}
}

// drop takes out a collection that was given up.
func (a *agenda) remove(c *collection) {
	if !c.checkAt.IsZero() {
		heap.Remove(a, c.heapIndex)
	}
}

// due takes out the collections that are to be looked at now, and hands them to their
// subscriptions.
func (a *agenda) due(now time.Time) {
	for len(*a) > 0 && !now.Before((*a)[0].checkAt) {
		c := heap.Pop(a).(*collection)
		c.sub.due = append(c.sub.due, c)
	}
}

// next returns when a collection is to be looked at; a zero time if none is.
func (a agenda) next() time.Time {
	if len(a) == 0 {
		return time.Time{}
	}
	return a[0].checkAt
}

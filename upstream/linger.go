package upstream

import (
	"math"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/xdstender/tender/cache"
)

// lingering holds the names that no client wants any more, oldest first, until
// they have been unwanted for a while or are too many (B.6). Names that clients
// want are never in it, so nothing is ever evicted under a client.
type lingering struct {
	names    *simplelru.LRU[*cache.Name, lingerer]
	bytes    int
	maxNames int
	maxBytes int
}

type lingerer struct {
	sub   *subscription
	until time.Time
	bytes int
}

func newLingering(maxNames, maxBytes int) *lingering {
	// The bounds are kept by expired: evicting by itself, the list could not say what
	// it evicted before the mirror is ready for it.
	names, err := simplelru.NewLRU[*cache.Name, lingerer](math.MaxInt, nil)
	if err != nil {
		panic(err) // only of a size that is not positive
	}
	return &lingering{names: names, maxNames: maxNames, maxBytes: maxBytes}
}

func (l *lingering) add(n *cache.Name, who lingerer) {
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

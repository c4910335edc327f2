package upstream

import (
	"math"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/xdstender/tender/cache"
)

// frozenLinger is the interval at which the loop looks for what has lingered long enough while the view retains what no client
// uses.
const frozenLinger = time.Minute

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

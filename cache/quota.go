package cache

import (
	"math"
	"slices"
	"sync/atomic"
)

// A Quota counts the names that streams want of one origin, over all views that have it
// (Config.Quotas), and says how many there may be (B.35). It counts a name once for each view:
// that is how often the origin is asked for it. The zero value counts nothing and allows all.
type Quota struct {
	max       int
	wanted    *atomic.Int64 // nil: nothing is counted
	elsewhere bool
}

// NewQuota returns a quota of so many names.
func NewQuota(max int) Quota { return Quota{max: max, wanted: new(atomic.Int64)} }

// Elsewhere returns the same quota for a source that stands for another view, which asks the
// origin and counts.
func (q Quota) Elsewhere() Quota {
	q.elsewhere = true
	return q
}

// Wanted returns how many names there are.
func (q Quota) Wanted() int {
	if q.wanted == nil {
		return 0
	}
	return int(q.wanted.Load())
}

// room returns how many names more there may be.
func (q Quota) room() int {
	if q.wanted == nil {
		return math.MaxInt
	}
	return q.max - q.Wanted()
}

func (q Quota) add(names int64) {
	if q.wanted != nil && !q.elsewhere {
		q.wanted.Add(names)
	}
}

// Room returns how many names more streams may want, whichever of the view's origins they
// are of.
func (w *Watch) Room() int {
	room := math.MaxInt
	for _, s := range w.view.index.sources {
		room = min(room, s.quota.room())
	}
	return room
}

// Over returns which of the names that the watch would begin to watch, of a type, are more than streams may want of an
// origin, in order; and of one of the origins how many there would be, and how many there may be. The watch would cease
// to watch some others at the same time. Names that somebody wants already, or goes on wanting, make no difference. As
// nothing is reserved, requests at the same time may exceed it together.
func (w *Watch) Over(typeURL string, begins, ceases []string) (over []string, wanted, most int) {
	if len(begins) <= w.Room() {
		return nil, 0, 0 // as nearly always
	}
	begins, ceases = set(begins), set(ceases)
	x := &w.view.index
	more := make(map[*atomic.Int64]int) // by origin
	x.mu.Lock()
	defer x.mu.Unlock()
	t := x.types[typeURL]
	for _, text := range ceases {
		_, stays := slices.BinarySearch(begins, text)
		if n := t.find(text); n != nil && !stays && slices.Equal(n.watchers, []uint32{w.id}) {
			more[x.sources[n.source].quota.wanted]--
		}
	}
	for _, text := range begins {
		if n := t.find(text); n != nil && len(n.watchers) > 0 {
			continue
		}
		quota := x.sources[x.route(typeURL, text)].quota
		if more[quota.wanted]++; more[quota.wanted] > max(quota.room(), 0) {
			over, wanted, most = append(over, text), quota.Wanted()+more[quota.wanted], quota.max
		}
	}
	return over, wanted, most
}

// set returns texts in order, each once.
func set(texts []string) []string { return slices.Compact(slices.Sorted(slices.Values(texts))) }

// find returns the Name for a text, nil if there is none, or no such type.
func (t *indexType) find(text string) *Name {
	if t == nil {
		return nil
	}
	return t.names[text]
}

package history

import (
	"cmp"
	"container/list"
	"slices"
	"sync"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// Config bounds a journal. All fields are required.
type Config struct {
	Changes int   // of one resource, in one view
	Bytes   int64 // of all
}

// A Kind is what happened to a resource.
type Kind string

// The kinds of changes.
const (
	Added   Kind = "added"
	Changed Kind = "changed"
	Removed Kind = "removed"
	Expired Kind = "expired"
)

// A Change is one of a resource in the view of a node group.
type Change struct {
	At      time.Time // when the message came that brought it
	Kind    Kind
	Group   string
	AskedAs string // "*", a glob, or nothing if it was asked for by name

	// After is the resource since then, nil if it went. Before is the one until then; nil if there
	// was none, or it is remembered no more.
	After, Before *wire.Resource

	entry *entry
}

// A Journal holds changes.
type Journal struct {
	cfg Config

	// Guarded by mu.
	mu    sync.Mutex
	views map[*cache.View]map[resource][]*past
	order list.List // of entry, oldest first
	bytes int64
}

// A resource is a name of a type.
type resource struct{ typeURL, name string }

// A past is what is remembered of a resource that was asked for in one way. Its last entry, if
// there is any, has what it is now.
type past struct {
	group, askedAs string

	base    *wire.Resource // before the first entry
	entries []*entry
}

// An entry is a change as it is kept.
type entry struct {
	at    time.Time
	kind  Kind
	after *wire.Resource
	diff  *Diff // once it was asked for

	of   *past
	key  resource
	view *cache.View
	mine *list.Element // of Journal.order
}

// overhead is about what an entry takes beside the bytes of its resource.
const overhead = 512

// New returns an empty journal.
func New(cfg Config) *Journal {
	return &Journal{cfg: cfg, views: make(map[*cache.View]map[resource][]*past)}
}

// size returns the bytes that stay in memory with a resource; nil is none.
func size(r *wire.Resource) int64 {
	if r == nil {
		return 0
	}
	return int64(r.Size())
}

func (e *entry) size() int64 {
	n := overhead + size(e.after)
	if e.diff != nil {
		n += int64(len(e.diff.Text))
	}
	return n
}

// open begins to hold changes of a view, and forget ends that.
func (j *Journal) open(v *cache.View) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.views[v] = make(map[resource][]*past)
}

func (j *Journal) forget(v *cache.View) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, pasts := range j.views[v] {
		for _, p := range pasts {
			j.bytes -= size(p.base)
			for _, e := range p.entries {
				j.bytes -= e.size()
				j.order.Remove(e.mine)
			}
		}
	}
	delete(j.views, v)
}

// An event is what a follower saw of a resource.
type event struct {
	resource
	group, askedAs string
	at             time.Time
	was, is        *wire.Resource // as of the follower's last look, and now; nil is none
	expired        bool
}

// record adds an event, unless it is no change of what is remembered.
func (j *Journal) record(v *cache.View, ev event) {
	j.mu.Lock()
	defer j.mu.Unlock()
	pasts := j.views[v][ev.resource]
	at := slices.IndexFunc(pasts, func(p *past) bool { return p.askedAs == ev.askedAs })
	was := ev.was
	if at >= 0 {
		was = pasts[at].last()
	}
	if same(was, ev.is) {
		return
	}
	if at < 0 {
		p := &past{group: ev.group, askedAs: ev.askedAs, base: was}
		j.bytes += size(was)
		at, pasts = len(pasts), append(pasts, p)
		j.views[v][ev.resource] = pasts
	}
	e := &entry{at: ev.at, kind: kindOf(was, ev), after: ev.is, of: pasts[at], key: ev.resource, view: v}
	e.mine = j.order.PushBack(e)
	e.of.entries = append(e.of.entries, e)
	j.bytes += e.size()
	if len(e.of.entries) > j.cfg.Changes {
		j.shift(e.of)
	}
	j.bound()
}

// same reports whether clients that have one would learn nothing from the other.
func same(a, b *wire.Resource) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.SameContent(b)
}

func kindOf(was *wire.Resource, ev event) Kind {
	switch {
	case ev.is == nil && ev.expired:
		return Expired
	case ev.is == nil:
		return Removed
	case was == nil:
		return Added
	default:
		return Changed
	}
}

// last returns what the resource is, nil if it went.
func (p *past) last() *wire.Resource { return p.entries[len(p.entries)-1].after }

// shift forgets the oldest entry of a past, and keeps what there was after it.
func (j *Journal) shift(p *past) {
	e := p.entries[0]
	j.bytes += size(e.after) - size(p.base) - e.size()
	p.base, p.entries = e.after, slices.Delete(p.entries, 0, 1)
	j.order.Remove(e.mine)
}

// bound forgets the oldest changes of all while there are too many bytes.
func (j *Journal) bound() {
	for j.bytes > j.cfg.Bytes {
		e := j.order.Front().Value.(*entry)
		p := e.of
		j.shift(p)
		j.bytes -= size(p.base)
		if p.base = nil; len(p.entries) > 0 {
			continue
		}
		pasts := slices.DeleteFunc(j.views[e.view][e.key], func(other *past) bool { return other == p })
		if j.views[e.view][e.key] = pasts; len(pasts) == 0 {
			delete(j.views[e.view], e.key)
		}
	}
}

// Changes returns what is remembered of a resource, newest first; of one node group if that is
// given, and at most limit of them.
func (j *Journal) Changes(typeURL, name, group string, limit int) []Change {
	j.mu.Lock()
	defer j.mu.Unlock()
	var out []Change
	for _, pasts := range j.views {
		for _, p := range pasts[resource{typeURL, name}] {
			if group != "" && p.group != group {
				continue
			}
			for i, e := range slices.Backward(p.entries) {
				before := p.base
				if i > 0 {
					before = p.entries[i-1].after
				}
				out = append(out, Change{At: e.at, Kind: e.kind, Group: p.group, AskedAs: p.askedAs, After: e.after, Before: before, entry: e})
			}
		}
	}
	slices.SortStableFunc(out, func(a, b Change) int {
		return cmp.Or(b.At.Compare(a.At), cmp.Compare(a.Group, b.Group), cmp.Compare(a.AskedAs, b.AskedAs))
	})
	return out[:min(len(out), limit)]
}

// Bytes returns how much memory the journal accounts for.
func (j *Journal) Bytes() int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.bytes
}

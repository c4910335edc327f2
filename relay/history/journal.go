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

// Config limits a journal.
type Config struct {
	Changes int // maximum number of changes per resource, view and AskedAs; required

	// Bytes is the maximum size of all changes; see [Journal.Bytes]. Zero means 32 MiB. Only tests set it, because they
	// have fewer changes.
	Bytes int64
}

// A Kind classifies changes.
type Kind string

// The kinds of changes.
const (
	Added   Kind = "added"
	Changed Kind = "changed"
	Removed Kind = "removed" // the origin removed the resource
	Expired Kind = "expired" // the TTL of the resource ended
)

// A Change is a change of a resource in the view of a node group.
type Change struct {
	At      time.Time // when the relay received the response that contained the change
	Kind    Kind
	Group   string // node group of the view
	AskedAs string // subscription that matches the resource: "*", a glob, or "" for a subscription by name

	// After is the resource after the change, nil if it was removed. Before is the resource before the change; it is nil
	// if there was none, or if the journal has dropped it.
	After, Before *wire.Resource

	entry *entry
}

// A Journal stores changes in memory.
type Journal struct {
	cfg Config

	// Guarded by mu.
	mu    sync.Mutex
	views map[*cache.View]map[resource][]*past
	order list.List // of *entry in all views, oldest first
	bytes int64     // size of all entries and bases
}

// A resource is the key of a resource in a view.
type resource struct{ typeURL, name string }

// A past contains the changes of a resource under one AskedAs. The last entry has the current resource.
type past struct {
	group, askedAs string // as in Change

	base    *wire.Resource // resource before the first entry; nil if there was none or if it was dropped
	baseSeq cache.Seq      // position of the change to base
	entries []*entry       // oldest first
}

// An entry is a recorded change. Its resource before the change is that after the previous entry, or the base.
type entry struct {
	at    time.Time
	kind  Kind
	after *wire.Resource // nil if it was removed
	seq   cache.Seq      // position of the change in the view
	diff  *Diff          // nil until it is requested; guarded by Journal.mu

	of   *past         // contains this entry
	key  resource      // key of the past
	view *cache.View   // view of the past
	mine *list.Element // element of Journal.order
}

// overhead is the approximate memory of an entry in bytes, without its resource and diff.
const overhead = 512

// New returns an empty journal.
func New(cfg Config) *Journal {
	cfg.Bytes = cmp.Or(cfg.Bytes, 32<<20)
	return &Journal{cfg: cfg, views: make(map[*cache.View]map[resource][]*past)}
}

// size returns the size of a resource in bytes, or 0 for nil.
func size(r *wire.Resource) int64 {
	if r == nil {
		return 0
	}
	return int64(r.Size())
}

// size returns the size of an entry in bytes. Journal.mu must be held.
func (e *entry) size() int64 {
	n := overhead + size(e.after)
	if e.diff != nil {
		n += int64(len(e.diff.Text))
	}
	return n
}

// open prepares the journal for changes of a view. The caller must call forget when the view is no longer followed.
func (j *Journal) open(v *cache.View) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.views[v] = make(map[resource][]*past)
}

// forget removes all changes of a view.
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

// An event is a change that a follower has read from a view.
type event struct {
	resource
	group, askedAs string         // as in Change
	at             time.Time      // as in Change
	was, is        *wire.Resource // at the follower's last look, and now; nil if the resource is not present
	wasSeq, seq    cache.Seq      // positions of the changes to was and is; 0 if unknown
	expired        bool           // the resource was removed because its TTL ended
}

// record adds an event, unless the resource has the same content as after the last recorded change.
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
		p := &past{group: ev.group, askedAs: ev.askedAs, base: was, baseSeq: ev.wasSeq}
		j.bytes += size(was)
		at, pasts = len(pasts), append(pasts, p)
		j.views[v][ev.resource] = pasts
	}
	e := &entry{at: ev.at, kind: kindOf(was, ev), after: ev.is, seq: ev.seq, of: pasts[at], key: ev.resource, view: v}
	e.mine = j.order.PushBack(e)
	e.of.entries = append(e.of.entries, e)
	j.bytes += e.size()
	if len(e.of.entries) > j.cfg.Changes {
		j.shift(e.of)
	}
	j.bound()
}

// same reports whether two resources have the same content, or are both nil.
func same(a, b *wire.Resource) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.SameContent(b)
}

// kindOf returns the kind of a change from was to ev.is.
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

// last returns the current resource, nil if it was removed. A past in Journal.views has at least one entry.
func (p *past) last() *wire.Resource { return p.entries[len(p.entries)-1].after }

// shift drops the oldest entry of a past. The resource after this entry becomes the base. mu must be held.
func (j *Journal) shift(p *past) {
	e := p.entries[0]
	j.bytes += size(e.after) - size(p.base) - e.size()
	p.base, p.baseSeq, p.entries = e.after, e.seq, slices.Delete(p.entries, 0, 1)
	j.order.Remove(e.mine)
}

// bound drops the oldest changes of all views until the journal is within Config.Bytes. The base of a shortened past is
// dropped too. mu must be held.
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

// Changes returns at most limit changes of a resource, newest first. If group is not empty, it returns only changes in
// the views of this node group.
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

// VersionAt returns the version of a resource in a view after its change at a position. It is not ok if the journal does
// not have the change, or if the change was a removal.
func (j *Journal) VersionAt(v *cache.View, typeURL, name string, at cache.Seq) (version string, ok bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, p := range j.views[v][resource{typeURL, name}] {
		if p.baseSeq == at && p.base != nil {
			return p.base.Version, true
		}
		for _, e := range p.entries {
			if e.seq == at && e.after != nil {
				return e.after.Version, true
			}
		}
	}
	return "", false
}

// Bytes returns the approximate memory of the journal in bytes, including the resources that it refers to.
func (j *Journal) Bytes() int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.bytes
}

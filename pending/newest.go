package pending

import (
	"maps"
	"slices"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// countContent counts a resource. latest was the newest one of its name; nil if there was none.
func countContent(c *cache.Change, r, latest *wire.Resource) {
	switch {
	case latest == nil:
		c.Changed, c.New = c.Changed+1, c.New+1
	case latest.Key() != r.Key():
		c.Changed++
	case !latest.SameContent(r):
		c.Changed++
		if r.OriginVersion != "" && r.OriginVersion == latest.OriginVersion && r.Digest != latest.Digest {
			c.Reused = append(c.Reused, r.Name)
		}
	case latest.OriginVersion == r.OriginVersion:
		c.Same++
	}
}

// add adds the numbers of another change, or with sign -1 subtracts them.
func add(c *cache.Change, other cache.Change, sign int) {
	c.Seen += sign * other.Seen
	c.Changed += sign * other.Changed
	c.New += sign * other.New
	c.Removed += sign * other.Removed
	c.Same += sign * other.Same
}

// newest is the newest state of a set, as the list has it. It implements [cache.Newest].
type newest struct {
	list *List
	set  setKey
	c    *cache.Change // of what waits
}

// Record lists a statement that waits, or ends the row of one that was applied. The index of the view is locked.
func (n newest) Record(s cache.Statement, shown *cache.Entry, waits bool) {
	var seen *wire.Resource
	if shown.Present() {
		seen = shown.Resource
	}
	latest, stated := n.Resource(s.Name)
	if !stated {
		latest = seen
	}
	switch {
	case waits:
		add(n.c, changeOf(s, latest), 1)
		n.c.Reused = append(n.c.Reused, changeOf(s, latest).Reused...)
		n.list.state(n.set, s)
		return
	case stated: // the writer counts it against what clients see
		add(n.c, changeOf(s, latest), 1)
		add(n.c, changeOf(s, seen), -1)
	}
	n.list.end(n.set, s)
}

// changeOf counts the content of a statement. latest was the newest resource of its name; nil if there was none.
func changeOf(s cache.Statement, latest *wire.Resource) (c cache.Change) {
	switch {
	case !s.HasContent:
	case s.Resource != nil:
		countContent(&c, s.Resource, latest)
	case latest != nil:
		c.Removed++
	}
	return c
}

// Passes reports whether a statement does not change that a resource exists, of a type of which only removals wait.
func (n newest) Passes(_ cache.Statement, shown *cache.Entry) bool {
	return !n.list.stops(n.set.typeURL(), false) && !shown.Present()
}

func (n newest) Resource(name string) (r *wire.Resource, stated bool) {
	return n.list.Get(n.set.kind, n.set.key, name)
}

func (n newest) Aliases(resource string) []string {
	return slices.Sorted(maps.Keys(n.list.aliases[n.set][resource]))
}

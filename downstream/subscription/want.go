package subscription

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// A want is what a client subscribed to of one type. Responses change only positions in it (C08).
type want struct {
	started  bool // a request was received
	explicit bool // the client gave a name, so an empty list no longer means the wildcard (R051)
	wildcard *cache.WildcardWatch
	names    []subscribed // sorted by name
	namesSum uint64       // of the SotW list that names was made from
	since    time.Time    // when names were last added

	// Names that the client subscribed to and is not served. The server maintains these.
	Denied    map[string]struct{} // denied by the authorization policy
	OverLimit map[string]struct{} // over a limit
}

// A subscribed is a name that the client subscribed to.
type subscribed struct {
	name *cache.Name
	sent cache.Seq // position of its newest change that the client was sent; 0 if an answer is due
}

// MarkExplicit records that the client gave a name, even if it is not served. An empty list then no longer means the
// wildcard.
func (w *want) MarkExplicit() { w.explicit = true }

// Started reports whether a request was received.
func (w *want) Started() bool { return w.started }

// Names returns the names that the client subscribed to.
func (w *want) Names() []*cache.Name {
	names := make([]*cache.Name, len(w.names))
	for i, n := range w.names {
		names[i] = n.name
	}
	return names
}

// find returns the index of a name among the subscribed.
func (w *want) find(n *cache.Name) (at int, ok bool) {
	if n == nil {
		return 0, false
	}
	const few = 64
	if len(w.names) <= few { // a scan is faster than a binary search
		at = slices.IndexFunc(w.names, func(have subscribed) bool { return have.name == n })
		return max(at, 0), at >= 0
	}
	return slices.BinarySearchFunc(w.names, n, func(have subscribed, n *cache.Name) int { return have.name.Compare(n) })
}

// findAlias returns the index of the subscribed name of a resource that has text as its name or as an alias (R077). It
// ignores names in except.
func (w *want) findAlias(t *cache.Type, text string, except map[*cache.Name]struct{}) (at int, ok bool) {
	if !t.ByName.Aliased() {
		return 0, false
	}
	for i, n := range w.names {
		if _, is := except[n.name]; is {
			continue
		}
		e, _ := t.Lookup(n.name)
		if e.Present() && (e.Resource.Name == text || slices.Contains(e.Resource.Aliases, text)) {
			return i, true
		}
	}
	return 0, false
}

// namesAlias reports whether the client subscribed to a resource by its name or by an alias (R092).
func (w *want) namesAlias(t *cache.Type, resource string) bool {
	return t.ByName.Aliased() && slices.ContainsFunc(w.names, func(n subscribed) bool {
		e, _ := t.Lookup(n.name)
		return e.Present() && e.Resource.Name == resource
	})
}

// merge adds sorted names. It appends those that need an answer to due: new names, and with renew all names.
func (w *want) merge(names []*cache.Name, renew bool, due []*cache.Name) []*cache.Name {
	merged := make([]subscribed, 0, len(w.names)+len(names))
	due = slices.Grow(due, len(names))
	old := w.names
	for _, n := range names {
		for len(old) > 0 && old[0].name.Compare(n) < 0 {
			merged, old = append(merged, old[0]), old[1:]
		}
		here, had := subscribed{name: n}, len(old) > 0 && old[0].name == n
		if had {
			if !renew {
				here = old[0]
			}
			old = old[1:]
		}
		merged = append(merged, here)
		if !had || renew {
			due = append(due, n)
		}
	}
	w.names = append(merged, old...)
	return due
}

// remove removes names, and returns them.
func (w *want) remove(gone func(*cache.Name) bool) (removed []*cache.Name) {
	w.names = slices.DeleteFunc(w.names, func(n subscribed) bool {
		if !gone(n.name) {
			return false
		}
		removed = append(removed, n.name)
		return true
	})
	return removed
}

// String returns the wildcard and the number of names, such as "* names=2", or "nothing".
func (w *want) String() string {
	var parts []string
	if w.wildcard != nil {
		parts = append(parts, wire.Wildcard)
	}
	if n := len(w.names); n > 0 {
		parts = append(parts, fmt.Sprintf("names=%d", n))
	}
	if len(parts) == 0 {
		return "nothing"
	}
	return strings.Join(parts, " ")
}

// without returns texts without one of them.
func without(texts []string, text string) []string {
	if !slices.Contains(texts, text) {
		return texts
	}
	return slices.DeleteFunc(slices.Clone(texts), func(t string) bool { return t == text })
}

// splitGlobs returns the names and the globs among texts.
func splitGlobs(texts []string) (names, globs []string) {
	if !slices.ContainsFunc(texts, wire.Glob) {
		return texts, nil
	}
	for _, text := range texts {
		if wire.Glob(text) {
			globs = append(globs, text)
		} else {
			names = append(names, text)
		}
	}
	return names, globs
}

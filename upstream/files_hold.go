package upstream

import (
	"maps"
	"slices"
	"time"

	"github.com/xdstender/tender/cache/wire"
)

// A hold keeps back removals that are too many to be believed at once. It does no
// I/O and knows no clock.
type hold struct {
	wait time.Duration
	held map[string]heldRemoval // by type URL
}

type heldRemoval struct {
	names map[string]struct{}
	until time.Time
}

// A verdict is what a hold decided anew on a type.
type verdict struct {
	kind    verdictKind
	typeURL string
	names   int
}

type verdictKind int

const (
	holdBegan   verdictKind = iota
	holdChanged             // other names than before: it began anew
	holdApplied             // it is over, and the names are removed
	holdLifted              // the names are back, or too few to hold
)

func newHold(wait time.Duration) hold {
	return hold{wait: wait, held: make(map[string]heldRemoval)}
}

// admit returns what to serve of what was found, where so far something else was
// served: all of it, and what a removal would take that is held back. Doubtful
// means that not a single removal is to be believed at once. The types that were
// served stay in the result, even if they are empty.
func (h *hold) admit(serving, found sets, doubtful bool, now time.Time) (sets, []verdict) {
	result := make(sets, max(len(found), len(serving)))
	maps.Copy(result, found)
	for typeURL := range serving {
		if result[typeURL] == nil {
			result[typeURL] = new(typeSet)
		}
	}
	var verdicts []verdict
	for _, typeURL := range slices.Sorted(maps.Keys(result)) {
		set, was := result[typeURL], serving[typeURL]
		missing := was.without(set)
		n := len(missing)
		mass := doubtful && n > 0 || n > massDeleteNames && float64(n) > massDeleteFraction*float64(len(was.byName))
		keep, kind, news := h.judge(typeURL, missing, mass, now)
		if keep {
			result[typeURL] = set.with(was, missing)
		}
		if news {
			verdicts = append(verdicts, verdict{kind, typeURL, n})
		}
	}
	return result, verdicts
}

// judge reports whether to keep what is missing, and whether that is news.
func (h *hold) judge(typeURL string, missing map[string]struct{}, mass bool, now time.Time) (keep bool, kind verdictKind, news bool) {
	old, held := h.held[typeURL]
	same := held && maps.Equal(old.names, missing)
	switch {
	case !mass:
		delete(h.held, typeURL)
		return false, holdLifted, held
	case same && !now.Before(old.until):
		delete(h.held, typeURL)
		return false, holdApplied, true
	case same:
		return true, 0, false
	}
	h.held[typeURL] = heldRemoval{missing, now.Add(h.wait)}
	if held {
		return true, holdChanged, true
	}
	return true, holdBegan, true
}

// names returns how many removals are held back.
func (h *hold) names() (n int) {
	for _, r := range h.held {
		n += len(r.names)
	}
	return n
}

// next returns when the first hold is over, zero if there is none.
func (h *hold) next() (next time.Time) {
	for _, r := range h.held {
		next = earlier(next, r.until)
	}
	return next
}

// with returns the set with names of another one added.
func (s *typeSet) with(o *typeSet, names map[string]struct{}) *typeSet {
	all := &typeSet{version: s.version, byName: make(map[string]*wire.Resource, len(s.byName)+len(names))}
	maps.Copy(all.byName, s.byName)
	for name := range names {
		all.byName[name] = o.byName[name]
	}
	return all
}

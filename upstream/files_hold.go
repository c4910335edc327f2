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

	// kept is what an operator had kept, by type URL: it is served until a file has it
	// again.
	kept map[string]map[string]struct{}

	// released is what an operator released, by type URL, whether it was held back or kept: the
	// next look at the files removes what of it is still missing.
	released map[string]map[string]struct{}
}

type heldRemoval struct {
	names   map[string]struct{}
	since   time.Time
	until   time.Time
	alarmAt time.Time // when to say once more that it is held back
}

// A verdict is what a hold decided anew on a type.
type verdict struct {
	kind    verdictKind
	typeURL string
	names   int
}

type verdictKind int

const (
	holdBegan    verdictKind = iota
	holdChanged              // other names than before: it began anew
	holdApplied              // it is over, and the names are removed
	holdLifted               // the names are back, or too few to hold
	holdReleased             // as holdApplied, since an operator wanted it
)

func newHold(wait time.Duration) hold {
	return hold{
		wait: wait, held: make(map[string]heldRemoval),
		kept: make(map[string]map[string]struct{}), released: make(map[string]map[string]struct{}),
	}
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
		if n := h.frees(typeURL, missing); n > 0 {
			verdicts = append(verdicts, verdict{holdReleased, typeURL, n})
		}
		kept := h.keeps(typeURL, missing)
		n := len(missing)
		mass := doubtful && n > 0 || n > massDeleteNames && float64(n) > massDeleteFraction*float64(len(was.byName))
		keep, kind, news := h.judge(typeURL, missing, mass, now)
		if keep {
			result[typeURL] = set.with(was, missing)
		}
		if len(kept) > 0 {
			result[typeURL] = result[typeURL].with(was, kept)
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
	h.held[typeURL] = heldRemoval{names: missing, since: now, until: now.Add(h.wait), alarmAt: now.Add(alarmEvery)}
	if held {
		return true, holdChanged, true
	}
	return true, holdBegan, true
}

// frees takes out of what is missing what an operator released, and returns how many that are.
func (h *hold) frees(typeURL string, missing map[string]struct{}) (n int) {
	all := len(missing)
	maps.DeleteFunc(missing, func(name string, _ struct{}) bool {
		_, released := h.released[typeURL][name]
		return released
	})
	delete(h.released, typeURL)
	return all - len(missing)
}

// keeps takes out of what is missing, and returns, that which an operator had kept. It
// forgets what is there again.
func (h *hold) keeps(typeURL string, missing map[string]struct{}) map[string]struct{} {
	kept := h.kept[typeURL]
	for name := range kept {
		if _, gone := missing[name]; gone {
			delete(missing, name)
		} else {
			delete(kept, name)
		}
	}
	if len(kept) == 0 {
		delete(h.kept, typeURL)
	}
	return kept
}

// holds implements holder.
func (h *hold) holds() (holds []Hold) {
	for _, typeURL := range slices.Sorted(maps.Keys(h.held)) {
		r := h.held[typeURL]
		holds = append(holds, Hold{TypeURL: typeURL, Names: slices.Sorted(maps.Keys(r.names)), Since: r.since, Until: r.until})
	}
	for _, typeURL := range slices.Sorted(maps.Keys(h.kept)) {
		holds = append(holds, Hold{TypeURL: typeURL, Names: slices.Sorted(maps.Keys(h.kept[typeURL])), Discarded: true})
	}
	return holds
}

// release implements holder: the removals are made by the next look at the files, of what
// is still missing.
func (h *hold) release(of HoldChoice, _ time.Time) []Hold {
	released := h.chosen(of)
	for _, hold := range released {
		if hold.Discarded {
			delete(h.kept, hold.TypeURL)
		} else {
			delete(h.held, hold.TypeURL)
		}
		add(h.released, hold)
	}
	return released
}

// discard implements holder.
func (h *hold) discard(of HoldChoice, _ time.Time) (discarded []Hold) {
	for _, hold := range h.chosen(of) {
		delete(h.held, hold.TypeURL)
		add(h.kept, hold)
		discarded = append(discarded, hold)
	}
	return discarded
}

// add adds the names of a hold to those of its type.
func add(to map[string]map[string]struct{}, hold Hold) {
	names := to[hold.TypeURL]
	if names == nil {
		names = make(map[string]struct{}, len(hold.Names))
		to[hold.TypeURL] = names
	}
	for _, name := range hold.Names {
		names[name] = struct{}{}
	}
}

func (h *hold) chosen(of HoldChoice) []Hold {
	return slices.DeleteFunc(h.holds(), func(hold Hold) bool { return !of.takes(hold.TypeURL) || hold.Discarded != of.Discarded })
}

// alarms returns the holds of which it is time to say once more that they go on.
func (h *hold) alarms(now time.Time) (on []Hold) {
	for _, hold := range h.holds() {
		if r := h.held[hold.TypeURL]; !hold.Discarded && !now.Before(r.alarmAt) {
			r.alarmAt = now.Add(alarmEvery)
			h.held[hold.TypeURL] = r
			on = append(on, hold)
		}
	}
	return on
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

package upstream

import (
	"iter"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/xdstender/tender/cache/wire"
)

// fileHolds keep back removals from the types of a directory that are too many to be believed at once. A file that is there and
// lacks a resource that it had states its removal; that of a file that is gone is inferred. It does no I/O and knows no clock.
type fileHolds struct {
	wait     time.Duration
	explicit bool                 // keep back also what is stated
	types    map[string]*removals // by type URL
	counters *counters
}

func newFileHolds(wait time.Duration, explicit bool, c *counters) fileHolds {
	return fileHolds{wait: wait, explicit: explicit, types: make(map[string]*removals), counters: c}
}

// What one look at a directory found.
type looked struct {
	found    sets
	vanished map[string]map[string]struct{} // names that files had which are gone, by type URL
	empty    bool                           // no file is there: not a single removal is to be believed at once
}

// A decision is what was decided anew on the removals from a type.
type decision struct {
	typeURL                 string
	held, removed, released int  // resources
	over                    bool // nothing is held back any more
}

// admit returns what to serve of what was found, where so far something else was
// served: all of it, and what seems to be removed and stays. The types that were
// served stay in the result, even if they are empty.
func (h *fileHolds) admit(serving sets, look looked, now time.Time) (sets, []decision) {
	result := make(sets, max(len(look.found), len(serving)))
	maps.Copy(result, look.found)
	for typeURL := range serving {
		if result[typeURL] == nil {
			result[typeURL] = new(typeSet)
		}
	}
	// What needs others is judged before them.
	needing := []string{wire.ListenerType, wire.ScopedRouteType, wire.ClusterType, wire.RouteType}
	inOrder := append(needing, slices.DeleteFunc(slices.Sorted(maps.Keys(result)), func(typeURL string) bool { return slices.Contains(needing, typeURL) })...)
	staying := func(typeURL string) (resources []*wire.Resource) {
		if r := h.types[typeURL]; r != nil {
			for name := range r.staying() {
				resources = append(resources, serving[typeURL].byName[name])
			}
		}
		return resources
	}
	var decisions []decision
	for _, typeURL := range inOrder {
		if set := result[typeURL]; set != nil {
			needed := needed(typeURL, staying, serving[typeURL].names())
			s := screening{confirmed: true, holdExplicit: h.explicit, needed: needed, mayBeNeeded: needed, wait: h.wait, now: now}
			d, staying := h.judge(typeURL, serving[typeURL], set, look, s)
			if len(staying) > 0 {
				result[typeURL] = set.with(serving[typeURL], staying)
			}
			if d != (decision{typeURL: typeURL}) {
				decisions = append(decisions, d)
			}
		}
	}
	return result, decisions
}

// judge decides what can be decided on a type, of which a set was served and another one was found. It returns what is served
// although it is missing.
func (h *fileHolds) judge(typeURL string, was, found *typeSet, look looked, s screening) (d decision, staying map[string]struct{}) {
	d.typeURL = typeURL
	missing := was.without(found)
	if h.types[typeURL] == nil && len(missing) == 0 {
		return d, nil
	}
	r := h.of(typeURL)
	s.has = was.get
	held := len(r.held)
	for name := range found.byName {
		r.mention(name, s)
	}
	r.due(s.now) // this is the second look
	inferred, stated := make(map[string]struct{}), wire.Update{TypeURL: typeURL}
	for name := range missing {
		_, vanished := look.vanished[typeURL][name]
		if look.empty || vanished || r.knows(name) {
			inferred[name] = struct{}{}
		} else {
			stated.Removed = append(stated.Removed, name)
		}
	}
	r.infer(inferred, look.empty)
	stated = r.screen(stated, s)
	r.added = len(found.without(was))
	v := r.judge(typeURL, len(was.byName)+r.added, s)
	if staying = r.staying(); len(staying) == 0 {
		delete(h.types, typeURL)
	}
	d.held, d.removed, d.released = v.held, len(v.removed)+len(stated.Removed), v.released
	d.over = held > 0 && len(r.held) == 0
	h.counters.held.Add(int64(d.held))
	h.counters.applied.Add(int64(d.removed))
	r.count(&h.counters.holding)
	return d, staying
}

// of returns the removals from a type.
func (h *fileHolds) of(typeURL string) *removals {
	r := h.types[typeURL]
	if r == nil {
		r = new(removals)
		h.types[typeURL] = r
	}
	return r
}

// dockets returns what operators may decide on. What they decide is carried out by the next look at the files, as far as resources
// are still missing.
func (h *fileHolds) dockets() (all []docket) {
	for _, typeURL := range slices.Sorted(maps.Keys(h.types)) {
		r := h.types[typeURL]
		all = append(all, docket{r, func() []Hold { return r.holds(typeURL, h.next()) }, func([]Hold, bool, time.Time) {}})
	}
	return all
}

// alarm logs now and then what is still held back.
func (h *fileHolds) alarm(log *slog.Logger, now time.Time) {
	for _, typeURL := range slices.Sorted(maps.Keys(h.types)) {
		h.types[typeURL].alarm(typeURL, log, now)
	}
}

// next returns when the first hold is over, zero if there is none.
func (h *fileHolds) next() (next time.Time) {
	for _, r := range h.types {
		next = earlier(next, r.until)
	}
	return next
}

// names yields those of its resources.
func (s *typeSet) names() iter.Seq[string] {
	if s == nil {
		return func(func(string) bool) {}
	}
	return maps.Keys(s.byName)
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

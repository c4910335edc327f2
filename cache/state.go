package cache

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/xdstender/tender/cache/fingerprint"
	"github.com/xdstender/tender/cache/wire"
)

// A State is the configuration that readers of a view receive from one source, limited to the types for which
// Config.Waits is true: no endpoints and no Secrets. It is immutable and made from an immutable generation, without
// blocking writers.
type State struct {
	view       *View
	source     int
	generation *Generation
	sums       map[setKey]fingerprint.Sum // of the resources present
}

// A setKey names one of the sets of a type or collection.
type setKey struct {
	key  string
	kind Kind
}

// A Former is a resource as it was served before it changed.
type Former struct {
	Key      string // type URL or collection
	Kind     Kind
	Name     string
	Resource *wire.Resource // nil if it did not exist
	Deadline time.Time      // expiry; zero is never
}

// A Step is the difference between two states of a source.
type Step struct {
	// Formers are the resources that differ, in their former state. They do not include first state (the first response
	// for a name, and members of a set that was not confirmed yet), nor content that may not be cached (R125).
	Formers                 []Former
	Added, Changed, Removed int // of Formers

	// Broken reports that a wildcard set was dropped between the states, so that the changes of its source are unknown.
	Broken bool
}

// NewState returns the state of a source in the newest generation of the view.
func (v *View) NewState(source int) *State {
	empty := &Generation{sources: make([]Source, len(v.index.sources))}
	s, _ := (&State{view: v, source: source, generation: empty}).Next(v.Generation())
	return s
}

// Digest returns a digest of the resources of the state. It is equal on replicas that serve the same resources, and
// empty if there are none.
func (s *State) Digest() string {
	var keys []setKey
	for key, sum := range s.sums {
		if sum != (fingerprint.Sum{}) {
			keys = append(keys, key)
		}
	}
	if len(keys) == 0 {
		return ""
	}
	slices.SortFunc(keys, setKey.compare)
	digest := sha256.New()
	for _, key := range keys {
		kind := [...]string{"members", "named"}[key.kind]
		digest.Write([]byte(key.key + "\x00" + kind + "\x00" + s.sums[key].Version("") + "\x00"))
	}
	return hex.EncodeToString(digest.Sum(nil)[:6])
}

// Of returns the generation from which the state was made.
func (s *State) Of() *Generation { return s.generation }

// Changed reports whether a type of the state changed in a generation of the view after a revision.
func (s *State) Changed(after uint64, to *Generation) bool {
	for t := range to.types.since(after) {
		if s.view.cfg.Waits(resourceType(t.URL)) {
			return true
		}
	}
	return false
}

// Next returns the state of the source in a later generation of the view, and the difference. Its cost is proportional
// to the number of changes.
func (s *State) Next(to *Generation) (*State, Step) {
	next := &State{view: s.view, source: s.source, generation: to, sums: maps.Clone(s.sums)}
	if next.sums == nil {
		next.sums = make(map[setKey]fingerprint.Sum)
	}
	c := comparer{State: next, formers: make(map[formerKey]Former)}
	for t := range to.types.since(s.generation.Revision) {
		if s.view.cfg.Waits(resourceType(t.URL)) {
			c.compareType(s.generation.Type(t.URL), t)
		}
	}
	maps.DeleteFunc(next.sums, func(key setKey, _ fingerprint.Sum) bool {
		dropped := to.types.get(key.key) == nil
		c.broken = c.broken || dropped && key.kind == Wildcard && s.generation.Type(key.key).Wildcard.count > 0
		return dropped
	})
	return next, c.step()
}

func (k setKey) compare(o setKey) int {
	return cmp.Or(cmp.Compare(k.key, o.key), cmp.Compare(k.kind, o.kind))
}

// A formerKey names one entry.
type formerKey struct {
	setKey
	name string
}

func (k formerKey) compare(o formerKey) int {
	return cmp.Or(k.setKey.compare(o.setKey), cmp.Compare(k.name, o.name))
}

// A comparer finds the difference between two states.
type comparer struct {
	*State  // the later one
	formers map[formerKey]Former
	broken  bool
	present map[formerKey]bool // the formers that are present in the later state
}

// compareType compares two versions of a type.
func (c *comparer) compareType(old, updated *Type) {
	for _, kind := range kinds {
		forgotten := kind == Wildcard && old.era != updated.era && old.Wildcard.count > 0
		c.broken = c.broken || forgotten
		at := setKey{updated.URL, kind}
		for before, after := range differences(old.Set(kind), updated.Set(kind)) {
			n := nameOf(before, after)
			if kind == Wildcard && updated.source != c.source || kind == ByName && n.source != c.source {
				continue
			}
			c.sums[at] = c.sums[at].Sub(before.leaf()).Add(after.leaf())
			if !forgotten && old.HasLastGood(kind) {
				c.comparePair(at, before, after)
			}
		}
	}
}

// comparePair records the difference of two entries of one name, either of which may be nil.
func (c *comparer) comparePair(at setKey, before, after *Entry) {
	if before.Present() == after.Present() &&
		(!before.Present() || before.Resource.SameContent(after.Resource)) {
		return
	}
	id := formerKey{at, nameOf(before, after).text}
	if after.Present() {
		if c.present == nil {
			c.present = make(map[formerKey]bool)
		}
		c.present[id] = true
	}
	recorded, repeated := c.formers[id]
	switch {
	case at.kind == ByName && (before == nil || after == nil), !cacheable(before):
		return // the first response for the name, or the last unsubscription from it
	case repeated && recorded.Resource != nil: // the name was removed and created again
		return
	}
	f := Former{Key: at.key, Kind: at.kind, Name: id.name}
	if before.Present() {
		f.Resource, f.Deadline = before.Resource, before.Deadline()
	}
	c.formers[id] = f
}

// step returns the recorded differences, in order.
func (c *comparer) step() Step {
	s := Step{Broken: c.broken}
	for _, id := range slices.SortedFunc(maps.Keys(c.formers), formerKey.compare) {
		f := c.formers[id]
		switch present := c.present[id]; {
		case f.Resource == nil && present:
			s.Added++
		case f.Resource != nil && present:
			s.Changed++
		case f.Resource != nil:
			s.Removed++
		}
		s.Formers = append(s.Formers, f)
	}
	return s
}

func nameOf(before, after *Entry) *Name {
	if before != nil {
		return before.Name
	}
	return after.Name
}

// differences yields pairs of entries of the same name that differ between two sets. One entry of a pair may be nil.
func differences(old, updated *Set) iter.Seq2[*Entry, *Entry] {
	return func(yield func(*Entry, *Entry) bool) {
		for before, after := range old.table.Differences(updated.table) {
			if before != nil && after != nil && before.Name != after.Name { // the id was reused
				if !yield(before, nil) || !yield(nil, after) {
					return
				}
				continue
			}
			if !yield(before, after) {
				return
			}
		}
	}
}

package rollout

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream"
	"github.com/xdstender/tender/pending"
	"github.com/xdstender/tender/upstream"
)

// A Section is the state of an origin that one writer keeps: the resources of a node group, or those that the group shares
// with others. An edition of a part may change resources of several sections.
type Section struct {
	c       *Controller
	Key     SectionKey
	view    *cache.View // of the rest
	source  int
	control *upstream.Control

	waiting atomic.Pointer[pending.Staged] // number and age of the pending changes

	// Owned by Run once the section has joined.
	of             map[*part]*sectionPart
	compared       []comparedEdition // the editions that latest is compared with
	unsettledSince time.Time         // start of the wait for the origin to confirm its state; zero without a wait
	unavailable    bool              // the wait has lasted for unavailableAfter; see updateUnavailable
	distrusts      bool              // its views have the distrusted versions of withdrawn editions
}

// A sectionPart is the state of a part in a section.
type sectionPart struct {
	editions map[Edition]*pending.Edition // that may be served again or are compared with latest

	// Of the edition for the clients of each cohort, and of the one that was withdrawn last. Guarded by tracker.mu.
	shown, withdrawn [maxCohorts]shownChanges
}

// shownChanges are the changes that clients of a cohort are sent, and the names of each.
type shownChanges struct {
	changes []downstream.Change
	names   []*nameSet
}

// all returns the editions of the part.
func (sp *sectionPart) all() (all []*pending.Edition) {
	if sp == nil {
		return nil
	}
	for _, number := range slices.Sorted(maps.Keys(sp.editions)) {
		all = append(all, sp.editions[number])
	}
	return all
}

// A comparedEdition is an edition of a part.
type comparedEdition struct {
	*part
	*pending.Edition
}

// A SectionKey identifies a section across restarts.
type SectionKey struct {
	Group  string // the key of the node group
	Shared bool   // the section that the group shares with others
}

// NewSection returns a section that has not joined yet.
func (c *Controller) NewSection(key SectionKey) *Section {
	s := &Section{c: c, Key: key, of: make(map[*part]*sectionPart)}
	s.waiting.Store(new(pending.Staged))
	for p, withdrawn := range c.restored {
		s.set(p, restoredEdition, &pending.Edition{Changes: withdrawn.Changes[key]})
	}
	return s
}

// edition returns an edition of a part; nil if the section has none.
func (s *Section) edition(p *part, number Edition) *pending.Edition {
	if s.of[p] == nil {
		return nil
	}
	return s.of[p].editions[number]
}

// set sets an edition of a part.
func (s *Section) set(p *part, number Edition, e *pending.Edition) {
	if s.of[p] == nil {
		s.c.tracker.mu.Lock()
		s.of[p] = &sectionPart{editions: make(map[Edition]*pending.Edition)}
		s.c.tracker.mu.Unlock()
	}
	s.of[p].editions[number] = e
}

// allEditions returns the editions of all parts.
func (s *Section) allEditions() (all []*pending.Edition) {
	for _, of := range s.of {
		all = append(all, of.all()...)
	}
	return all
}

// countOf returns what waits of the names that the edition of a part changes.
func (s *Section) countOf(p *part) (n pending.Count) {
	w := s.waiting.Load()
	at := slices.IndexFunc(s.compared, func(of comparedEdition) bool { return of.part == p })
	if at >= 0 && at < len(w.Of) {
		n = w.Of[at]
	}
	return n
}

// compare orders sections by their keys.
func (s *Section) compare(o *Section) int { return s.Key.Compare(o.Key) }

// SetWaiting records what waits for stages in the section. It does not block.
func (p *Section) SetWaiting(now pending.Staged) {
	p.waiting.Store(&now)
	p.c.Poke()
}

// Poke makes the controller look at the section again, because the origin may have confirmed its state. It does not block.
func (p *Section) Poke() { p.c.Poke() }

// Join adds the section to rollouts. view is the view of the rest. The loop of control writes the source.
func (p *Section) Join(view *cache.View, source int, control *upstream.Control) {
	p.view, p.source, p.control = view, source, control
	p.c.tracker.join(p)
}

// Leave removes the section from rollouts.
func (p *Section) Leave() {
	p.c.tracker.leave(p)
}

// changedBy reports whether an edition of a part changes a resource of the section.
func (s *Section) changedBy(p *part, number Edition) bool {
	e := s.edition(p, number)
	return e != nil && len(e.Changes) > 0
}

// A summary describes an edition for operators.
type summary struct {
	id        string
	name      string      // of the resource that the part is named after
	sum       wire.Digest // digest of all changes; equal changes have equal digests, also after a restart
	resources int
	large     bool
}

// summarize returns the summary of an edition.
func summarize(changes Changes) (s summary) {
	hash, first := sha256.New(), resourceName{}
	for _, key := range slices.SortedFunc(maps.Keys(changes), SectionKey.Compare) {
		for _, typ := range slices.Sorted(maps.Keys(changes[key])) {
			names := changes[key][typ]
			s.resources += len(names)
			for _, name := range slices.Sorted(maps.Keys(names)) {
				if id := nameOf(typ, name); s.name == "" || id.compare(first) < 0 {
					first, s.name = id, id.String()
				}
				digest := names[name]
				hash.Write([]byte(key.Group + "\x00" + typ + "\x00" + name + "\x00"))
				hash.Write(digest[:])
			}
		}
	}
	hash.Sum(s.sum[:0])
	s.id = hex.EncodeToString(s.sum[:4])
	return s
}

// Compare orders keys by group. The shared section of a group is last.
func (k SectionKey) Compare(o SectionKey) int {
	if c := cmp.Compare(k.Group, o.Group); c != 0 || k.Shared == o.Shared {
		return c
	}
	if k.Shared {
		return 1
	}
	return -1
}

package files

import (
	"iter"
	"log/slog"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/upstream/reconcile"
)

// A reader has the content of the directory, and what is served of it. It starts no goroutine.
type reader struct {
	dir     string
	log     *slog.Logger
	shelf   shelf
	found   sets  // the content of the shelf
	changed []Bad // files that became bad or good, and were not logged yet
	group   *reconcile.Group
	sets    map[string]*set // by type URL
	trouble string          // the error of the directory itself that was logged last

	standing atomic.Pointer[Status] // for any goroutine

	settled chan struct{} // closed once known is set, or there was no file
	known   bool          // some file was good; until then, clients wait
	waiting bool          // it was logged that no file was good
	serving sets          // has every type that was ever served, which may be empty; never modified
}

func newReader(cfg *Config) *reader {
	r := &reader{
		dir: cfg.Dir, log: cfg.Logger, group: reconcile.NewGroup(cfg.reconcile()), sets: make(map[string]*set),
		settled: make(chan struct{}), shelf: make(shelf), serving: make(sets),
	}
	r.standing.Store(new(Status))
	return r
}

// A Status is the state of the files of a directory.
type Status struct {
	Files   int       // in the directory
	Bad     []Bad     // files that are bad, or bad for some names, by file name
	Trouble error     // why the directory itself cannot be read; nil if it can
	At      time.Time // when the directory was read last
}

// A look is the content of a directory at one time.
type look struct {
	found    sets
	vanished map[string]map[string]struct{} // names of resources in deleted files, by type URL
	empty    bool                           // there is no file: every removal is suspect
}

// A set is what is served of one type of a directory: the resources in the files, and those whose removal is held back.
type set struct {
	*reconcile.Set
	reader *reader
}

// set returns the set of a type.
func (r *reader) set(typeURL string) *set {
	s := r.sets[typeURL]
	if s == nil {
		s = &set{reader: r}
		s.Set = r.group.NewSet(typeURL, "", s)
		r.sets[typeURL] = s
	}
	return s
}

// Get implements reconcile.Content.
func (s *set) Get(name string) *wire.Resource { return s.reader.serving.of(s.TypeURL).byName[name] }

// Names implements reconcile.Content.
func (s *set) Names() iter.Seq[string] { return maps.Keys(s.reader.serving.of(s.TypeURL).byName) }

// Count implements reconcile.Content.
func (s *set) Count() int { return len(s.reader.serving.of(s.TypeURL).byName) }

// Complete implements reconcile.Content: a directory is known as a whole.
func (s *set) Complete() (at time.Time, ok bool) { return time.Time{}, true }

// Remove implements reconcile.Content.
func (s *set) Remove(r *reconcile.Removals) {
	s.apply(wire.Update{TypeURL: s.TypeURL, Resources: r.Emptied, Removed: r.Names})
}

// apply serves what an update makes of a type.
func (s *set) apply(u wire.Update) (c cache.Change) {
	was := s.reader.serving.of(s.TypeURL)
	is := &typeSet{version: u.SystemVersion, byName: make(map[string]*wire.Resource, len(was.byName)+len(u.Resources))}
	maps.Copy(is.byName, was.byName)
	for _, r := range u.Resources {
		is.byName[r.Name] = r
	}
	c.New = len(is.byName) - len(was.byName)
	for _, name := range u.Removed {
		delete(is.byName, name)
	}
	s.reader.serve(s.TypeURL, is)
	return c
}

// serve has a set of a type served.
func (r *reader) serve(typeURL string, is *typeSet) {
	r.serving = maps.Clone(r.serving) // other goroutines have it
	r.serving[typeURL] = is
}

// admit serves the resources that were found, and those whose removal is held back. A file that lacks a resource that it
// had states its removal; the removal of the resources of a deleted file is inferred. Types that were served stay, even
// if they are empty. A set that has not changed keeps its pointer.
func (r *reader) admit(look look, now time.Time) (next time.Time) {
	was, held := r.serving, r.group.Holding()
	r.group.Look(now) // which this is
	all := make(sets, max(len(look.found), len(was)))
	maps.Copy(all, look.found)
	for typeURL := range was {
		if all[typeURL] == nil {
			all[typeURL] = new(typeSet)
		}
	}
	order, stated := slices.Sorted(maps.Keys(all)), make(map[string][]string)
	for _, typeURL := range order { // a resource whose removal is inferred may need one whose removal is stated
		stated[typeURL] = r.infer(typeURL, was.of(typeURL).without(all[typeURL]), look)
	}
	for _, typeURL := range order {
		if is := all[typeURL]; r.group.Busy() || len(stated[typeURL]) > 0 {
			u := wire.Update{TypeURL: typeURL, SystemVersion: is.version, Resources: slices.Collect(maps.Values(is.byName)), Removed: stated[typeURL]}
			s := r.set(typeURL)
			s.Take(u, now, s.apply)
		} else {
			r.serve(typeURL, is)
		}
	}
	next = r.group.Decide(now)
	for typeURL, set := range r.serving {
		if before := was[typeURL]; before != nil && before.equal(set) {
			r.serve(typeURL, before)
		}
	}
	if held > 0 && r.group.Holding() == 0 {
		r.log.Info("no removal is held back any more", slog.String("dir", r.dir))
	}
	return next
}

// infer infers which of the missing resources are removed, and returns the names whose removal the files state.
func (r *reader) infer(typeURL string, missing map[string]struct{}, look look) (stated []string) {
	s := r.set(typeURL)
	gone := make(map[string]struct{})
	for name := range missing {
		if _, vanished := look.vanished[typeURL][name]; look.empty || vanished || s.Suspects(name) {
			gone[name] = struct{}{}
		} else {
			stated = append(stated, name)
		}
	}
	s.Infer(maps.Keys(gone), look.empty)
	return stated
}

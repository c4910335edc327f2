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
	files   fileStates
	content   sets  // the content of the shelf
	changed []Bad // files that became bad or good, and were not logged yet
	group   *reconcile.Group
	sets    map[string]*set // by type URL
	loggedError string          // the error of the directory itself that was logged last

	status atomic.Pointer[Status]           // for any goroutine
	broken   atomic.Pointer[[]reconcile.Hold] // likewise

	contentKnown chan struct{} // closed once known is set, or there was no file
	hasContent   bool          // some file was good; until then, clients wait
	waitLogged bool          // it was logged that no file was good
	serving sets          // has every type that was ever served, which may be empty; never modified
}

func newReader(cfg *Config) *reader {
	r := &reader{
		dir: cfg.Dir, log: cfg.Logger, group: reconcile.NewGroup(cfg.reconcile()), sets: make(map[string]*set),
		contentKnown: make(chan struct{}), files: make(fileStates), serving: make(sets),
	}
	r.status.Store(new(Status))
	return r
}

// A Status is the state of the files of a directory.
type Status struct {
	Files   int       // in the directory
	Bad     []Bad     // files that are bad, or bad for some names, by file name
	Trouble error     // why the directory itself cannot be read; nil if it can
	At      time.Time // when the directory was read last
}

// A set is what is served of one type of a directory: the resources in the files, and those whose removal is held back.
type set struct {
	*reconcile.Set
	reader *reader
	content  *typeSet // at the last read
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

// Apply implements reconcile.Content.
func (s *set) Apply(u wire.Update) (c cache.Change) {
	was := s.reader.serving.of(s.TypeURL)
	is := &typeSet{version: u.SystemVersion, byName: make(map[string]*wire.Resource, max(len(was.byName), len(u.Resources)))}
	maps.Copy(is.byName, was.byName)
	for _, r := range u.Resources {
		is.byName[r.Name] = r
	}
	c.New = len(is.byName) - len(was.byName)
	for _, name := range u.Removed {
		delete(is.byName, name)
	}
	s.reader.serving = maps.Clone(s.reader.serving) // other goroutines have it
	s.reader.serving[s.TypeURL] = is
	return c
}

// admit serves the resources that were found, and those whose removal is held back. A file that lacks a resource that it
// had states its removal; the removal of the resources of a deleted file is inferred, and if there is no file at all, every
// removal is suspect. Types that were served stay, even if they are empty. A set that has not changed keeps its pointer.
func (r *reader) serve(found sets, vanished map[string]map[string]struct{}, empty bool, now time.Time) (next time.Time) {
	was, held := r.serving, r.group.Holding()
	r.group.Look(now) // which this is
	all := maps.Clone(was)
	maps.Copy(all, found)
	order, stated := slices.Sorted(maps.Keys(all)), make(map[string][]string)
	for _, typeURL := range order { // a resource whose removal is inferred may need one whose removal is stated
		stated[typeURL] = r.set(typeURL).inferRemovals(was.of(typeURL).without(found.of(typeURL)), vanished[typeURL], empty)
	}
	for _, typeURL := range order {
		s, is := r.set(typeURL), found.of(typeURL)
		if is == s.content && !r.group.Busy() {
			continue // what it lacks was removed then
		}
		s.content = is
		u := wire.Update{TypeURL: typeURL, SystemVersion: is.version, Resources: slices.Collect(maps.Values(is.byName)), Removed: stated[typeURL]}
		s.Take(u, now)
	}
	next = r.group.Decide(now)
	r.publishBroken()
	for typeURL, set := range r.serving {
		if before := was[typeURL]; before != nil && before != set && before.equal(set) {
			r.serving[typeURL] = before // it was put there by Apply
		}
	}
	if held > 0 && r.group.Holding() == 0 {
		r.log.Info("no removal is held back any more", slog.String("dir", r.dir))
	}
	return next
}

// publishBroken publishes the changes that are held since they break clients.
func (r *reader) publishBroken() {
	all := r.group.Broken()
	r.broken.Store(&all)
}

// infer infers which of the missing resources are removed, and returns the names whose removal the files state.
func (s *set) inferRemovals(missing, vanished map[string]struct{}, empty bool) (stated []string) {
	var gone []string
	for name := range missing {
		if _, is := vanished[name]; is || empty || s.Suspects(name) {
			gone = append(gone, name)
		} else {
			stated = append(stated, name)
		}
	}
	s.Infer(slices.Values(gone), empty)
	return stated
}

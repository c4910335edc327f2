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
	"github.com/xdstender/tender/pending"
	"github.com/xdstender/tender/upstream/reconcile"
)

// A reader reads the directory and decides what to serve. It starts no goroutine. The goroutine that took it from
// Origin.idleReader owns it.
type reader struct {
	dir         string
	log         *slog.Logger
	files       fileStates
	content     sets      // resources in the files
	changed     []BadFile // files that became bad or good, until they are logged
	group       *reconcile.Group
	sets        map[string]*set // by type URL
	loggedError string          // the error of the directory that was logged last

	status atomic.Pointer[Status] // read by any goroutine

	contentKnown chan struct{} // closed when hasContent is set, or if there is no file
	hasContent   bool          // a file was good; until then, clients wait
	waitLogged   bool          // the lack of a good file was logged
	serving      sets          // all types that were ever served, some may be empty; replaced, never modified
	waited       pending.Delay // of the oldest change since the last publication that has waited

	settleTime time.Duration // how long after the first good file the others are part of the first state
	knownAt    time.Time     // when that time is over; zero before the first good file
	awaited    additions     // that wait; replaced, never modified
}

// additions are the names of resources that the files add, and that wait, by type URL.
type additions map[string]map[string]struct{}

// newReader returns a reader that has not read the directory yet.
func newReader(cfg *Config) *reader {
	r := &reader{
		dir: cfg.Dir, log: cfg.Logger, group: reconcile.NewGroup(cfg.reconcile()), sets: make(map[string]*set),
		contentKnown: make(chan struct{}), files: make(fileStates), serving: make(sets),
		settleTime: cfg.ColdWait,
	}
	r.status.Store(new(Status))
	return r
}

// A Status is the state of the files of a directory at the last read.
type Status struct {
	Files int       // number of files
	Bad   []BadFile // files that are bad, or bad for some names, by file name
	Err   error     // why the directory itself cannot be read; nil if it can
	At    time.Time // time of the read
}

// A set contains the served resources of one type of a directory: those in the files, and those whose removal is
// pending or was dropped.
type set struct {
	*reconcile.Set
	reader  *reader
	content *typeSet // resources in the files at the last read
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

// CompleteAt implements reconcile.Content. A directory is always complete.
func (s *set) CompleteAt() (at time.Time, ok bool) { return time.Time{}, true }

// Known implements reconcile.Content. The files of a directory may be written one by one.
func (s *set) Known(now time.Time) bool { return s.reader.hasContent && now.After(s.reader.knownAt) }

// Await implements reconcile.Content. The publication has the additions.
func (s *set) Await(names, ended []string) {
	is := make(map[string]struct{}, len(names))
	maps.Copy(is, s.reader.awaited[s.TypeURL])
	for _, name := range names {
		is[name] = struct{}{}
	}
	for _, name := range ended {
		delete(is, name)
	}
	maps.DeleteFunc(is, func(name string, _ struct{}) bool { return s.Get(name) != nil }) // they were applied
	all := make(additions, len(s.reader.awaited)+1)
	maps.Copy(all, s.reader.awaited)
	all[s.TypeURL] = is
	s.reader.awaited = all
}

// Cause implements reconcile.Content. It is that of the views, which have their own traces.
func (s *set) Cause() (c cache.Cause) { return c }

// Apply implements reconcile.Content.
func (s *set) Apply(u wire.Update, waited pending.Delay) (c cache.Change) {
	s.reader.waited = s.reader.waited.Oldest(waited)
	was := s.reader.serving.of(s.TypeURL)
	byName := make(map[string]*wire.Resource, max(len(was.byName), len(u.Resources)))
	is := &typeSet{version: u.SystemVersion, byName: byName}
	maps.Copy(is.byName, was.byName)
	for _, r := range u.Resources {
		is.byName[r.Name] = r
	}
	c.New = len(is.byName) - len(was.byName)
	for _, name := range u.Removed {
		delete(is.byName, name)
	}
	s.reader.serving = maps.Clone(s.reader.serving) // other goroutines may use the old map
	s.reader.serving[s.TypeURL] = is
	return c
}

// serve updates the served resources: those that were found, and those whose removal is pending. If a file no longer
// contains a resource, the removal is explicit. If a file was deleted, the removal of its resources is inferred. If
// there is no file at all, every removal is suspect. A served type stays, even if it is empty. A set that has not
// changed keeps its pointer. serve returns when to call it again; zero if no removal is pending.
func (r *reader) serve(found sets, deleted map[string]map[string]struct{}, empty bool, now time.Time) (next time.Time) {
	was := r.serving
	r.group.StartSecondLooks(now) // this read is the second check of pending removals
	all := maps.Clone(was)
	maps.Copy(all, found)
	order, stated := slices.Sorted(maps.Keys(all)), make(map[string][]string)
	// Infer the removals of all types first: a resource whose removal is inferred may reference one whose removal is
	// explicit.
	for _, typeURL := range order {
		missing := was.of(typeURL).without(found.of(typeURL))
		stated[typeURL] = r.set(typeURL).inferRemovals(missing, deleted[typeURL], empty, now)
	}
	for _, typeURL := range order {
		s, is := r.set(typeURL), found.of(typeURL)
		if is == s.content && !r.group.HasRemovals() {
			continue // unchanged, and all removals were applied
		}
		s.content = is
		s.Take(wire.Update{
			TypeURL: typeURL, SystemVersion: is.version,
			Resources: slices.Collect(maps.Values(is.byName)), Removed: stated[typeURL],
		}, now)
	}
	next = r.group.Decide(now)
	for typeURL, set := range r.serving {
		if before := was[typeURL]; before != nil && before != set && before.equal(set) {
			r.serving[typeURL] = before // keep the pointer: Apply has made an equal copy
		}
	}
	return next
}

// inferRemovals divides the missing resources: it passes inferred removals to the set, and returns the names whose
// removal is explicit. deleted are the names in deleted files; empty reports that there is no file at all.
func (s *set) inferRemovals(
	missing, deleted map[string]struct{}, empty bool, now time.Time,
) (stated []string) {
	var inferred []string
	for name := range missing {
		if _, ok := deleted[name]; ok || empty || s.HasRemoval(name) {
			inferred = append(inferred, name)
		} else {
			stated = append(stated, name)
		}
	}
	s.Infer(slices.Values(inferred), empty, now)
	return stated
}

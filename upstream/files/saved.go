package files

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/upstream/reconcile"
)

// Freeze makes frozen views, also those that begin later, show the content that the directory has now, until Thaw. Without
// it, a view that begins frozen shows the content at that time.
func (f *Origin) Freeze(ctx context.Context) {
	f.withReader(ctx, func(r *reader) {
		if serving := r.serving; r.hasContent && f.frozenSets.Load() == nil {
			f.frozenSets.Store(&serving)
		}
	})
}

// Thaw ends that. It is called before views are thawed.
func (f *Origin) Thaw() { f.frozenSets.Store(nil) }

// Thawing returns a function that cuts an edition of what a thaw shows the readers of a view, which the goroutine of
// its writer calls. It is about the content that the directory has now: a frozen view has applied none of it.
func (f *Origin) Thawing(ctx context.Context) func(*cache.Writer) *cache.Edition {
	var now sets // nil if nothing is known
	f.withReader(ctx, func(r *reader) {
		if r.hasContent {
			now = r.serving
		}
	})
	return func(w *cache.Writer) *cache.Edition {
		if now == nil || !w.Frozen() {
			return w.PinThawed()
		}
		var all []cache.Former
		for t := range w.View().Generation().ChangedSince(0) {
			all = append(all, now.replacements(t)...)
		}
		return w.PinThawedAs(all)
	}
}

// replacing returns the resources that take the place of those of a type, and of those that have no replacement, that
// they are gone.
func (s sets) replacements(t *cache.Type) (all []cache.Former) {
	typeURL, glob, isCollection := cache.SplitCollection(t.URL)
	set := s.of(typeURL).byName
	for e := range t.Wildcard.Since(0) {
		if set[e.Name.String()] == nil {
			all = append(all, cache.Former{Key: t.URL, Kind: cache.Wildcard, Name: e.Name.String()})
		}
	}
	for name, r := range set {
		of, _ := wire.GlobOf(name)
		if t.Phase >= cache.Settled && (!isCollection || of == glob) {
			all = append(all, cache.Former{Key: t.URL, Kind: cache.Wildcard, Name: name, Resource: r})
		}
	}
	for e := range t.ByName.Since(0) {
		name := e.Name.String()
		all = append(all, cache.Former{Key: t.URL, Kind: cache.ByName, Name: name, Resource: find(set, name)})
	}
	return all
}

// A Saved has the served resources that a new process cannot find in the files: all resources while the directory is
// frozen, else those that an operator has kept. It is immutable.
type Saved struct {
	frozen *sets // identifies what was frozen
	sets   sets
}

// Same reports whether both hold the same. Either may be nil.
func (s *Saved) Same(o *Saved) bool {
	if s == nil || o == nil {
		return s == o
	}
	return s.frozen == o.frozen && (s.frozen != nil || maps.EqualFunc(s.sets, o.sets, (*typeSet).equal))
}

// Saved returns what a new process cannot find in the files; nil if there is nothing.
func (f *Origin) Saved(ctx context.Context) (saved *Saved) {
	f.withReader(ctx, func(r *reader) {
		frozen := f.frozenSets.Load()
		switch {
		case frozen != nil:
			saved = &Saved{frozen, *frozen}
		default:
			if kept := r.keptSets(); len(kept) > 0 {
				saved = &Saved{sets: kept}
			}
		}
	})
	return saved
}

// kept returns the resources that an operator has kept.
func (r *reader) keptSets() sets {
	all := make(sets)
	for _, hold := range r.group.Operate(reconcile.Command{}, time.Now()) {
		if !hold.Discarded || hold.Broken {
			continue
		}
		set := &typeSet{byName: make(map[string]*wire.Resource, len(hold.Names))}
		for _, name := range hold.Names {
			if resource := r.serving.of(hold.TypeURL).byName[name]; resource != nil {
				set.byName[name] = resource
			}
		}
		all[hold.TypeURL] = set
	}
	return all
}

// Snapshot returns what is to be stored. As in a snapshot of a view, it omits Secrets, and the content of resources with
// do_not_cache and, unless sensitive is set, of those that may be sensitive.
func (s *Saved) Snapshot(sensitive bool) *cache.Snapshot {
	snap := new(cache.Snapshot)
	for _, typeURL := range slices.Sorted(maps.Keys(s.sets)) {
		if wire.IsSecret(typeURL) {
			continue
		}
		of := cache.TypeSnapshot{Key: typeURL, Complete: true, Wildcard: cache.SetSnapshot{System: s.sets[typeURL].version}}
		for _, name := range slices.Sorted(maps.Keys(s.sets[typeURL].byName)) {
			r := s.sets[typeURL].byName[name]
			if !r.ContentDropped() && (r.DoNotCache || !sensitive && r.MayBeSensitive()) {
				r = r.DropContent()
			}
			of.Wildcard.Entries = append(of.Wildcard.Entries, cache.EntrySnapshot{Name: name, Resource: r})
		}
		snap.Types = append(snap.Types, of)
	}
	return snap
}

// Restore restores what an earlier process saved: whether the directory is frozen, and what an operator had kept. It must
// be called before any sync runs. Resources that were stored without content are taken from the files.
func (f *Origin) Restore(s *cache.Snapshot, frozen bool, kept []reconcile.Hold) {
	r := <-f.idleReader
	defer func() { f.idleReader <- r }()
	stored := make(map[string]cache.SetSnapshot)
	for _, t := range s.Types {
		stored[t.Key] = t.Wildcard
	}
	if frozen {
		all := r.frozenSets(stored)
		f.frozenSets.Store(&all)
	}
	for _, hold := range kept {
		r.restoreKept(hold, stored[hold.TypeURL])
	}
}

// frozenSets returns the sets that were frozen, from what was stored.
func (r *reader) frozenSets(stored map[string]cache.SetSnapshot) sets {
	all := make(sets)
	for typeURL, set := range r.serving {
		if _, known := stored[typeURL]; !known && wire.IsSecret(typeURL) {
			all[typeURL] = set
		}
	}
	for typeURL, of := range stored {
		set := &typeSet{version: of.System, byName: make(map[string]*wire.Resource, len(of.Entries))}
		for _, e := range of.Entries {
			resource := e.Resource
			if resource.ContentDropped() {
				resource = r.serving.of(typeURL).byName[e.Name]
			}
			if resource != nil {
				set.byName[e.Name] = resource
			}
		}
		all[typeURL] = set
	}
	return all
}

// restoreKept keeps what an operator had kept and the files lack.
func (r *reader) restoreKept(hold reconcile.Hold, stored cache.SetSnapshot) {
	set := r.set(hold.TypeURL)
	for _, e := range stored.Entries {
		if !e.Resource.ContentDropped() && slices.Contains(hold.Names, e.Name) && set.Get(e.Name) == nil {
			set.Apply(wire.Update{SystemVersion: r.serving.of(hold.TypeURL).version, Resources: []*wire.Resource{e.Resource}})
			set.Keep(e.Name)
		}
	}
}

package files

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/pending"
	"github.com/xdstender/tender/upstream/reconcile"
)

// Freeze makes frozen views, including later ones, show the current content of the directory, until Thaw. Without it, a
// view that starts frozen shows the content at its start.
func (f *Origin) Freeze(ctx context.Context) {
	f.withReader(ctx, func(r *reader) {
		if serving := r.serving; r.hasContent && f.frozenSets.Load() == nil {
			f.frozenSets.Store(&serving)
		}
	})
}

// Thaw ends a freeze. It must be called before the views are thawed.
func (f *Origin) Thaw() { f.frozenSets.Store(nil) }

// Thawing returns a function that creates an edition of the content that a thaw would show to the clients of a view.
// The goroutine of the writer must call the function. It uses the current content of the directory, since a frozen view
// has not applied it.
func (f *Origin) Thawing(ctx context.Context) func(*pending.List) *pending.Edition {
	var now sets // nil if the content is unknown
	f.withReader(ctx, func(r *reader) {
		if r.hasContent {
			now = r.serving
		}
	})
	return func(l *pending.List) *pending.Edition {
		all := l.Thawed()
		if now != nil && l.Frozen() {
			for t := range l.Writer().View().Generation().ChangedSince(0) {
				all = append(all, now.replacements(t)...)
			}
		}
		return l.PinThawed(all)
	}
}

// replacements returns the resources of s that replace those of a type in a view, and the removals of the others.
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

// A Saved contains the served resources that a new process could not read from the files. While the directory is
// frozen, these are all resources, otherwise those whose removal an operator dropped. It is immutable.
type Saved struct {
	frozen *sets // identity of the frozen content; nil if the directory is not frozen
	sets   sets
}

// Same reports whether both contain the same resources, so that a stored snapshot is up to date. Either may be nil.
func (s *Saved) Same(o *Saved) bool {
	if s == nil || o == nil {
		return s == o
	}
	return s.frozen == o.frozen && (s.frozen != nil || maps.EqualFunc(s.sets, o.sets, (*typeSet).equal))
}

// Saved returns the served resources that a new process could not read from the files; nil if there are none.
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

// keptSets returns the resources whose removal an operator dropped.
func (r *reader) keptSets() sets {
	all := make(sets)
	for _, hold := range r.group.Operate(reconcile.Command{}, time.Now()) {
		if hold.Reason != reconcile.Dropped || hold.Details != nil {
			continue
		}
		set := all[hold.TypeURL]
		if set == nil {
			set = &typeSet{byName: make(map[string]*wire.Resource, len(hold.Names))}
			all[hold.TypeURL] = set
		}
		for _, name := range hold.Names {
			if resource := r.serving.of(hold.TypeURL).byName[name]; resource != nil {
				set.byName[name] = resource
			}
		}
	}
	return all
}

// Snapshot returns a snapshot to store. Like a snapshot of a view, it omits Secrets, and the content of resources with
// do_not_cache. Unless sensitive is set, it also omits the content of resources that may be sensitive.
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

// Restore restores the resources that an earlier process saved: the frozen content, and resources whose removal an
// operator dropped. It must be called before any sync runs. Content that was not stored is read from the files.
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
	for i := range kept {
		r.restoreKept(&kept[i], stored[kept[i].TypeURL])
	}
}

// frozenSets returns the frozen sets of a snapshot. It takes dropped content, and Secrets, from the files.
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

// restoreKept restores resources whose removal an operator dropped and that the files lack.
func (r *reader) restoreKept(hold *reconcile.Hold, stored cache.SetSnapshot) {
	set := r.set(hold.TypeURL)
	for _, e := range stored.Entries {
		if !e.Resource.ContentDropped() && slices.Contains(hold.Names, e.Name) && set.Get(e.Name) == nil {
			set.Apply(wire.Update{SystemVersion: r.serving.of(hold.TypeURL).version, Resources: []*wire.Resource{e.Resource}}, pending.Delay{})
			set.RestoreDropped(e.Name, hold)
		}
	}
}

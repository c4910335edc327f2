package files

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/pending"
	"github.com/xdstender/tender/upstream"
	"github.com/xdstender/tender/upstream/reconcile"
)

// A Local writes a view whose content comes from this process, such as that of files. The content is always complete: a
// name that it does not contain does not exist. Only the goroutine that owns the writer may call its methods.
type Local struct {
	pending     *pending.List
	w           *cache.Writer                        // that of pending
	content     map[string]map[string]*wire.Resource // by type URL and name
	system      map[string]string                    // version by type URL
	collections collectionKeys                       // with a client
	unused      map[*cache.Name]string               // type URL by name: names without a client, removed by Trim

	awaited additions // by the last publication

	reports *reconcile.Reports // nil: client reports do not delay removals
}

// NewLocal returns the Local of an empty view, and marks the view as connected.
func NewLocal(list *pending.List) *Local {
	list.SetConnected(true)
	return &Local{
		pending:     list,
		w:           list.Writer(),
		content:     make(map[string]map[string]*wire.Resource),
		system:      make(map[string]string),
		collections: make(collectionKeys),
		unused:      make(map[*cache.Name]string),
	}
}

// Demand returns a channel that receives when Answer must be called.
func (l *Local) Demand() <-chan struct{} { return l.w.Demand() }

// Set replaces all resources of a type, and returns the change. If two resources have the same name, the last one takes
// precedence. The version is shown only to operators.
func (l *Local) Set(typeURL, version string, resources []*wire.Resource) cache.Change {
	set := make(map[string]*wire.Resource, len(resources))
	for _, r := range resources {
		set[r.Name] = r
	}
	u := wire.Update{TypeURL: typeURL, SystemVersion: version, Resources: slices.Collect(maps.Values(set))}
	for name := range l.content[typeURL] {
		if _, kept := set[name]; !kept {
			u.Removed = append(u.Removed, name)
		}
	}
	return l.apply(u, set)
}

// Update adds, changes and removes resources of a type.
func (l *Local) Update(u wire.Update) cache.Change {
	set := l.content[u.TypeURL]
	if set == nil {
		set = make(map[string]*wire.Resource)
	}
	for _, r := range u.Resources {
		set[r.Name] = r
	}
	for _, name := range u.Removed {
		delete(set, name)
	}
	return l.apply(u, set)
}

// apply applies an update to the view and makes set the content of its type. set must include the update.
func (l *Local) apply(u wire.Update, set map[string]*wire.Resource) cache.Change {
	for i, r := range u.Resources {
		if r.TTL > 0 { // a file does not state when the TTL started
			r = r.WithoutTTL()
			u.Resources[i], set[r.Name] = r, r
		}
	}
	slices.SortFunc(u.Resources, func(a, b *wire.Resource) int { return strings.Compare(a.Name, b.Name) })
	slices.Sort(u.Removed)
	l.content[u.TypeURL], l.system[u.TypeURL] = set, u.SystemVersion
	c := l.pending.Apply(cache.ByName, u) // the view ignores names that clients do not subscribe to
	for _, part := range l.collections.split(u) {
		l.pending.Apply(cache.Wildcard, *part)
	}
	if l.w.Owns(u.TypeURL) {
		c = l.pending.Apply(cache.Wildcard, u)
		l.confirm(u.TypeURL)
	}
	return c
}

// restoredBeside returns the resources in the view and in the list, which a snapshot restored, that no file contains.
func (l *Local) restoredBeside(to sets) sets {
	others := make(sets)
	for t := range l.w.Generation().ChangedSince(0) {
		typeURL, _, _ := cache.SplitCollection(t.URL)
		names := make(map[string]*wire.Resource)
		for _, set := range []*cache.Set{&t.Wildcard, &t.ByName} {
			for e := range set.Since(0) {
				if e.Present() && find(to.of(typeURL).byName, e.Name.String()) == nil {
					names[e.Name.String()] = e.Resource
				}
			}
		}
		if len(names) > 0 {
			others[t.URL] = &typeSet{byName: names}
		}
	}
	for _, of := range l.pending.Listed() {
		typeURL, _, _ := cache.SplitCollection(of.Key)
		if of.Resource == nil || find(to.of(typeURL).byName, of.Name) != nil {
			continue
		}
		if others[of.Key] == nil {
			others[of.Key] = &typeSet{byName: make(map[string]*wire.Resource)}
		}
		others[of.Key].byName[of.Name] = of.Resource
	}
	return others
}

// await makes the view await additions that wait, so that clients which have them from another relay keep them. to is the content
// beside them, which the caller applies afterwards; nil if it is unknown.
func (l *Local) await(awaited additions, to sets) {
	if to == nil || maps.EqualFunc(l.awaited, awaited, maps.Equal) {
		return
	}
	before := l.awaited
	l.awaited = awaited
	for _, all := range []additions{before, awaited} {
		for typeURL := range all {
			if !l.w.Owns(typeURL) {
				continue
			}
			begun, ended := slices.Collect(maps.Keys(awaited[typeURL])), []string{}
			for name := range before[typeURL] {
				_, waits := awaited[typeURL][name]
				if applied := to.of(typeURL).byName[name] != nil; !waits && !applied {
					ended = append(ended, name)
				}
			}
			l.w.Await(cache.Wildcard, typeURL, begun, ended)
		}
	}
}

// confirm marks a set as complete.
func (l *Local) confirm(key string) {
	if now := time.Now(); l.reports != nil && l.w.Generation().Type(key).Phase != cache.Confirmed {
		l.reports.Evaluate(cache.ReportedSet{Key: key, Kind: cache.Wildcard}, now, now)
	}
	l.pending.SetPhase(key, cache.Confirmed)
}

// collectionKeys is a set of keys of collections, see cache.Collection.
type collectionKeys map[string]struct{}

// split returns the parts of an update that belong to the collections, by key.
func (k collectionKeys) split(u wire.Update) map[string]*wire.Update {
	if len(k) == 0 {
		return nil
	}
	return upstream.SplitByCollection(u, func(name string) string {
		if glob, is := wire.GlobOf(name); is {
			key := cache.Collection(u.TypeURL, glob)
			if _, followed := k[key]; followed {
				return key
			}
		}
		return ""
	})
}

// demandCollection starts or ends a subscription to a collection. It adds a new one to added.
func (l *Local) demandCollection(d cache.Demand, added collectionKeys) {
	switch {
	case d.Wanted:
		l.collections[d.TypeURL], added[d.TypeURL] = struct{}{}, struct{}{}
	case l.pending.ForgetWildcard(d.TypeURL):
		delete(l.collections, d.TypeURL)
	}
}

// applyCollections applies the content of new collections to the view.
func (l *Local) applyCollections(added collectionKeys) {
	parts := make(map[string]map[string]*wire.Update) // by type URL and key
	for key := range added {
		typeURL, _, _ := cache.SplitCollection(key)
		if parts[typeURL] == nil {
			parts[typeURL] = added.split(l.all(typeURL))
		}
		p := parts[typeURL][key]
		if p == nil {
			p = &wire.Update{TypeURL: key, SystemVersion: l.system[typeURL]}
		}
		l.pending.Apply(cache.Wildcard, *p)
		l.confirm(key)
	}
}

// all returns an update with all resources of a type.
func (l *Local) all(typeURL string) wire.Update {
	return wire.Update{
		TypeURL: typeURL, SystemVersion: l.system[typeURL],
		Resources: slices.Collect(maps.Values(l.content[typeURL])),
	}
}

// Answer handles the changes in the demand of clients since the last call. It applies resources that clients newly
// subscribe to, and those whose content was dropped (R125).
func (l *Local) Answer() {
	named := make(map[string]*wire.Update)
	followed := make(collectionKeys)
	for _, d := range l.w.TakeDemand() {
		_, _, isCollection := cache.SplitCollection(d.TypeURL)
		switch {
		case isCollection:
			l.demandCollection(d, followed)
			continue
		case d.Name == nil:
			l.answerMembers(d)
			continue
		case !d.Wanted:
			l.unused[d.Name] = d.TypeURL
			continue
		}
		delete(l.unused, d.Name)
		if named[d.TypeURL] == nil {
			named[d.TypeURL] = &wire.Update{TypeURL: d.TypeURL, SystemVersion: l.system[d.TypeURL]}
		}
		l.answerName(named[d.TypeURL], d.Name.String())
	}
	l.applyCollections(followed)
	l.Trim()
	for _, u := range named {
		l.pending.Apply(cache.ByName, *u)
	}
}

// Trim removes names without a client. It keeps names that an operator or a rollout withholds, so that returning clients find them.
func (l *Local) Trim() {
	forget := make(map[string][]*cache.Name)
	for n, typeURL := range l.unused {
		if !l.pending.Withholds(typeURL, n) {
			forget[typeURL] = append(forget[typeURL], n)
			delete(l.unused, n)
		}
	}
	for typeURL, names := range forget {
		l.pending.Forget(typeURL, names)
	}
}

// answerMembers confirms the wildcard set of a type for a new client, and applies it again if content was dropped.
func (l *Local) answerMembers(d cache.Demand) {
	if d.Refetch {
		l.pending.Apply(cache.Wildcard, l.all(d.TypeURL))
	}
	l.confirm(d.TypeURL)
}

// answerName adds the resource of a name, or its removal, to an update.
func (l *Local) answerName(u *wire.Update, name string) {
	if r := l.find(u.TypeURL, name); r != nil {
		u.Resources = append(u.Resources, r)
	} else {
		u.Removed = append(u.Removed, name)
	}
}

// find returns the resource with a name or alias. It ignores dynamic parameters: files contain no variants.
func (l *Local) find(typeURL, name string) *wire.Resource { return find(l.content[typeURL], name) }

// find returns the resource with a name or alias; nil if there is none.
func find(byName map[string]*wire.Resource, name string) *wire.Resource {
	name = wire.PlainName(name)
	if r := byName[name]; r != nil {
		return r
	}
	for _, r := range byName {
		if slices.Contains(r.Aliases, name) {
			return r
		}
	}
	return nil
}

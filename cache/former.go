package cache

import "time"

// PinFormer returns an edition of what the rest is served, with resources as they were formerly. Of several formers of a
// resource, the last counts. A name that was forgotten since, because no client wanted it, stays so.
func (w *Writer) PinFormer(formers []Former) *Edition {
	x := &w.view.index
	x.mu.Lock()
	defer x.mu.Unlock()
	served := w.rest().generation()
	of := *served
	of.types.log = served.types.log.Clip()
	e := &Edition{of: &of, was: served, names: make(map[string][]*Name)}
	restoring := make(map[string]*pinnedType)
	for _, f := range formers {
		index := x.types[f.Key]
		if served.types.get(f.Key) == nil || index == nil {
			continue // the type or collection was forgotten
		}
		if restoring[f.Key] == nil {
			t := served.Type(f.Key)
			restoring[f.Key] = &pinnedType{currency: currency{w: w, now: time.Now(), was: t, is: t, by: new(txn)}, index: index}
		}
		restoring[f.Key].put(f)
	}
	for key, t := range restoring {
		if t.is != t.was {
			t.is.revision = served.Revision + 1
			of.types.put(t.is)
			e.names[key] = t.differing()
		}
		for _, m := range t.made { // Show makes them again
			m.of.release(m.n)
		}
	}
	e.describe()
	return e
}

// A pinnedType is a type of the edition that PinFormer makes.
type pinnedType struct {
	currency
	index *indexType
	names []*Name
}

// put records a resource as it was.
func (t *pinnedType) put(f Former) {
	n := t.index.names[f.Name]
	if n == nil && f.Kind == Wildcard && f.Resource != nil {
		n = t.w.view.index.name(t.index, f.Name)
		t.made = append(t.made, made{t.index, n})
	}
	if n == nil || !t.w.writes(f.Kind, t.was, n) {
		return
	}
	set := t.is.set(f.Kind)
	old := set.Get(n)
	if f.Kind == ByName && old == nil {
		return // nobody wants it, or it was never answered
	}
	set = t.own().set(f.Kind)
	t.names = append(t.names, n)
	switch {
	case f.Resource != nil:
		e := &Entry{Name: n, Seq: set.last + 1, Resource: f.Resource, Leaf: t.w.view.cfg.VersionSource.Leaf(resourceType(f.Key), f.Resource)}
		e.setDeadline(f.Deadline)
		set.put(t.by, e)
	case f.Kind == ByName:
		set.put(t.by, &Entry{Name: n, Seq: set.last + 1})
	case old != nil:
		set.drop(t.by, old)
	}
}

// differing returns the names whose state is another one, each once.
func (t *pinnedType) differing() (names []*Name) {
	seen := make(map[*Name]struct{})
	for _, n := range t.names {
		if _, again := seen[n]; !again && !t.w.agrees(t.was, t.is, n) {
			names = append(names, n)
		}
		seen[n] = struct{}{}
	}
	return names
}

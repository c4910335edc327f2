package cache

import (
	"slices"
	"time"
)

// Asked records that names were sent to the origin in one request. A zero time means that there is no request for them.
func (w *Writer) Asked(names []*Name, at time.Time) {
	var q *originRequest
	if !at.IsZero() {
		q = &originRequest{at: at}
	}
	seq := w.Generation().Seq
	for _, n := range names {
		n.asked.Store(q)
		n.askedAt = seq
	}
}

// Demand returns a channel that receives when TakeDemand may return something.
func (w *Writer) Demand() <-chan struct{} { return w.view.index.sources[w.source].demandReady }

// TakeDemand returns the changes of demand since the last call. The session must subscribe to names that are wanted:
// until Forget, they stay in the index, and Apply accepts their resources.
func (w *Writer) TakeDemand() []Demand {
	taken, unused := w.view.index.takeDemand(w)
	for _, key := range unused {
		ed := w.begin(key)
		ed.forgetType()
		w.publish(ed)
	}
	return taken
}

// takeDemand is TakeDemand, except that it does not remove idle types and collections that are part of a generation. It
// returns them as unused.
func (x *index) takeDemand(w *Writer) (taken []Demand, unused []string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	taken = x.sources[w.source].demand
	x.sources[w.source].demand = nil
	for i := range taken {
		x.take(&taken[i])
	}
	taken = slices.DeleteFunc(taken, func(d Demand) bool {
		t := x.types[d.TypeURL]
		switch {
		case d.Wanted || d.Restored || d.Name != nil && d.Name.tracked:
			return false
		case d.Name != nil:
			t.release(d.Name) // the stream unsubscribed before this call
		}
		for t != nil && x.idle(t, w.view.Generation()) {
			if w.view.Generation().types.get(t.url) != nil || w.Generation().types.get(t.url) != nil {
				unused = append(unused, t.url)
				break
			}
			t = x.forget(t)
		}
		return d.Name != nil || x.types[d.TypeURL] == nil // otherwise the session must call ForgetWildcard
	})
	return taken, unused
}

// take sets the fields of d to the present demand for its type or name, which is then no longer queued.
func (x *index) take(d *Demand) {
	if n := d.Name; n != nil {
		d.Wanted, d.Refetch = n.watchers != nil, n.refetch && n.tracked
		n.queued, n.refetch = false, false
		if d.Wanted {
			n.tracked, n.stale = true, false
		}
		return
	}
	if t := x.types[d.TypeURL]; t != nil { // otherwise it was forgotten after the demand changed
		d.Wanted, d.Refetch, d.Restored = len(t.wildcards) > 0, t.refetch, t.restored
		t.queued, t.refetch, t.restored, t.tracked = false, false, false, t.tracked || d.Wanted
	}
}

// Subscribed reports whether the session of the source subscribes to a name.
func (w *Writer) Subscribed(n *Name) bool {
	w.view.index.mu.Lock()
	defer w.view.index.mu.Unlock()
	return n.tracked && n.source == w.source
}

// Forget ends the subscription to names that have lingered, and removes their entries from the set of names. It returns
// the names that it kept because a stream subscribes to them again.
func (w *Writer) Forget(typeURL string, names []*Name) (kept []*Name) {
	ed := w.begin(typeURL)
	for _, n := range names {
		if n.watchers != nil {
			kept = append(kept, n)
			continue
		}
		n.tracked, n.stale = false, false
		n.asked.Store(nil) // the Name may stay in the index for an entry in the wildcard set
		for s := range ed.edits() {
			s.forgetName(n)
		}
	}
	ed.typ.ByName.compact()
	ed.forgetType()
	w.publish(ed)
	return kept
}

// ForgetWildcard empties the wildcard set of a type, unless a stream subscribes to it again. It reports whether it
// emptied the set.
func (w *Writer) ForgetWildcard(typeURL string) bool {
	ed := w.begin(typeURL)
	forget := len(ed.index.wildcards) == 0
	if forget {
		x := &w.view.index
		x.eras++
		ed.index.era = x.eras
		for s := range ed.edits() {
			s.clearWildcard()
		}
		ed.index.tracked = false
		ed.forgetType()
	}
	w.publish(ed)
	return forget
}

// forgetType removes a type or collection that is idle, and the type of the collection if that becomes idle. Otherwise
// clients could fill the memory with types and collections of their choice.
func (ed *edit) forgetType() {
	x := &ed.w.view.index
	for t := ed.index; t != nil && x.idle(t, ed.gen); {
		key := t.url
		t = x.forget(t)
		for s := range ed.edits() {
			if s.gen.types.get(key) != nil {
				s.gen.types.drop(key)
			}
			delete(s.branch.aliases, key)
		}
		delete(ed.w.refetchedAt, key)
	}
}

// InterestStats counts the subscriptions of streams to a type.
type InterestStats struct {
	Wildcards int // wildcard subscriptions, also to collections
	Names     int // subscriptions to names: a name with two subscribers counts twice
}

// Plus returns the sums of both.
func (s InterestStats) Plus(o InterestStats) InterestStats {
	return InterestStats{s.Wildcards + o.Wildcards, s.Names + o.Names}
}

// Interest returns the subscriptions of streams by type URL. It locks the index for a time that grows with the number
// of types and collections.
func (v *View) Interest() map[string]InterestStats {
	x := &v.index
	x.mu.Lock()
	defer x.mu.Unlock()
	stats := make(map[string]InterestStats)
	for key, t := range x.types {
		typeURL, _, _ := SplitCollection(key)
		count := stats[typeURL]
		count.Wildcards += len(t.wildcards)
		count.Names += t.watched
		stats[typeURL] = count
	}
	return stats
}

// An Unanswered name is a name to which a stream subscribes, and for which the origin has not responded.
type Unanswered struct {
	Type string // or the collection, see Collection
	Name *Name
}

// Unanswered returns the names to which streams subscribe and for which the view has received neither a resource, nor
// an error, nor a removal.
func (v *View) Unanswered() (names []Unanswered) {
	g := v.Generation()
	x := &v.index
	x.mu.Lock()
	defer x.mu.Unlock()
	for key, t := range x.types {
		typ := g.Type(key)
		for _, n := range t.names {
			if n.watchers == nil {
				continue
			}
			if e, _ := typ.Lookup(n); e == nil && typ.Errors(ByName).Get(n) == nil {
				names = append(names, Unanswered{key, n})
			}
		}
	}
	return names
}

// forget removes an idle type or collection. For a collection it returns the type, which may have become idle.
func (x *index) forget(t *indexType) (base *indexType) {
	x.dropReports(t, Wildcard)
	x.dropReports(t, ByName)
	delete(x.reported, t)
	delete(x.types, t.url)
	if typeURL, _, isCollection := SplitCollection(t.url); isCollection {
		x.collections--
		base = x.types[typeURL]
		base.collections--
	}
	if t.openedBy != "" {
		if x.typesOpenedBy[t.openedBy]--; x.typesOpenedBy[t.openedBy] == 0 {
			delete(x.typesOpenedBy, t.openedBy)
		}
	}
	return base
}

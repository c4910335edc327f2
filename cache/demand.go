package cache

import (
	"slices"
	"time"
)

// Asked records that the origin has been asked for names, all in one request; at the zero time,
// that it no longer is.
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

// Demand returns a channel that receives when TakeDemand has something to
// return.
func (w *Writer) Demand() <-chan struct{} { return w.view.index.sources[w.source].poke }

// TakeDemand returns what streams began or ceased to want of this source since the
// last call. A name that is returned as wanted stays known, and its resource is
// accepted, until Forget.
func (w *Writer) TakeDemand() []Demand {
	taken, unused := w.view.index.takeDemand(w)
	for _, key := range unused {
		ed := w.begin(key)
		ed.forgetType()
		w.publish(ed)
	}
	return taken
}

// takeDemand is TakeDemand, but returns idle types and collections that a generation has.
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
			t.release(d.Name) // came and went between two calls
		}
		for t != nil && x.idle(t, w.view.Generation()) {
			if w.view.Generation().types.get(t.url) != nil || w.Generation().types.get(t.url) != nil {
				unused = append(unused, t.url)
				break
			}
			t = x.forget(t)
		}
		return d.Name != nil || x.types[d.TypeURL] == nil // else its session has to forget it
	})
	return taken, unused
}

// take fills in what is demanded now.
func (x *index) take(d *Demand) {
	if n := d.Name; n != nil {
		d.Wanted, d.Refetch = n.watchers != nil, n.refetch && n.tracked
		n.queued, n.refetch = false, false
		if d.Wanted {
			n.tracked, n.stale = true, false
		}
		return
	}
	if t := x.types[d.TypeURL]; t != nil { // else it was forgotten after the demand changed
		d.Wanted, d.Refetch, d.Restored = len(t.wildcards) > 0, t.refetch, t.restored
		t.queued, t.refetch, t.restored, t.tracked = false, false, false, t.tracked || d.Wanted
	}
}

// Forget removes names that linger no longer, with their entries in the set of names. It returns those that it kept
// because a stream subscribes to them again.
func (w *Writer) Forget(typeURL string, names []*Name) (kept []*Name) {
	ed := w.begin(typeURL)
	for _, n := range names {
		if n.watchers != nil {
			kept = append(kept, n)
			continue
		}
		n.tracked, n.stale = false, false
		n.asked.Store(nil) // the wildcard set may still have it
		for s := range ed.edits() {
			s.forgetName(n)
		}
	}
	ed.typ.ByName.compact()
	ed.forgetType()
	w.publish(ed)
	return kept
}

// ForgetMembers empties the wildcard set of a type and reports whether it did: not if a stream subscribes to it
// again.
func (w *Writer) ForgetMembers(typeURL string) bool {
	ed := w.begin(typeURL)
	forget := len(ed.index.wildcards) == 0
	if forget {
		x := &w.view.index
		x.eras++
		ed.index.era = x.eras
		for s := range ed.edits() {
			s.forgetMembers()
		}
		ed.index.tracked = false
		ed.forgetType()
	}
	w.publish(ed)
	return forget
}

// forgetType drops a type or collection that is idle, and the type of a collection with it: clients may make up any number.
func (ed *edit) forgetType() {
	x := &ed.w.view.index
	for t := ed.index; t != nil && x.idle(t, ed.gen); {
		key := t.url
		t = x.forget(t)
		for s := range ed.edits() {
			if s.gen.types.get(key) != nil {
				s.gen.types.drop(key)
			}
			delete(s.ledger.aliases, key)
		}
		delete(ed.w.refetchedAt, key)
	}
}

// InterestStats say what the streams of a view want of a type now.
type InterestStats struct {
	Wildcards int // wildcard subscriptions, also to collections
	Names     int // subscriptions to names: a name that two streams want counts twice
}

// Plus returns the sums of both.
func (s InterestStats) Plus(o InterestStats) InterestStats {
	return InterestStats{s.Wildcards + o.Wildcards, s.Names + o.Names}
}

// Interest returns what streams want, by type URL. It takes as long as there are types and
// collections, and for that long keeps streams from subscribing.
func (v *View) Interest() map[string]InterestStats {
	x := &v.index
	x.mu.Lock()
	defer x.mu.Unlock()
	stats := make(map[string]InterestStats)
	for key, t := range x.types {
		typeURL, _, _ := SplitCollection(key)
		of := stats[typeURL]
		of.Wildcards += len(t.wildcards)
		of.Names += t.watched
		stats[typeURL] = of
	}
	return stats
}

// An Unanswered name is one that a stream subscribes to, and for which the view has no answer.
type Unanswered struct {
	Type string // or the collection, see Collection
	Name *Name
}

// Unanswered returns the names that streams subscribe to and for which the view has no answer, not
// even that they do not exist.
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

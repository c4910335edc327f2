package cache

import (
	"cmp"
	"container/heap"
	"iter"
	"slices"
	"time"

	"github.com/xdstender/tender/cache/fingerprint"
	"github.com/xdstender/tender/cache/wire"
)

// An edit is the next version of one type, in a generation in the making. The index is locked from begin to publish. What
// it changes is an entry at a time, through the setEdit of one of the two sets.
type edit struct {
	w      *Writer
	ledger *ledger
	served []*edit // if this is an edit of latest and the gate is closed: those of what readers see, by view; nil if there is none yet
	now    time.Time
	gen    *Generation // the new one
	typ    *Type       // of gen, owned
	index  *indexType
	txn    *txn
	change Change

	changed []*Name // that streams watch

	dirty    bool // the wildcard set changed: wake its subscribers
	failures bool // the type's errors belong to this edit, which may write to them
}

// A setEdit edits one set of the type, with its errors.
type setEdit struct {
	*edit
	kind Kind
	set  *Set
}

// of returns the edit of one of the type's sets.
func (ed *edit) of(kind Kind) setEdit { return setEdit{ed, kind, ed.typ.set(kind)} }

// edits yields the edit and, if the gate is closed, those of what readers see. Changes that do not come from the source are
// made in all of them.
func (ed *edit) edits() iter.Seq[*edit] {
	return func(yield func(*edit) bool) {
		if !yield(ed) || !ed.w.closed() {
			return
		}
		for i := range ed.w.served {
			s := ed.servedEdit(i)
			s.txn.noting = true
			if !yield(s) {
				return
			}
		}
	}
}

// servedEdit returns the edit of what the readers of a view see that belongs to an edit of latest.
func (ed *edit) servedEdit(i int) *edit {
	if ed.served == nil {
		ed.served = make([]*edit, len(ed.w.served))
	}
	if ed.served[i] == nil {
		ed.served[i] = ed.w.beginLocked(ed.typ.URL, ed.w.served[i].ledger)
	}
	return ed.served[i]
}

func (ed *edit) next() Seq {
	ed.gen.Seq++
	return ed.gen.Seq
}

// epoch returns the number of the connection on which the origin is sending.
func (ed *edit) epoch() uint32 { return ed.gen.sources[ed.w.source].epoch }

// recordResponse records that the origin has sent a response, and its identifier.
func (ed *edit) recordResponse(identifier string) {
	from := &ed.gen.sources[ed.w.source]
	if from.Responded == from.Connected && (identifier == "" || identifier == from.Identifier) {
		return
	}
	from = ed.gen.ownSource(ed.w.source)
	from.Responded = from.Connected
	if identifier != "" {
		from.Identifier = identifier
	}
}

// accepts reports whether the session asked this source for a name.
func (ed *edit) accepts(n *Name) bool { return n != nil && n.tracked && n.source == ed.w.source }

// answered records that the origin has answered for a name; what a snapshot holds is no answer.
func (ed *edit) answered(n *Name) {
	if ed.w.restoring {
		return
	}
	n.answered(ed.now)
	ed.w.view.index.dropRestored(n)
}

// subscribedAs returns the names by which this source was asked for a variant of the resource text, each with parameters
// that the variant matches. They are valid until the next call.
func (ed *edit) subscribedAs(text string, v wire.Variant) []*Name {
	asked := ed.w.asked[:0]
	if n := ed.index.names[text]; ed.accepts(n) && v.Matches(nil) {
		asked = append(asked, n)
	}
	for _, n := range ed.index.variants[text] {
		if _, parameters := wire.SplitParameters(n.text); ed.accepts(n) && v.Matches(parameters) {
			asked = append(asked, n)
		}
	}
	ed.w.asked = asked
	return asked
}

// errors returns the errors of the resources of one of the type's sets, for writing.
func (ed *edit) errors(of Kind) *Set {
	if !ed.failures {
		errors := *cmp.Or(ed.typ.errors, noErrors)
		ed.typ.errors, ed.failures = &errors, true
	}
	return &ed.typ.errors[of]
}

// alias records that a resource is held under another name. The index is locked.
func (l *ledger) alias(typeURL string, n *Name, resource string) {
	of := l.aliases[typeURL]
	if of == nil {
		of = make(map[string][]*Name)
		l.aliases[typeURL] = of
	}
	if !slices.Contains(of[resource], n) {
		of[resource] = append(of[resource], n)
	}
}

// unalias undoes alias for the resource, or the prior one, of an entry.
func (ed *edit) unalias(old *Entry) {
	if old == nil {
		return
	}
	r := cmp.Or(old.Resource, old.Prior)
	if r == nil || r.Name == old.Name.text {
		return
	}
	of := ed.ledger.aliases[ed.typ.URL]
	left := slices.DeleteFunc(of[r.Name], func(n *Name) bool { return n == old.Name })
	if len(left) == 0 {
		delete(of, r.Name)
		return
	}
	of[r.Name] = left
}

// dropEntry removes the entry of a name from a set, without a tombstone.
func (ed *edit) dropEntry(set *Set, n *Name) {
	if e := set.Get(n); e != nil {
		set.drop(ed.txn, e)
		ed.unalias(e)
		n.entries--
	}
}

// markChanged wakes the streams that subscribe to a name.
func (ed setEdit) markChanged(n *Name) {
	if n.watchers != nil {
		ed.changed = append(ed.changed, n)
	}
	if ed.kind == Wildcard {
		ed.dirty = true
	}
}

// compact rewrites the logs of what has changed much.
func (ed setEdit) compact() {
	ed.set.compact()
	if ed.failures {
		ed.errors(ed.kind).compact()
	}
}

const (
	// unresolvedLife is how long the origin's answer that it knows no resource by an
	// alias is served without asking again (B.20).
	unresolvedLife = 5 * time.Second

	// uncachedLife is how long content that may not be kept is kept, for the streams
	// that wait for it (B.25).
	uncachedLife = time.Second

	// refetchEvery bounds how often the origin is asked for a resource of which it sends only heartbeats.
	refetchEvery = time.Second
)

// dueAt returns when an entry that is not published yet next needs the writer's attention; zero if
// never.
func (e *Entry) dueAt(now time.Time) (due time.Time) {
	due = e.Deadline()
	by := func(t time.Time) {
		if due.IsZero() || t.Before(due) {
			due = t
		}
	}
	switch r := e.Resource; {
	case r.ContentDropped():
	case r.Unresolved():
		due = now.Add(unresolvedLife)
	case r.DoNotCache:
		by(now.Add(uncachedLife))
	}
	if e.yields {
		by(e.alarm.yields)
	}
	return due
}

// setAlarm schedules the next deadline of an entry that is not published yet.
func (ed setEdit) setAlarm(e *Entry) {
	due := e.dueAt(ed.now)
	if ed.kind == ByName {
		// The next subscriber has the origin asked again if the content may not be kept.
		e.Name.stale = e.Resource.DoNotCache || e.Resource.ContentDropped()
	}
	if e.alarm == nil && due.IsZero() {
		return
	}
	if e.alarm == nil {
		e.alarm = new(alarm)
	}
	e.alarm.due = due
	ed.queueAlarm(e)
}

// queueAlarm schedules an entry for when it is due, if ever.
func (ed setEdit) queueAlarm(e *Entry) {
	at := e.alarm
	if at.due.IsZero() || !at.queued.IsZero() && !at.due.Before(at.queued) {
		return // nothing to do, or it is scheduled earlier
	}
	at.queued = at.due
	ed.schedule(deadline{at.due, ed.typ.URL, ed.kind, e.Name})
}

// schedule adds a deadline to the heap. Deadlines of entries
// that were removed since are dropped now and then, or resources that come and go would fill the
// heap for as long as they were to live.
func (ed *edit) schedule(d deadline) {
	const slack = 64
	of := ed.ledger
	if len(of.due) > 2*of.kept+slack {
		of.due = slices.DeleteFunc(of.due, func(d deadline) bool {
			t := ed.gen.Type(d.key)
			e := t.set(d.kind).Get(d.name)
			return !e.awaited(d.at)
		})
		heap.Init(&of.due)
		of.kept = len(of.due)
	}
	heap.Push(&of.due, d)
}

// A received resource, with what can be derived from it without the lock.
type received struct {
	*wire.Resource
	leaf     fingerprint.Sum
	deadline time.Time // zero if it does not expire
	failing  bool      // the origin also sent an error for it
	copied   *Entry    // of another generation; nil if it was received
}

// begin locks the index and copies what is about to change of latest.
func (w *Writer) begin(typeURL string) *edit { return w.beginOn(w.latest, typeURL) }

// beginOn is begin for the newest generation of a ledger.
func (w *Writer) beginOn(of *ledger, typeURL string) *edit {
	w.view.index.mu.Lock()
	w.wakes = w.wakes[:0]
	return w.beginLocked(typeURL, of)
}

// beginLocked copies what is about to change of the newest generation of a ledger. The index must be locked.
func (w *Writer) beginLocked(typeURL string, of *ledger) *edit {
	x := &w.view.index
	old := of.generation()
	generation := *old
	generation.Revision++
	typ := *old.Type(typeURL)
	index := x.typ(typeURL)
	typ.URL, typ.source, typ.era, typ.revision, typ.shared = typeURL, index.source, index.era, generation.Revision, new(memo)
	generation.types.put(&typ)
	ed := &edit{w: w, ledger: of, now: time.Now(), gen: &generation, typ: &typ, index: index, txn: &txn{noting: of == w.latest && w.closed()}}
	ed.changed, w.publisher.changed = w.publisher.changed[:0], nil
	return ed
}

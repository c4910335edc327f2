package cache

import (
	"cmp"
	"iter"
	"slices"
	"time"

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
	pokes  pokes

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

// edits yields the edit and, if the gate is closed, that of what readers see. Changes that do not come from the source are
// made in both.
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

// behindGate reports whether this is an edit of what readers see while nothing passes the gate.
func (ed *edit) behindGate() bool { return ed.ledger != ed.w.latest && ed.w.Frozen() }

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

// forgetName removes all that is held by a name.
func (ed *edit) forgetName(n *Name) {
	ed.txn.note(n)
	ed.dropEntry(&ed.typ.ByName, n)
	ed.of(ByName).clearError(n)
	ed.index.release(n)
}

// forgetMembers empties the wildcard set.
func (ed *edit) forgetMembers() {
	for e := range ed.typ.Wildcard.Since(0) {
		if named := ed.yieldingEntry(e.Name); named != nil && e.Present() {
			ed.endYield(named)
		}
		ed.txn.note(e.Name)
		e.Name.entries--
		ed.index.release(e.Name)
	}
	ed.clearErrors()
	ed.typ.Wildcard = Set{last: ed.gen.Seq, floor: ed.gen.Seq}
	ed.typ.Phase, ed.typ.Restored, ed.typ.Covered = Unknown, false, false
	ed.index.lastKnown = false
	ed.w.view.index.dropReports(ed.index, Wildcard)
	delete(ed.ledger.tombstones, ed.typ.URL)
}

// markChanged wakes the streams that subscribe to a name.
func (ed setEdit) markChanged(n *Name) {
	if len(n.watchers) > 0 {
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

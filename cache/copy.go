package cache

// Copy records what another view knows of names: whether they exist, what they are,
// until when, and what is wrong with them. Entries keep their times, so that what is
// passed on does not live longer for it. The names are the other view's, key is a type
// or a collection; of a name that the other view does not know, nothing is recorded.
// How the other view's source stands, OriginChanges must have been told before.
func (w *Writer) Copy(kind Kind, from *Generation, key string, names []*Name) {
	t := from.Type(key)
	ed := w.begin(key)
	set := ed.set(kind)
	set.system = t.System()
	for _, n := range names {
		source := t.Wildcard.Get(n)
		if kind == ByName {
			source = t.ByName.Get(n)
		}
		if source != nil {
			ed.copyEntry(kind, set, from, source)
		}
		ed.copyError(kind, n.text, t.Errors(kind).Get(n))
	}
	if kind == Wildcard && !t.hasWholeError() {
		ed.clearWholeError()
	}
	ed.compact(kind)
	w.publish(ed)
}

func (ed *edit) copyEntry(kind Kind, set *Set, from *Generation, e *Entry) {
	n := ed.index.names[e.Name.text]
	switch {
	case kind == ByName && !ed.accepts(n):
	case kind == Wildcard && e.Present() && n == nil:
		n = ed.w.view.index.name(ed.index, e.Name.text)
		fallthrough
	case e.Present():
		failing := from.Type(ed.typ.URL).Errors(kind).Get(e.Name) != nil
		ed.put(kind, set, n, received{Resource: e.Resource, leaf: e.Leaf, deadline: e.Deadline(), failing: failing})
	case kind == Wildcard:
		ed.removeMember(set, n)
	case e.Expired:
		if old := set.Get(n); old.Present() {
			ed.expireEntry(kind, set, old)
		}
	case from.Absent(e):
		ed.copyAbsence(set, n)
	}
}

// copyAbsence records that there is no such resource, unless that is known.
func (ed *edit) copyAbsence(set *Set, n *Name) {
	old := set.Get(n)
	if old != nil && !old.Present() && !old.Expired && old.epoch == ed.epoch() {
		return
	}
	ed.putAbsent(set, n, old)
	ed.unalias(old)
}

// copyError records what is wrong with a resource; e is nil if nothing is.
func (ed *edit) copyError(kind Kind, name string, e *Entry) {
	n := ed.index.names[name]
	switch {
	case e != nil && n != nil && ed.typ.Errors(kind).Get(n) != nil && ed.typ.Errors(kind).Get(n).Err.Same(e.Err):
		// It is known, and so is what followed from it.
	case e != nil:
		ed.fail(kind, e.Err)
	case n != nil:
		ed.clearError(kind, n)
		ed.index.release(n)
	}
}

package cache

// Copy records what another view knows of names: whether they exist, what they are,
// until when, and what is wrong with them. Entries keep their times, so that what is
// passed on does not live longer for it. The names are the other view's, key is a type
// or a collection; of a name that the other view does not know, nothing is recorded.
// How the other view's source stands, OriginChanges must have been told before.
func (w *Writer) Copy(kind Kind, from *Generation, key string, names []*Name) {
	t := from.Type(key)
	a := w.begin(key)
	set := a.set(kind)
	set.system = t.System()
	for _, n := range names {
		source := t.Wildcard.Get(n)
		if kind == ByName {
			source = t.ByName.Get(n)
		}
		if source != nil {
			a.copy(kind, set, from, source)
		}
		a.copyError(kind, n.text, t.Errors(kind).Get(n))
	}
	if kind == Wildcard && !t.failsWhole() {
		a.succeedWhole()
	}
	a.compact(kind)
	w.publish(a)
}

func (a *apply) copy(kind Kind, set *Set, from *Generation, e *Entry) {
	n := a.index.names[e.Name.text]
	switch {
	case kind == ByName && !a.takes(n):
	case kind == Wildcard && e.Present() && n == nil:
		n = a.w.view.index.name(a.index, e.Name.text)
		fallthrough
	case e.Present():
		failing := from.Type(a.typ.URL).Errors(kind).Get(e.Name) != nil
		a.put(kind, set, n, received{Resource: e.Resource, leaf: e.Leaf, deadline: e.Deadline(), failing: failing})
	case kind == Wildcard:
		a.goneMember(set, n)
	case e.Expired:
		if old := set.Get(n); old.Present() {
			a.outlived(kind, set, old)
		}
	case from.Absent(e):
		a.copyAbsence(set, n)
	}
}

// copyAbsence records that there is no such resource, unless that is known.
func (a *apply) copyAbsence(set *Set, n *Name) {
	old := set.Get(n)
	if old != nil && !old.Present() && !old.Expired && old.epoch == a.epoch() {
		return
	}
	a.absent(set, n, old)
	a.unalias(old)
}

// copyError records what is wrong with a resource; e is nil if nothing is.
func (a *apply) copyError(kind Kind, name string, e *Entry) {
	n := a.index.names[name]
	switch {
	case e != nil && n != nil && a.typ.Errors(kind).Get(n) != nil && a.typ.Errors(kind).Get(n).Err.Same(e.Err):
		// It is known, and so is what followed from it.
	case e != nil:
		a.fail(kind, e.Err)
	case n != nil:
		a.succeed(kind, n)
		a.index.release(n)
	}
}

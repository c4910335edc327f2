package cache

// Copy records the state of names in another view: whether they exist, their content,
// deadline and error. Entries keep their deadlines. The names are the other view's, and key is a type
// or a collection; names that the other view does not know are ignored.
// The state of the other view's source must have been recorded before (SetSource).
func (w *Writer) Copy(kind Kind, from *Generation, key string, names []*Name) {
	t := from.Type(key)
	ed := w.begin(key)
	to := copying{ed.of(kind), from, t}
	to.set.system = t.System()
	for _, n := range names {
		if source := t.set(kind).Get(n); source != nil {
			to.entry(source)
		}
		to.error(n.text, t.Errors(kind).Get(n))
	}
	if kind == Wildcard && !t.hasWholeError() {
		ed.clearWholeError()
	}
	to.compact()
	w.publish(ed)
}

// copying edits a set to be as that of a type in another generation.
type copying struct {
	setEdit
	from *Generation
	t    *Type // of from
}

// entry copies an entry, whose name may be another view's.
func (to copying) entry(e *Entry) {
	n := to.index.names[e.Name.text]
	switch {
	case to.kind == ByName && !to.accepts(n):
	case to.kind == Wildcard && e.Present() && n == nil:
		n = to.w.view.index.name(to.index, e.Name.text)
		fallthrough
	case e.Present():
		failing := to.t.Errors(to.kind).Get(e.Name) != nil
		to.put(n, received{Resource: e.Resource, leaf: e.Leaf, deadline: e.Deadline(), failing: failing, copied: e})
	case to.kind == Wildcard:
		to.removeMember(n)
	case e.Expired:
		if old := to.set.Get(n); old.Present() {
			to.expireEntry(old)
		}
	case to.from.Absent(e):
		to.absence(n)
	}
}

// absence records that there is no such resource, unless that is recorded.
func (to copying) absence(n *Name) {
	old := to.set.Get(n)
	if old != nil && !old.Present() && !old.Expired && old.epoch == to.epoch() {
		return
	}
	to.putAbsent(n, old)
	to.unalias(old)
}

// error copies the error of a resource; a nil entry is none.
func (to copying) error(name string, e *Entry) {
	n := to.index.names[name]
	switch {
	case e != nil && n != nil && to.typ.Errors(to.kind).Get(n) != nil && to.typ.Errors(to.kind).Get(n).Err.Same(e.Err):
		// It is recorded, with its consequences.
	case e != nil:
		response{setEdit: to.setEdit}.fail(e.Err)
	case n != nil:
		to.clearError(n)
		to.index.release(n)
	}
}

package cache

import (
	"cmp"

	"github.com/xdstender/tender/cache/wire"
)

// putError records the error of a name.
func (ed setEdit) putError(n *Name, err *wire.ResourceError) {
	set := ed.errors(ed.kind)
	old := set.Get(n)
	if old != nil && old.Err.Same(err) {
		return
	}
	e := &Entry{Name: n, Seq: ed.next(), Err: err}
	e.born = e.Seq
	switch {
	case old == nil:
		n.entries++
	case old.Err.Denied() == err.Denied():
		e.born = old.born
	case old.Err.Denied():
		ed.announceContent(n)
	}
	set.put(ed.txn, e)
	ed.markChanged(n)
}

// announceContent gives a resource a new position that was denied to clients, some of which do not have it: now
// it only fails, and they go on with the last good content.
func (ed setEdit) announceContent(n *Name) {
	if e := ed.set.Get(n); e.Present() {
		again := *e
		again.Seq = ed.next()
		again.since = again.Seq
		ed.set.put(ed.txn, &again)
	}
}

// clearError removes the error of a name, and reports whether there was one.
func (ed setEdit) clearError(n *Name) bool {
	if ed.typ.Errors(ed.kind).Get(n) == nil {
		return false
	}
	ed.dropEntry(ed.errors(ed.kind), n)
	return true
}

// clearErrors removes all errors of the wildcard set.
func (ed *edit) clearErrors() {
	for e := range ed.typ.Errors(Wildcard).Since(0) {
		set := ed.errors(Wildcard)
		ed.dropEntry(set, e.Name)
		ed.index.release(e.Name)
	}
}

// wholeName returns the name that stands for the whole wildcard set of a type, or of a collection.
func wholeName(key string) string {
	_, glob, _ := SplitCollection(key)
	return cmp.Or(glob, wire.Wildcard)
}

// hasWholeError reports whether the origin sent an error for the wildcard set as a whole.
func (t *Type) hasWholeError() bool {
	for e := range t.Errors(Wildcard).Since(0) {
		if e.Name.text == wholeName(t.URL) {
			return true
		}
	}
	return false
}

// clearWholeError removes the error of the wildcard set as a whole: some resources have come.
func (ed *edit) clearWholeError() {
	if n := ed.index.names[wholeName(ed.typ.URL)]; n != nil && ed.of(Wildcard).clearError(n) {
		ed.index.release(n)
	}
}

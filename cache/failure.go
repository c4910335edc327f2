package cache

import (
	"cmp"
	"slices"

	"github.com/xdstender/tender/cache/wire"
)

// fail records what the origin said is wrong with a resource, for those who asked for
// it by an alias too. What was there stays, unless the error says that it does not
// exist (R123).
func (ed *edit) fail(kind Kind, err *wire.ResourceError) {
	names := ed.affectedNames(kind, err.Variant)
	if len(names) == 0 {
		ed.change.Ignored++
	}
	switch set := ed.set(kind); {
	case err.NotFound() && err.Constraints != nil:
		ed.removeVariant(kind, set, err.Variant)
	case err.NotFound():
		ed.removeResource(kind, set, err.Name)
	}
	for _, n := range names {
		if kind == ByName {
			n.answered(ed.now)
		}
		ed.putError(kind, n, err)
	}
}

// refuse keeps what was there of a resource whose content is not to be taken, and has those who
// asked for it told why (B.9). It is there: the origin said so.
func (ed *edit) refuse(kind Kind, r *wire.Resource) {
	ed.change.Seen++
	for name := range subscribableNames(r) {
		err := wire.NewResourceError(name, r.Refusal.Code, r.Refusal.Message)
		for _, n := range ed.affectedNames(kind, wire.Variant{Name: name, Constraints: r.Constraints}) {
			ed.putError(kind, n, err)
		}
		if kind == Wildcard {
			return // by its own name
		}
	}
}

// errors returns what is wrong with the resources of one of the type's sets, for writing.
func (ed *edit) errors(of Kind) *Set {
	if !ed.failures {
		errors := *cmp.Or(ed.typ.errors, noErrors)
		ed.typ.errors, ed.failures = &errors, true
	}
	return &ed.typ.errors[of]
}

// compact rewrites the logs of what has changed much.
func (ed *edit) compact(kind Kind) {
	ed.set(kind).compact()
	if ed.failures {
		ed.errors(kind).compact()
	}
}

// asked returns the names that stand for a resource, or for a variant of it, and that
// the origin may speak of.
func (ed *edit) affectedNames(kind Kind, v wire.Variant) []*Name {
	if kind == Wildcard {
		return []*Name{ed.w.view.index.name(ed.index, v.Name)}
	}
	names := slices.Clone(ed.subscribedAs(v.Name, v))
	for _, n := range ed.ledger.aliases[ed.typ.URL][v.Name] {
		if ed.accepts(n) && wire.PlainName(n.text) != v.Name {
			names = append(names, n)
		}
	}
	return names
}

func (ed *edit) putError(kind Kind, n *Name, err *wire.ResourceError) {
	set := ed.errors(kind)
	old := set.Get(n)
	if old != nil && old.Err.Same(err) {
		return // it was said before
	}
	e := &Entry{Name: n, Seq: ed.next(), Err: err}
	e.born = e.Seq
	switch {
	case old == nil:
		n.entries++
	case old.Err.Denied() == err.Denied():
		e.born = old.born
	case old.Err.Denied():
		ed.announceContent(ed.set(kind), n)
	}
	set.put(ed.txn, e)
	ed.markChanged(kind, n)
}

// permit makes news of a resource that was denied to clients that did not have it: now
// it only fails, and they go on with what was last good.
func (ed *edit) announceContent(set *Set, n *Name) {
	if e := set.Get(n); e.Present() {
		again := *e
		again.Seq = ed.next()
		again.since = again.Seq
		set.put(ed.txn, &again)
	}
}

// succeed forgets what was wrong with a resource, and reports whether something was.
func (ed *edit) clearError(kind Kind, n *Name) bool {
	if ed.typ.Errors(kind).Get(n) == nil {
		return false
	}
	ed.dropEntry(ed.errors(kind), n)
	return true
}

// whole returns the name that stands for all members of a type, or of a collection.
func wholeName(key string) string {
	_, glob, _ := SplitCollection(key)
	return cmp.Or(glob, wire.Wildcard)
}

// failsWhole reports whether something is wrong with the members as a whole.
func (t *Type) hasWholeError() bool {
	for e := range t.Errors(Wildcard).Since(0) {
		if e.Name.text == wholeName(t.URL) {
			return true
		}
	}
	return false
}

// succeedWhole forgets what was wrong with the members as a whole: some have come.
func (ed *edit) clearWholeError() {
	if n := ed.index.names[wholeName(ed.typ.URL)]; n != nil && ed.clearError(Wildcard, n) {
		ed.index.release(n)
	}
}

// settle makes news of the absence of a resource of which clients were told that it
// fails: now they know that it does not exist.
func (ed *edit) announceAbsence(kind Kind, set *Set, n *Name) {
	e := &Entry{Name: n, Seq: ed.next(), epoch: ed.epoch()}
	e.since, e.born = e.Seq, e.Seq
	if set.Get(n) == nil {
		n.entries++
	}
	if kind == Wildcard {
		ed.ledger.tombstones[ed.typ.URL] = append(ed.ledger.tombstones[ed.typ.URL], tombstone{n, e.Seq, ed.now})
	}
	set.put(ed.txn, e)
	ed.markChanged(kind, n)
}

// forgive forgets what is wrong with the members.
func (ed *edit) clearErrors() {
	for e := range ed.typ.Errors(Wildcard).Since(0) {
		set := ed.errors(Wildcard)
		ed.dropEntry(set, e.Name)
		ed.index.release(e.Name)
	}
}

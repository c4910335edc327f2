package cache

import (
	"cmp"
	"slices"

	"github.com/xdstender/tender/cache/wire"
)

// fail records what the origin said is wrong with a resource, for those who asked for
// it by an alias too. What was there stays, unless the error says that it does not
// exist (R123).
func (a *apply) fail(kind Kind, err *wire.ResourceError) {
	names := a.asked(kind, err.Variant)
	if len(names) == 0 {
		a.change.Ignored++
	}
	switch set := a.set(kind); {
	case err.NotFound() && err.Constraints != nil:
		a.removeVariant(kind, set, err.Variant)
	case err.NotFound():
		a.gone(kind, set, err.Name)
	}
	for _, n := range names {
		if kind == ByName {
			n.answered(a.now)
		}
		a.failed(kind, n, err)
	}
}

// refuse keeps what was there of a resource whose content is not to be taken, and has those who
// asked for it told why (B.9). It is there: the origin said so.
func (a *apply) refuse(kind Kind, r *wire.Resource) {
	a.change.Seen++
	for name := range names(r) {
		err := wire.NewResourceError(name, r.Refusal.Code, r.Refusal.Message)
		for _, n := range a.asked(kind, wire.Variant{Name: name, Constraints: r.Constraints}) {
			a.failed(kind, n, err)
		}
		if kind == Wildcard {
			return // by its own name
		}
	}
}

// errors returns what is wrong with the resources of one of the type's sets, for writing.
func (a *apply) errors(of Kind) *Set {
	if !a.failures {
		errors := *cmp.Or(a.typ.errors, noErrors)
		a.typ.errors, a.failures = &errors, true
	}
	return &a.typ.errors[of]
}

// compact rewrites the logs of what has changed much.
func (a *apply) compact(kind Kind) {
	a.set(kind).compact()
	if a.failures {
		a.errors(kind).compact()
	}
}

// asked returns the names that stand for a resource, or for a variant of it, and that
// the origin may speak of.
func (a *apply) asked(kind Kind, v wire.Variant) []*Name {
	if kind == Wildcard {
		return []*Name{a.w.view.index.name(a.index, v.Name)}
	}
	names := slices.Clone(a.askedAs(v.Name, v))
	for _, n := range a.ledger.aliases[a.typ.URL][v.Name] {
		if a.takes(n) && wire.PlainName(n.text) != v.Name {
			names = append(names, n)
		}
	}
	return names
}

func (a *apply) failed(kind Kind, n *Name, err *wire.ResourceError) {
	set := a.errors(kind)
	old := set.Get(n)
	if old != nil && old.Err.Same(err) {
		return // it was said before
	}
	e := &Entry{Name: n, Seq: a.next(), Err: err}
	e.born = e.Seq
	switch {
	case old == nil:
		n.entries++
	case old.Err.Denied() == err.Denied():
		e.born = old.born
	case old.Err.Denied():
		a.permit(a.set(kind), n)
	}
	set.put(a.edit, e)
	a.touched(kind, n)
}

// permit makes news of a resource that was denied to clients that did not have it: now
// it only fails, and they go on with what was last good.
func (a *apply) permit(set *Set, n *Name) {
	if e := set.Get(n); e.Present() {
		again := *e
		again.Seq = a.next()
		again.since = again.Seq
		set.put(a.edit, &again)
	}
}

// succeed forgets what was wrong with a resource, and reports whether something was.
func (a *apply) succeed(kind Kind, n *Name) bool {
	if a.typ.Errors(kind).Get(n) == nil {
		return false
	}
	a.drop(a.errors(kind), n)
	return true
}

// whole returns the name that stands for all members of a type, or of a collection.
func whole(key string) string {
	_, glob, _ := SplitCollection(key)
	return cmp.Or(glob, wire.Wildcard)
}

// failsWhole reports whether something is wrong with the members as a whole.
func (t *Type) failsWhole() bool {
	for e := range t.Errors(Wildcard).Since(0) {
		if e.Name.text == whole(t.URL) {
			return true
		}
	}
	return false
}

// succeedWhole forgets what was wrong with the members as a whole: some have come.
func (a *apply) succeedWhole() {
	if n := a.index.names[whole(a.typ.URL)]; n != nil && a.succeed(Wildcard, n) {
		a.index.release(n)
	}
}

// settle makes news of the absence of a resource of which clients were told that it
// fails: now they know that it does not exist.
func (a *apply) settle(kind Kind, set *Set, n *Name) {
	e := &Entry{Name: n, Seq: a.next(), epoch: a.epoch()}
	e.since, e.born = e.Seq, e.Seq
	if set.Get(n) == nil {
		n.entries++
	}
	if kind == Wildcard {
		a.ledger.tombs[a.typ.URL] = append(a.ledger.tombs[a.typ.URL], tomb{n, e.Seq, a.now})
	}
	set.put(a.edit, e)
	a.touched(kind, n)
}

// forgive forgets what is wrong with the members.
func (a *apply) forgive() {
	for e := range a.typ.Errors(Wildcard).Since(0) {
		set := a.errors(Wildcard)
		a.drop(set, e.Name)
		a.index.release(e.Name)
	}
}

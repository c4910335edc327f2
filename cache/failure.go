package cache

import "github.com/xdstender/tender/cache/wire"

// fail records what the origin said is wrong with a resource. What was there stays,
// unless the error says that it does not exist (R123).
func (a *apply) fail(kind Kind, err *wire.ResourceError) {
	names := a.askedAs(err.Name, err.Variant)
	if kind == Members {
		names = []*Name{a.w.view.index.name(a.index, err.Name)}
	}
	if len(names) == 0 {
		a.change.Ignored++
	}
	if err.NotFound() {
		a.gone(kind, a.set(kind), err.Name)
	}
	for _, n := range names {
		a.failName(kind, n, err)
	}
}

func (a *apply) failName(kind Kind, n *Name, err *wire.ResourceError) {
	set := &a.typ.Errors
	old := set.Get(n)
	if old != nil && old.Err.Same(err) && old.ByWildcard == (kind == Members) {
		return // it was said before
	}
	if old == nil {
		n.entries++
	}
	set.put(a.edit, &Entry{Name: n, Seq: a.next(), Err: err, ByWildcard: kind == Members})
	a.touched(kind, n)
}

// succeed forgets what was wrong with a resource, and reports whether something was.
func (a *apply) succeed(n *Name) bool {
	if a.typ.Errors.live == 0 || a.typ.Errors.Get(n) == nil {
		return false
	}
	a.drop(&a.typ.Errors, n)
	return true
}

// forgive forgets the errors that concern the members.
func (a *apply) forgive() {
	for e := range a.typ.Errors.Since(0) {
		if e.ByWildcard {
			a.drop(&a.typ.Errors, e.Name)
			a.index.release(e.Name)
		}
	}
}

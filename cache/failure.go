package cache

import (
	"cmp"
	"slices"

	"github.com/xdstender/tender/cache/wire"
)

// Began returns, of an error, when the origin first said just that, be it to one who
// follows the wildcard or to one who named the resource.
func (e *Entry) Began() Seq { return e.since }

// fail records what the origin said is wrong with a resource, for those who asked for
// it by an alias too. What was there stays, unless the error says that it does not
// exist (R123).
func (a *apply) fail(kind Kind, err *wire.ResourceError) {
	names := a.asked(kind, err.Name)
	if len(names) == 0 {
		a.change.Ignored++
		return
	}
	switch set := a.set(kind); {
	case err.NotFound() && err.Constraints != nil:
		a.removeVariant(set, err.Variant)
	case err.NotFound():
		a.gone(kind, set, err.Name)
	}
	for _, n := range names {
		a.failed(kind, n, err)
	}
}

// asked returns the names that stand for a resource and that the origin may speak of.
func (a *apply) asked(kind Kind, resource string) []*Name {
	if kind == Members {
		return []*Name{a.w.view.index.name(a.index, resource)}
	}
	return slices.DeleteFunc(a.heldAs(kind, resource), func(n *Name) bool { return !a.takes(n) })
}

func (a *apply) failed(kind Kind, n *Name, err *wire.ResourceError) {
	if e, _ := a.typ.Lookup(n); err.NotFound() && e.Present() {
		return // it was there twice, and one is left
	}
	set := &a.typ.Errors
	e := &Entry{Name: n, Err: err, ByWildcard: kind == Members}
	old := set.Get(n)
	if old != nil {
		e.ByWildcard = e.ByWildcard || old.ByWildcard
		if old.Err.Same(err) && e.ByWildcard == old.ByWildcard {
			return // it was said before
		}
	} else {
		n.entries++
	}
	e.Seq = a.next()
	e.since, e.born = e.Seq, e.Seq
	if old != nil && old.Err.Same(err) {
		e.since = old.since
	}
	if old != nil && old.Err.Transient() == err.Transient() {
		e.born = old.born
	}
	set.put(a.edit, e)
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

// succeedWhole forgets what was wrong with the members as a whole: some have come.
func (a *apply) succeedWhole() {
	if a.typ.Errors.live == 0 {
		return
	}
	_, glob, _ := SplitCollection(a.typ.URL)
	if n := a.index.names[cmp.Or(glob, wire.Wildcard)]; n != nil && a.succeed(n) {
		a.index.release(n)
	}
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

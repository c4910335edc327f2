package cache

import "github.com/xdstender/tender/cache/wire"

// ApplyFirst applies the part of a response by which readers lose nothing. newest has what was stated before, and waits.
//
// These are applied:
//
//   - the first state of a name, even that it does not exist, and new members until their set is confirmed;
//   - what replaces content that may not be cached (R125), or the response that an alias names no resource (B.20), since
//     clients make the relay request these again;
//   - the version and the TTL of content that does not change, and the TTL of content that does: a resource expires after
//     the TTL of the origin, which clients measure, too (R107).
//
// The change counts what is applied, and all resources that the set accepts.
func (w *Writer) ApplyFirst(kind Kind, u wire.Update, newest Newest) Change {
	resources := w.view.prepare(u)
	ed := w.begin(u.TypeURL)
	re := newResponse(ed.editSet(kind), resources)
	re.first = &first{newest: newest, errors: u.Errors}
	re.apply(u, resources)
	if re.set.system == "" || !re.first.waiting {
		re.set.system = u.SystemVersion
	}
	re.compact()
	w.publish(ed)
	return ed.change
}

// Resend gives a resource of a cohort's set, or its removal, a new position, so that streams send it although it has not
// changed: a client that rejected a response may still have other content.
func (w *Writer) Resend(cohort int, kind Kind, key, name string) {
	if w.Generation().types.get(key) == nil {
		return // the type or collection was removed
	}
	ed := w.beginOn(w.branches[cohort], key)
	n, to := w.view.index.name(ed.index, name), ed.editSet(kind)
	switch {
	case to.set.Get(n) != nil:
		to.resendEntry(n)
	case kind == Wildcard && ed.typ.HasLastGood(Wildcard): // the tombstone was dropped
		to.resendAbsence(n, false)
	default:
		ed.index.release(n)
	}
	to.compact()
	w.publish(ed)
}

// Shown returns what the readers of a cohort's view see of a name of a set, as a statement without effect if the set belongs to
// another source, or has no state of the name. The number Config.Cohorts stands for the rest.
func (w *Writer) Shown(cohort int, kind Kind, key, name string) Statement {
	t, n := w.branches[cohort].generation().Type(key), w.view.FindName(key, name)
	if kind == ByName && n == nil || !w.writes(kind, t, n) {
		return Statement{Name: name}
	}
	return t.statement(kind, n, name)
}

// CopyFirst is Copy for the part of the state in another view by which readers lose nothing, as ApplyFirst is Apply.
func (w *Writer) CopyFirst(kind Kind, from *Generation, key string, names []*Name, newest Newest) Change {
	of := &first{newest: newest}
	for _, n := range names {
		if e := from.Type(key).Errors(kind).Get(n); e != nil {
			of.errors = append(of.errors, e.Err)
		}
	}
	return w.copy(kind, from, key, names, of)
}

// Restate applies statements of names of a set, the newest or former ones, whatever they are. It skips names that belong to
// another source, and those that no session subscribes to by name.
func (w *Writer) Restate(kind Kind, key, system string, all []Statement) Change {
	return w.restateIn(w.rest(), kind, key, system, all, response.restate)
}

// RestateFirst is Restate for statements that wait, if readers lose nothing by them any longer.
func (w *Writer) RestateFirst(kind Kind, key string, all []Statement, newest Newest) {
	w.restateIn(w.rest(), kind, key, "", all, func(re response, n *Name, s Statement) {
		re.first = &first{newest: newest}
		if re.admits(n, s) {
			re.restate(n, s)
		}
	})
}

// RestateCohortFirst is RestateFirst for the readers of a cohort's view. It also renews the TTLs of what they see.
func (w *Writer) RestateCohortFirst(cohort int, kind Kind, key string, all []Statement) {
	w.restateIn(w.branches[cohort], kind, key, "", all, response.passFirst)
}

// RestateCohort is Restate for the readers of a cohort's view. In a name in which they then differ from the rest, they follow
// the rest no longer, until Restate or RestateCohort ends the difference.
func (w *Writer) RestateCohort(cohort int, kind Kind, key, system string, all []Statement) Change {
	return w.restateIn(w.branches[cohort], kind, key, system, all, response.restate)
}

// restateIn is Restate for the generation of a branch, with a function that restates a name.
func (w *Writer) restateIn(
	b *branch, kind Kind, key, system string, all []Statement, restate func(response, *Name, Statement),
) Change {
	if w.Generation().types.get(key) == nil {
		return Change{} // the type or collection was removed
	}
	ed := w.beginOn(b, key)
	re := newResponse(ed.editSet(kind), nil)
	if system != "" {
		re.set.system = system
	}
	for _, s := range all {
		if n := re.restatable(s.Name); n != nil {
			restate(re, n, s)
			ed.index.release(n)
		}
	}
	re.compact()
	w.publish(ed)
	return ed.change
}

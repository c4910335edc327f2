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
	re.first = &first{newest: newest}
	re.apply(u, resources)
	if re.set.system == "" || !re.first.waiting {
		re.set.system = u.SystemVersion
	}
	re.compact()
	w.publish(ed)
	return ed.change
}

// Restate applies statements of names of a set, the newest or former ones, whatever they are. It skips names that belong to
// another source, and those that no session subscribes to by name.
func (w *Writer) Restate(kind Kind, key, system string, all []Statement) Change {
	if w.Generation().types.get(key) == nil {
		return Change{} // the type or collection was removed
	}
	ed := w.begin(key)
	re := newResponse(ed.editSet(kind), nil)
	if system != "" {
		re.set.system = system
	}
	for _, s := range all {
		if n := re.restatable(s.Name); n != nil {
			re.restate(n, s)
			ed.index.release(n)
		}
	}
	re.compact()
	w.publish(ed)
	return ed.change
}

package cache

import (
	"github.com/xdstender/tender/cache/wire"
)

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

// restatable returns the Name of a text; nil if it belongs to another source, or if no session subscribes to it.
func (re response) restatable(text string) *Name {
	n := re.index.names[text]
	if re.kind == Wildcard && n == nil {
		n = re.w.view.index.name(re.index, text)
	}
	if n == nil || !re.w.writes(re.kind, re.typ, n) || re.kind == ByName && re.set.Get(n) == nil && !re.isSubscribed(n) {
		return nil
	}
	return n
}

// restate applies a statement of a name.
func (re response) restate(n *Name, s Statement) {
	old := re.set.Get(n)
	expired := s.expiredAt(re.now)
	cleared := s.HasError && s.Err == nil && (s.Resource == nil || expired) && re.clearError(n)
	if s.HasContent {
		re.restateContent(n, s)
	}
	if s.Err != nil {
		re.putError(n, s.Err)
	}
	if cleared && !old.Present() && re.set.Get(n).seq() == old.seq() {
		re.resendAbsence(n)
	}
}

// restateContent applies the content of a statement of a name.
func (re response) restateContent(n *Name, s Statement) {
	old, expired := re.set.Get(n), s.expiredAt(re.now)
	switch {
	case expired && old.Present():
		re.expireEntry(old)
	case expired && re.kind == ByName && old == nil: // readers were never sent it
		re.expireName(n, nil)
	case expired:
	case s.Resource != nil:
		r := newReceived(re.typ.URL, s.Resource, s.Deadline)
		r.failing, r.copied = !s.HasError || s.Err != nil, s.entry
		re.put(n, r)
	case re.kind == Wildcard:
		re.removeFromWildcard(n)
	default:
		re.putAbsent(n, old)
		re.unalias(old)
		if s.entry != nil && !old.Present() { // the origin reported the absence on the connection of that entry
			absent := *re.set.Get(n)
			absent.epoch = s.entry.epoch
			re.set.put(re.txn, &absent)
		}
	}
}

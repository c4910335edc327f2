package cache

import (
	"slices"
	"time"

	"github.com/xdstender/tender/cache/wire"
)

// Apply applies a response of the origin to a set. In the set of names it ignores resources that the session did not
// subscribe to (R096), and in the wildcard set removals of unknown names (R069). A resource with unchanged content
// causes no response to clients even if its version changes (R040), unless its TTL changes.
func (w *Writer) Apply(kind Kind, u wire.Update) Change {
	resources := w.view.prepare(u)
	ed := w.begin(u.TypeURL)
	re := newResponse(ed.editSet(kind), resources)
	re.set.system = u.SystemVersion
	re.apply(u, resources)
	re.compact()
	w.publish(ed)
	return ed.change
}

// prepare interns the resources of an update and derives their leaves and deadlines. It leaves out resources without a
// body, except heartbeats and responses that an alias names no resource.
func (v *View) prepare(u wire.Update) []received {
	out, now := make([]received, 0, len(u.Resources)), time.Now()
	for _, r := range u.Resources {
		if r.Refusal != nil {
			out = append(out, received{Resource: r})
			continue
		}
		if !r.HasBody() && !r.Unresolved() && !r.Heartbeat() {
			continue
		}
		if in := v.cfg.Interner; in != nil && r.HasBody() && !r.DoNotCache {
			r = in.Intern(r)
		}
		in := newReceived(u.TypeURL, r, time.Time{})
		if r.TTL > 0 {
			in.deadline = now.Add(r.TTL)
		}
		out = append(out, in)
	}
	return out
}

// Copy copies the state of names from another view: whether they exist, their content, deadline and error. names are
// Names of the other view, and key is a type or collection. The caller must record the state of the other view's source
// first (SetSource).
func (w *Writer) Copy(kind Kind, from *Generation, key string, names []*Name) Change {
	return w.copy(kind, from, key, names, nil)
}

// copy is Copy, or with first, CopyFirst.
func (w *Writer) copy(kind Kind, from *Generation, key string, names []*Name, first *first) Change {
	t := from.Type(key)
	ed := w.begin(key)
	to := setCopier{response{setEdit: ed.editSet(kind), first: first}, from, t}
	for _, n := range names {
		if source := t.Set(kind).Get(n); source != nil {
			to.copyEntry(source)
		}
		to.copyError(n.text, t.Errors(kind).Get(n))
	}
	if kind == Wildcard && !t.hasWholeError() {
		to.endWholeError()
	}
	if first == nil || to.set.system == "" || !first.waiting {
		to.set.system = t.System()
	}
	to.compact()
	w.publish(ed)
	return ed.change
}

// HasFirstState reports whether an update has state for which clients may be waiting: the first of a set, or of a name.
func (w *Writer) HasFirstState(kind Kind, u wire.Update) bool {
	t := w.Generation().Type(u.TypeURL)
	if kind == Wildcard {
		return t.Phase == Unknown
	}
	x := &w.view.index
	x.mu.Lock()
	defer x.mu.Unlock()
	ed := edit{w: w, typ: t, index: x.types[u.TypeURL]}
	if ed.index == nil {
		return false
	}
	isFirst := func(text string, v wire.Variant) bool {
		return slices.ContainsFunc(ed.subscribedNames(text, v), func(n *Name) bool {
			e, _ := t.Lookup(n)
			return e == nil && t.Errors(ByName).Get(n) == nil
		})
	}
	for _, r := range u.Resources {
		for text := range subscribableNames(r) {
			if isFirst(text, r.Variant()) {
				return true
			}
		}
	}
	return slices.ContainsFunc(u.Removed, func(text string) bool { return isFirst(text, wire.Variant{}) })
}

// Await records resources of a set that the origin has, and that are not applied yet: a client that reports one keeps it. It
// ends when the resource is applied, or with ended, for a resource that the origin has removed again.
func (w *Writer) Await(kind Kind, key string, names, ended []string) {
	set := w.Generation().Type(key).Set(kind)
	awaited := func(name string) bool { return set.Awaits(name) }
	if !slices.ContainsFunc(ended, awaited) && !slices.ContainsFunc(names, func(name string) bool { return !awaited(name) }) {
		return
	}
	edited := w.begin(key)
	for ed := range edited.edits() {
		ed.editSet(kind).await(names, ended)
	}
	w.publish(edited)
}

// await is Await for one of the sets of the type.
func (ed setEdit) await(names, ended []string) {
	for _, name := range names {
		ed.set.awaited.Set(name, new(struct{}))
	}
	for _, name := range ended {
		if !ed.set.endAwait(name) {
			continue
		}
		if n := ed.index.names[name]; n != nil {
			ed.markChanged(n) // clients may hold the resource
		}
		ed.wildcardChanged = ed.wildcardChanged || ed.kind == Wildcard
	}
}

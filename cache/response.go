package cache

import (
	"slices"

	"github.com/xdstender/tender/cache/wire"
)

// apply applies an update with these resources, apart from its version.
func (re response) apply(u wire.Update, resources []received) {
	re.recordResponse(u.ControlPlane)
	for _, r := range resources {
		if r.Refusal != nil {
			re.reject(r.Resource)
		} else {
			re.add(r)
		}
	}
	if re.kind == Wildcard && re.change.Seen > 0 {
		re.endWholeError()
	}
	for _, name := range u.Removed {
		re.remove(name, u.Fails(name))
	}
	for _, v := range u.RemovedVariants {
		re.removeVariant(v)
	}
	for _, e := range u.Errors {
		re.recordError(e)
	}
}

// endWholeError removes the error of the wildcard set as a whole, which never waits: the origin has the set again.
func (re response) endWholeError() {
	re.clearWholeError()
	re.record(Statement{Name: WholeName(re.typ.URL), HasError: true}, nil, false)
}

func (re response) add(r received) {
	if r.Heartbeat() {
		re.heartbeat(r)
		return
	}
	if re.kind == Wildcard {
		if !r.Variant().Matches(nil) { // a wildcard subscription has no parameters
			re.change.Ignored++
			return
		}
		re.change.Seen++
		re.putVariant(re.w.view.index.name(re.index, r.Name), r)
		return
	}
	accepted := false
	for text := range subscribableNames(r.Resource) {
		for _, n := range re.subscribedNames(text, r.Variant()) {
			accepted = true
			re.putVariant(n, r)
		}
	}
	if re.addUnlisted(r) || accepted {
		re.change.Seen++
	} else {
		re.change.Ignored++
	}
}

// subscribableNames yields the names by which clients may subscribe to a resource (R092).
func subscribableNames(r *wire.Resource) func(func(string) bool) {
	return func(yield func(string) bool) {
		if !yield(r.Name) {
			return
		}
		for _, alias := range r.Aliases {
			if alias != r.Name && !yield(alias) {
				return
			}
		}
	}
}

// putVariant puts a resource under a name. If several variants in one response match the parameters of the name, it
// uses the first.
func (re response) putVariant(n *Name, r received) {
	if re.kind == ByName {
		re.recordResponseFor(n)
	}
	if re.firsts != nil {
		first, taken := re.firsts[n.text]
		if taken && first != r.Key() {
			re.change.Ambiguous = append(re.change.Ambiguous, r.Name)
			re.index.release(n)
			return
		}
		re.firsts[n.text] = r.Key()
	}
	re.putResource(n, r)
}

// putResource puts a resource under a name, unless it waits, and reports whether it did.
func (re response) putResource(n *Name, r received) bool {
	s := Statement{HasContent: true, Resource: r.Resource, Deadline: r.deadline, HasError: !r.failing}
	if !re.admits(n, s) {
		re.renewChanged(n, r.deadline)
		return false
	}
	re.put(n, r)
	return true
}

// addUnlisted puts new content under those aliases of the resource that the response does not list: some origins list
// only the alias that was last requested. The next subscriber to such an alias causes a new request. It reports whether
// there are such aliases.
func (re response) addUnlisted(r received) (any bool) {
	for _, n := range re.aliasesOf(r.Name) {
		old, _ := re.resource(n)
		listed := slices.Contains(r.Aliases, n.text) || wire.PlainName(n.text) == r.Name
		if listed || old == nil || old.Name != r.Name {
			continue
		}
		any = true
		if old.Digest != r.Digest && re.putResource(n, r) {
			n.stale = true
		}
	}
	return any
}

// heartbeat renews the TTL of a resource, if it has the version of the heartbeat (R106).
func (re response) heartbeat(r received) {
	names := re.namesOf(r.Name)
	if len(names) == 0 && re.kind == Wildcard {
		re.refetchMissing(nil)
	}
	for _, n := range names {
		old, waits := re.resource(n)
		switch {
		case old != nil && old.Key() == r.Key() && old.OriginVersion == r.OriginVersion:
			re.change.Seen++
			if re.renewShown(n, r.deadline); waits {
				s := Statement{Name: n.text, HasContent: true, Resource: old, Deadline: r.deadline}
				re.record(s, re.set.Get(n), true)
				re.passToCohorts(n, s)
			}
			re.index.release(n)
		case old != nil:
			re.index.release(n)
		case re.kind == Wildcard:
			re.refetchMissing(nil)
		default:
			re.refetchMissing(n)
		}
	}
}

// namesOf returns the names under which the set may have a resource.
func (re response) namesOf(resource string) []*Name {
	var names []*Name
	if re.first != nil && re.kind == Wildcard {
		if r, _ := re.first.newest.Resource(resource); r != nil {
			names = append(names, re.w.view.index.name(re.index, resource))
		}
	}
	if n := re.index.names[resource]; len(names) == 0 && n != nil && (re.kind == Wildcard || re.isSubscribed(n)) {
		names = append(names, n)
	}
	if re.kind == ByName {
		names = append(names, re.aliasesOf(resource)...)
	}
	return names
}

// refetchMissing requests a name again, or the whole wildcard set if n is nil. An origin that sends heartbeats for a
// resource assumes that the relay has received it, and would never send its content.
func (re response) refetchMissing(n *Name) {
	last := re.w.refetchedAt[re.typ.URL]
	if n != nil {
		last = n.Asked()
	}
	switch {
	case re.now.Sub(last) < refetchInterval:
		return
	case n == nil && len(re.index.wildcards) > 0:
		re.index.refetch, re.w.refetchedAt[re.typ.URL] = true, re.now
	case n != nil && n.watchers != nil:
		n.refetch = true
	default:
		return
	}
	re.w.view.index.queueDemand(re.index, n)
}

// remove records that a resource does not exist, and clears its error unless the response has one.
func (re response) remove(text string, failing bool) {
	if re.first == nil && re.typ.Errors(re.kind).live == 0 || failing {
		re.removeResource(text)
		return
	}
	names := re.affectedNames(wire.Variant{Name: text})
	oldSeqs := make(map[*Name]Seq)
	for _, n := range names {
		if re.first != nil && !re.admits(n, Statement{HasError: true}) {
			continue
		}
		if old := re.set.Get(n); re.clearError(n) && !old.Present() {
			oldSeqs[n] = old.seq()
		}
	}
	re.removeResource(text)
	for _, n := range names {
		if seq, failed := oldSeqs[n]; failed && re.set.Get(n).seq() == seq {
			re.resendAbsence(n, false)
		}
		re.index.release(n)
	}
}

// removeResource records that a resource does not exist. Variants are removed by their constraints instead (R121),
// unless text includes the parameters of a name.
func (re response) removeResource(text string) {
	if re.kind == Wildcard {
		re.removeMember(text)
		return
	}
	// Subscribers to an alias receive the same resource.
	for _, alias := range re.aliasesOf(text) {
		if r, _ := re.resource(alias); r != nil && r.Name == text && r.Constraints == nil {
			re.removeName(alias)
		}
	}
	for _, n := range re.subscribedNames(text, wire.Variant{}) {
		if r, _ := re.resource(n); r == nil || n.text == text && !removedByConstraints(r, text) {
			re.removeName(n)
		}
	}
}

// removeMember removes a resource from the wildcard set, unless its removal waits.
func (re response) removeMember(text string) {
	s := Statement{Name: text, HasContent: true}
	if n := re.index.names[text]; n == nil {
		s.HasError = true
		re.record(s, nil, false) // it removes a resource that waits
	} else if re.admits(n, s) {
		re.removeFromWildcard(n)
	}
}

// removeName records that the resource of a name does not exist, unless that waits.
func (re response) removeName(n *Name) {
	if re.admits(n, Statement{HasContent: true}) {
		old := re.set.Get(n)
		re.putAbsent(n, old)
		re.unalias(old)
	}
}

// removedByConstraints reports whether a resource is a variant and text is the plain name. A removal of the plain name does
// not remove variants, which are removed by their constraints.
func removedByConstraints(r *wire.Resource, text string) bool {
	return wire.PlainName(text) == text && r.Constraints != nil
}

// removeVariant records that one variant of a resource no longer exists. Only clients that were sent this variant are
// sent the removal (R121).
func (re response) removeVariant(v wire.Variant) {
	matches := func(name string) bool {
		r := re.resourceNamed(name)
		return r != nil && r.Name == v.Name && string(r.Constraints) == string(v.Constraints)
	}
	if re.kind == Wildcard {
		if matches(v.Name) {
			re.removeMember(v.Name)
		}
		return
	}
	for _, alias := range re.aliasesOf(v.Name) {
		if matches(alias.text) {
			re.removeName(alias)
		}
	}
	if n := re.index.names[v.Name]; n != nil && matches(v.Name) {
		re.removeName(n)
	}
}

// recordError records the error of a resource, also under its aliases. The content is kept, unless the error is
// NOT_FOUND (R123).
func (re response) recordError(err *wire.ResourceError) {
	names := re.affectedNames(err.Variant)
	if len(names) == 0 {
		re.change.Ignored++
	}
	switch {
	case err.NotFound() && err.Constraints != nil:
		re.removeVariant(err.Variant)
	case err.NotFound():
		re.removeResource(err.Name)
	}
	for _, n := range names {
		if re.kind == ByName {
			re.recordResponseFor(n)
		}
		re.recordErrorOf(n, err)
	}
}

// recordErrorOf records the error of a name, unless it waits.
func (re response) recordErrorOf(n *Name, err *wire.ResourceError) {
	if re.admits(n, Statement{HasError: true, Err: err}) {
		re.putError(n, err)
	}
}

// reject keeps the old content of a resource whose new content the relay does not accept, and records the reason as
// an error for its subscribers (B.9). The resource exists: the origin sent it.
func (re response) reject(r *wire.Resource) {
	re.change.Seen++
	for name := range subscribableNames(r) {
		err := wire.NewResourceError(name, r.Refusal.Code, r.Refusal.Message)
		for _, n := range re.affectedNames(wire.Variant{Name: name, Constraints: r.Constraints}) {
			re.recordErrorOf(n, err)
		}
		if re.kind == Wildcard {
			return // the wildcard set has no aliases
		}
	}
}

// affectedNames returns the names of a variant of a resource, including aliases.
func (re response) affectedNames(v wire.Variant) []*Name {
	if re.kind == Wildcard {
		return []*Name{re.w.view.index.name(re.index, v.Name)}
	}
	names := slices.Clone(re.subscribedNames(v.Name, v))
	for _, n := range re.aliasesOf(v.Name) {
		if re.isSubscribed(n) && wire.PlainName(n.text) != v.Name {
			names = append(names, n)
		}
	}
	return names
}

// A setCopier edits a set by copying entries from another generation of the type.
type setCopier struct {
	response
	from *Generation
	t    *Type // of from
}

// copyEntry copies an entry, whose Name may belong to another view.
func (to setCopier) copyEntry(e *Entry) {
	n := to.index.names[e.Name.text]
	switch {
	case to.kind == ByName && !to.isSubscribed(n):
	case to.kind == Wildcard && e.Present() && n == nil:
		n = to.w.view.index.name(to.index, e.Name.text)
		fallthrough
	case e.Present():
		failing := to.t.Errors(to.kind).Get(e.Name) != nil
		to.putResource(n, received{Resource: e.Resource, leaf: e.Leaf, deadline: e.Deadline(), failing: failing, copied: e})
	case to.kind == Wildcard:
		to.removeMember(e.Name.text)
	case e.Expired:
		to.record(Statement{Name: n.text, HasContent: true, entry: e}, to.set.Get(n), false)
		if old := to.set.Get(n); old.Present() {
			to.expireEntry(old)
		}
	case to.from.Absent(e):
		to.copyAbsence(n)
	}
}

// copyAbsence records that a resource does not exist, unless that is recorded already.
func (to setCopier) copyAbsence(n *Name) {
	old := to.set.Get(n)
	if to.first == nil && old != nil && !old.Present() && !old.Expired && old.epoch == to.epoch() {
		return
	}
	to.removeName(n)
}

// copyError copies the error of a resource; a nil entry means that there is none.
func (to setCopier) copyError(name string, e *Entry) {
	n := to.index.names[name]
	switch {
	case e != nil && n != nil && to.typ.Errors(to.kind).Get(n) != nil && to.typ.Errors(to.kind).Get(n).Err.Same(e.Err):
		// The error is recorded already.
	case e != nil:
		to.recordError(e.Err)
	case n == nil:
	case to.typ.Errors(to.kind).Get(n) == nil: // readers see no error, but one may wait
		to.record(Statement{Name: name, HasError: true}, to.set.Get(n), false)
		to.index.release(n)
	case to.admits(n, Statement{HasError: true}):
		to.clearError(n)
		to.index.release(n)
	}
}

package cache

import (
	"cmp"
	"maps"
	"slices"

	"github.com/xdstender/tender/cache/wire"
)

// A target says in which generation the state of a name is that readers are to see. A nil name is all of the type that is not
// of one name.
type target func(key string, n *Name) *Generation

// target returns the target for a generation of what waits. All else is as in latest, but stays as it is while the writer is
// frozen.
func (g *gate) target(s *served, waiting *Generation) target {
	latest := g.Generation()
	return func(key string, n *Name) *Generation {
		passes, typeURL := latest, resourceType(key)
		if g.Frozen() {
			passes = s.generation()
		}
		switch {
		case g.changeWaits(typeURL, false):
			return waiting
		case !g.changeWaits(typeURL, true) || n == nil:
			return passes
		}
		// There is the resource if it is in what waits; what it contains passes.
		is, was, goes := waiting.Type(key).present(n), s.generation().Type(key).present(n), !latest.Type(key).present(n)
		switch {
		case is != was && (g.Frozen() || goes): // frozen, a cluster that is shown now needs its endpoints
			return waiting
		case is && goes: // it stays as readers see it, which may be newer than in what waits
			return s.generation()
		}
		return passes
	}
}

// removalWaits reports whether removals of a type wait, and nothing else does: clusters that are served refer to these resources.
func removalWaits(typeURL string) bool {
	return typeURL == wire.EndpointType || typeURL == wire.LocalityEndpoint || wire.IsSecret(typeURL)
}

// present reports whether there is a resource of a name.
func (t *Type) present(n *Name) bool { return t.Wildcard.Get(n).Present() || t.ByName.Get(n).Present() }

// show shows the readers of a view what the writer writes, each name as its target has it. Additions and changes come first, in
// the order in which types are sent, then removals in reverse, so that no resource refers to one that was removed before (B.11).
// It returns, by type URL or collection, the names that differed.
func (g *gate) show(s *served, to target) (differ map[string][]*Name) {
	differ = g.differ(s, to)
	order := inOrder(differ)
	for _, key := range order {
		g.showType(s, key, to, differ[key], true)
	}
	for _, key := range slices.Backward(order) {
		g.showType(s, key, to, differ[key], false)
	}
	return differ
}

// differ returns, by type URL or collection, the names whose state differs between their target and what readers see.
func (g *gate) differ(s *served, to target) map[string][]*Name {
	differ, served := make(map[string][]*Name), s.generation()
	for latest := range g.Generation().types.since(0) {
		key := latest.URL
		names, shown := make(map[*Name]struct{}), served.Type(key)
		for _, of := range []*Type{shown, latest, to(key, nil).Type(key)} {
			for e := range g.own(of) {
				if !g.agrees(shown, to(key, e.Name).Type(key), e.Name) {
					names[e.Name] = struct{}{}
				}
			}
		}
		if len(names) > 0 {
			differ[key] = slices.Collect(maps.Keys(names))
		}
	}
	return differ
}

// showType shows the readers of a view names of a type as their targets have them: those that are present there, or the others.
func (g *gate) showType(s *served, key string, target target, names []*Name, present bool) {
	w := g.w
	ed, latest := w.beginOn(s.ledger, key), g.Generation()
	of := target(key, nil).Type(key)
	for _, kind := range kinds {
		slices.SortFunc(names, func(a, b *Name) int {
			return cmp.Or(cmp.Compare(of.set(kind).Get(a).seq(), of.set(kind).Get(b).seq()), a.Compare(b))
		})
		for _, n := range names {
			from := target(key, n)
			t := from.Type(key)
			forgotten := kind == ByName && !latest.Type(key).states(ByName, n)
			switch {
			case !g.writes(kind, t, n) || t.set(kind).Get(n).Present() != present || forgotten:
			case from == latest:
				copying{ed.of(kind), from, t}.showThawed(n)
			default:
				if t.states(kind, n) {
					copying{ed.of(kind), from, t}.showThawed(n)
				}
				copying{ed.of(kind), latest, latest.Type(key)}.pass(n) // how long it lives, and first answers
			}
		}
		to := ed.of(kind)
		to.set.system = of.set(kind).system
		to.compact()
	}
	if of.source == w.source && !of.hasWholeError() {
		ed.clearWholeError()
	}
	g.withhold(s, ed, g.Generation().Type(key), names)
	w.publish(ed)
}

// states reports whether the type says anything of a name in one of its sets. Of what it does not, readers keep what they were
// sent first.
func (t *Type) states(kind Kind, n *Name) bool {
	if kind == Wildcard {
		return t.hasLastGood(Wildcard)
	}
	return t.ByName.Get(n) != nil || t.Errors(ByName).Get(n) != nil
}

// showThawed is show, but also removes a resource of which the source has not repeated since it was
// lost that it does not exist: on the next connection, nobody would ask. Where changes wait for Show, it does so also while the
// source is lost: an edition is shown as a whole.
func (to copying) showThawed(n *Name) {
	old, e := to.set.Get(n), to.t.set(to.kind).Get(n)
	shown := !old.Present() || to.from.From(n).Connected || to.w.stages()
	if to.kind == ByName && e != nil && !e.Present() && (!e.Expired || old == nil) && shown {
		to.putAbsent(n, old)
		to.unalias(old)
		if !old.Present() { // that makes it no more certain
			again := *to.set.Get(n)
			again.epoch, again.Expired = e.epoch, e.Expired
			to.set.put(to.txn, &again)
		}
	}
	to.show(n)
}

// show shows readers the whole state of a name.
func (to copying) show(n *Name) {
	was, is, err := to.set.Get(n).seq(), to.t.set(to.kind).Get(n), to.t.Errors(to.kind).Get(n)
	recovered := err == nil && to.typ.Errors(to.kind).Get(n) != nil && !is.Present()
	switch {
	case is != nil:
		to.entry(is)
	case to.kind == Wildcard:
		to.removeFromWildcard(n)
	}
	if !recovered {
		to.error(n.text, err)
		return
	}
	if to.clearError(n); to.set.Get(n).seq() == was {
		to.announceAbsence(n)
	}
}

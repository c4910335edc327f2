package upstream

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// trunkEnds is the number of ends in a row after which the trunk is divided if the origin works.
const trunkEnds = 2

// ordered returns the subscriptions of the branch in the order in which xDS sends types.
func (b *branch) ordered() []*subscription {
	return slices.SortedFunc(maps.Values(b.subs), compareTypes)
}

// compareTypes compares subscriptions by the order in which xDS sends their types.
func compareTypes(a, b *subscription) int {
	return wire.CompareTypes(a.typeURL, b.typeURL)
}

// count returns the number of subscriptions in the part.
func (p *part) count() int {
	n := len(p.names) + len(p.globs)
	if p.wildcard {
		n++
	}
	return n
}

// list returns the first names of the part.
func (p *part) list() []string {
	var out []string
	if p.wildcard {
		out = append(out, wire.Wildcard)
	}
	out = append(out, p.globs[:min(len(p.globs), namesListed)]...)
	return append(out, nameStrings(p.names[:min(len(p.names), namesListed)])...)
}

// counts returns the number of subscriptions in parts.
func counts(parts []part) (n int) {
	for i := range parts {
		n += parts[i].count()
	}
	return n
}

// parts returns what the streams of the given roles carry, in the order of types, for each type the wildcard and the
// names separately. included selects names, globs and wildcards by the times of their requests; nil selects all.
func (b *branch) parts(included func(requested time.Time) bool, roles ...role) (parts []part) {
	in := func(at time.Time) bool { return included == nil || included(at) }
	for _, s := range b.ordered() {
		if slices.Contains(roles, s.wildcardRole) && in(s.requestedAt) {
			parts = append(parts, part{sub: s, wildcard: true})
		}
		if !slices.Contains(roles, s.namesRole) {
			continue
		}
		p := part{sub: s}
		for n := range s.names {
			if in(n.Asked()) {
				p.names = append(p.names, n)
			}
		}
		for glob, c := range s.collections {
			if in(c.requestedAt) {
				p.globs = append(p.globs, glob)
			}
		}
		if p.count() > 0 {
			slices.SortFunc(p.names, func(a, b *cache.Name) int { return strings.Compare(a.String(), b.String()) })
			slices.Sort(p.globs)
			parts = append(parts, p)
		}
	}
	return parts
}

// half returns a half of what a stream carries: half of the types, or half of the names if there is one type. If there is
// one subscription, it is empty for a main stream: on an auxiliary stream, the subscription would delay new ones.
func (b *branch) half(r role) []part {
	parts := b.parts(nil, r)
	if len(parts) != 1 {
		return parts[(len(parts)+1)/2:]
	}
	p := parts[0]
	switch names, globs := len(p.names), len(p.globs); {
	case names+globs < 2 && r == main:
		return nil
	case names+globs < 2:
	case globs == 0:
		p.names = p.names[(names+1)/2:]
	case names == 0:
		p.globs = p.globs[(globs+1)/2:]
	default:
		p.names = nil
	}
	return []part{p}
}

// failing reports whether a stream of an isolated branch has ended before it was alive, and none has been alive since.
func (b *branch) failing() bool { return b.byRole[main].ends+b.byRole[auxiliary].ends > 0 }

// down reports whether the main stream of the trunk is closed and has failed more than once.
func (b *branch) down() bool { return !b.byRole[main].open && b.byRole[main].ends >= trunkEnds }

// aliveAt returns when the streams of the branch will have been alive for a time; zero if one that is needed is closed.
func (b *branch) aliveAt(after time.Duration) time.Time {
	last := b.addedAt
	for r := main; r <= auxiliary; r++ {
		switch l := &b.byRole[r]; {
		case l.open && l.openedAt.After(last):
			last = l.openedAt
		case !l.open && (r == main || b.needs(r)):
			return time.Time{}
		}
	}
	return last.Add(after)
}

// size returns the number of subscriptions of a branch.
func (b *branch) size() int { return counts(b.parts(nil, main, auxiliary)) }

// isCause reports whether each subscription of a failing branch has ended a stream that carried nothing else.
func (b *branch) isCause() bool { return b.shared || b.size() == 1 }

// singles returns each subscription of a branch.
func (b *branch) singles() (all []part) {
	for _, p := range b.parts(nil, main, auxiliary) {
		if p.wildcard {
			all = append(all, p)
		}
		for _, n := range p.names {
			all = append(all, part{sub: p.sub, names: []*cache.Name{n}})
		}
		for _, glob := range p.globs {
			all = append(all, part{sub: p.sub, globs: []string{glob}})
		}
	}
	return all
}

// connectedBeside reports whether a main stream of another branch is open.
func (v *streams) connectedBeside(b *branch) bool {
	for other := range v.branches {
		if other != b && other.byRole[main].open {
			return true
		}
	}
	return false
}

// searchingBeside reports whether another isolated branch has several subscriptions.
func (v *streams) searchingBeside(b *branch) bool {
	return slices.ContainsFunc(v.isolated, func(other *branch) bool { return other != b && other.size() > 1 })
}

// subscribed returns what a stream still carries of parts, each subscription once. It modifies parts.
func subscribed(parts []part, r role) []part {
	seen := make(map[any]struct{})
	isNew := func(key any) bool {
		_, known := seen[key]
		seen[key] = struct{}{}
		return !known
	}
	for i := range parts {
		p := &parts[i]
		p.wildcard = p.wildcard && p.sub.wildcardRole == r && isNew(p.sub)
		p.names = slices.DeleteFunc(p.names, func(n *cache.Name) bool {
			_, have := p.sub.names[n]
			return !have || p.sub.namesRole != r || !isNew(n)
		})
		p.globs = slices.DeleteFunc(p.globs, func(glob string) bool {
			c := p.sub.collections[glob]
			return c == nil || p.sub.namesRole != r || !isNew(c)
		})
	}
	return slices.DeleteFunc(parts, func(p part) bool { return p.count() == 0 })
}

// used reports whether the branch carries any subscription.
func (b *branch) used() bool { return b.needs(main) || b.needs(auxiliary) }

// recover records that none of the subscriptions of the branch ends streams.
func (b *branch) recover() {
	for r := range b.byRole {
		l := &b.byRole[r]
		l.ends, l.objections, l.undecided, l.recent, l.early = 0, 0, false, nil, nil
	}
}

// refuses reports whether names are not requested because a SotW request cannot contain them.
func (v *streams) refuses() bool {
	for l := range v.all {
		if l.open && l.sotw != nil && l.sotw.refusing > 0 {
			return true
		}
	}
	return false
}

// isolations returns the isolated subscriptions that end streams, and the names that a SotW request cannot contain.
func (v *streams) isolations() (all []Isolation) {
	for _, b := range v.isolated {
		if !b.failing() {
			continue
		}
		for _, p := range b.parts(nil, main, auxiliary) {
			names := p.list()
			all = append(all, Isolation{
				TypeURL: p.sub.typeURL, Names: names[:min(len(names), namesListed)], Count: p.count(), Since: b.since, Err: b.failure,
			})
		}
	}
	for l := range v.all {
		if !l.open || l.sotw == nil || l.sotw.refusing == 0 {
			continue
		}
		for _, typeURL := range slices.Sorted(maps.Keys(l.sotw.types)) {
			if of := l.sotw.types[typeURL].refusal; of != nil {
				all = append(all, *of)
			}
		}
	}
	return all
}

// countIsolated returns the number of isolated subscriptions.
func countIsolated(all []Isolation) (n int) {
	for i := range all {
		n += all[i].Count
	}
	return n
}

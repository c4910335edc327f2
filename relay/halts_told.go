package relay

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/rollout"
)

// haltsBelow are what relays below without a grant are told, by node group, since the last change.
type haltsBelow struct {
	tell func() // tells relays below; set before a view hears

	mu      sync.Mutex
	changes uint64
	encoded map[string][]byte
}

// changed tells relays below of a change.
func (b *haltsBelow) changed() {
	b.mu.Lock()
	b.changes++
	clear(b.encoded)
	b.mu.Unlock()
	b.tell()
}

// forget makes a node group be told anew, since it has another view or none.
func (b *haltsBelow) forget(group string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.changes++
	delete(b.encoded, group)
}

// last returns what a node group was told, or nil, and the number of changes.
func (b *haltsBelow) last(group string) (encoded []byte, changes uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.encoded[group], b.changes
}

// keep keeps what a node group is told after some number of changes, unless there were more.
func (b *haltsBelow) keep(group string, changes uint64, encoded []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.changes == changes {
		b.encoded[group] = encoded
	}
}

// told returns what a relay below with a grant is told of the resources of a node group (downstream.Config.Halts).
func (h *tierHalts) told(group string, grant downstream.Grant) []byte {
	encoded, changes := h.below.last(group)
	if encoded != nil && grant == nil {
		return encoded
	}
	path, above, incomplete := h.heardIn(group)
	var own []admin.DecidedChanges
	heard := make([][]admin.DecidedChanges, len(h.origins))
	for i, name := range h.origins {
		var halted []rollout.Decision
		if h.rollouts != nil {
			d := h.rollouts.controllers[i].Decisions()
			for _, d := range slices.Concat(d.Halted, d.Followed) {
				halted = appendPermitted(halted, d, group, grant)
			}
		}
		here := len(halted)
		for _, d := range above[i] {
			halted = appendPermitted(halted, d, "", grant)
		}
		own = append(own, encodeDecisions(name, halted[:here])...)
		heard[i] = encodeDecisions(name, halted[here:])
	}
	sortNewest(own, time.Now())
	answer := admin.PeerRollouts{Instance: hashOf(path), Incomplete: incomplete, Halted: append(own, interleave(heard)...)}
	encoded = encodeHalts(answer)
	if grant == nil && len(path) > 1 { // otherwise the group has no view any more
		h.below.keep(group, changes, encoded)
	}
	return encoded
}

// sortNewest sorts halts by their time, the newest first. Those of the future, on the clock of another relay, are as new as can be.
func sortNewest(halts []admin.DecidedChanges, now time.Time) {
	age := func(d admin.DecidedChanges) time.Duration { return max(now.Sub(d.At), 0) }
	slices.SortStableFunc(halts, func(a, b admin.DecidedChanges) int { return cmp.Compare(age(a), age(b)) })
}

// interleave returns the first of each list, then the second of each, and so on: no list keeps out another one.
func interleave[T any](lists [][]T) (all []T) {
	for i := 0; ; i++ {
		before := len(all)
		for _, list := range lists {
			if i < len(list) {
				all = append(all, list[i])
			}
		}
		if len(all) == before {
			return all
		}
	}
}

// appendPermitted appends a halt with those resources of a node group that a client may request, or adds them to the same halt, which
// several parts of this relay may follow. It appends none without resources. A client that may not request all, of all node groups, is not told the reason, which may be about the others, nor
// their names. Nor is any client if one of them is a Secret.
func appendPermitted(all []rollout.Decision, d rollout.Decision, group string, grant downstream.Grant) []rollout.Decision {
	told, permitted, others := permittedIn(d.Changes, group, grant)
	if told.Empty() {
		return all
	}
	permitted = permitted && (!d.Partial || grant == nil)
	if d.Changes = told; !permitted {
		d.Reason = ""
	}
	if !permitted || others && grant != nil {
		d.Part = told.Name()
	}
	return addHalt(all, d)
}

// permittedIn returns the changes of a node group that a client may request, without the group. It reports whether the client may
// request all, of all groups, and whether there are others than those of the group.
func permittedIn(changes rollout.Changes, group string, grant downstream.Grant) (of rollout.Changes, all, others bool) {
	of, all = make(rollout.Changes), true
	for key, types := range changes {
		here := key.Group == group
		others = others || !here
		for typ, names := range types {
			if !here && !all {
				break
			}
			is := permittedNames(typ, names, grant)
			if all = all && len(is) == len(names); !here || len(is) == 0 {
				continue
			}
			to := rollout.SectionKey{Shared: key.Shared}
			if of[to] == nil {
				of[to] = make(map[string]map[string]wire.Digest)
			}
			of[to][typ] = is
		}
	}
	return of, all, others
}

// permittedNames returns those of some names that a client may request.
func permittedNames(typ string, names map[string]wire.Digest, grant downstream.Grant) map[string]wire.Digest {
	typeURL, _, _ := cache.SplitCollection(typ)
	if grant == nil && !wire.IsSecret(typeURL) {
		return names
	}
	is := maps.Clone(names)
	maps.DeleteFunc(is, func(name string, _ wire.Digest) bool { return !permits(grant, typeURL, name) })
	return is
}

// permits reports whether a relay with a grant may be told of a name: it may request it, and it is not that of a Secret.
func permits(grant downstream.Grant, typeURL, name string) bool {
	return !wire.IsSecret(typeURL) && (grant == nil || grant.Type(typeURL) == nil &&
		(!grant.RestrictsNames(typeURL) || grant.Name(typeURL, name) == nil))
}

package peers

import (
	"cmp"
	"maps"
	"slices"

	"github.com/xdstender/tender/relay/admin"
)

// A set identifies the resources of a type from one origin for one node group, which have a common version.
type set struct{ group, origin, typeURL string }

// disagreements returns the sets for which relays have different versions, sorted. A relay without a set has no clients
// for it, so it is not compared. Neither are relays without a summary.
func disagreements(relays []admin.TierRelay) (all []admin.Disagreement) {
	versions := make(map[set]map[string][]string)
	for _, r := range relays {
		if r.TierSummary == nil {
			continue
		}
		for _, v := range r.Views {
			for typeURL, version := range v.Versions {
				of := set{v.Group, v.Origin, typeURL}
				if versions[of] == nil {
					versions[of] = make(map[string][]string)
				}
				versions[of][version] = append(versions[of][version], r.Address)
			}
		}
	}
	sets := slices.SortedFunc(maps.Keys(versions), func(a, b set) int {
		return cmp.Or(cmp.Compare(a.group, b.group), cmp.Compare(a.origin, b.origin), cmp.Compare(a.typeURL, b.typeURL))
	})
	for _, of := range sets {
		if len(versions[of]) > 1 {
			all = append(all, admin.Disagreement{Group: of.group, Origin: of.origin, TypeURL: of.typeURL, Versions: versions[of]})
		}
	}
	return all
}

package peers

import (
	"cmp"
	"maps"
	"slices"

	"github.com/xdstender/tender/relay/admin"
)

// A set is what a version is of.
type set struct{ group, origin, typeURL string }

// disagreements returns the sets of which relays have different versions, in order. A relay that lacks a set has no
// clients for it, and agrees.
func disagreements(relays []admin.FleetRelay) (all []admin.Disagreement) {
	versions := make(map[set]map[string][]string)
	for _, r := range relays {
		if r.FleetSummary == nil {
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

package wire

import (
	"slices"
	"testing"

	"github.com/xdstender/tender/cache/wire/schema"
)

// TestR001_RowsOfTypes: what the rows of the types say agrees with what is derived from them elsewhere.
func TestR001_RowsOfTypes(t *testing.T) {
	var resent []string
	for i := range schema.ResourceTypes {
		of := &schema.ResourceTypes[i]
		if of.Resent {
			resent = append(resent, of.URL)
		}
		for _, to := range of.RefersTo {
			if !Known(to) {
				t.Errorf("%s refers to the unknown type %s", of.Short, to)
			}
		}
		if references[of.URL] != nil && !slices.ContainsFunc(of.RefersTo, func(to string) bool { return slices.Contains(Referenced[:], to) }) {
			t.Errorf("references are found in %s, but its row has none to a type that is resent", of.Short)
		}
		if of.Keyed != (keys[of.URL] != nil) {
			t.Errorf("%s has keys: %t in its row, and %t in Keys", of.Short, of.Keyed, !of.Keyed)
		}
		if of.Root && !of.Wildcard {
			t.Errorf("%s is a root, but has no wildcard", of.Short)
		}
		if of.Within != "" && !Known(of.Within) {
			t.Errorf("%s is a part of the unknown type %s", of.Short, of.Within)
		}
		if of.Keyed && !of.Wildcard {
			t.Errorf("%s has keys, but no wildcard: keys are those of a set that is known as a whole", of.Short)
		}
		if of.Order >= schema.Endpoints && Rank(of.URL) < Rank(ClusterType) {
			t.Errorf("%s is sent after clusters, but is a row before them", of.Short)
		}
		if IsSecret(of.URL) != of.Secret {
			t.Errorf("%s: Secret is %t in its row, and %t by its name", of.Short, of.Secret, !of.Secret)
		}
	}
	if !slices.Equal(resent, Referenced[:]) {
		t.Errorf("resent types are %q in the rows, and %q in Referenced", resent, Referenced)
	}
	for _, unknown := range []string{"", "type.googleapis.com/acme.Foo"} {
		if Known(unknown) || FullState(unknown) || !LegacyWildcard(unknown) || Rank(unknown) != len(schema.ResourceTypes) {
			t.Errorf("%q: want a type of its own with a wildcard, sent last", unknown)
		}
	}
}

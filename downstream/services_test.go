package downstream

import (
	"slices"
	"testing"

	"github.com/xdstender/tender/cache/wire/schema"
)

// TestR007_EachTypeHasAService: a type of the protocol without a gRPC service would be served by ADS alone.
func TestR007_EachTypeHasAService(t *testing.T) {
	for i := range schema.ResourceTypes {
		of := &schema.ResourceTypes[i]
		if !slices.ContainsFunc(services, func(sv service) bool { return sv.typeURL == of.URL }) {
			t.Errorf("no service for %s", of.Short)
		}
	}
	if len(services) != len(schema.ResourceTypes)+1 {
		t.Errorf("%d services, want one for each of %d types, and ADS", len(services), len(schema.ResourceTypes))
	}
}

package upstream

import (
	"fmt"
	"strings"
	"testing"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// TestB15_RequestsDoNotShareNames: a request that subscribes to names may be unsent when the relay unsubscribes from
// them. The unsubscribe must not modify the names of that request.
func TestB15_RequestsDoNotShareNames(t *testing.T) {
	view, _ := cache.New(cache.Config{})
	watch := view.Watch()
	defer watch.Close()
	watch.Subscribe(wire.ClusterType, []string{"b"})
	s := &subscription{names: map[*cache.Name]struct{}{view.Find(wire.ClusterType, []string{"b"})[0]: {}}}
	request := &discoverypb.DeltaDiscoveryRequest{}
	asked := append(make([]string, 0, 10), "a", "b", "c")
	request.ResourceNamesSubscribe, _ = splitCount(asked)
	given := append(s.withoutWanted(asked), "glob")
	if got, want := fmt.Sprint(given, request.ResourceNamesSubscribe, asked[:4]), "[a c glob] [a b c] [a b c ]"; got != want {
		t.Errorf("unsubscribed names, names of the request, and its array: %s, want %s", got, want)
	}
}

// TestB15_C21_VersionsFitRequest: the versions of a request take at most 3.5 MB, with 12 bytes for the encoding of each.
func TestB15_C21_VersionsFitRequest(t *testing.T) {
	half := strings.Repeat("x", 1_750_000-12-1)
	for _, tt := range []struct {
		name     string
		versions map[string]string
		want     bool
	}{
		{"none", nil, false},
		{"at the limit", map[string]string{"a" + half[1:]: "1", "b" + half[1:]: "1"}, true},
		{"one byte over", map[string]string{"a" + half[1:]: "1", "b" + half: "1"}, false},
	} {
		if got := fitsRequest(tt.versions); got != tt.want {
			t.Errorf("%s: versions fit a request: %t, want %t", tt.name, got, tt.want)
		}
	}
}

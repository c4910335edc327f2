package upstream

import (
	"fmt"
	"log/slog"
	"slices"
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
	request.ResourceNamesSubscribe, _ = splitBytes(asked)
	given := append(s.withoutWanted(asked), "glob")
	if got, want := fmt.Sprint(given, request.ResourceNamesSubscribe, asked[:4]), "[a c glob] [a b c] [a b c ]"; got != want {
		t.Errorf("unsubscribed names, names of the request, and its array: %s, want %s", got, want)
	}
}

// TestR125_ANameIsRefetchedOnce: if two clients need a name again before the request is sent, the request has it once.
func TestR125_ANameIsRefetchedOnce(t *testing.T) {
	view, _ := cache.New(cache.Config{})
	watch := view.Watch()
	defer watch.Close()
	watch.Subscribe(wire.ClusterType, []string{"a", "b"})
	names := view.Find(wire.ClusterType, []string{"a", "b"})
	s := &subscription{typeURL: wire.ClusterType, names: map[*cache.Name]struct{}{names[0]: {}, names[1]: {}}}
	v := &subscriptions{}
	for _, n := range []*cache.Name{names[0], names[1], names[0]} {
		v.addName(s, n, true)
	}
	reqs, asked := s.changes()
	var got []string
	for _, r := range reqs {
		got = append(got, fmt.Sprint(r.GetResourceNamesUnsubscribe(), r.GetResourceNamesSubscribe()))
	}
	if want := []string{"[a b] []", "[] [a b]"}; !slices.Equal(got, want) || len(asked) != 2 {
		t.Errorf("unsubscribed and subscribed names of the requests: %v of %d names, want %v", got, len(asked), want)
	}
}

// TestB15_C21_VersionsFitRequest: the versions of a request take at most 3.4 MB, with 12 bytes for the encoding of each.
func TestB15_C21_VersionsFitRequest(t *testing.T) {
	half := strings.Repeat("x", 1_700_000-12-1)
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

// TestB48_StalePartsDropNothing: a part that is isolated may be of a subscription that the branch has dropped since. The one
// that has replaced it stays.
func TestB48_StalePartsDropNothing(t *testing.T) {
	v := comparing(t, slog.DiscardHandler, "1")
	b := newBranch()
	v.isolated = append(v.isolated, b)
	dropped := v.sub(b, wire.RouteType)
	v.dropIfUnused(dropped)
	watch := v.w.View().Watch()
	defer watch.Close()
	watch.Subscribe(wire.RouteType, []string{"a"})
	v.addName(v.sub(b, wire.RouteType), v.w.View().Find(wire.RouteType, []string{"a"})[0], false)
	v.isolate(b, []part{{sub: dropped}}, epoch)
	if got := b.subs[wire.RouteType]; got == nil || len(got.names) != 1 {
		t.Errorf("the subscription of the branch is %v, want one name", got)
	}
}

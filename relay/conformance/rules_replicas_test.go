package conformance_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/xdstender/tender/relay/relaytest"
)

// replicaTypes maps types to whether the test subscribes to their wildcard instead of to names.
var replicaTypes = map[string]bool{
	typeCDS: true, typeLDS: true, relaytest.ScopedRouteType: true, acmeType: true,
	typeEDS: false, typeRDS: false, relaytest.VirtualHostType: false, relaytest.RuntimeType: false,
	relaytest.ExtensionConfigType: false, relaytest.LocalityEndpointType: false,
}

// replicaResends reports whether a client that moves to another replica is resent the resources of a type (B.3):
// in SotW all types but wildcards of clusters and listeners, in Delta only endpoints by name.
func replicaResends(v relaytest.Variant, typeURL string) bool {
	if v == relaytest.Delta {
		return typeURL == typeEDS
	}
	return typeURL != typeCDS && typeURL != typeLDS
}

// Two relays of one origin have the same versions, even if one has had more changes. A client that moves between
// them gets only changes, apart from the exceptions of B.3.
func TestB2_B3_ReplicasAgree(t *testing.T) {
	t.Parallel()
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		put := func(typeURL, name, content string) {
			o.Set(typeURL, name, relaytest.Opaque(typeURL, name, []byte(content)), content)
		}
		for typeURL := range replicaTypes {
			put(typeURL, "a", "1")
			put(typeURL, "b", "1")
		}
		client := func(r *running) *relaytest.Client {
			c := r.Client(relaytest.ClientOptions{Variant: v, AutoAck: true})
			for typeURL, all := range replicaTypes {
				if all {
					c.Subscribe(typeURL, "*")
				} else {
					c.Subscribe(typeURL, "a", "b")
				}
			}
			return c
		}
		settle := func() {
			sleep(confirmTimeout)
		}
		first := start(t, o)
		client(first)
		settle()
		for typeURL := range replicaTypes {
			put(typeURL, "a", "2") // content that the second relay has not had before
			put(typeURL, "c", "1")
			o.Remove(typeURL, "c")
		}
		settle()
		time.Sleep(time.Hour) // until the first relay trusts reverted versions again
		second := start(t, o, "TENDER_NODE_ID=tender/2")
		moving, staying := client(first), client(second)
		settle()
		agree := func(when string) {
			t.Helper()
			if diff := cmp.Diff(staying.State(), moving.State()); diff != "" || len(moving.State()) != len(replicaTypes) {
				t.Errorf("%s: the clients of two relays differ (-second +first):\n%s", when, diff)
			}
		}
		agree("initially")

		for i, to := range []*running{second, first, second} {
			sent := len(moving.Responses())
			moving.Reconnect(to.Conn())
			settle()
			resent := make(map[string]int)
			for _, resp := range moving.Responses()[sent:] {
				resent[resp.TypeURL] += len(resp.Resources)
				if len(resp.Removed) > 0 {
					t.Errorf("move %d: got the removals %q", i+1, resp.Removed)
				}
			}
			for typeURL := range replicaTypes {
				want := 0
				if replicaResends(v, typeURL) {
					want = 2
				}
				if resent[typeURL] != want {
					t.Errorf("move %d: got %d resources of %s, want %d", i+1, resent[typeURL], typeURL, want)
				}
			}
			agree("after a move")
		}

		sent := len(moving.Responses())
		moving.Close()
		put(typeCDS, "a", "3")
		o.Remove(typeCDS, "b")
		settle() // so that the client gets both changes in one response
		moving.Reconnect(first.Conn())
		settle()
		agree("after what changed on the way")
		changed := 0
		for _, resp := range moving.Responses()[sent:] {
			if resp.TypeURL == typeCDS {
				changed += len(resp.Resources) + len(resp.Removed)
			}
		}
		if want := map[relaytest.Variant]int{relaytest.Delta: 2, relaytest.SotW: 1}[v]; changed != want {
			t.Errorf("got %d changed clusters, want %d", changed, want)
		}
	})
}

package conformance_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/xdstender/tender/relay/relaytest"
)

// replicaTypes are asked for by name, but for those that it is true of: these are asked
// for as a whole.
var replicaTypes = map[string]bool{
	typeCDS: true, typeLDS: true, relaytest.ScopedRouteType: true, acmeType: true,
	typeEDS: false, typeRDS: false, relaytest.VirtualHostType: false, relaytest.RuntimeType: false,
	relaytest.ExtensionConfigType: false, relaytest.LocalityEndpointType: false,
}

// replicaResends reports whether a client that moves is sent what it has of a type (B.3): of
// SotW all but Clusters and Listeners that it asks for as a whole, of Delta nothing but
// endpoints that it names.
func replicaResends(v relaytest.Variant, typeURL string) bool {
	if v == relaytest.Delta {
		return typeURL == typeEDS
	}
	return typeURL != typeCDS && typeURL != typeLDS
}

// TestB2_B3_ReplicasAgree: two relays of one origin, of which one has seen more, say the same
// version of everything, and a client that moves between them is sent what changed and
// nothing that it has, but for B.3's exceptions.
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
			time.Sleep(confirmTimeout)
			synctest.Wait()
		}
		first := start(t, o)
		client(first)
		settle()
		for typeURL := range replicaTypes {
			put(typeURL, "a", "2") // which the second has never had otherwise
			put(typeURL, "c", "1")
			o.Remove(typeURL, "c")
		}
		settle()
		time.Sleep(time.Hour) // the first relay sends again what reverted, until then
		second := start(t, o, "TENDER_NODE_ID=tender/2")
		mover, stayer := client(first), client(second)
		settle()
		agree := func(when string) {
			t.Helper()
			if diff := cmp.Diff(stayer.State(), mover.State()); diff != "" || len(mover.State()) != len(replicaTypes) {
				t.Errorf("%s: the clients of two relays differ (-second +first):\n%s", when, diff)
			}
		}
		agree("at first")

		for i, to := range []*running{second, first, second} {
			sent := len(mover.Responses())
			mover.Reconnect(to.Conn())
			settle()
			resent := make(map[string]int)
			for _, resp := range mover.Responses()[sent:] {
				resent[resp.TypeURL] += len(resp.Resources)
				if len(resp.Removed) > 0 {
					t.Errorf("move %d: told of the removal of %q", i+1, resp.Removed)
				}
			}
			for typeURL := range replicaTypes {
				want := 0
				if replicaResends(v, typeURL) {
					want = 2
				}
				if resent[typeURL] != want {
					t.Errorf("move %d: sent %d resources of %s, want %d", i+1, resent[typeURL], typeURL, want)
				}
			}
			agree("after a move")
		}

		sent := len(mover.Responses())
		mover.Close()
		put(typeCDS, "a", "3")
		o.Remove(typeCDS, "b")
		settle() // else the client may come between the two, and is told twice
		mover.Reconnect(first.Conn())
		settle()
		agree("after what changed on the way")
		changed := 0
		for _, resp := range mover.Responses()[sent:] {
			if resp.TypeURL == typeCDS {
				changed += len(resp.Resources) + len(resp.Removed)
			}
		}
		if want := map[relaytest.Variant]int{relaytest.Delta: 2, relaytest.SotW: 1}[v]; changed != want {
			t.Errorf("told of %d clusters that had changed, want %d", changed, want)
		}
	})
}

package upstream_test

import (
	"slices"
	"testing"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/upstream"
)

// putAliased sets a resource "b" of the origin with the alias "alias".
func (r *rig) putAliased(typeURL string) {
	r.t.Helper()
	body := check.Must(anypb.New(relaytest.Cluster("b")))
	body.TypeUrl = typeURL
	r.SetRaw(typeURL, &discoverypb.Resource{Name: "b", Version: "1", Aliases: []string{"alias"}, Resource: body})
}

// TestB20_R086_AliasRemovedDuringDisconnect: a resource that a client subscribed to under an alias is removed while the
// relay is disconnected. An origin that does not report nonexistent names cannot report the removal under the alias. So
// the relay also subscribes to the name of the resource.
func TestB20_R086_AliasRemovedDuringDisconnect(t *testing.T) {
	inBubble(t, relaytest.Behaviour{SilentOnMissing: true}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.put(clusters, "a@1", "c@1")
		r.putAliased(clusters)
		r.watch.Subscribe(clusters, []string{"a", "alias", "c"})
		r.namedAfter(time.Minute, "before", clusters, "a@1 alias@1 c@1")
		r.Stop()
		r.Restart()
		r.namedAfter(time.Minute, "after a restart without changes", clusters, "a@1 alias@1 c@1")
		r.Stop()
		r.Remove(clusters, "b")
		r.Restart()
		r.pass(time.Minute)
		r.expect("after the removal", present(r.named(clusters)), "a@1 c@1")
	})
}

// TestB20_C07_CanonicalNamesOfAliases: the relay unsubscribes from the name of a resource together with its alias. It
// subscribes to the name again when a client needs it, since not every origin responds twice (C07).
func TestB20_C07_CanonicalNamesOfAliases(t *testing.T) {
	inBubble(t, relaytest.Behaviour{SilentOnMissing: true}, upstream.Config{}, func(t *testing.T, r *rig) {
		subscribed := func(what string, want ...string) {
			t.Helper()
			if got := r.State().Names(clusters); !slices.Equal(got, want) {
				t.Errorf("%s: subscribed names %q, want %q", what, got, want)
			}
		}
		r.put(clusters, "a@1")
		r.putAliased(clusters)
		r.watch.Subscribe(clusters, []string{"a", "alias"})
		r.pass(soon)
		subscribed("initially", "a", "alias")
		// Before the comparison: its stream reports no versions and needs no canonical names.
		const compared = 15 * time.Second
		r.Stop()
		r.Restart()
		r.pass(compared)
		subscribed("after a resume", "a", "alias", "b")
		other := r.view.Watch()
		other.Subscribe(clusters, []string{"b"})
		r.namedAfter(soon, "after a client subscribes to the name", clusters, "a@1 alias@1 b@1")
		r.expect("second stream", r.conversation(1), "[Cluster node +a +alias +b a=1 b=1] [Cluster -b] [Cluster +b] [Cluster ack 1]")
		r.watch.Unsubscribe(clusters, r.view.Find(clusters, []string{"alias"}))
		r.pass(longAfter)
		subscribed("after the alias has lingered", "a", "b")
		other.Unsubscribe(clusters, r.view.Find(clusters, []string{"b"}))
		r.watch.Subscribe(clusters, []string{"alias"})
		r.pass(longAfter)
		r.Stop()
		r.Restart()
		r.pass(compared)
		subscribed("after another resume", "a", "alias", "b")
		r.watch.Unsubscribe(clusters, r.view.Find(clusters, []string{"alias"}))
		r.pass(soon)
		subscribed("while the alias lingers", "a", "alias", "b")
		r.pass(longAfter)
		subscribed("after the alias has lingered again", "a")
	})
}

// TestB20_NoCanonicalNamesForVirtualHosts: for virtual hosts, the relay subscribes only to names that clients subscribe
// to. A server could treat the canonical name as a domain.
func TestB20_NoCanonicalNamesForVirtualHosts(t *testing.T) {
	inBubble(t, relaytest.Behaviour{}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.putAliased(wire.VirtualHostType)
		r.watch.Subscribe(wire.VirtualHostType, []string{"alias"})
		r.pass(soon)
		r.Stop()
		r.Restart()
		r.pass(time.Minute)
		r.expect("named", r.named(wire.VirtualHostType), "alias@1")
		if got := r.State().Names(wire.VirtualHostType); !slices.Equal(got, []string{"alias"}) {
			t.Errorf("subscribed names %q, want only the alias", got)
		}
	})
}

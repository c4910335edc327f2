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
// relay is disconnected. An origin that reports no nonexistent names does not know the alias of a removed resource. So
// the relay also subscribes to the name of the resource.
func TestB20_R086_AliasRemovedDuringDisconnect(t *testing.T) {
	inBubble(t, relaytest.Behaviour{SilentOnMissing: true}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.put(clusters, "a@1", "c@1")
		r.putAliased(clusters)
		r.watch.Subscribe(clusters, []string{"a", "alias", "c"})
		r.namedAfter(time.Minute, "before", clusters, "a@1 alias@1 c@1")
		r.Stop()
		r.Restart()
		r.namedAfter(time.Minute, "nothing has changed", clusters, "a@1 alias@1 c@1")
		r.Stop()
		r.Remove(clusters, "b")
		r.Restart()
		r.pass(time.Minute)
		r.expect("it is gone", present(r.named(clusters)), "a@1 c@1")
	})
}

// TestB20_C07_CanonicalNamesOfAliases: the relay unsubscribes from the name of a resource together with its alias. It
// subscribes to the name again when a client needs it, since not every origin responds twice (C07).
func TestB20_C07_CanonicalNamesOfAliases(t *testing.T) {
	inBubble(t, relaytest.Behaviour{SilentOnMissing: true}, upstream.Config{}, func(t *testing.T, r *rig) {
		subscribed := func(what string, want ...string) {
			t.Helper()
			if got := r.State().Names(clusters); !slices.Equal(got, want) {
				t.Errorf("%s: the origin is asked for %q, want %q", what, got, want)
			}
		}
		r.put(clusters, "a@1")
		r.putAliased(clusters)
		r.watch.Subscribe(clusters, []string{"a", "alias"})
		r.pass(soon)
		subscribed("at first", "a", "alias")
		const compared = 15 * time.Second // not yet: a stream that says nothing of what is held needs no more names
		r.Stop()
		r.Restart()
		r.pass(compared)
		subscribed("after a resume", "a", "alias", "b")
		other := r.view.Watch()
		other.Subscribe(clusters, []string{"b"})
		r.namedAfter(soon, "the name is asked for", clusters, "a@1 alias@1 b@1")
		r.expect("anew", r.conversation(1), "[Cluster node +a +alias +b a=1 b=1] [Cluster -b] [Cluster +b] [Cluster ack 1]")
		r.watch.Unsubscribe(clusters, r.view.Find(clusters, []string{"alias"}))
		r.pass(time.Hour)
		subscribed("without the alias", "a", "b")
		other.Unsubscribe(clusters, r.view.Find(clusters, []string{"b"}))
		r.watch.Subscribe(clusters, []string{"alias"})
		r.pass(time.Hour)
		r.Stop()
		r.Restart()
		r.pass(compared)
		subscribed("after another resume", "a", "alias", "b")
		r.watch.Unsubscribe(clusters, r.view.Find(clusters, []string{"alias"}))
		r.pass(soon)
		subscribed("while the alias lingers", "a", "alias", "b")
		r.pass(time.Hour)
		subscribed("at the end", "a")
	})
}

// TestB20_NoCanonicalNamesForVirtualHosts: for virtual hosts, the relay subscribes only to what clients subscribe to. A
// name could be taken for a domain.
func TestB20_NoCanonicalNamesForVirtualHosts(t *testing.T) {
	inBubble(t, relaytest.Behaviour{}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.putAliased(wire.VirtualHostType)
		r.watch.Subscribe(wire.VirtualHostType, []string{"alias"})
		r.pass(soon)
		r.Stop()
		r.Restart()
		r.pass(time.Minute)
		r.expect("it is there", r.named(wire.VirtualHostType), "alias@1")
		if got := r.State().Names(wire.VirtualHostType); !slices.Equal(got, []string{"alias"}) {
			t.Errorf("the origin is asked for %q, want the alias alone", got)
		}
	})
}

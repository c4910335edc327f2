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

// aliased has the origin hold a resource "b" that is also called "alias".
func (r *rig) aliased(typeURL string) {
	r.t.Helper()
	body := check.Must(anypb.New(relaytest.Cluster("b")))
	body.TypeUrl = typeURL
	r.SetRaw(typeURL, &discoverypb.Resource{Name: "b", Version: "1", Aliases: []string{"alias"}, Resource: body})
}

// B.20, R086: a resource that a client asked for by an alias goes while the relay is not connected. An origin that says nothing
// of names that do not exist knows no alias of a resource that is no more, so the relay also asks for the name.
func TestB20_R086_AliasRemovedDuringDisconnect(t *testing.T) {
	inBubble(t, relaytest.Behaviour{SilentOnMissing: true}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.put(clusters, "a@1", "c@1")
		r.aliased(clusters)
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

// B.20: the name that the relay asks for beside an alias is given up with the alias, and asked for anew when a client wants it,
// since not every origin answers twice (C07).
func TestB20_C07_CanonicalNamesOfAliases(t *testing.T) {
	inBubble(t, relaytest.Behaviour{SilentOnMissing: true}, upstream.Config{}, func(t *testing.T, r *rig) {
		subscribed := func(what string, want ...string) {
			t.Helper()
			if got := r.State().Names(clusters); !slices.Equal(got, want) {
				t.Errorf("%s: the origin is asked for %q, want %q", what, got, want)
			}
		}
		r.put(clusters, "a@1")
		r.aliased(clusters)
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

// B.20: of virtual hosts the relay asks for what clients ask for alone: a name may be taken for a domain.
func TestB20_NoCanonicalNamesForVirtualHosts(t *testing.T) {
	inBubble(t, relaytest.Behaviour{}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.aliased(wire.VirtualHostType)
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

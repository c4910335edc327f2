package upstream_test

import (
	"testing"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/upstream"
)

// uncached returns a resource, written name@version, with do_not_cache.
func uncached(typeURL, text string) *discoverypb.Resource {
	r := response(typeURL, text).GetResources()[0]
	r.CacheControl = &discoverypb.Resource_CacheControl{DoNotCache: true}
	return r
}

// TestR125_DroppedContentReportsEmptyVersion: on a new stream, members with dropped content are reported with an empty
// version. So the origin sends their content, or their removal.
func TestR125_DroppedContentReportsEmptyVersion(t *testing.T) {
	inBubble(t, relaytest.Behaviour{}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.put(clusters, "kept@1")
		r.SetRaw(clusters, uncached(clusters, "secret@1"))
		bare := func() int { return r.view.Generation().Type(clusters).Wildcard.ContentDropped() }
		r.watch.SubscribeAll(clusters)
		r.pass(time.Minute)
		if got := bare(); got != 1 {
			t.Fatalf("%d clusters with dropped content, want 1", got)
		}
		r.Restart()
		for waited := time.Duration(0); bare() > 0; waited += soon {
			if waited > 5*time.Second {
				t.Fatalf("no content 5s after the restart: %s", r.conversation(1))
			}
			r.pass(soon)
		}
		r.expect("second stream", r.conversation(1), "[Cluster node kept=1 secret=] [Cluster ack 1]")
	})
}

// TestR125_DroppedContentOfAGlob: on a new stream, members of a glob with dropped content are reported with an empty
// version.
func TestR125_DroppedContentOfAGlob(t *testing.T) {
	const foos, glob, item = "type.googleapis.com/acme.Foo", "xdstp://x/acme.Foo/*", "xdstp://x/acme.Foo/a"
	inBubble(t, relaytest.Behaviour{Manual: true}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.watch.SubscribeAll(cache.Collection(foos, glob))
		s := r.Accept(t.Context())
		r.pass(soon)
		resp := response(foos, "xdstp://x/acme.Foo/b@1")
		resp.Resources = append(resp.Resources, uncached(foos, item+"@1"))
		s.Send(resp)
		r.pass(time.Minute)
		s.Close(unavailable)
		r.Accept(t.Context())
		r.pass(soon)
		r.expect("second stream", r.conversation(1), "[Foo node +"+glob+" "+item+"= xdstp://x/acme.Foo/b=1]")
	})
}

// TestB15_R125_RemovedDuringRefetch: if the origin removes a resource between the unsubscribe and the subscribe of a
// refetch, it never reports the removal. The relay must query the resource by name.
func TestB15_R125_RemovedDuringRefetch(t *testing.T) {
	inBubble(t, relaytest.Behaviour{}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.put(clusters, "gone@1", "kept@1")
		r.SetRaw(clusters, uncached(clusters, "secret@1"))
		r.watch.SubscribeAll(clusters)
		r.pass(time.Minute)
		r.Change(func(b *relaytest.Behaviour) {
			b.NamedOnly = func(_, name string) bool { return name == "gone" } // so the origin does not report the removal
		})
		r.Remove(clusters, "gone")
		r.watch.Refetch(clusters, nil, time.Now())
		r.pass(time.Minute)
		r.expect("main stream", r.conversation(0), "[Cluster node] [Cluster ack 1] [Cluster -*] [Cluster +*] [Cluster ack 2]")
		r.expect("query by name, with a control query", showRequest(r.State().Last().Requests[0].Message), "[Cluster node +gone +kept]")
		r.expect("members", present(r.members(clusters)), "kept@1 secret@1")
	})
}

package upstream_test

import (
	"testing"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/upstream"
)

// expiring returns a cluster with a TTL.
func expiring(name string, ttl time.Duration) *discoverypb.Resource {
	return &discoverypb.Resource{
		Name: name, Version: "1", Ttl: durationpb.New(ttl), Resource: relaytest.Opaque(clusters, name, []byte("1")),
	}
}

// TestR107_ExpiresWithoutTheOrigin: resources expire in time even if the origin is stopped. The removals are never
// held, in any number.
func TestR107_ExpiresWithoutTheOrigin(t *testing.T) {
	inBubble(t, relaytest.Behaviour{}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.Apply(func(tx *relaytest.Tx) {
			for i := range 20 {
				tx.SetRaw(clusters, expiring(string(rune('a'+i)), time.Minute))
			}
		})
		r.put(clusters, "z@1")
		r.watch.SubscribeAll(clusters)
		r.watch.Subscribe(clusters, []string{"a", "z"})
		r.pass(soon)
		r.Stop()
		r.pass(time.Minute - soon - 10*time.Millisecond)
		if n := r.view.Generation().Type(clusters).Wildcard.Count(); n != 21 {
			t.Errorf("before the TTL ends: %d members, want 21", n)
		}
		r.pass(20 * time.Millisecond)
		r.expect("members", present(r.members(clusters)), "z@1")
		r.expect("named", present(r.named(clusters)), "z@1")
	})
}

// TestB15_ResentTTLsDoNotMeanIgnoredVersions: an origin must resend resources with a TTL. This does not mean that it
// ignores reported versions, and causes no query.
func TestB15_ResentTTLsDoNotMeanIgnoredVersions(t *testing.T) {
	inBubble(t, relaytest.Behaviour{ControlPlane: "one"}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.SetRaw(clusters, expiring("a", time.Hour))
		r.put(clusters, "b@1", "c@1")
		r.watch.SubscribeAll(clusters)
		r.pass(10 * time.Second)
		r.Change(func(b *relaytest.Behaviour) { b.Manual = true })
		r.Restart()
		r.pass(10 * time.Second)
		s := r.Accept(t.Context())
		for s.State().Ended {
			s = r.Accept(t.Context())
		}
		s.Send(&discoverypb.DeltaDiscoveryResponse{
			TypeUrl: clusters, Resources: []*discoverypb.Resource{expiring("a", time.Hour)}, ControlPlane: &corepb.ControlPlane{Identifier: "one"},
		})
		r.pass(5 * time.Minute)
		r.expect("the conversation", r.conversation(r.streams()-1), "[Cluster node a=1 b=1 c=1] [Cluster ack 1]")
		r.expect("members", r.members(clusters), "a@1 b@1 c@1")
	})
}

// TestR107_ExpiredResourceIsNotReported: the version of an expired resource is not reported.
func TestR107_ExpiredResourceIsNotReported(t *testing.T) {
	inBubble(t, relaytest.Behaviour{}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.SetRaw(clusters, expiring("a", 30*time.Second))
		r.put(clusters, "b@1")
		r.watch.SubscribeAll(clusters)
		r.pass(10 * time.Second)
		r.Stop()
		r.pass(30 * time.Second)
		r.Restart()
		r.pass(time.Minute - 10*time.Second)
		r.expect("the conversation", r.conversation(1), "[Cluster node b=1] [Cluster ack 1]")
	})
}

// TestR106_R107_ExpiredResourceIsRequestedAgain: an expired name is requested again when a client needs it. Expired
// members are requested again when the origin sends a heartbeat for them.
func TestR106_R107_ExpiredResourceIsRequestedAgain(t *testing.T) {
	inBubble(t, relaytest.Behaviour{}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.SetRaw(clusters, expiring("a", time.Minute))
		r.SetRaw(endpoints, &discoverypb.Resource{
			Name: "a", Version: "1", Ttl: durationpb.New(time.Minute), Resource: relaytest.Opaque(endpoints, "a", []byte("1")),
		})
		r.watch.SubscribeAll(clusters)
		r.pass(soon)
		r.watch.Subscribe(endpoints, []string{"a"})
		r.pass(2 * time.Minute)
		r.expect("members after the TTL", present(r.members(clusters)), "")
		r.expect("named after the TTL", present(r.named(endpoints)), "")
		r.watch.Subscribe(endpoints, []string{"a"})
		r.Heartbeat(clusters, "a")
		r.membersAfter(soon, "members", clusters, "a@1")
		r.expect("named", r.named(endpoints), "a@1")
		r.expect("the conversation", r.conversation(0),
			"[Cluster node] [Cluster ack 1] [ClusterLoadAssignment +a] [ClusterLoadAssignment ack 2] "+
				"[Cluster ack 3] [Cluster -*] [Cluster +*] [Cluster ack 4] [ClusterLoadAssignment -a] [ClusterLoadAssignment +a] [ClusterLoadAssignment ack 5]")
	})
}

// TestB15_HeartbeatsDoNotDelaySweep: an origin that sends heartbeats for some members all the time is queried for the
// others, like a quiet one.
func TestB15_HeartbeatsDoNotDelaySweep(t *testing.T) {
	inBubble(t, relaytest.Behaviour{IgnoreIRV: true}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.SetRaw(clusters, expiring("a", time.Minute))
		r.put(clusters, "b@1", "c@1")
		r.watch.SubscribeAll(clusters)
		r.pass(10 * time.Second)
		r.Stop()
		r.Remove(clusters, "c")
		r.Restart()
		for range 12 {
			r.pass(5 * time.Second)
			r.Heartbeat(clusters, "a")
			r.SetRaw(clusters, expiring("a", time.Minute)) // some origins resend the resource instead of a heartbeat
		}
		r.expect("members", present(r.members(clusters)), "a@1 b@1")
	})
}

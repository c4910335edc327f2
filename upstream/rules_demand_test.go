package upstream_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/upstream"
)

// silentWarning is part of the log line about an origin that does not respond.
const silentWarning = "sends no response"

// TestB4_SilentOriginIsReported: an origin that accepts the first request and sends no response for 10s is logged once,
// with the node and the variables that configure it.
func TestB4_SilentOriginIsReported(t *testing.T) {
	inBubble(t, relaytest.Behaviour{Manual: true}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.watch.SubscribeAll(clusters)
		r.pass(9 * time.Second)
		check.Equal(t, "warnings after 9s", r.log.count(silentWarning), 0)
		r.pass(longAfter)
		check.Equal(t, "warnings long after", r.log.count(silentWarning), 1)
		for _, text := range []string{"TENDER_NODE_GROUP_BY", "node_id=relay", "WARN"} {
			if r.log.count(text) == 0 {
				t.Errorf("no log line contains %q", text)
			}
		}
	})
}

// TestB4_QuietOriginIsNotReported: an origin that responds in time, or need not respond since the relay reported
// versions, is not logged.
func TestB4_QuietOriginIsNotReported(t *testing.T) {
	inBubble(t, relaytest.Behaviour{Delay: 9 * time.Second}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.put(clusters, "a@1")
		r.watch.SubscribeAll(clusters)
		r.pass(time.Minute)
		r.Restart()
		r.pass(longAfter)
		r.expect("second stream", r.conversation(1), "[Cluster node a=1]")
		check.Equal(t, "warnings", r.log.count(silentWarning), 0)
	})
}

// TestB5_NamesAreBatched: one request contains all names that clients subscribe to within 5ms. A batch of 500 is sent
// at once, and no request has more.
func TestB5_NamesAreBatched(t *testing.T) {
	inBubble(t, relaytest.Behaviour{SilentOnMissing: true}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.watch.Subscribe(endpoints, []string{"first"})
		r.pass(soon)
		start := time.Now()
		for i := range 5 {
			r.watch.Subscribe(endpoints, []string{fmt.Sprint("n", i)})
			r.pass(900 * time.Microsecond)
		}
		r.pass(soon)
		const e = "ClusterLoadAssignment"
		r.expect("stream", strings.ReplaceAll(r.conversation(0), e, "E"), "[E node +first] [E +n0 +n1 +n2 +n3 +n4]")
		check.Equal(t, "delay of the batch", r.State().Requests(endpoints)[1].At.Sub(start), 5*time.Millisecond)

		many := make([]string, 1201)
		for i := range many {
			many[i] = fmt.Sprint("many", i)
		}
		r.watch.Subscribe(endpoints, many)
		r.pass(0)
		var sizes []int
		for _, req := range r.State().Requests(endpoints)[2:] {
			sizes = append(sizes, len(req.Message.GetResourceNamesSubscribe()))
		}
		if got := fmt.Sprint(sizes); got != "[500 500 201]" {
			t.Errorf("sizes of the requests for %d names: %s, want [500 500 201]", len(many), got)
		}
	})
}

// TestB5_WildcardAndNamesOfOneType: a type with a wildcard and names uses two streams, in either order of arrival. A
// resource received by name is never a member, and vice versa.
func TestB5_WildcardAndNamesOfOneType(t *testing.T) {
	only := func(_, name string) bool { return name == "only" }
	tests := []struct {
		name          string
		first, second func(*cache.Watch)
		streams       int
		open          string
	}{
		{"wildcard first", wantAll, wantOnly, 2, "[Cluster node +only] [Cluster ack 1] | [Cluster node] [Cluster ack 1]"},
		{"name first", wantOnly, wantAll, 3, "[Cluster node +only only=1] | [Cluster node] [Cluster ack 1]"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, relaytest.Behaviour{NamedOnly: only}, upstream.Config{}, func(t *testing.T, r *rig) {
				r.put(clusters, "only@1", "all@1")
				tt.first(r.watch)
				r.pass(time.Second)
				tt.second(r.watch)
				r.pass(time.Second)
				r.expect("open streams", r.conversations(), tt.open)
				r.expect("members", r.members(clusters), "all@1")
				r.expect("named", r.named(clusters), "only@1")

				// A change or removal of a named resource does not affect the members, and vice versa.
				r.put(clusters, "only@2", "all@2")
				r.membersAfter(time.Second, "members", clusters, "all@2")
				r.expect("named", r.named(clusters), "only@2")
				r.Remove(clusters, "only")
				r.membersAfter(time.Second, "members", clusters, "all@2")
				r.expect("named", r.named(clusters), "!only")
				if s := r.State(); s.Connections != 1 || len(s.Open()) != 2 || len(s.Streams) != tt.streams {
					t.Errorf("%d connections, %d streams of which %d are open, want 1, %d and 2", s.Connections, len(s.Streams), len(s.Open()), tt.streams)
				}
			})
		})
	}
}

// wantAll subscribes to all clusters.
func wantAll(w *cache.Watch) { w.SubscribeAll(clusters) }

// wantOnly subscribes to the cluster "only".
func wantOnly(w *cache.Watch) { w.Subscribe(clusters, []string{"only"}) }

// TestB5_NamedResourceIsAlsoMember: a name that is also a member is cached twice, as each stream reports it. If it is
// removed from the wildcard, it stays under its name.
func TestB5_NamedResourceIsAlsoMember(t *testing.T) {
	inBubble(t, relaytest.Behaviour{Manual: true}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.watch.SubscribeAll(clusters)
		all := r.Accept(t.Context())
		r.watch.Subscribe(clusters, []string{"a"})
		all.Send(response(clusters, "a@1", "b@1"))
		named := r.Accept(t.Context())
		named.Send(response(clusters, "a@1", "b@1"))
		r.membersAfter(time.Second, "members", clusters, "a@1 b@1")
		r.expect("named", r.named(clusters), "a@1")
		gone := response(clusters)
		gone.RemovedResources = []string{"a"}
		all.Send(gone)
		r.pass(time.Second)
		r.expect("members", present(r.members(clusters)), "b@1")
		r.expect("named", r.named(clusters), "a@1")
	})
}

// TestB5_RemainingSubscriptionMoves: the auxiliary stream ends when it carries nothing. The subscription that remains
// on it survives a disconnect.
func TestB5_RemainingSubscriptionMoves(t *testing.T) {
	cfg := upstream.Config{Linger: time.Minute, WildcardLinger: time.Minute}
	t.Run("on the main stream", func(t *testing.T) {
		inBubble(t, relaytest.Behaviour{}, cfg, func(t *testing.T, r *rig) {
			r.put(clusters, "only@1")
			r.watch.SubscribeAll(clusters)
			r.pass(time.Second)
			n := r.watch.Subscribe(clusters, []string{"only"})
			r.pass(time.Second)
			r.watch.Unsubscribe(clusters, n)
			r.pass(2 * time.Minute)
			if open := r.State().Open(); len(open) != 1 || open[0].ID != 0 {
				t.Errorf("open streams %v, want only the first", open)
			}
		})
	})
	t.Run("wildcard on the auxiliary stream", func(t *testing.T) {
		inBubble(t, relaytest.Behaviour{}, cfg, func(t *testing.T, r *rig) {
			r.put(clusters, "only@1")
			n := r.watch.Subscribe(clusters, []string{"only"})
			r.pass(time.Second)
			r.watch.SubscribeAll(clusters)
			r.pass(time.Second)
			r.watch.Unsubscribe(clusters, n)
			r.pass(2 * time.Minute)
			r.Restart()
			r.pass(10 * time.Second)
			r.put(clusters, "only@2")
			r.membersAfter(time.Second, "members", clusters, "only@2")
		})
	})
	t.Run("names on the auxiliary stream", func(t *testing.T) {
		inBubble(t, relaytest.Behaviour{}, cfg, func(t *testing.T, r *rig) {
			r.put(clusters, "only@1")
			all := r.watch.SubscribeAll(clusters)
			r.pass(time.Second)
			r.watch.Subscribe(clusters, []string{"only"})
			r.pass(time.Second)
			r.watch.UnsubscribeAll(all)
			r.pass(2 * time.Minute)
			r.Restart()
			r.pass(10 * time.Second)
			r.put(clusters, "only@2")
			r.namedAfter(time.Second, "named", clusters, "only@2")
		})
	})
}

// TestR073_RemovedNameStaysSubscribed: a name that the origin removes stays subscribed while a client needs it.
func TestR073_RemovedNameStaysSubscribed(t *testing.T) {
	inBubble(t, relaytest.Behaviour{}, upstream.Config{Linger: time.Minute}, func(t *testing.T, r *rig) {
		r.put(endpoints, "a@1")
		r.watch.Subscribe(endpoints, []string{"a"})
		r.pass(soon)
		r.Remove(endpoints, "a")
		r.namedAfter(longAfter, "named", endpoints, "!a")
		r.put(endpoints, "a@2")
		r.namedAfter(soon, "named", endpoints, "a@2")
		r.expect("stream", strings.ReplaceAll(r.conversation(0), "ClusterLoadAssignment", "E"), "[E node +a] [E ack 1] [E ack 2] [E ack 3]")
	})
}

// TestR081_B6_LingerAfterLastClient: the relay unsubscribes from a name once, 5 min (±20 %) after the last client has
// unsubscribed, and never while a client uses it.
func TestR081_B6_LingerAfterLastClient(t *testing.T) {
	inBubble(t, relaytest.Behaviour{}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.put(endpoints, "a@1")
		other := r.view.Watch()
		first, second := r.watch.Subscribe(endpoints, []string{"a"}), other.Subscribe(endpoints, []string{"a"})
		r.pass(soon)
		r.watch.Unsubscribe(endpoints, first)
		r.pass(longAfter)
		if n := len(r.State().Requests(endpoints)); n != 2 {
			t.Fatalf("%d requests while one client uses the name, want 2:\n%v", n, r.State())
		}
		other.Unsubscribe(endpoints, second)
		left := time.Now()
		r.pass(longAfter)
		r.expect("stream", strings.ReplaceAll(r.conversation(0), "ClusterLoadAssignment", "E"), "[E node +a] [E ack 1] [E -a]")
		if d := r.State().Requests(endpoints)[2].At.Sub(left); d < 4*time.Minute || d > 6*time.Minute+time.Second {
			t.Errorf("unsubscribed after %v, want 5m ±20%%", d)
		}
		r.expect("named", r.named(endpoints), "")
	})
}

// TestB6_WildcardLinger: an unused wildcard lingers for 15 min (±20 %), and is then removed with all its members.
func TestB6_WildcardLinger(t *testing.T) {
	inBubble(t, relaytest.Behaviour{}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.put(clusters, "a@1")
		all := r.watch.SubscribeAll(clusters)
		r.pass(time.Minute)
		r.watch.UnsubscribeAll(all)
		left := time.Now()
		r.pass(12*time.Minute - time.Second)
		r.put(clusters, "a@2")
		r.membersAfter(soon, "members while lingering", clusters, "a@2")
		r.membersAfter(longAfter, "members", clusters, "")
		requests := r.State().Requests(clusters)
		if d := requests[len(requests)-1].At.Sub(left); d < 12*time.Minute || d > 18*time.Minute+time.Second {
			t.Errorf("unsubscribed after %v, want 15m ±20%%", d)
		}
		check.Equal(t, "phase after the linger time", r.view.Generation().Type(clusters).Phase, cache.Unknown)
	})
}

// TestB6_WantedAgainWhileLingering: a subscription that is used again while it lingers causes no request, and lingers
// in full the next time.
func TestB6_WantedAgainWhileLingering(t *testing.T) {
	inBubble(t, relaytest.Behaviour{}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.put(endpoints, "a@1")
		r.put(clusters, "c@1")
		r.watch.Subscribe(endpoints, []string{"a"})
		r.watch.SubscribeAll(clusters)
		r.pass(time.Minute)
		before := len(r.State().Last().Requests)
		for range 20 {
			w := r.view.Watch()
			all, n := w.SubscribeAll(clusters), w.Subscribe(endpoints, []string{"a", "b"})
			r.pass(3 * time.Minute)
			w.Unsubscribe(endpoints, n)
			w.UnsubscribeAll(all)
			w.Close()
			r.pass(3 * time.Minute)
		}
		if got := len(r.State().Last().Requests) - before; got != 2 {
			t.Errorf("%d requests, want 2: the subscription to b and the ACK\n%v", got, r.State())
		}
		r.expect("named", r.named(endpoints), "!b a@1")
	})
}

// TestB6_C29_LingeringIsBounded: if lingering names exceed the limit on their number or size, the relay unsubscribes
// from those that have lingered longest. It never unsubscribes from a name in use.
func TestB6_C29_LingeringIsBounded(t *testing.T) {
	tests := []struct {
		name string
		cfg  upstream.Config
	}{
		{"by number", upstream.Config{MaxLingering: 2}},
		{"by bytes", upstream.Config{MaxLingeringBytes: 1200}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, relaytest.Behaviour{}, tt.cfg, func(t *testing.T, r *rig) {
				names := []string{"a", "b", "c", "d", "held"}
				for _, name := range names {
					r.Set(endpoints, name, relaytest.Opaque(endpoints, name, make([]byte, 400)), "1")
				}
				subs := r.watch.Subscribe(endpoints, names)
				r.pass(soon)
				for i := range 4 { // a first, d last
					r.watch.Unsubscribe(endpoints, subs[i:i+1])
					r.pass(soon)
				}
				r.expect("subscribed", strings.Join(r.State().Names(endpoints), " "), "c d held")
				r.expect("named", r.named(endpoints), "c@1 d@1 held@1")
				// The relay has unsubscribed from b and requests it again. c lingers and needs no request.
				requests := len(r.State().Requests(endpoints))
				r.watch.Subscribe(endpoints, []string{"b", "c"})
				r.pass(soon)
				if got := r.State().Requests(endpoints)[requests:]; showRequest(got[0].Message) != "[ClusterLoadAssignment +b]" || len(got) != 2 {
					t.Errorf("requests for b and c: %v, want one for b and an ACK", got)
				}
				r.expect("named", r.named(endpoints), "b@1 c@1 d@1 held@1")
			})
		})
	}
}

// TestB5_DemandWithoutOrigin: a name whose subscription starts and ends while the origin is disconnected is not
// requested. Other changes take effect once the origin is connected.
func TestB5_DemandWithoutOrigin(t *testing.T) {
	inBubble(t, relaytest.Behaviour{}, upstream.Config{Linger: time.Minute, WildcardLinger: time.Minute}, func(t *testing.T, r *rig) {
		r.put(endpoints, "a@1", "b@1", "c@1")
		r.put(clusters, "x@1")
		old := r.watch.Subscribe(endpoints, []string{"a"})
		r.pass(soon)
		r.Stop()
		r.watch.Unsubscribe(endpoints, old)
		brief := r.watch.Subscribe(endpoints, []string{"b"})
		all := r.watch.SubscribeAll(listeners)
		r.pass(soon)
		r.watch.Unsubscribe(endpoints, brief)
		r.watch.UnsubscribeAll(all)
		r.pass(3 * time.Minute)
		r.watch.Subscribe(endpoints, []string{"c"})
		r.watch.SubscribeAll(clusters)
		r.pass(time.Minute)
		r.Restart()
		r.pass(time.Minute)
		r.expect("last stream", r.conversation(r.streams()-1),
			"[Cluster node] [ClusterLoadAssignment +c] [Cluster ack 1] [ClusterLoadAssignment ack 2]")
		r.expect("named", r.named(endpoints), "c@1")
	})
}

// TestC05_AnyOrderOfTypes: the relay requests types in the order in which clients do (C05). No type waits for clusters.
func TestC05_AnyOrderOfTypes(t *testing.T) {
	inBubble(t, relaytest.Behaviour{}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.put(endpoints, "a@1")
		r.put(clusters, "a@1")
		r.watch.Subscribe(endpoints, []string{"a"})
		r.namedAfter(time.Second, "named", endpoints, "a@1")
		r.watch.SubscribeAll(listeners)
		r.pass(time.Second)
		r.watch.SubscribeAll(clusters)
		r.pass(time.Second)
		r.expect("stream", strings.ReplaceAll(r.conversation(0), "ClusterLoadAssignment", "E"),
			"[E node +a] [E ack 1] [Listener] [Listener ack 2] [Cluster] [Cluster ack 3]")
	})
}

// TestB5_Prewarm: a prewarmed type is subscribed to without a client, and never unsubscribed.
func TestB5_Prewarm(t *testing.T) {
	cfg := upstream.Config{Prewarm: []string{clusters}, WildcardLinger: time.Minute}
	inBubble(t, relaytest.Behaviour{}, cfg, func(t *testing.T, r *rig) {
		r.pass(time.Second)
		r.put(clusters, "a@1")
		r.membersAfter(time.Second, "members", clusters, "a@1")
		r.watch.UnsubscribeAll(r.watch.SubscribeAll(clusters))
		all := r.watch.SubscribeAll(clusters)
		r.pass(time.Minute)
		r.watch.UnsubscribeAll(all)
		r.pass(longAfter)
		r.expect("stream", r.conversation(0), "[Cluster node] [Cluster ack 1] [Cluster ack 2]")
	})
}

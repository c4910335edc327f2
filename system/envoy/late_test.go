package envoy_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest"
)

// requestsIn returns how many requests a load makes in a time.
func requestsIn(d time.Duration) int { return int(d / interval) }

// awaitGone waits until an Envoy has no resource of a name.
func (o *outcome) awaitGone(e *envoytest.Envoy, key, name string) {
	o.t.Helper()
	o.await(e, "without "+name, func() error {
		if names := e.Config().Names(key); slices.Contains(names, name) {
			return fmt.Errorf("it has %v", names)
		}
		return nil
	})
}

// TestB15_EnvoysKeepWhatAnOriginListsLate: a control plane restarts without one of 20 clusters, or one of two, and lists it 2 or 8 s
// later. The Envoy is not sent its removal: no request fails, and no cluster is removed. A cluster that is gone for good is removed.
// (B.7, B.15)
func TestB15_EnvoysKeepWhatAnOriginListsLate(t *testing.T) {
	for _, tt := range []struct {
		clusters int
		late     time.Duration
		protocol string
	}{{20, 2 * time.Second, "sotw"}, {2, 8 * time.Second, "sotw"}, {20, 8 * time.Second, "delta"}} {
		t.Run(fmt.Sprintf("one of %d, after %v, %s origin", tt.clusters, tt.late, tt.protocol), func(t *testing.T) {
			matrix(t, ads, func(t *testing.T, c client) { listedLate(t, c, tt.clusters, tt.late, tt.protocol) })
		})
	}
}

func listedLate(t *testing.T, c client, clusters int, late time.Duration, protocol string) {
	t.Helper()
	of := renamed{typeURL: relaytest.ClusterType, before: func(f *renaming) []proto.Message {
		msgs := append(serving(f.old, "old"), relaytest.ListenerAt("old", "old", f.address))
		for i := range clusters - 1 {
			msgs = append(msgs, relaytest.StaticCluster(fmt.Sprint("other-", i)))
		}
		return msgs
	}}
	// On a slow machine, the requests of 8 s take longer than the default of TENDER_COLD_WAIT.
	f := newRenaming(t, c, &outcome{t: t}, &of, "TENDER_ORIGIN_PROTOCOL="+protocol, "TENDER_COLD_WAIT=25s")
	before := len(f.load.Report().Failures) // while the Envoy started to listen
	removed := f.envoy.Stats(envoytest.Judged).Sum("cluster_removed")

	f.origin.Stop()
	f.origin.Remove(relaytest.ClusterType, "old")
	f.origin.Remove(relaytest.EndpointType, "old")
	f.origin.Restart()
	f.load.Continue(requestsIn(late))
	f.origin.Put(cluster(f.old)...)
	f.load.Continue(requestsIn(time.Second))
	if n := f.envoy.Stats(envoytest.Judged).Sum("cluster_removed") - removed; n != 0 {
		t.Errorf("%d clusters removed", n)
	}
	f.origin.Stop()
	f.origin.Remove(relaytest.ClusterType, "other-0")
	f.origin.Restart()
	f.awaitGone(f.envoy, "dynamic_active_clusters", "other-0")
	r := f.load.Stop()
	r.Failures = r.Failures[before:]
	f.judge(f.envoy, r)
}

// TestB15_EnvoysLoseTheirOnlyListener: the only listener of a group is removed after a reconnect, or after the relay has restarted.
// The removal is the first that the origin says, and reaches the Envoy within 30 s. (B.15)
func TestB15_EnvoysLoseTheirOnlyListener(t *testing.T) {
	for _, tt := range []struct {
		when    string
		happens func(f *renaming)
	}{
		{"after a reconnect to the origin", func(f *renaming) { f.up.Cut() }},
		{"after the relay has restarted", func(f *renaming) {
			f.relays[0].drain()
			f.relays[0].start()
		}},
	} {
		t.Run(tt.when, func(t *testing.T) {
			matrix(t, ads, func(t *testing.T, c client) {
				f := newRenaming(t, c, &outcome{t: t}, &renames[0])
				tt.happens(f)
				f.load.Continue(requestsIn(3 * time.Second))
				before := f.load.Report().Failures
				began := time.Now()
				f.origin.Remove(relaytest.ListenerType, "old")
				f.awaitGone(f.envoy, "dynamic_listeners", "old")
				t.Logf("removed after %v", time.Since(began).Round(time.Millisecond))
				f.load.Stop()
				if len(before) > 0 {
					t.Errorf("requests failed before the removal: %v", before)
				}
				f.updates(f.envoy)
			})
		})
	}
}

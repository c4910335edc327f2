package upstream_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/upstream"
	"github.com/xdstender/tender/upstream/reconcile"
)

// resuming runs a test with an origin that has restarted without the lost ones of its 100 clusters. It has received the
// cached versions on the new stream.
func resuming(t *testing.T, cfg upstream.Config, lost []string, test func(t *testing.T, r *rig)) {
	t.Helper()
	inBubble(t, relaytest.Behaviour{}, cfg, func(t *testing.T, r *rig) {
		r.follow(clusters, numbered(100)...)
		r.changeWhileDown(removing(clusters, lost...))
		r.pass(9 * time.Second)
		if n := r.count(); n != 100 {
			t.Fatalf("%d members 9s after the restart, want 100: removals in the first responses are suspect", n)
		}
		test(t, r)
	})
}

// wantClusters fails the test unless the view has want clusters.
func (r *rig) wantClusters(when string, want int) {
	r.t.Helper()
	if n := r.count(); n != want {
		r.t.Errorf("%s: %d members, want %d", when, n, want)
	}
}

// TestH02_RemovalsInFirstAnswersAreSuspect: removals in the first responses on a new stream are suspect. An origin that
// is running but has not loaded its resources responds to a resume with the removal of all, or most, of them.
func TestH02_RemovalsInFirstAnswersAreSuspect(t *testing.T) {
	all := nameOnly(numbered(100))
	t.Run("few", func(t *testing.T) {
		resuming(t, upstream.Config{}, all[:10], func(t *testing.T, r *rig) {
			holds := r.control.Operate(t.Context(), reconcile.Command{})
			if len(holds) != 1 || len(holds[0].Names) != 10 || !holds[0].Unconfirmed || !holds[0].Until.After(time.Now()) {
				t.Errorf("holds %+v, want one of 10 names until the set is confirmed", holds)
			}
			r.clustersAfter(confirmed, "once the set is confirmed", 90)
			r.expectHolds("once the set is confirmed", 0, 0)
		})
	})
	t.Run("all, then they return", func(t *testing.T) {
		resuming(t, upstream.Config{}, all, func(t *testing.T, r *rig) {
			r.pass(confirmed)
			r.expectHolds("once the set is confirmed", 100, 0)
			r.put(clusters, numbered(100)...)
			r.pass(soon)
			r.expectHolds("after the origin has loaded", 0, 0)
			r.clustersAfter(longAfter, "long after", 100)
		})
	})
	t.Run("all, permanently", func(t *testing.T) {
		resuming(t, upstream.Config{}, all, func(t *testing.T, r *rig) {
			r.clustersAfter(9*time.Minute, "before the hold ends", 100)
			r.clustersAfter(3*time.Minute, "after the hold", 0)
			r.expectHolds("after the hold", 0, 0)
		})
	})
	t.Run("reported by mistake", func(t *testing.T) {
		resuming(t, upstream.Config{}, nil, func(t *testing.T, r *rig) {
			r.Inject(&discoverypb.DeltaDiscoveryResponse{TypeUrl: clusters, Nonce: "wrong", RemovedResources: all[:60]})
			r.pass(10 * time.Second)
			r.expectHolds("after wrong removals", 60, 0)
			r.clustersAfter(time.Minute, "after the comparison of all content", 100)
			r.expectHolds("after the comparison of all content", 0, 0)
		})
	})
	t.Run("released", func(t *testing.T) {
		resuming(t, upstream.Config{}, all, func(t *testing.T, r *rig) {
			r.pass(confirmed)
			if got := r.control.Operate(t.Context(), reconcile.Command{Do: reconcile.Release}); len(got) != 1 || len(got[0].Names) != 100 {
				t.Errorf("released %+v, want the 100", got)
			}
			r.wantClusters("after the release", 0)
		})
	})
	t.Run("discarded, then missing again after a reconnect", func(t *testing.T) {
		resuming(t, upstream.Config{}, all[:50], func(t *testing.T, r *rig) {
			r.watch.Subscribe(clusters, all[:3])
			r.pass(confirmed)
			r.control.Operate(t.Context(), reconcile.Command{Do: reconcile.Discard})
			r.expectHolds("after the discard", 0, 50)
			for range 2 {
				r.Restart()
				r.pass(longAfter)
			}
			r.expectHolds("after two restarts", 0, 50)
			r.wantClusters("after two restarts", 100)
			r.Apply(removing(clusters, all[:10]...))
			r.clustersAfter(soon, "after removals on the established stream", 90)
			r.expectHolds("after removals on the established stream", 0, 40)
		})
	})
	t.Run("discarded, then sent again", func(t *testing.T) {
		resuming(t, upstream.Config{}, all[:50], func(t *testing.T, r *rig) {
			r.pass(confirmed)
			r.control.Operate(t.Context(), reconcile.Command{Do: reconcile.Discard})
			r.expectHolds("after the discard", 0, 50)
			r.clustersAfter(longAfter, "long after the discard", 100)
			r.put(clusters, "n000@2")
			r.pass(soon)
			r.expectHolds("after one resource has returned", 0, 49)
			r.Apply(removing(clusters, "n000"))
			r.clustersAfter(soon, "after its removal on the established stream", 99)
		})
	})
}

// TestH02_RemovalsOnAnEstablishedStreamAreObeyed: removals on an established stream are applied at once in any number,
// unless HoldExplicit is set.
func TestH02_RemovalsOnAnEstablishedStreamAreObeyed(t *testing.T) {
	for _, hold := range []bool{false, true} {
		t.Run(fmt.Sprintf("hold_explicit=%v", hold), func(t *testing.T) {
			inBubble(t, relaytest.Behaviour{}, upstream.Config{HoldExplicit: hold}, func(t *testing.T, r *rig) {
				r.put(clusters, numbered(100)...)
				r.put(endpoints, numbered(100)...)
				r.watch.SubscribeAll(clusters)
				r.watch.Subscribe(endpoints, nameOnly(numbered(100)))
				r.pass(confirmed)
				r.Restart() // with the same content
				r.pass(2 * time.Minute)
				r.Apply(removing(clusters, "n000", "n001"))
				r.clustersAfter(soon, "after two removals", 98)
				r.Apply(func(tx *relaytest.Tx) {
					removing(clusters, nameOnly(numbered(100))[2:]...)(tx)
					removing(endpoints, nameOnly(numbered(100))[2:]...)(tx)
				})
				r.clustersAfter(soon, "after all removals", map[bool]int{false: 0, true: 98}[hold])
				if n := r.view.Generation().Type(endpoints).ByName.Count(); n != 2 && !hold {
					t.Errorf("%d assignments, want the 2 that were not removed", n)
				}
				r.clustersAfter(15*time.Minute, "after the hold", 0)
			})
		})
	}
}

// TestH02_ResourcesOfAnEarlierStream: removals of resources of an earlier stream are suspect. The new stream may reach
// another server, which does not resend resources whose versions the relay reported.
func TestH02_ResourcesOfAnEarlierStream(t *testing.T) {
	inBubble(t, relaytest.Behaviour{ControlPlane: "same"}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.follow(clusters, numbered(100)...)
		r.changeWhileDown(removing(clusters, nameOnly(numbered(100))[:5]...))
		r.pass(5 * time.Second)
		if holds := r.control.Operate(t.Context(), reconcile.Command{}); len(holds) != 1 || len(holds[0].Names) != 5 {
			t.Errorf("holds %+v, want one of the 5 names", holds)
		}
		r.changeWhileDown(func(tx *relaytest.Tx) { putIn(tx, clusters, numbered(100)...) })
		r.pass(time.Second)
		r.put(clusters, "another@1")
		r.clustersAfter(5*time.Minute, "after the origin has loaded", 101)
		r.expectHolds("after the origin has loaded", 0, 0)
	})
}

// TestH02_ResourcesOfThisStreamAreRemovedAtOnce: a resource that the origin has sent on this stream is removed at once.
func TestH02_ResourcesOfThisStreamAreRemovedAtOnce(t *testing.T) {
	inBubble(t, relaytest.Behaviour{}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.put(clusters, numbered(10)...)
		r.watch.SubscribeAll(clusters)
		r.pass(soon)
		r.Apply(removing(clusters, "n000"))
		r.clustersAfter(soon, "on the first stream", 9)
		r.pass(confirmed)
		r.changeWhileDown(func(tx *relaytest.Tx) { putIn(tx, clusters, "n001@2", "new@1") })
		r.pass(3 * time.Second)
		r.Apply(removing(clusters, "n001", "n002", "new"))
		r.pass(soon)
		r.expect("members", present(r.members(clusters)), "n002@1 n003@1 n004@1 n005@1 n006@1 n007@1 n008@1 n009@1")
		r.clustersAfter(confirmed, "once the set is confirmed", 7)
	})
}

// set sets a resource of the origin.
func (r *rig) set(typeURL, name, version string, m proto.Message) {
	r.Apply(func(tx *relaytest.Tx) { tx.Set(typeURL, name, m, version) })
}

// assignments returns the served assignments.
func (r *rig) assignments() string { return present(r.named(endpoints)) }

// TestH02_EmptyAssignmentIsSuspect: an assignment that had endpoints and is empty in the first responses is suspect
// until the set is confirmed. After that, it is applied.
func TestH02_EmptyAssignmentIsSuspect(t *testing.T) {
	inBubble(t, relaytest.Behaviour{}, upstream.Config{}, func(t *testing.T, r *rig) {
		for _, name := range []string{"a", "b", "c"} {
			r.set(endpoints, name, "1", relaytest.Endpoints(name, "127.0.0.1:1"))
		}
		r.set(endpoints, "none", "1", relaytest.Endpoints("none"))
		r.watch.Subscribe(endpoints, []string{"a", "b", "c", "none"})
		r.pass(confirmed)
		r.Stop()
		for _, name := range []string{"a", "b"} {
			r.set(endpoints, name, "2", relaytest.Endpoints(name))
		}
		r.set(endpoints, "c", "2", relaytest.Endpoints("c", "127.0.0.1:2"))
		r.set(endpoints, "none", "2", relaytest.Endpoints("none"))
		r.Restart()
		r.pass(3 * time.Second)
		r.expect("after 3s", r.assignments(), "a@1 b@1 c@2 none@2")
		r.set(endpoints, "a", "3", relaytest.Endpoints("a", "127.0.0.1:3"))
		r.pass(soon)
		r.expect("after a has endpoints again", r.assignments(), "a@3 b@1 c@2 none@2")
		r.pass(confirmed)
		r.expect("once the set is confirmed", r.assignments(), "a@3 b@2 c@2 none@2")
		r.set(endpoints, "c", "3", relaytest.Endpoints("c"))
		r.pass(soon)
		r.expect("on the established stream", r.assignments(), "a@3 b@2 c@3 none@2")
	})
}

// TestH02_EmptyAssignmentDiscarded: if an operator releases the discarded change of an assignment to an empty one, the
// assignment is empty, not removed.
func TestH02_EmptyAssignmentDiscarded(t *testing.T) {
	inBubble(t, relaytest.Behaviour{}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.set(endpoints, "a", "1", relaytest.Endpoints("a", "127.0.0.1:1"))
		r.watch.Subscribe(endpoints, []string{"a"})
		r.pass(confirmed)
		r.Stop()
		r.set(endpoints, "a", "2", relaytest.Endpoints("a"))
		r.Restart()
		r.pass(time.Second)
		r.control.Operate(t.Context(), reconcile.Command{Do: reconcile.Discard})
		r.pass(longAfter)
		r.expect("after the discard", r.assignments(), "a@1")
		r.control.Operate(t.Context(), reconcile.Command{Do: reconcile.Release, Discarded: true})
		r.expect("after the release", r.assignments(), "a@2")
	})
}

// TestH09_DiscardedMembersOfCollections: members whose removal was discarded stay after a restart of the relay.
func TestH09_DiscardedMembersOfCollections(t *testing.T) {
	const dir = "xdstp://a/envoy.config.cluster.v3.Cluster/"
	key := cache.Collection(clusters, dir+"*")
	inBubble(t, relaytest.Behaviour{}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.put(clusters, dir+"a@1", dir+"b@1", dir+"c@1")
		r.watch.SubscribeAll(key)
		r.pass(confirmed)
		r.changeWhileDown(removing(clusters, dir+"a", dir+"b"))
		r.pass(time.Minute)
		discarded := r.control.Operate(t.Context(), reconcile.Command{Do: reconcile.Discard})
		r.stop()
		s, _ := r.w.Snapshot(true)
		r = decided(t, r.Origin, upstream.Config{}, s, upstream.NewControl(false, discarded))
		r.watch.SubscribeAll(key)
		for _, when := range []string{"after the restart", "long after"} {
			r.pass(soon)
			r.expectHolds(when, 0, 2)
			r.expect(when, present(r.members(key)), dir+"a@1 "+dir+"b@1 "+dir+"c@1")
			r.pass(longAfter)
		}
	})
}

// TestH03_DependenciesOfHeldResourcesStay: assignments and routes stay while held clusters and listeners reference
// them, even if the origin reports their removal later. They are removed together.
func TestH03_DependenciesOfHeldResourcesStay(t *testing.T) {
	for _, how := range []string{"released", "discarded", "over"} {
		t.Run(how, func(t *testing.T) {
			inBubble(t, relaytest.Behaviour{}, upstream.Config{}, func(t *testing.T, r *rig) {
				names := []string{"a", "b", "c"}
				for _, name := range names {
					r.set(clusters, name, "1", relaytest.Cluster(name, "eds/"+name))
					r.set(endpoints, "eds/"+name, "1", relaytest.Endpoints("eds/"+name, "127.0.0.1:1"))
					r.set(wire.ListenerType, name, "1", relaytest.Listener(name, "route/"+name))
					r.set(wire.RouteType, "route/"+name, "1", relaytest.Route("route/"+name, []string{"*"}, name))
				}
				r.set(endpoints, "other", "1", relaytest.Endpoints("other", "127.0.0.1:1"))
				r.watch.SubscribeAll(clusters)
				r.watch.SubscribeAll(wire.ListenerType)
				r.watch.Subscribe(endpoints, []string{"eds/a", "eds/b", "eds/c", "other"})
				r.watch.Subscribe(wire.RouteType, []string{"route/a", "route/b", "route/c"})
				r.pass(confirmed)
				r.changeWhileDown(func(tx *relaytest.Tx) {
					removing(clusters, names...)(tx)
					removing(wire.ListenerType, names...)(tx)
					removing(endpoints, "eds/a", "other")(tx)
				})
				r.pass(2 * time.Minute)
				r.Apply(removing(wire.RouteType, "route/a"))
				r.set(endpoints, "eds/b", "2", relaytest.Endpoints("eds/b"))
				r.clustersAfter(2*time.Minute, "during the hold", 3)
				r.expect("assignments during the hold", r.assignments(), "eds/a@1 eds/b@1 eds/c@1")
				r.expect("routes during the hold", present(r.named(wire.RouteType)), "route/a@1 route/b@1 route/c@1")
				switch how {
				case "released":
					r.control.Operate(t.Context(), reconcile.Command{Do: reconcile.Release})
				case "discarded":
					r.control.Operate(t.Context(), reconcile.Command{Do: reconcile.Discard})
					r.clustersAfter(longAfter, "long after the discard", 3)
					r.expect("assignments long after the discard", r.assignments(), "eds/a@1 eds/b@1 eds/c@1")
					return
				case "over":
					r.pass(15 * time.Minute)
				}
				r.clustersAfter(time.Second, "after the hold", 0)
				r.expect("assignments after the hold", r.assignments(), "eds/b@2 eds/c@1")
				r.expect("routes after the hold", present(r.named(wire.RouteType)), "route/b@1 route/c@1")
				r.expectHolds("after the hold", 0, 0)
			})
		})
	}
}

// TestH03_DependenciesOfSuspectResourcesStay: a stateless origin reports at once that names do not exist. The relay
// first queries the members that reference them, for half a minute, and holds their removals. The names stay as long as
// these members.
func TestH03_DependenciesOfSuspectResourcesStay(t *testing.T) {
	inBubble(t, relaytest.Behaviour{IgnoreIRV: true}, upstream.Config{}, func(t *testing.T, r *rig) {
		const glob = "xdstp://a/envoy.config.cluster.v3.Cluster/"
		for i := range 4 {
			name, eds, route := fmt.Sprint(i), fmt.Sprint("eds/", i), fmt.Sprint("route/", i)
			r.set(clusters, name, "1", relaytest.Cluster(name, eds))
			r.set(clusters, glob+name, "1", relaytest.Cluster(glob+name, eds+"/of the glob"))
			r.set(listeners, name, "1", relaytest.Listener(name, route))
			r.set(routes, route, "1", relaytest.Route(route, []string{"*"}, name))
			for _, eds := range []string{eds, eds + "/of the glob"} {
				r.set(endpoints, eds, "1", relaytest.Endpoints(eds, "127.0.0.1:1"))
				r.watch.Subscribe(endpoints, []string{eds})
			}
			r.watch.Subscribe(routes, []string{route})
		}
		for _, key := range []string{clusters, listeners, cache.Collection(clusters, glob+"*")} {
			r.watch.SubscribeAll(key)
		}
		r.pass(confirmed)
		r.Stop()
		r.Clear()
		r.Restart()
		want := func(when string, n int) {
			t.Helper()
			g := r.view.Generation()
			if e, m := g.Type(endpoints).ByName.Count(), g.Type(routes).ByName.Count(); e != 2*n || m != n {
				t.Errorf("%s: %d assignments and %d routes, want %d and %d", when, e, m, 2*n, n)
			}
		}
		for range 60 * 10 {
			r.pass(time.Second)
			want("until the listeners and clusters are removed", 4)
		}
		r.pass(5 * time.Minute)
		want("after the hold", 0)
		r.expectHolds("after the hold", 0, 0)
	})
}

// TestH03_SilenceDelaysNoRemoval: an origin that resends resources may ignore reported versions. If it sends nothing
// for the members, their state is unknown. Then their dependencies are removed without waiting for the members.
func TestH03_SilenceDelaysNoRemoval(t *testing.T) {
	inBubble(t, relaytest.Behaviour{ControlPlane: "same"}, upstream.Config{}, func(t *testing.T, r *rig) {
		again := func() { r.set(clusters, "a", "1", relaytest.Cluster("a", "eds")) }
		again()
		r.set(endpoints, "eds", "1", relaytest.Endpoints("eds", "127.0.0.1:1"))
		r.watch.SubscribeAll(clusters)
		r.watch.Subscribe(endpoints, []string{"eds"})
		r.pass(confirmed)
		r.Restart()
		r.pass(time.Second)
		again()
		r.pass(time.Minute)
		r.Restart()
		r.pass(time.Second)
		r.Apply(removing(endpoints, "eds"))
		r.pass(30 * time.Second)
		r.expect("after 30s", r.assignments(), "eds@1")
		r.pass(time.Minute)
		r.expect("after 90s", r.assignments(), "")
	})
}

// TestH03_PartialLossesAddUp: three of four routes are missing. The decision about one of them waits for a listener
// that is missing too. The relay counts all three as one large loss, although it decides about the other two earlier.
func TestH03_PartialLossesAddUp(t *testing.T) {
	inBubble(t, relaytest.Behaviour{}, upstream.Config{}, func(t *testing.T, r *rig) {
		for i := range 4 {
			r.set(listeners, fmt.Sprint("listener", i), "1", relaytest.Listener(fmt.Sprint("listener", i), fmt.Sprint("route", i)))
			r.set(routes, fmt.Sprint("route", i), "1", relaytest.Route(fmt.Sprint("route", i), []string{"*"}, "a"))
		}
		r.watch.SubscribeAll(listeners)
		r.watch.Subscribe(routes, []string{"route0", "route1", "route2", "route3"})
		r.pass(confirmed)
		r.changeWhileDown(func(tx *relaytest.Tx) {
			removing(listeners, "listener3")(tx)
			removing(routes, "route1", "route2", "route3")(tx)
		})
		r.pass(time.Minute)
		r.expect("listeners", present(r.members(listeners)), "listener0@1 listener1@1 listener2@1")
		r.expect("routes", present(r.named(routes)), "route0@1 route1@1 route2@1 route3@1")
		r.expectHolds("holds of routes", 3, 0)
		r.pass(15 * time.Minute)
		r.expect("routes after the hold", present(r.named(routes)), "route0@1")
	})
}

// TestH03_RenamedListeners: the removal of renamed listeners is not held, because the old listeners would occupy the
// addresses of the new ones.
func TestH03_RenamedListeners(t *testing.T) {
	for typeURL, want := range map[string]string{wire.ListenerType: "b0 b1 b2", clusters: "a0 a1 a2 b0 b1 b2"} {
		for _, sotw := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s sotw=%v", typeURL, sotw), func(t *testing.T) {
				inBubble(t, relaytest.Behaviour{SotW: sotw}, upstream.Config{}, func(t *testing.T, r *rig) {
					r.follow(typeURL, "a0@1", "a1@1", "a2@1")
					r.changeWhileDown(func(tx *relaytest.Tx) {
						removing(typeURL, "a0", "a1", "a2")(tx)
						putIn(tx, typeURL, "b0@1", "b1@1", "b2@1")
					})
					r.pass(time.Minute)
					r.expect("members", names(strings.ReplaceAll(r.members(typeURL), "@1", "@")), want)
				})
			})
		}
	}
}

// TestH03_DayOldSnapshot: after a restore of a day-old snapshot, large removals stay pending, also of names.
func TestH03_DayOldSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true})
		old := viewSync(t, o, upstream.Config{})
		old.put(clusters, numbered(9)...)
		old.put(wire.RouteType, numbered(9)...)
		old.watch.SubscribeAll(clusters)
		old.watch.Subscribe(wire.RouteType, nameOnly(numbered(9)))
		old.pass(confirmed)
		old.stop()
		s, _ := old.w.Snapshot(true)
		o.Apply(func(tx *relaytest.Tx) {
			removing(clusters, nameOnly(numbered(9))[:8]...)(tx)
			removing(wire.RouteType, nameOnly(numbered(9))[:8]...)(tx)
			putIn(tx, clusters, "n008@2")
		})
		time.Sleep(24 * time.Hour)
		r := restored(t, o, upstream.Config{}, s)
		r.watch.SubscribeAll(clusters)
		r.watch.Subscribe(wire.RouteType, nameOnly(numbered(9)))
		r.clustersAfter(9*time.Minute, "during the hold", 9)
		check.Equal(t, "routes during the hold", r.view.Generation().Type(wire.RouteType).ByName.Count(), 9)
		r.clustersAfter(5*time.Minute, "after the hold", 1)
		check.Equal(t, "routes after the hold", r.view.Generation().Type(wire.RouteType).ByName.Count(), 1)
	})
}

// TestH03_ErrorAnswerIsNotARemoval: the relay queries by name resources that a resync does not mention. The response
// that names do not exist is treated like any other large removal, also for names of clients and members of a
// collection.
func TestH03_ErrorAnswerIsNotARemoval(t *testing.T) {
	collection := make([]string, 9)
	for i := range collection {
		collection[i] = fmt.Sprintf("xdstp://a/envoy.config.cluster.v3.Cluster/m%d@1", i)
	}
	b := relaytest.Behaviour{IgnoreIRV: true, NamedOnly: func(_, name string) bool { return strings.HasPrefix(name, "xdstp:") }}
	inBubble(t, b, upstream.Config{}, func(t *testing.T, r *rig) {
		r.put(clusters, numbered(9)...)
		r.put(clusters, collection...)
		r.watch.SubscribeAll(clusters)
		r.watch.Subscribe(clusters, []string{"n000", "n001"})
		key := cache.Collection(clusters, "xdstp://a/envoy.config.cluster.v3.Cluster/*")
		r.watch.SubscribeAll(key)
		r.pass(confirmed)
		r.changeWhileDown(func(tx *relaytest.Tx) {
			removing(clusters, nameOnly(numbered(9))...)(tx)
			removing(clusters, nameOnly(collection)[:8]...)(tx) // without members, the origin reports the glob as removed
		})
		want := func(when string, members, names, globs int) {
			t.Helper()
			h := r.view.Generation()
			if m, n, g := h.Type(clusters).Wildcard.Count(), h.Type(clusters).ByName.Count(), h.Type(key).Wildcard.Count(); m != members || n != names || g != globs {
				t.Errorf("%s: %d members, %d names, %d in the collection; want %d, %d and %d", when, m, n, g, members, names, globs)
			}
		}
		r.pass(9 * time.Minute)
		want("during the hold", 9, 2, 9)
		r.expectHolds("during the hold", 19, 0)
		r.pass(5 * time.Minute)
		want("after the hold", 0, 0, 1)
		r.expectHolds("after the hold", 0, 0)
	})
}

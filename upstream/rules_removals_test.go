package upstream_test

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/upstream"
	"github.com/xdstender/tender/upstream/reconcile"
)

// wantClusters fails the test unless the view has want clusters.
func (r *rig) wantClusters(when string, want int) {
	r.t.Helper()
	if n := r.count(); n != want {
		r.t.Errorf("%s: %d members, want %d", when, n, want)
	}
}

// set sets a resource of the origin.
func (r *rig) set(typeURL, name, version string, m proto.Message) {
	r.Apply(func(tx *relaytest.Tx) { tx.Set(typeURL, name, m, version) })
}

// assignments returns the served assignments.
func (r *rig) assignments() string { return present(r.named(endpoints)) }

// TestH03_DependenciesOfHeldResourcesStay: assignments and routes stay while held clusters and listeners reference
// them, even if the origin reports their removal later. They are removed together.
func TestH03_DependenciesOfHeldResourcesStay(t *testing.T) {
	for _, how := range []string{"passed", "dropped", "over"} {
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
				case "passed":
					r.control.Operate(t.Context(), reconcile.Command{Do: reconcile.Pass})
				case "dropped":
					r.control.Operate(t.Context(), reconcile.Command{Do: reconcile.Drop})
					r.clustersAfter(longAfter, "long after the drop", 3)
					r.expect("assignments long after the drop", r.assignments(), "eds/a@1 eds/b@1 eds/c@1")
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

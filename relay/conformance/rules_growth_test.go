package conformance_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/relay/relaytest/controlplane"
	"github.com/xdstender/tender/relay/relaytest/instance"
	"github.com/xdstender/tender/relay/relaytest/memnet"
	"github.com/xdstender/tender/upstream/reconcile"
)

// manyNames is how many clusters growth adds in these tests, to a few: just too many.
const manyNames = 1000

// manyClusters returns clusters m0000, m0001 and so on.
func manyClusters() (all []proto.Message) {
	for i := range manyNames {
		all = append(all, relaytest.Cluster(fmt.Sprintf("m%04d", i)))
	}
	return all
}

// largeRoute returns the route configuration r with a name of more than a MiB.
func largeRoute() proto.Message {
	return relaytest.Route("r", []string{"*", strings.Repeat("x", 1<<20)}, "a")
}

// growing returns the numbers of clusters of clients, and of changes that wait because they grow.
func growing(t testing.TB, r *running, clients ...*relaytest.Client) (clusters []int, waiting int) {
	t.Helper()
	for _, c := range clients {
		clusters = append(clusters, len(c.State().Names(relaytest.ClusterType)))
	}
	return clusters, statusOf(t, r).Origins[0].Pending[string(reconcile.Growth)]
}

// wantGrowing fails the test unless all clients have a number of clusters, and so many changes wait because they grow.
func wantGrowing(t testing.TB, when string, r *running, clusters, waiting int, clients ...*relaytest.Client) {
	t.Helper()
	synctest.Wait()
	got, is := growing(t, r, clients...)
	for i, n := range got {
		check.Equal(t, fmt.Sprintf("%s: clusters of client %d", when, i), n, clusters)
	}
	check.Equal(t, when+": changes that wait", is, waiting)
}

// TestB51_GrowthOfGoControlPlaneWaits: go-control-plane adds a thousand clusters, and makes a route configuration large, in any form
// of its caches. Clients receive neither before the time of a large removal is over, also if it restarts meanwhile. A client that
// returns from a relay that has passed them keeps them.
func TestB51_GrowthOfGoControlPlaneWaits(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{controlplane.Linear, controlplane.LinearSotW, controlplane.ADSSnapshots, controlplane.SnapshotsSotW} {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := controlplane.New(t, kind, new(memnet.Network),
					relaytest.Cluster("a"), relaytest.Listener("l", "r"), relaytest.Route("r", []string{"*"}, "a"))
				r := startRelay(t, instance.Of(o), operated)
				free := startRelay(t, instance.Of(o), operated, "TENDER_HOLD_GROWTH=off")
				subscribe := func(c *relaytest.Client) {
					c.Subscribe(relaytest.ClusterType)
					c.Subscribe(relaytest.RouteType, "r")
				}
				clients := r.bothVariants(relaytest.ClientOptions{}, subscribe)
				other := free.Client(relaytest.ClientOptions{Variant: relaytest.Delta, AutoAck: true})
				subscribe(other)
				sleep(time.Minute)
				wantGrowing(t, "at first", r, 1, 0, clients...)

				o.Edit(append(manyClusters(), largeRoute()), nil)
				o.Push()
				began := time.Now()
				sleep(20 * time.Second)
				wantGrowing(t, "grown", r, 1, manyNames+1, clients...)
				wantGrowing(t, "without a limit", free, manyNames+1, 0, other)
				small := relaytest.DigestOf(relaytest.Route("r", []string{"*"}, "a"))
				check.Equal(t, "the route of a client", clients[0].State().Digest(relaytest.RouteType, "r"), small)
				rows := getJSON[admin.Pending](t, r, "/api/v1/pending?reason=growth&type=rds").Pending
				check.Equal(t, "rows of the route", len(rows), 1)
				check.Equal(t, "what ends its wait", rows[0].Ends, admin.EndsByDeadline)
				if !strings.HasPrefix(rows[0].Details[0], "grows from ") || rows[0].Until.Sub(began) < 10*time.Minute {
					t.Errorf("row %+v, want how the route grows, and a deadline in ten minutes", rows[0])
				}
				if _, text := httpGet(t, r.DialAdmin, "/metrics"); !strings.Contains(text,
					fmt.Sprintf(`tender_pending_changes{origin="default",reason="growth"} %d`, manyNames+1)) {
					t.Error("/metrics does not count what waits")
				}
				other.Reconnect(r.Conn())
				o.Stop()
				sleep(time.Minute)
				o.Restart()
				sleep(time.Until(began.Add(9*time.Minute + 50*time.Second)))
				wantGrowing(t, "before the deadline, after a restart of the origin", r, 1, manyNames+1, clients...)
				wantGrowing(t, "a client of another relay", r, manyNames+1, manyNames+1, other)
				sleep(time.Minute)
				wantGrowing(t, "after the deadline", r, manyNames+1, 0, append(clients, other)...)
				check.Equal(t, "the route of a client", clients[1].State().Digest(relaytest.RouteType, "r"), relaytest.DigestOf(largeRoute()))
			})
		})
	}
}

// TestB51_GrowthAndRestarts: after a restart of the relay, growth waits that the origin stated before it, or while the relay was
// not running: what clients have is in the snapshot. A relay without a snapshot has no state to compare with.
func TestB51_GrowthAndRestarts(t *testing.T) {
	t.Parallel()
	restartBubble(t, func(t *testing.T, r *restarting, v relaytest.Variant) {
		r.o.Put(relaytest.Cluster("a"))
		c := r.following(v, typeCDS)
		r.expectResources(c, typeCDS, "a")
		sleep(time.Minute)
		r.stop()
		r.o.Put(manyClusters()...)
		for i, when := range []string{"stated while the relay was not running", "stated before a restart"} {
			if i > 0 {
				r.stop()
			}
			r.start()
			c.Reconnect(r.Conn())
			later := r.following(v, typeCDS)
			sleep(9 * time.Minute)
			wantGrowing(t, when, r.running, 1, manyNames, c, later)
		}
		sleep(2 * time.Minute)
		wantGrowing(t, "after the deadline", r.running, manyNames+1, 0, c)
		r.Stop()
		cold := start(t, r.o, operated)
		first := cold.Client(relaytest.ClientOptions{Variant: v, AutoAck: true})
		first.Subscribe(typeCDS)
		sleep(time.Minute)
		wantGrowing(t, "without a snapshot", cold, manyNames+1, 0, first)
	}, operated)
}

// TestB51_OperatorsOfGrowth pass growth, or drop it: then clients keep what they have until the origin states something else, also if
// its stream ends.
func TestB51_OperatorsOfGrowth(t *testing.T) {
	t.Parallel()
	for _, origin := range []relaytest.Variant{relaytest.Delta, relaytest.SotW} {
		t.Run("origin="+origin.String(), func(t *testing.T) {
			originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
				o.Change(func(b *relaytest.Behaviour) { b.SotW = origin == relaytest.SotW })
				o.Put(relaytest.Cluster("a"), relaytest.Listener("l", "r"), relaytest.Route("r", []string{"*"}, "a"))
				r := start(t, o, operated)
				c := routed(r, relaytest.ClientOptions{Variant: v})
				sleep(time.Minute)
				grow := admin.PendingScope{PendingChoice: admin.PendingChoice{PendingReason: "growth"}}
				o.Put(manyClusters()...)
				o.Put(relaytest.Route("r", []string{"*"}, "m0007"))
				sleep(time.Minute)
				wantGrowing(t, "a route that names what waits", r, 1, manyNames+1, c)
				operate[admin.PendingScope, admin.PendingDecision](t, r, "drop", grow)
				o.Stop()
				o.Restart()
				sleep(15 * time.Minute)
				wantGrowing(t, "dropped", r, 1, 0, c)
				check.Equal(t, "dropped changes", statusOf(t, r).Origins[0].Pending["dropped"], manyNames+1)
				o.Put(largeRoute())
				sleep(time.Minute)
				wantGrowing(t, "something else", r, 1, 1, c)
				operate[admin.PendingScope, admin.PendingDecision](t, r, "pass", grow)
				sleep(time.Minute)
				wantGrowing(t, "passed", r, 1, 0, c)
				check.Equal(t, "the route", c.State().Digest(typeRDS, "r"), relaytest.DigestOf(largeRoute()))
			})
		})
	}
}

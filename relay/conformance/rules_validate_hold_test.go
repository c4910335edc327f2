package conformance_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/rollout"
	"github.com/xdstender/tender/upstream/reconcile"
)

// holdBroken makes a relay hold changes that break clients.
const holdBroken = "TENDER_VALIDATE=hold"

// A holdWorld has a relay that holds changes, and a client with an Envoy's subscriptions.
type holdWorld struct {
	t *testing.T
	o *relaytest.Origin
	r *running
	c *relaytest.Client
}

// holdEach runs a test for each variant of the client and of the origin. The initial route names the cluster a.
func holdEach(t *testing.T, f func(w *holdWorld)) {
	t.Parallel()
	for _, origin := range []relaytest.Variant{relaytest.Delta, relaytest.SotW} {
		t.Run("origin="+origin.String(), func(t *testing.T) {
			originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
				o.Change(func(b *relaytest.Behaviour) { b.SotW = origin == relaytest.SotW })
				o.Put(relaytest.Cluster("a"), relaytest.Listener("l", "r"), relaytest.Route("r", []string{"*"}, "a"))
				w := &holdWorld{t: t, o: o, r: start(t, o, operated, holdBroken)}
				w.c = routed(w.r, relaytest.ClientOptions{Variant: v})
				w.expectState("initially", "a", "a")
				f(w)
			})
		})
	}
}

// expectState waits, and fails the test unless the client has these clusters, separated by spaces, and a route to
// this cluster, and the relay reports these findings and pending changes.
func (w *holdWorld) expectState(when, clusters, route string, findings ...string) {
	w.t.Helper()
	sleep(20 * time.Second)
	s := w.c.State()
	if got := strings.Join(s.Names(relaytest.ClusterType), " "); got != clusters {
		w.t.Errorf("%s: the client has the clusters %q, want %q", when, got, clusters)
	}
	if s.Digest(relaytest.RouteType, "r") != relaytest.DigestOf(relaytest.Route("r", []string{"*"}, route)) {
		w.t.Errorf("%s: the client's route does not name %s", when, route)
	}
	got := findingsOf(w.t, w.r)
	for _, row := range w.pending() {
		if row.Reason == string(reconcile.Breaking) {
			got = append(got, "pending "+strings.Join(row.Names, " "))
		}
	}
	if !slices.Equal(got, findings) {
		w.t.Errorf("%s: findings %q, want %q", when, got, findings)
	}
}

// holdsChange reports whether the status has a pending change that would break clients.
func holdsChange(s admin.Status) bool { return s.Origins[0].Pending[string(reconcile.Breaking)] == 1 }

// routeTo makes the origin's route name another cluster.
func (w *holdWorld) routeTo(cluster string) { w.o.Put(relaytest.Route("r", []string{"*"}, cluster)) }

// pending returns the relay's pending changes.
func (w *holdWorld) pending() []admin.PendingChange {
	w.t.Helper()
	return getJSON[admin.Pending](w.t, w.r, "/api/v1/pending").Pending
}

// A route that names a missing cluster, and the removal of a cluster that a route names, are held: clients keep
// the previous resources. Each passes once its references are valid.
func TestB46_ClientsKeepTheLastGood(t *testing.T) {
	holdEach(t, func(w *holdWorld) {
		w.routeTo("b")
		w.expectState("a route to a missing cluster", "a", "a", "pending r")
		rows := w.pending()
		if len(rows) != 1 || rows[0].Reason != "breaking" || rows[0].Change != "change" || rows[0].Names[0] != "r" ||
			rows[0].Details[0] != `names cluster "b", which does not exist` {
			w.t.Errorf("pending %+v, want the update of r", rows)
		}
		of := getJSON[admin.RolloutDiff](w.t, w.r, "/api/v1/pending/diff?type=rds&name=r")
		if len(of.Changes) != 1 || len(of.Bodies) != 2 || of.Changes[0].Change != "changed" {
			w.t.Errorf("the diff is %+v, want the change of r, with the content before and after it", of)
		}
		if _, text := httpGet(w.t, w.r.DialAdmin, "/metrics"); !strings.Contains(text,
			`tender_pending_changes{origin="default",reason="breaking"} 1`) {
			w.t.Error("/metrics does not count the pending change")
		}
		for _, view := range operate[admin.Scope, admin.Audits](w.t, w.r, "audit", admin.Scope{}).Views {
			for _, of := range view.Types {
				for _, d := range of.Differences {
					if !d.Held {
						w.t.Errorf("audit: %+v, want only held differences", d)
					}
				}
			}
		}
		w.o.Put(relaytest.Cluster("b"))
		w.expectState("the cluster is added", "a b", "b")
		w.o.Remove(relaytest.ClusterType, "b")
		w.expectState("a cluster that is named is removed", "a b", "b", "pending b")
		w.routeTo("a")
		w.expectState("the route names another cluster", "a", "a")
	})
}

// An undecodable update is held if the previous resource can be decoded.
func TestB46_UndecodableUpdatesAreHeld(t *testing.T) {
	holdEach(t, func(w *holdWorld) {
		before := w.c.State().Digest(relaytest.ClusterType, "a")
		// connect_timeout is truncated
		invalid := &anypb.Any{TypeUrl: relaytest.ClusterType, Value: []byte{0x0a, 1, 'a', 0x22, 1, 0xff}}
		w.o.Set(relaytest.ClusterType, "a", invalid, "invalid bytes")
		w.expectState("invalid bytes", "a", "a", "pending a")
		if w.c.State().Digest(relaytest.ClusterType, "a") != before {
			w.t.Error("the client's cluster changed")
		}
		w.o.Put(relaytest.Cluster("a", "elsewhere"))
		w.expectState("corrected", "a", "a")
		if w.c.State().Digest(relaytest.ClusterType, "a") == before {
			w.t.Error("the client did not get the valid cluster")
		}
	})
}

// An operator passes held changes to clients, or drops them.
func TestB46_PassAndDrop(t *testing.T) {
	holdEach(t, func(w *holdWorld) {
		w.routeTo("b")
		w.expectState("a route to a missing cluster", "a", "a", "pending r")
		operate[admin.PendingScope, admin.PendingDecision](w.t, w.r, "drop", admin.PendingScope{All: true})
		w.expectState("dropped", "a", "a")
		if rows := w.pending(); len(rows) != 1 || rows[0].Reason != "dropped" || rows[0].Details == nil {
			w.t.Errorf("pending %+v, want one dropped change", rows)
		}
		w.routeTo("c")
		w.expectState("another one", "a", "a", "pending r")
		operate[admin.PendingScope, admin.PendingDecision](w.t, w.r, "pass", admin.PendingScope{All: true})
		w.expectState("passed", "a", "c", "missing_reference r")
		w.routeTo("a")
		w.expectState("corrected", "a", "a")
	})
}

// A snapshot contains the last good state, and the relay holds the change again when the origin resends it.
func TestB46_HoldingSurvivesARestart(t *testing.T) {
	t.Parallel()
	restartBubble(t, func(t *testing.T, r *restarting, v relaytest.Variant) {
		r.o.Put(relaytest.Cluster("a"), relaytest.Listener("l", "r"), relaytest.Route("r", []string{"*"}, "a"))
		for _, other := range []string{"v", "w", "x", "y", "z"} { // so that one removal is no mass deletion
			r.o.Put(relaytest.Cluster(other))
		}
		w := &holdWorld{t: t, o: r.o, r: r.running, c: routed(r.running, relaytest.ClientOptions{Variant: v})}
		w.expectState("initially", "a v w x y z", "a")
		w.routeTo("b")
		w.o.Remove(relaytest.ClusterType, "a")
		w.expectState("broken", "a v w x y z", "a", "pending a", "pending r")
		for range 2 {
			r.stop()
			r.start()
			w.r, w.c = r.running, routed(r.running, relaytest.ClientOptions{Variant: v})
			w.expectState("after a restart", "a v w x y z", "a", "pending a", "pending r")
		}
		w.o.Put(relaytest.Cluster("b"))
		w.expectState("fixed", "b v w x y z", "b")
	}, operated, holdBroken)
}

// Broken changes in a directory of files are held, too.
func TestB46_FilesAreHeld(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	route := func(cluster string) string {
		return "resources: [{'@type': " + relaytest.RouteType +
			", name: r, virtual_hosts: [{name: v, domains: ['*'], routes: [{match: {prefix: /}, route: {cluster: " + cluster +
			"}}]}]}]\n"
	}
	clusterFile(t, dir, "a.yaml", "a")
	badWrite(t, dir, "r.yaml", route("a"))
	r := startFiles(t, dir, operated, holdBroken)
	c := routed(r, relaytest.ClientOptions{})
	c.WaitState(t.Context(),
		func(s relaytest.State) bool { return s.Has(typeCDS, "a") && s.Has(relaytest.RouteType, "r") })
	before := c.State().Digest(relaytest.RouteType, "r")
	badWrite(t, dir, "r.yaml", route("b"))
	awaitStatus(t, r, "a pending change", func(s admin.Status) bool { return holdsChange(s) })
	if c.State().Digest(relaytest.RouteType, "r") != before {
		t.Error("the client's route changed")
	}
	clusterFile(t, dir, "a.yaml", "a", "b")
	c.WaitState(t.Context(), func(s relaytest.State) bool {
		return s.Has(typeCDS, "a", "b") && s.Digest(relaytest.RouteType, "r") != before
	})
	awaitStatus(t, r, "nothing held", func(s admin.Status) bool { return !holdsChange(s) })
}

// A held change does not start a rollout. Once it passes, it is rolled out in stages, in the edition of the
// resource that it waited for.
func TestB46_HeldChangesBeginNoRollout(t *testing.T) {
	t.Parallel()
	rolloutBubble(t, func(w *rolloutWorld, v relaytest.Variant) {
		canary, other := w.client(v, "canary", nil), w.client(v, "other", nil)
		expectRoute := func(when string, c *rolloutClient, rev int) {
			w.t.Helper()
			if c.State().Digest(relaytest.RouteType, "routes") != relaytest.DigestOf(w.n.Message("rds", "routes", rev)) {
				w.t.Errorf("%s: %s does not have revision %d of the route", when, c.node, rev)
			}
		}
		w.change("cds cluster-1@1") // the cluster of the initial route
		w.sleep(settled)
		w.expectPhase(rollout.Current, 0)
		w.change("rds routes@2")
		w.sleep(settled)
		w.expectPhase(rollout.Current, 0)
		expectRoute("the cluster is missing", canary, 1)
		w.change("cds cluster-2@1")
		w.sleep(time.Minute)
		if s := w.expectPhase(rollout.Rolling, 1); s.Resources != 2 {
			w.t.Errorf("the edition has %d resources, want 2, the cluster and the route", s.Resources)
		}
		expectRoute("the first stage", canary, 2)
		expectRoute("the first stage", other, 1)
		w.sleep(settled)
		expectRoute("promoted", other, 2)
	}, holdBroken)
}

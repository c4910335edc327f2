package conformance_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/controlplane"
	"github.com/xdstender/tender/relay/relaytest/instance"
	"github.com/xdstender/tender/relay/relaytest/memnet"
	"github.com/xdstender/tender/relay/relaytest/transcript"
	"github.com/xdstender/tender/upstream/reconcile"
)

// coldNames returns the names n000, n001 and so on, as a client reports them.
func coldNames(from, to int) string {
	var names []string
	for i := from; i < to; i++ {
		names = append(names, fmt.Sprintf("n%03d", i))
	}
	return strings.Join(names, " ")
}

// wantHeld fails the test unless this many reported names are withheld from returning clients, and this many are
// dropped by an operator.
func wantHeld(t *testing.T, r *running, when string, waiting, dropped int) {
	t.Helper()
	if gotWaiting, gotDropped := heldNames(t, r); gotWaiting != waiting || gotDropped != dropped {
		t.Errorf("%s: got %d waiting and %d dropped names, want %d and %d", when, gotWaiting, gotDropped, waiting,
			dropped)
	}
}

// heldNames returns the numbers of reported names that wait for a decision, and that an operator has dropped.
func heldNames(t testing.TB, r *running) (waiting, dropped int) {
	t.Helper()
	_, text := httpGet(t, r.DialAdmin, "/api/v1/pending")
	var all admin.Pending
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		t.Fatal(err)
	}
	for _, h := range all.Pending {
		switch {
		case !h.Reported || len(h.Names) == 0:
			t.Errorf("got the hold %+v, want names that clients report", h)
		case h.Reason == string(reconcile.Dropped):
			dropped += h.Count
		case h.Since.IsZero():
			t.Errorf("the hold %+v has no start time", h)
		default:
			waiting += h.Count
		}
	}
	if n := heldIn(statusOf(t, r)); n != waiting {
		t.Errorf("the status counts %d held names, want %d", n, waiting)
	}
	return waiting, dropped
}

// heldIn returns the number of removals of the first origin that are held.
func heldIn(s admin.Status) int {
	pending := s.Origins[0].Pending
	return pending[string(reconcile.SecondLook)] + pending[string(reconcile.LargeRemoval)]
}

// decideHolds runs an operator's command for all holds.
func (w *world) decideHolds(command string, dropped bool) {
	w.t.Helper()
	of := admin.PendingScope{All: !dropped}
	if dropped {
		of.PendingReason = string(reconcile.Dropped)
	}
	if h := operate[admin.PendingScope, admin.PendingDecision](w.t, w.relay, command, of); len(h.Pending) == 0 {
		w.t.Fatalf("%s: there are no pending changes", command)
	}
	synctest.Wait()
}

// A directory may be incomplete when it is read for the first time, so removals of names that clients report are
// held.
func TestH04_IncompleteDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	text := "resources: [{'@type': type.googleapis.com/envoy.config.cluster.v3.Cluster, name: n000}]"
	if err := os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	r := startFiles(t, dir, operated)
	c := r.Client(relaytest.ClientOptions{Variant: relaytest.Delta, AutoAck: true})
	holds := make(map[string]string)
	for name := range strings.FieldsSeq(coldNames(0, 10)) {
		holds[name] = "of another relay"
	}
	c.Send(returningDelta(relaytest.EnvoyNode("client"), typeCDS, nil, holds))
	c.WaitState(t.Context(), func(s relaytest.State) bool { return slices.Equal(s.Names(typeCDS), []string{"n000"}) })
	wantHeld(t, r, "the directory is read", 9, 0)
	removed := func() (n int) {
		for _, resp := range c.Responses() {
			n += len(resp.Removed)
		}
		return n
	}
	if n := removed(); n != 0 {
		t.Errorf("got %d removals, want none", n)
	}
	operate[admin.PendingScope, admin.PendingDecision](t, r, "pass", admin.PendingScope{All: true})
	for deadline := time.Now().Add(relaytest.Patience); removed() != 9; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("after pass: got %d removals, want 9", removed())
		}
	}
}

// Names that are withheld from clients, and those that an operator has dropped, stay so after a restart.
func TestH04_HoldsSurviveARestart(t *testing.T) {
	t.Parallel()
	for _, dropped := range []bool{false, true} {
		restartBubble(t, func(t *testing.T, r *restarting, v relaytest.Variant) {
			r.o.Put(relaytest.Listener("l", "r")) // so that a snapshot is written
			names := map[relaytest.Variant]int{relaytest.Delta: 10, relaytest.SotW: 1}[v]
			w := &world{t: t, origin: r.o, relay: r.running, n: transcript.NewNotation(t)}
			w.autoClient(v).subscribeHolding(v, "cds", "", coldNames(0, 10))
			w.sleep(20 * time.Second)
			wantHeld(t, r.running, "initially", names, 0)
			if dropped {
				w.decideHolds("drop", false)
			}
			r.stop()
			r.start()
			w.relay = r.running
			c := w.autoClient(v).subscribeHolding(v, "cds", "", coldNames(0, 10))
			w.sleep(9 * time.Minute)
			c.expect()
			if dropped {
				wantHeld(t, r.running, "after a restart", 0, names)
			} else {
				wantHeld(t, r.running, "after a restart", names, 0)
			}
		}, operated)
	}
}

// A SotW client with another version than the restored set is sent the set once the origin has resent all its
// resources, and no part of it before.
func TestH04_ResentRestoredSet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true})
		r := &restarting{t: t, o: o,
			env: []string{operated, "TENDER_SNAPSHOT_DIR=" + filepath.Join(t.TempDir(), "snapshots")}}
		r.start()
		o.Put(relaytest.Cluster("a"), relaytest.Cluster("b"))
		r.expectResources(r.following(relaytest.SotW, typeCDS), typeCDS, "a", "b")
		r.stop()
		o.Change(func(b *relaytest.Behaviour) { b.Manual = true })
		r.start()
		w := &world{t: t, origin: o, relay: r.running, n: transcript.NewNotation(t)}
		c := w.autoClient(relaytest.SotW).subscribeHolding(relaytest.SotW, "cds", "", "")
		s := o.AcceptOpen(t.Context())
		w.send(s, "cds a@2", "cds c@2")
		w.sleep(5 * time.Second)
		c.expect()
		w.send(s, "cds b@2") // long after the first response, so it settles at once (B.7)
		c.expect("cds {a@2 b@2 c@2}")
	})
}

// go-control-plane first has none of the resources that a client reports, and later all of them. The client gets
// no removal.
func TestH04_GoControlPlane(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{controlplane.Linear, controlplane.Snapshots, controlplane.ADSSnapshots} {
		synctest.Test(t, func(t *testing.T) {
			memory := new(memnet.Network)
			o := controlplane.New(t, kind, memory, planeWorld()...)
			r := startRelay(t, instance.Of(o), operated)
			w := &world{t: t, relay: r}
			c := w.dial(relaytest.ClientOptions{Variant: relaytest.Delta, AutoAck: true,
				Node: relaytest.EnvoyNode("tender/test")})
			versions := make(map[string]string)
			for name := range strings.FieldsSeq(coldNames(0, 40)) {
				versions[name] = "of another time"
			}
			c.Send(&discoverypb.DeltaDiscoveryRequest{Node: relaytest.EnvoyNode("client"), TypeUrl: typeCDS,
				InitialResourceVersions: versions})
			o.Follow(c, relaytest.ClusterType)
			time.Sleep(time.Minute)
			wantHeld(t, r, "the set is complete", 40, 0)
			var clusters []proto.Message
			for name := range strings.FieldsSeq(coldNames(0, 40)) {
				clusters = append(clusters, relaytest.Cluster(name))
			}
			o.Put(clusters...)
			o.Follow(c, relaytest.ClusterType)
			sleep(settled)
			wantHeld(t, r, "it has loaded", 0, 0)
			for _, resp := range c.Responses() {
				if len(resp.Removed) > 0 {
					t.Errorf("got the removals %q", resp.Removed)
				}
			}
		})
	}
}

// A poll with a version gets a 503 while the empty set is held.
func TestH04_EmptySetByREST(t *testing.T) {
	t.Parallel()
	restBubble(t, func(t *testing.T, _ *relaytest.Origin, c *restClient) {
		for range 9 {
			c.poll("clusters", "", "old").expectStatus(http.StatusServiceUnavailable, "is incomplete")
			c.poll("clusters", "", "").expectDuration(0).expectNames()
			time.Sleep(time.Minute)
		}
		time.Sleep(2 * time.Minute) // until the set was verified
		c.poll("clusters", "", "old").expectNames()
	})
}

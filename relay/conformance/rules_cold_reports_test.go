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
	"github.com/xdstender/tender/relay/relaytest/memnet"
)

// coldNames returns names from n000 on, as a client reports them.
func coldNames(from, to int) string {
	var names []string
	for i := from; i < to; i++ {
		names = append(names, fmt.Sprintf("n%03d", i))
	}
	return strings.Join(names, " ")
}

// wantHeld fails the test unless the relay withholds just so many names from returning clients, and so many for an operator.
func wantHeld(t *testing.T, r *running, when string, waiting, discarded int) {
	t.Helper()
	if gotWaiting, gotDiscarded := heldNames(t, r); gotWaiting != waiting || gotDiscarded != discarded {
		t.Errorf("%s: %d names wait and %d were discarded, want %d and %d", when, gotWaiting, gotDiscarded, waiting, discarded)
	}
}

// heldNames returns how many names that clients report wait for a decision, and how many an operator has discarded.
func heldNames(t testing.TB, r *running) (waiting, discarded int) {
	t.Helper()
	_, text := ask(t, r.DialAdmin, "/api/v1/holds")
	var holds admin.Holds
	if err := json.Unmarshal([]byte(text), &holds); err != nil {
		t.Fatal(err)
	}
	for _, h := range holds.Holds {
		switch {
		case !h.Reported || len(h.Names) == 0:
			t.Errorf("%+v, want a hold of names that clients report", h)
		case h.Discarded:
			discarded += h.Count
		case h.Since.IsZero():
			t.Errorf("%+v has no beginning", h)
		default:
			waiting += h.Count
		}
	}
	if n := statusOf(t, r).Origins[0].Held; n != waiting {
		t.Errorf("the status counts %d, want %d", n, waiting)
	}
	return waiting, discarded
}

// coldOrder has an operator decide about everything.
func (w *world) coldOrder(command string, discarded bool) {
	w.t.Helper()
	if h := operate[admin.HoldScope, admin.Holds](w.t, w.relay, command, admin.HoldScope{All: true, Discarded: discarded}); len(h.Holds) == 0 {
		w.t.Fatalf("%s: nothing was there", command)
	}
	synctest.Wait()
}

// TestH04_DirectoryThatIsNotThereYet: a directory is read as a whole, and may be mounted half filled all the same.
func TestH04_DirectoryThatIsNotThereYet(t *testing.T) {
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
		t.Errorf("%d removals, want none", n)
	}
	operate[admin.HoldScope, admin.Holds](t, r, "release", admin.HoldScope{All: true})
	for deadline := time.Now().Add(relaytest.Patience); removed() != 9; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("released: %d removals, want 9", removed())
		}
	}
}

// TestH04_HoldsSurviveARestart: a relay that is restarted while it withholds names goes on to do so, and what was discarded stays
// discarded.
func TestH04_HoldsSurviveARestart(t *testing.T) {
	t.Parallel()
	for _, discarded := range []bool{false, true} {
		restartBubble(t, func(t *testing.T, r *restarting, v relaytest.Variant) {
			r.o.Put(relaytest.Listener("l", "r")) // so that there is something to store
			names := map[relaytest.Variant]int{relaytest.Delta: 10, relaytest.SotW: 1}[v]
			w := &world{t: t, origin: r.o, relay: r.running, revs: make(map[relaytest.Digest]string)}
			w.autoClient(v).subscribeHolding(v, "cds", "", coldNames(0, 10))
			w.sleep(20 * time.Second)
			wantHeld(t, r.running, "at first", names, 0)
			if discarded {
				w.coldOrder("discard", false)
			}
			r.stop()
			r.start()
			w.relay = r.running
			c := w.autoClient(v).subscribeHolding(v, "cds", "", coldNames(0, 10))
			w.sleep(9 * time.Minute)
			c.expect()
			if discarded {
				wantHeld(t, r.running, "after a restart", 0, names)
			} else {
				wantHeld(t, r.running, "after a restart", names, 0)
			}
		}, operated)
	}
}

// TestH04_RestoredSetThatTheOriginHasSaidAgain: a SotW client that reports another version than that of the restored set is sent
// the set once the origin has said all of it again, and before that not a part of it.
func TestH04_RestoredSetThatTheOriginHasSaidAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true})
		r := &restarting{t: t, o: o, env: []string{operated, "TENDER_SNAPSHOT_DIR=" + filepath.Join(t.TempDir(), "snapshots")}}
		r.start()
		o.Put(relaytest.Cluster("a"), relaytest.Cluster("b"))
		r.expectResources(r.following(relaytest.SotW, typeCDS), typeCDS, "a", "b")
		r.stop()
		o.Change(func(b *relaytest.Behaviour) { b.Manual = true })
		r.start()
		w := &world{t: t, origin: o, relay: r.running, revs: make(map[relaytest.Digest]string)}
		c := w.autoClient(relaytest.SotW).subscribeHolding(relaytest.SotW, "cds", "", "")
		s := w.acceptStream()
		w.send(s, "cds a@2", "cds c@2")
		w.sleep(5 * time.Second)
		c.expect()
		w.send(s, "cds b@2") // long after the first answer: it settles at once (B.7)
		c.expect("cds {a@2 b@2 c@2}")
	})
}

// TestH04_GoControlPlane: go-control-plane with half of its clusters, and one that has none of those that a client holds.
func TestH04_GoControlPlane(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{relaytest.LinearCaches, relaytest.Snapshots, relaytest.ADSSnapshots} {
		synctest.Test(t, func(t *testing.T) {
			memory := new(memnet.Network)
			o := relaytest.NewControlPlane(t, kind, memory, planeWorld()...)
			r := startRelay(t, o.RelayOptions(), operated)
			w := &world{t: t, relay: r}
			c := w.dial(relaytest.ClientOptions{Variant: relaytest.Delta, AutoAck: true, Node: relaytest.EnvoyNode("tender/test")})
			versions := make(map[string]string)
			for name := range strings.FieldsSeq(coldNames(0, 40)) {
				versions[name] = "of another time"
			}
			c.Send(&discoverypb.DeltaDiscoveryRequest{Node: relaytest.EnvoyNode("client"), TypeUrl: typeCDS, InitialResourceVersions: versions})
			o.Follow(c, relaytest.ClusterType)
			time.Sleep(time.Minute)
			wantHeld(t, r, "the set is complete", 40, 0)
			var rest []proto.Message
			for name := range strings.FieldsSeq(coldNames(0, 40)) {
				rest = append(rest, relaytest.Cluster(name))
			}
			o.Put(rest...)
			o.Follow(c, relaytest.ClusterType)
			time.Sleep(time.Hour)
			synctest.Wait()
			wantHeld(t, r, "it has loaded", 0, 0)
			for _, resp := range c.Responses() {
				if len(resp.Removed) > 0 {
					t.Errorf("told that %q are gone", resp.Removed)
				}
			}
		})
	}
}

// TestH04_EmptySetByREST: a poll that reports a version is told that the set is not complete, while the empty set is held.
func TestH04_EmptySetByREST(t *testing.T) {
	t.Parallel()
	restBubble(t, func(t *testing.T, _ *relaytest.Origin, c *restClient) {
		for range 9 {
			c.poll("clusters", "", "old").expectStatus(http.StatusServiceUnavailable, "not complete")
			c.poll("clusters", "", "").expectDuration(0).expectNames()
			time.Sleep(time.Minute)
		}
		time.Sleep(2 * time.Minute) // with a second look at the origin
		c.poll("clusters", "", "old").expectNames()
	})
}

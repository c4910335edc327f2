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
)

// coldNames returns names from n000 on, as a client reports them.
func coldNames(from, to int) string {
	var names []string
	for i := from; i < to; i++ {
		names = append(names, fmt.Sprintf("n%03d", i))
	}
	return strings.Join(names, " ")
}

// coldChanges has the origin put such names.
func coldChanges(short string, from, to int) (changes []string) {
	for name := range strings.FieldsSeq(coldNames(from, to)) {
		changes = append(changes, short+" "+name+"@1")
	}
	return changes
}

// lost returns how many of the names n000 to n009 a client, which held them, has been told to drop since the last time.
func (c *orderClient) lost() (n int) {
	for _, r := range c.heard() {
		n += strings.Count(r, "-n0")
		if strings.Contains(r, "{") {
			n += max(10-strings.Count(r, "@"), 0)
		}
	}
	return n
}

// wantLost fails the test unless a client has been told to drop so many names.
func (c *orderClient) wantLost(when string, want int) {
	c.w.t.Helper()
	if got := c.lost(); got != want {
		c.w.t.Fatalf("%s: the client was told to drop %d of its resources, want %d", when, got, want)
	}
}

// wantHeld fails the test unless the relay withholds just so many names from returning clients, and so many for an operator.
func wantHeld(t *testing.T, r *running, when string, waiting, discarded int) {
	t.Helper()
	_, text := ask(t, r.DialAdmin, "/api/v1/holds")
	var holds admin.Holds
	if err := json.Unmarshal([]byte(text), &holds); err != nil {
		t.Fatal(err)
	}
	gotWaiting, gotDiscarded := 0, 0
	for _, h := range holds.Holds {
		switch {
		case !h.Reported || len(h.Names) == 0:
			t.Errorf("%s: %+v, want a hold of names that clients report", when, h)
		case h.Discarded:
			gotDiscarded += h.Count
		case h.Since.IsZero():
			t.Errorf("%s: %+v has no beginning", when, h)
		default:
			gotWaiting += h.Count
		}
	}
	if gotWaiting != waiting || gotDiscarded != discarded {
		t.Errorf("%s: %d names wait and %d were discarded, want %d and %d; holds: %s", when, gotWaiting, gotDiscarded, waiting, discarded, text)
	}
	if n := statusOf(t, r).Origins[0].Held; n != waiting {
		t.Errorf("%s: the status counts %d, want %d", when, n, waiting)
	}
}

func (w *orderWorld) wantHeld(when string, waiting, discarded int) {
	w.t.Helper()
	wantHeld(w.t, w.relay, when, waiting, discarded)
}

// coldOrder has an operator decide about everything.
func (w *orderWorld) coldOrder(command string, discarded bool) {
	w.t.Helper()
	if h := operate[admin.HoldScope, admin.Holds](w.t, w.relay, command, admin.HoldScope{All: true, Discarded: discarded}); len(h.Holds) == 0 {
		w.t.Fatalf("%s: nothing was there", command)
	}
	synctest.Wait()
}

// TestH04_HalfStartedOrigin: a cold relay, an origin that has loaded only a part, and a client that holds all. The client keeps
// what it has, whether the rest comes before the set is taken for complete or later; what is there comes at once.
func TestH04_HalfStartedOrigin(t *testing.T) {
	t.Parallel()
	for _, gap := range []time.Duration{3 * time.Second, 8 * time.Second, 30 * time.Second} {
		for _, short := range []string{"cds", "lds"} {
			t.Run(fmt.Sprint("delta ", short, " ", gap), func(t *testing.T) {
				orderBubble(t, []string{operated}, func(w *orderWorld) {
					w.change(coldChanges(short, 0, 4)...)
					c := w.ready(relaytest.Delta).returns(relaytest.Delta, short, "", coldNames(0, 10))
					w.pass(time.Second)
					c.expect(short + " " + strings.ReplaceAll(coldNames(0, 4), " ", "@1 ") + "@1")
					w.pass(gap - time.Second)
					if gap > 10*time.Second {
						w.wantHeld("the set is complete", 6, 0)
					}
					w.change(coldChanges(short, 4, 10)...)
					w.pass(24 * time.Hour)
					c.wantLost("a day later", 0)
					if got := c.State().Names(orderTypes[short]); len(got) != 10 {
						t.Errorf("the client was sent %q, want all ten", got)
					}
					w.wantHeld("a day later", 0, 0)
				})
			})
			t.Run(fmt.Sprint("sotw ", short, " ", gap), func(t *testing.T) {
				orderBubble(t, []string{operated}, func(w *orderWorld) {
					if gap < 10*time.Second {
						w.change(coldChanges(short, 0, 4)...)
					}
					c := w.ready(relaytest.SotW).returns(relaytest.SotW, short, "", "")
					w.pass(gap)
					c.expect()
					w.change(coldChanges(short, 0, 10)...)
					w.pass(24 * time.Hour)
					c.expect(short + " {" + strings.ReplaceAll(coldNames(0, 10), " ", "@1 ") + "@1}")
					w.wantHeld("a day later", 0, 0)
				})
			})
		}
	}
}

// TestH04_EmptyOrigin: what clients hold of a set that turns out to be empty is held like removals from a last known set:
// operators see it, and release or discard it; else it ends after TENDER_MASS_DELETE_HOLD.
func TestH04_EmptyOrigin(t *testing.T) {
	t.Parallel()
	for _, v := range []relaytest.Variant{relaytest.Delta, relaytest.SotW} {
		names := map[relaytest.Variant]int{relaytest.Delta: 10, relaytest.SotW: 1}[v]
		empty := func(decision string, decide func(w *orderWorld, c *orderClient)) {
			t.Run(v.String()+" "+decision, func(t *testing.T) {
				orderBubble(t, []string{operated}, func(w *orderWorld) {
					c := w.ready(v).returns(v, "cds", "", coldNames(0, 10))
					w.pass(11 * time.Second)
					c.wantLost("the set is complete", 0)
					w.wantHeld("the set is complete", names, 0)
					fresh := w.ready(v).subscribe("cds", "")
					fresh.expect(strings.TrimSpace(orderForm(v, "cds ")))
					decide(w, c)
				})
			})
		}
		empty("waits", func(w *orderWorld, c *orderClient) {
			w.pass(9*time.Minute + 50*time.Second)
			c.wantLost("before the hold is over", 0)
			w.pass(30 * time.Second) // with a second look at the origin
			c.wantLost("after the hold", 10)
			w.wantHeld("after the hold", 0, 0)
		})
		empty("released", func(w *orderWorld, c *orderClient) {
			w.coldOrder("release", false)
			c.wantLost("released", 10)
			w.wantHeld("released", 0, 0)
		})
		empty("discarded", func(w *orderWorld, c *orderClient) {
			w.coldOrder("discard", false)
			w.pass(24 * time.Hour)
			c.wantLost("discarded", 0)
			w.wantHeld("discarded", 0, names)
			w.coldOrder("release", true)
			c.wantLost("released after all", 10)
			w.wantHeld("released after all", 0, 0)
		})
		empty("comes back", func(w *orderWorld, c *orderClient) {
			w.pass(8 * time.Minute)
			w.change(coldChanges("cds", 0, 10)...)
			w.pass(24 * time.Hour)
			c.wantLost("a day later", 0)
			w.wantHeld("a day later", 0, 0)
		})
	}
}

// TestH04_DiscardEndsWhereTheOriginSpeaks: of what was discarded, each name that the origin has or removes is as it says.
func TestH04_DiscardEndsWhereTheOriginSpeaks(t *testing.T) {
	t.Parallel()
	orderBubble(t, []string{operated}, func(w *orderWorld) {
		c := w.ready(relaytest.Delta).returns(relaytest.Delta, "cds", "", coldNames(0, 10))
		w.pass(11 * time.Second)
		w.coldOrder("discard", false)
		w.change(coldChanges("cds", 0, 2)...)
		w.pass(2 * time.Second)
		w.wantHeld("two are back", 0, 8)
		w.change("cds -n000")
		w.pass(time.Hour)
		if got := strings.Join(c.heard(), "; "); !strings.HasSuffix(got, "cds -n000") || strings.Count(got, "-") != 1 {
			t.Errorf("the client got %s, want both resources, and then that the first is gone", got)
		}
	})
}

// TestH04_WhoLiesHurtsNobody: a client that reports what never was waits for it alone. What others hold and the origin has
// removed, they are told as ever, and what nobody reports any more is forgotten.
func TestH04_WhoLiesHurtsNobody(t *testing.T) {
	t.Parallel()
	orderBubble(t, []string{operated}, func(w *orderWorld) {
		w.change(coldChanges("cds", 0, 100)...)
		var invented strings.Builder
		for i := range 10_000 {
			fmt.Fprintf(&invented, " invented%05d", i)
		}
		lies := w.ready(relaytest.Delta).returns(relaytest.Delta, "cds", "", "gone"+invented.String())
		few := w.ready(relaytest.Delta).returns(relaytest.Delta, "cds", "", "n000 n001") // as if there were no more
		version := w.ready(relaytest.SotW).returns(relaytest.SotW, "cds", "", "")        // one that never was
		honest := w.ready(relaytest.Delta).returns(relaytest.Delta, "cds", "", coldNames(0, 100)+" gone")
		w.pass(9 * time.Second)
		for _, c := range []*orderClient{lies, few, version, honest} {
			if got := strings.Join(c.heard(), ";"); strings.Contains(got, "-") {
				t.Errorf("told %s before the set was complete", got)
			}
		}
		w.pass(2 * time.Second)
		honest.expect("cds -gone")
		few.expect()
		lies.expect()
		if got := version.heard(); len(got) != 1 || strings.Count(got[0], "@") != 100 {
			t.Errorf("a SotW client got %q, want the 100 clusters", got)
		}
		w.wantHeld("the set is complete", 10_001, 0)
		late := w.ready(relaytest.Delta).returns(relaytest.Delta, "cds", "", coldNames(0, 100)+" gone")
		w.pass(time.Second)
		if got := late.heard(); len(got) != 2 || got[1] != "cds -gone" {
			t.Errorf("a later client got %q, want the clusters and that one is gone", got)
		}

		w.change("cds -n007")
		honest.expect("cds -n007")
		w.stop()
		w.change("cds -n008")
		w.restart()
		honest.expect("cds -n008") // once the set is confirmed again

		lies.Close()
		w.pass(4 * time.Minute)
		w.wantHeld("the client may come back", 10_001, 0)
		w.pass(2 * time.Minute)
		w.wantHeld("the client is gone", 0, 0)
	})
}

// TestH04_WhoComesBackDuringTheHold: neither the client that reconnects nor one that comes from another relay with the same
// resources is told that they are gone while they are held.
func TestH04_WhoComesBackDuringTheHold(t *testing.T) {
	t.Parallel()
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		orderBubble(t, []string{operated}, func(w *orderWorld) {
			c := w.ready(v).returns(v, "cds", "", coldNames(0, 10))
			w.pass(20 * time.Second)
			c.Close()
			w.pass(time.Minute)
			back, other := w.ready(v).returns(v, "cds", "", coldNames(0, 10)), w.ready(v).returns(v, "cds", "", coldNames(0, 9)+" x")
			w.pass(8 * time.Minute)
			back.wantLost("back", 0)
			other.wantLost("the other", 0)
			w.pass(2 * time.Minute)
			back.wantLost("after the hold", 10)
		})
	})
}

// TestH04_ClientsAreSentAwayBefore: a client that reported what it holds to a relay without an origin, and was sent away, is
// protected when it comes back after the set is complete.
func TestH04_ClientsAreSentAwayBefore(t *testing.T) {
	t.Parallel()
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		orderBubble(t, []string{operated}, func(w *orderWorld) {
			w.stop()
			w.ready(v).returns(v, "cds", "", coldNames(0, 10)).endsUnserved()
			w.origin.Restart()
			w.pass(time.Minute)
			c := w.ready(v).returns(v, "cds", "", coldNames(0, 10))
			w.pass(5 * time.Minute)
			c.wantLost("the origin is empty", 0)
		})
	})
}

// TestH04_KnownSetsCountAlone: once the members are known, what a client reports beside them is gone, however much it is.
func TestH04_KnownSetsCountAlone(t *testing.T) {
	t.Parallel()
	orderBubble(t, []string{operated}, func(w *orderWorld) {
		w.change(coldChanges("cds", 0, 4)...)
		w.ready(relaytest.Delta).subscribe("cds", "")
		w.pass(11 * time.Second)
		c := w.ready(relaytest.Delta).returns(relaytest.Delta, "cds", "", coldNames(0, 10))
		w.pass(time.Second)
		c.wantLost("the set is known", 6)
		w.wantHeld("the set is known", 0, 0)
	})
}

// TestH04_SotWListIsCompleteAtOnce: a non-empty list of a SotW origin leaves nothing to wait for, but large removals are held.
func TestH04_SotWListIsCompleteAtOnce(t *testing.T) {
	t.Parallel()
	for holds, want := range map[int]string{5: "cds -n004", 10: ""} {
		orderBubble(t, []string{operated, "TENDER_ORIGIN_PROTOCOL=sotw"}, func(w *orderWorld) {
			w.origin.Change(func(b *relaytest.Behaviour) { b.SotW = true })
			w.change(coldChanges("cds", 0, 4)...)
			c := w.ready(relaytest.Delta).returns(relaytest.Delta, "cds", "", coldNames(0, holds))
			version := w.ready(relaytest.SotW).returns(relaytest.SotW, "cds", "", "")
			w.pass(time.Second)
			got := c.heard()
			if want == "" && len(got) != 1 || want != "" && (len(got) != 2 || got[1] != want) {
				t.Errorf("a client that holds %d got %q, want the clusters and %q", holds, got, want)
			}
			if got := version.heard(); len(got) != 1 {
				t.Errorf("a SotW client got %q, want the set", got)
			}
		})
	}
}

// TestH04_NamesAreHeldAlike: names that a client asks for and holds, and of which the origin says nothing.
func TestH04_NamesAreHeldAlike(t *testing.T) {
	t.Parallel()
	for _, decision := range []string{"release", "discard"} {
		streamBubble(t, func(t *testing.T, o *relaytest.Origin) {
			o.Change(func(b *relaytest.Behaviour) { b.SilentOnMissing = true })
			o.Put(sendThing(streamRDS, "a", "first"))
			r := start(t, o, operated)
			c, since := silentReturns(r, streamRDS, append(sendNames(11), "a")...), time.Now()
			silentStep{time.Minute, nil}.check(t, c, since)
			wantHeld(t, r, "silence", 11, 0)
			if h := operate[admin.HoldScope, admin.Holds](t, r, decision, admin.HoldScope{Scope: admin.Scope{Type: "rds"}}); len(h.Holds) != 1 || h.Holds[0].Count != 11 {
				t.Errorf("%s: %+v, want the 11", decision, h)
			}
			want := map[string][]string{"release": sendNames(11)}[decision]
			silentStep{2 * time.Minute, want}.check(t, c, since)
			silentStep{24 * time.Hour, want}.check(t, c, since)
		})
	}
}

// TestH04_CollectionsAreHeldAlike: all groups share what an origin says of a glob, and one decision is about all of them.
func TestH04_CollectionsAreHeldAlike(t *testing.T) {
	t.Parallel()
	const glob = "xdstp://mall/envoy.config.cluster.v3.Cluster/shop/"
	orderBubble(t, []string{operated}, func(w *orderWorld) {
		held := strings.ReplaceAll(" "+coldNames(0, 10), " ", " "+glob)
		w.change("cds " + glob + "n000@1")
		c := w.ready(relaytest.Delta).returns(relaytest.Delta, "cds", glob+"*", held)
		w.pass(time.Minute)
		if got := strings.Join(c.heard(), ";"); strings.Contains(got, "-xdstp") || !strings.Contains(got, "n000@1") {
			t.Errorf("got %s, want the one and no removal", got)
		}
		w.wantHeld("the collection is known", 9, 0)
		late := w.ready(relaytest.Delta).returns(relaytest.Delta, "cds", glob+"*", held)
		w.pass(time.Minute)
		if got := strings.Join(late.heard(), ";"); strings.Contains(got, "-xdstp") {
			t.Errorf("a later client got %s, want no removal", got)
		}
		w.coldOrder("release", false)
		for _, c := range []*orderClient{c, late} {
			if got := strings.Join(c.heard(), ";"); strings.Count(got, "-xdstp") != 9 {
				t.Errorf("released: got %s, want nine removals", got)
			}
		}
	})
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
	c.Send(streamDelta(relaytest.EnvoyNode("client"), streamCDS, nil, holds))
	c.WaitState(t.Context(), func(s relaytest.State) bool { return slices.Equal(s.Names(streamCDS), []string{"n000"}) })
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
			w := &orderWorld{t: t, origin: r.o, relay: r.running, revs: make(map[relaytest.Digest]string)}
			w.ready(v).returns(v, "cds", "", coldNames(0, 10))
			w.pass(20 * time.Second)
			w.wantHeld("at first", names, 0)
			if discarded {
				w.coldOrder("discard", false)
			}
			r.stop()
			r.start()
			w.relay = r.running
			c := w.ready(v).returns(v, "cds", "", coldNames(0, 10))
			w.pass(9 * time.Minute)
			c.wantLost("after a restart", 0)
			if discarded {
				w.wantHeld("after a restart", 0, names)
			} else {
				w.wantHeld("after a restart", names, 0)
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
		r.has(r.following(relaytest.SotW, streamCDS), streamCDS, "a", "b")
		r.stop()
		o.Change(func(b *relaytest.Behaviour) { b.Manual = true })
		r.start()
		w := &orderWorld{t: t, origin: o, relay: r.running, revs: make(map[relaytest.Digest]string)}
		c := w.ready(relaytest.SotW).returns(relaytest.SotW, "cds", "", "")
		s := w.accept()
		w.say(s, "cds a@2", "cds c@2")
		w.pass(5 * time.Second)
		c.expect()
		w.say(s, "cds b@2") // long after the first answer: it settles at once (B.7)
		c.expect("cds {a@2 b@2 c@2}")
	})
}

// TestH04_GoControlPlane: go-control-plane with half of its clusters, and one that has none of those that a client holds.
func TestH04_GoControlPlane(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{relaytest.LinearCaches, relaytest.Snapshots, relaytest.ADSSnapshots} {
		synctest.Test(t, func(t *testing.T) {
			memory := new(relaytest.Memory)
			o := relaytest.NewControlPlane(t, kind, memory, planeWorld()...)
			r := startRelay(t, o.RelayOptions(), operated)
			w := &orderWorld{t: t, relay: r}
			c := w.dial(relaytest.ClientOptions{Variant: relaytest.Delta, AutoAck: true, Node: relaytest.EnvoyNode("tender/test")})
			versions := make(map[string]string)
			for name := range strings.FieldsSeq(coldNames(0, 40)) {
				versions[name] = "of another time"
			}
			c.Send(&discoverypb.DeltaDiscoveryRequest{Node: relaytest.EnvoyNode("client"), TypeUrl: streamCDS, InitialResourceVersions: versions})
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

// TestH04_WhatTheOriginRemovesIsGone: on a confirmed set the origin is obeyed, also about what is held.
func TestH04_WhatTheOriginRemovesIsGone(t *testing.T) {
	t.Parallel()
	orderBubble(t, []string{operated}, func(w *orderWorld) {
		w.manual()
		c := w.ready(relaytest.Delta).returns(relaytest.Delta, "cds", "", coldNames(0, 10))
		s := w.accept()
		w.say(s, "cds n000@1")
		w.pass(11 * time.Second)
		c.expect("cds n000@1")
		w.wantHeld("the set is complete", 9, 0)
		w.say(s, "cds -n001", "cds -n002")
		c.expect("cds -n001 -n002")
		w.wantHeld("two are removed", 7, 0)
	})
}

// TestH04_FurtherNamesProlongNothing: names that clients report later, be they made up, have a deadline of their own.
func TestH04_FurtherNamesProlongNothing(t *testing.T) {
	t.Parallel()
	streamBubble(t, func(t *testing.T, o *relaytest.Origin) {
		o.Change(func(b *relaytest.Behaviour) { b.SilentOnMissing = true })
		o.Put(sendThing(streamRDS, "a", "first"))
		r := start(t, o, operated)
		c, since := silentReturns(r, streamRDS, append(sendNames(11), "a")...), time.Now()
		for i := range 20 {
			silentStep{time.Duration(i) * 30 * time.Second, nil}.check(t, c, since)
			silentReturns(r, streamRDS, fmt.Sprint("invented", i), fmt.Sprint("invented too", i), "a")
		}
		silentStep{11 * time.Minute, sendNames(11)}.check(t, c, since)
	})
}

// TestH04_EmptySetByREST: a poll that reports a version is told that the set is not complete, while the empty set is held.
func TestH04_EmptySetByREST(t *testing.T) {
	t.Parallel()
	restBubble(t, func(t *testing.T, _ *relaytest.Origin, c *restClient) {
		for range 9 {
			c.poll("clusters", "", "old").is(http.StatusServiceUnavailable, "not complete")
			c.poll("clusters", "", "").after(0).has()
			time.Sleep(time.Minute)
		}
		time.Sleep(2 * time.Minute) // with a second look at the origin
		c.poll("clusters", "", "old").has()
	})
}

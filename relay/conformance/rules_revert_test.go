package conformance_test

import (
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay/relaytest"
)

// A revertWorld has an origin, two relays with a client each, and the versions of the initial content.
type revertWorld struct {
	t      *testing.T
	o      *relaytest.Origin
	v      relaytest.Variant
	relays []*running
	env    [][]string // by relay

	set   string            // version of the set of the clusters x and y
	names map[string]string // versions of the clusters
}

// newRevertWorld starts both relays, and records the initial versions.
func newRevertWorld(t *testing.T, o *relaytest.Origin, v relaytest.Variant) *revertWorld {
	t.Helper()
	w := &revertWorld{t: t, o: o, v: v, names: make(map[string]string)}
	o.Put(relaytest.Cluster("x"), relaytest.Cluster("y"))
	for _, id := range []string{"tender/one", "tender/two"} {
		env := []string{"TENDER_NODE_ID=" + id, "TENDER_SNAPSHOT_DIR=" + t.TempDir()}
		r := start(t, o, env...)
		c := r.Client(relaytest.ClientOptions{Variant: v})
		c.Subscribe(typeCDS, "*")
		resp := recvAndAck(t, c, typeCDS, "x", "y")
		w.set = resp.Version
		for _, got := range resp.Resources {
			w.names[got.Name] = got.Version
		}
		c.Close()
		r.Client(relaytest.ClientOptions{Variant: v, AutoAck: true}).Subscribe(typeCDS, "*")
		w.relays, w.env = append(w.relays, r), append(w.env, env)
	}
	w.settle()
	return w
}

// settle waits until both relays have confirmed their sets.
func (w *revertWorld) settle() {
	sleep(confirmTimeout)
}

// put changes resources at the origin, and waits until both relays have confirmed them.
func (w *revertWorld) put(msgs ...proto.Message) {
	w.o.Put(msgs...)
	w.settle()
}

// restart stops both relays once their snapshots are written, and starts them again after a function. The snapshots that
// Stop writes are not used, as if the relays had been killed.
func (w *revertWorld) restart(meanwhile func()) {
	w.t.Helper()
	sleep(10 * time.Second)
	for i, r := range w.relays {
		at := slices.IndexFunc(w.env[i], func(v string) bool { return strings.HasPrefix(v, "TENDER_SNAPSHOT_DIR=") })
		copied := w.t.TempDir()
		if err := os.CopyFS(copied, os.DirFS(strings.TrimPrefix(w.env[i][at], "TENDER_SNAPSHOT_DIR="))); err != nil {
			w.t.Fatal(err)
		}
		w.env[i][at] = "TENDER_SNAPSHOT_DIR=" + copied
		r.Stop()
	}
	meanwhile()
	for i, env := range w.env {
		w.relays[i] = start(w.t, w.o, env...)
	}
	w.settle()
}

// reconnectExpecting connects a client with the initial versions to each relay, and checks the sorted names that
// it receives within a minute. "-name" is a Delta removal.
func (w *revertWorld) reconnectExpecting(when string, want ...string) {
	w.t.Helper()
	for i, r := range w.relays {
		c := r.Client(relaytest.ClientOptions{Variant: w.v})
		if w.v == relaytest.Delta {
			c.Send(returningDelta(relaytest.EnvoyNode("client"), typeCDS, nil, maps.Clone(w.names)))
		} else {
			c.Send(returningSotW(typeCDS, w.set))
		}
		sleep(time.Minute)
		var got []string
		for resp := c.TryRecv(); resp != nil; resp = c.TryRecv() {
			c.Ack(resp)
			got = append(got, resp.Names()...)
			for _, name := range resp.Removed {
				got = append(got, "-"+name)
			}
			synctest.Wait()
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			w.t.Errorf("%s: relay %d sent %q, want %q", when, i+1, got, want)
		}
		c.Close()
	}
}

// completeOr returns the names that a client receives when a cluster was reverted: all in SotW, changed in Delta.
func (w *revertWorld) completeOr(changed ...string) []string {
	if w.v == relaytest.SotW {
		return []string{"x", "y"}
	}
	return changed
}

// For an hour after content was reverted, a client's version of it is not trusted: the client may have applied
// content from between (envoy#12592).
func TestB3_RevertedContentIsResent(t *testing.T) {
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		w := newRevertWorld(t, o, v)
		w.reconnectExpecting("unchanged")
		w.put(relaytest.Cluster("x", "bad"))
		time.Sleep(61 * time.Minute) // clients may NACK all the time
		w.put(relaytest.Cluster("x", "worse"))
		w.put(relaytest.Cluster("x"))
		w.reconnectExpecting("reverted", w.completeOr("x")...)
		w.reconnectExpecting("a second time", w.completeOr("x")...)
		time.Sleep(time.Hour)
		w.reconnectExpecting("an hour later")
	})
}

// The same holds if the relay is killed after it has written a snapshot, before or after the origin reverts the content.
func TestB3_RevertedContentIsResentAfterARestart(t *testing.T) {
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		w := newRevertWorld(t, o, v)
		w.restart(func() {})
		w.reconnectExpecting("unchanged")
		w.put(relaytest.Cluster("x", "bad"))
		w.restart(func() { o.Put(relaytest.Cluster("x")) })
		w.reconnectExpecting("reverted while no relay runs", w.completeOr("x")...)
		w.put(relaytest.Cluster("y", "bad"), relaytest.Cluster("z"))
		w.put(relaytest.Cluster("y"))
		o.Remove(typeCDS, "z")
		w.settle()
		w.restart(func() {})
		w.reconnectExpecting("reverted before", w.completeOr("-z", "x", "y")...)
	})
}

// The same holds for a resource that was removed, for any time, and added again.
func TestB3_ReaddedContentIsResent(t *testing.T) {
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		w := newRevertWorld(t, o, v)
		o.Remove(typeCDS, "x")
		time.Sleep(30 * time.Minute) // until the tombstone is dropped
		w.put(relaytest.Cluster("x"))
		w.reconnectExpecting("reverted", w.completeOr("x")...)
		time.Sleep(time.Hour)
		w.reconnectExpecting("an hour later")
	})
}

// A Delta client may have applied a removed resource that it does not report, so it receives the removal. In SotW
// the complete set has this effect.
func TestB3_AddedAndRemoved(t *testing.T) {
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		w := newRevertWorld(t, o, v)
		w.put(relaytest.Cluster("z"))
		o.Remove(typeCDS, "z")
		time.Sleep(10 * time.Minute) // until the tombstone is dropped
		w.reconnectExpecting("removed", w.completeOr("-z")...)
		time.Sleep(time.Hour)
		w.reconnectExpecting("an hour later")
	})
}

// A version of content that was not reverted is trusted, even if other content was reverted before.
func TestB3_OtherContentsAreTrusted(t *testing.T) {
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		w := newRevertWorld(t, o, v)
		w.put(relaytest.Cluster("x", "second"))
		w.put(relaytest.Cluster("x"))
		w.put(relaytest.Cluster("x", "third"))
		c := w.relays[0].Client(relaytest.ClientOptions{Variant: v})
		c.Subscribe(typeCDS, "*")
		resp := recvAndAck(t, c, typeCDS, "x", "y")
		w.set = resp.Version
		for _, got := range resp.Resources {
			w.names[got.Name] = got.Version
		}
		w.reconnectExpecting("third content")
	})
}

// The rule also applies to resources that a Delta client subscribes to by name.
func TestB3_RevertedNamesAreResent(t *testing.T) {
	originBubble(t, func(t *testing.T, o *relaytest.Origin) {
		o.Put(domainRoute("r", "one"), domainRoute("other", "one"))
		r := start(t, o)
		stable := r.Client(relaytest.ClientOptions{AutoAck: true})
		stable.Subscribe(typeRDS, "r", "other")
		resp := stable.Recv(t.Context())
		known := make(map[string]string)
		for _, got := range resp.Resources {
			known[got.Name] = got.Version
		}
		o.Put(domainRoute("r", "bad"), domainRoute("other", "bad"))
		time.Sleep(time.Minute)
		o.Put(domainRoute("r", "one"), domainRoute("other", "two"))
		time.Sleep(time.Minute)
		c := r.Client(relaytest.ClientOptions{})
		c.Send(returningDelta(relaytest.EnvoyNode("client"), typeRDS, []string{"other", "r"}, known))
		recvAndAck(t, c, typeRDS, "other", "r")
	})
}

// A polling client reports the initial version until it receives the reverted set once. Afterwards its polls are
// held again.
func TestB3_PollsAreSentARevertedSetOnce(t *testing.T) {
	restBubble(t, func(t *testing.T, o *relaytest.Origin, c *restClient) {
		for _, tc := range []struct {
			kind  string
			names []string
			put   func(what string)
		}{
			{"clusters", nil, func(what string) { o.Put(relaytest.Cluster("x", what)) }},
			{"routes", []string{"x"}, func(what string) { o.Put(domainRoute("x", what)) }},
		} {
			tc.put("good")
			version := c.poll(tc.kind, "30000", "", tc.names...).expectNames("x")
			tc.put("bad")
			c.poll(tc.kind, "30000", version, tc.names...).expectNames("x") // NACKed by the client
			tc.put("good")
			time.Sleep(time.Second)
			if got := c.poll(tc.kind, "5000", version, tc.names...).expectNames("x"); got != version {
				t.Errorf("%s: got version %q, want %q", tc.kind, got, version)
			}
			c.poll(tc.kind, "5000", version, tc.names...).expectNotModified()
			tc.put("bad")
			c.poll(tc.kind, "5000", version, tc.names...).expectNames("x")
			tc.put("good")
			time.Sleep(time.Second)
			c.poll(tc.kind, "5000", version, tc.names...).expectStatus(http.StatusOK, version)
		}
	})
}

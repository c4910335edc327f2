package conformance_test

import (
	"maps"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay/relaytest"
)

// A revertWorld is an origin, two relays of it that have a client each, and the versions of the first content.
type revertWorld struct {
	t      *testing.T
	o      *relaytest.Origin
	v      relaytest.Variant
	relays []*running

	set   string            // the version of the set of Clusters "x" and "y"
	names map[string]string // the versions of each
}

func newRevertWorld(t *testing.T, o *relaytest.Origin, v relaytest.Variant) *revertWorld {
	t.Helper()
	w := &revertWorld{t: t, o: o, v: v, names: make(map[string]string)}
	o.Put(relaytest.Cluster("x"), relaytest.Cluster("y"))
	for _, id := range []string{"tender/one", "tender/two"} {
		r := start(t, o, "TENDER_NODE_ID="+id)
		c := r.Client(relaytest.ClientOptions{Variant: v})
		c.Subscribe(typeCDS, "*")
		resp := recvAndAck(t, c, typeCDS, "x", "y")
		w.set = resp.Version
		for _, got := range resp.Resources {
			w.names[got.Name] = got.Version
		}
		c.Close()
		r.Client(relaytest.ClientOptions{Variant: v, AutoAck: true}).Subscribe(typeCDS, "*")
		w.relays = append(w.relays, r)
	}
	w.settle()
	return w
}

func (w *revertWorld) settle() {
	time.Sleep(streamConfirm)
	synctest.Wait()
}

// put has the origin change, and both relays see it.
func (w *revertWorld) put(msgs ...proto.Message) {
	w.o.Put(msgs...)
	w.settle()
}

// returns has a client that reports the first versions connect to each relay, and checks what it is told within a
// minute: the sorted names, of Delta removed ones with a minus.
func (w *revertWorld) returns(when string, want ...string) {
	w.t.Helper()
	for i, r := range w.relays {
		c := r.Client(relaytest.ClientOptions{Variant: w.v})
		if w.v == relaytest.Delta {
			c.Send(streamDelta(relaytest.EnvoyNode("client"), typeCDS, nil, maps.Clone(w.names)))
		} else {
			c.Send(streamReturning(typeCDS, w.set))
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		var told []string
		for resp := c.TryRecv(); resp != nil; resp = c.TryRecv() {
			c.Ack(resp)
			told = append(told, resp.Names()...)
			for _, name := range resp.Removed {
				told = append(told, "-"+name)
			}
			synctest.Wait()
		}
		if slices.Sort(told); !slices.Equal(told, want) {
			w.t.Errorf("%s: relay %d told %q, want %q", when, i+1, told, want)
		}
		c.Close()
	}
}

// wholeIn returns what a client is told of a set of two Clusters in which something reverted: of SotW all of it.
func (w *revertWorld) wholeIn(changed ...string) []string {
	if w.v == relaytest.SotW {
		return []string{"x", "y"}
	}
	return changed
}

// TestB3_RevertedContentIsSentAgain: for an hour after a resource or a set returned to former content, the version of
// that content proves nothing: the client may have applied a part of what came between (envoy#12592).
func TestB3_RevertedContentIsSentAgain(t *testing.T) {
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		w := newRevertWorld(t, o, v)
		w.returns("unchanged")
		w.put(relaytest.Cluster("x", "bad"))
		time.Sleep(3 * time.Hour) // refused all the while
		w.put(relaytest.Cluster("x", "worse"))
		w.put(relaytest.Cluster("x"))
		w.returns("reverted", w.wholeIn("x")...)
		w.returns("again", w.wholeIn("x")...)
		time.Sleep(time.Hour)
		w.returns("an hour later")
	})
}

// TestB3_RemovedAndBackIsSentAgain: the same of a resource that was gone, however long.
func TestB3_RemovedAndBackIsSentAgain(t *testing.T) {
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		w := newRevertWorld(t, o, v)
		o.Remove(typeCDS, "x")
		time.Sleep(30 * time.Minute) // the tombstone goes
		w.put(relaytest.Cluster("x"))
		w.returns("reverted", w.wholeIn("x")...)
		time.Sleep(time.Hour)
		w.returns("an hour later")
	})
}

// TestB3_AddedAndGoneIsRemoved: a Delta client may have applied a resource that it does not report, so it is told that
// the resource is gone; of SotW the whole set says so.
func TestB3_AddedAndGoneIsRemoved(t *testing.T) {
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		w := newRevertWorld(t, o, v)
		w.put(relaytest.Cluster("z"))
		o.Remove(typeCDS, "z")
		time.Sleep(10 * time.Minute) // the tombstone goes
		w.returns("gone again", w.wholeIn("-z")...)
		time.Sleep(time.Hour)
		w.returns("an hour later")
	})
}

// TestB3_OtherContentsAreTrusted: content that was never there before is trusted, whatever changed before it.
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
		w.returns("third content")
	})
}

// TestB3_RevertedNamesAreSentAgain: the rule holds for what a Delta client names, too.
func TestB3_RevertedNamesAreSentAgain(t *testing.T) {
	originBubble(t, func(t *testing.T, o *relaytest.Origin) {
		o.Put(domainRoute("r", "one"), domainRoute("other", "one"))
		r := start(t, o)
		stays := r.Client(relaytest.ClientOptions{AutoAck: true})
		stays.Subscribe(typeRDS, "r", "other")
		resp := stays.Recv(t.Context())
		known := make(map[string]string)
		for _, got := range resp.Resources {
			known[got.Name] = got.Version
		}
		o.Put(domainRoute("r", "bad"), domainRoute("other", "bad"))
		time.Sleep(time.Minute)
		o.Put(domainRoute("r", "one"), domainRoute("other", "two"))
		time.Sleep(time.Minute)
		c := r.Client(relaytest.ClientOptions{})
		c.Send(streamDelta(relaytest.EnvoyNode("client"), typeRDS, []string{"other", "r"}, known))
		recvAndAck(t, c, typeRDS, "other", "r")
	})
}

// TestB3_PollsAreSentARevertedSetOnce: a REST client has no stream, and reports the old version until it is sent the
// set. Afterwards its polls are held again.
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
			c.poll(tc.kind, "30000", version, tc.names...).expectNames("x") // which it refuses
			tc.put("good")
			time.Sleep(time.Second)
			if got := c.poll(tc.kind, "5000", version, tc.names...).expectNames("x"); got != version {
				t.Errorf("%s: version %q, want %q", tc.kind, got, version)
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

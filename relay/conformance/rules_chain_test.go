package conformance_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/relay/relaytest"
)

// A relay may have another relay as its origin (B.41). To its clients the second
// is no other than the first: they are told the same resources and removals in the
// same order, under the same versions. Only this differs:
//
//   - Nonces: each relay counts the responses of its own streams (B.13).
//   - control_plane.identifier: it tells which relay serves (R126).
//   - Responses: what happens at the same moment is told in one or in more, as it
//     comes (B.12). Full sets are compared one by one.
//   - Moments: each relay waits 150 ms until it takes the first set of a type for
//     complete (B.7), so times are compared by chainTick.
//   - Patience with an origin that was never there: each relay begins to wait for
//     the one above it when that one begins, and ends later (B.8). That is
//     TestB8_AColdChainGivesUp.

// chainTick is how exact times are. None of the times after which something happens ends just after a multiple of it: not the
// 5 s until a set is confirmed (B.7), not the 15 s of a sweep (B.18).
const chainTick = 4 * time.Second

// chainOrigins are the origins of these tests, each with a manner of its own.
var chainOrigins = map[string]relaytest.Behaviour{
	"by the rules":         {SystemVersion: "7"},
	"silent on missing":    {SilentOnMissing: true},
	"without versions":     {EmptyVersions: true},
	"ignores what is held": {IgnoreIRV: true},
}

// B.41: the same conversations with one relay and with two in a row.
func TestB41_AChainIsOneRelay(t *testing.T) {
	t.Parallel()
	for _, conversation := range []struct {
		name string
		run  func(w *chainWorld)
	}{
		{"wildcards and names", chainSubscriptions},
		{"changes", chainChanges},
		{"returns", chainReturns},
		{"origin lost", chainOriginLost},
	} {
		for name, behaviour := range chainOrigins {
			for _, v := range []relaytest.Variant{relaytest.Delta, relaytest.SotW} {
				t.Run(fmt.Sprint(conversation.name, "/", name, "/", v), func(t *testing.T) {
					one := chainPlay(t, 1, behaviour, v, conversation.run)
					two := chainPlay(t, 2, behaviour, v, conversation.run)
					if diff := cmp.Diff(one, two); diff != "" {
						t.Errorf("a chain of two says otherwise (-one +two):\n%s", diff)
					}
				})
			}
		}
	}
}

// A chainWorld is an origin, relays in a row, and a client of the last of them.
type chainWorld struct {
	t      *testing.T
	origin *relaytest.Origin
	relay  *running // the last
	client *relaytest.Client
	refuse bool // the next response
	said   []string
}

// chainPlay has a conversation over some relays, and returns what happened and
// what the client was told.
func chainPlay(t *testing.T, relays int, b relaytest.Behaviour, v relaytest.Variant, run func(w *chainWorld)) (said []string) {
	synctest.Test(t, func(t *testing.T) {
		o := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true, Behaviour: b})
		w := &chainWorld{t: t, origin: o, relay: start(t, o)}
		for range relays - 1 {
			w.relay = w.relay.downstreamRelay()
		}
		w.event("the origin has a world", func() { o.Put(chainResources("1")...) })
		w.client = w.relay.Client(relaytest.ClientOptions{Variant: v})
		run(w)
		if len(w.client.Responses()) == 0 {
			t.Error("the client was told nothing")
		}
		said = w.said
	})
	return said
}

// chainResources are some of each type; what differs in mark differs in content.
func chainResources(mark string) []proto.Message {
	return []proto.Message{
		relaytest.Cluster("a", mark), relaytest.Cluster("b"), relaytest.StaticCluster("c", "127.0.0.1:"+mark),
		relaytest.Endpoints("a", "127.0.0.1:"+mark), relaytest.Endpoints("b", "127.0.0.1:1"), relaytest.Endpoints("c", "127.0.0.1:1"),
		relaytest.Listener("web", "route-"+mark), relaytest.Listener("api", "route"),
		relaytest.Route("route", []string{mark + ".example"}, "a"), relaytest.Route("other", []string{"*"}, "b"),
		relaytest.Opaque(acmeType, "thing", []byte(mark)),
	}
}

// event has something happen, and notes all that the client is told before
// anything else happens.
func (w *chainWorld) event(what string, happens func()) {
	w.said = append(w.said, "> "+what)
	happens()
	w.listen(time.Now())
}

// pass notes what the client is told in a time, and after how much of it: by ticks
// in the first minute, and later by minutes.
func (w *chainWorld) pass(d time.Duration) {
	w.said = append(w.said, fmt.Sprint("> ", d, " pass"))
	for began := time.Now(); time.Since(began) < d; w.listen(began) {
		if time.Since(began) < time.Minute {
			time.Sleep(chainTick)
		} else {
			time.Sleep(time.Minute)
		}
	}
}

// listen takes all that there is, answers it, and notes it.
func (w *chainWorld) listen(since time.Time) {
	var run []*relaytest.Response // of one type, partial
	note := func() {
		if len(run) > 0 {
			w.said = append(w.said, fmt.Sprintf("  after %v: %s", time.Since(since).Round(chainTick), chainDescribe(run)))
		}
		run = nil
	}
	defer note()
	synctest.Wait()
	for w.client != nil {
		r := w.client.TryRecv()
		if r == nil {
			return
		}
		if len(run) > 0 && (run[0].TypeURL != r.TypeURL || r.SotW() && fullState(r.TypeURL)) {
			note()
		}
		run = append(run, r)
		if w.refuse {
			w.client.Nack(r, "refused")
		} else {
			w.client.Ack(r)
		}
		w.refuse = false
		synctest.Wait()
	}
}

// chainDescribe prints what responses of one type say, without their nonces and
// their control plane.
func chainDescribe(run []*relaytest.Response) string {
	var resources, removed []string
	for _, r := range run {
		for _, res := range r.Resources {
			resources = append(resources, fmt.Sprintf("%s version=%q aliases=%v ttl=%v %v", res.Name, res.Version, res.Aliases, res.TTL, res.Digest))
		}
		removed = append(removed, r.Removed...)
	}
	slices.Sort(resources)
	slices.Sort(removed)
	last := run[len(run)-1]
	return fmt.Sprintf("%s version=%q\n    %s\n    removed=%v", shortName(last.TypeURL), last.Version, strings.Join(resources, "\n    "), removed)
}

// restart has the origin return, and waits until a relay is connected to it: that is at some moment of the next 2 s (B.8).
func (w *chainWorld) restart(what string) {
	before := len(w.origin.State().Streams)
	w.event(what, func() {
		w.origin.Restart()
		w.origin.WaitFor(w.t.Context(), "a new stream", func(s *relaytest.OriginState) bool { return len(s.Streams) > before })
	})
}

func (w *chainWorld) subscribe(typeURL string, names ...string) {
	w.event(fmt.Sprintf("subscribe %s %q", shortName(typeURL), names), func() { w.client.Subscribe(typeURL, names...) })
}

func (w *chainWorld) unsubscribe(typeURL string, names ...string) {
	w.event(fmt.Sprintf("unsubscribe %s %q", shortName(typeURL), names), func() { w.client.Unsubscribe(typeURL, names...) })
}

func (w *chainWorld) put(what string, msgs ...proto.Message) {
	w.event("put "+what, func() { w.origin.Put(msgs...) })
}

func (w *chainWorld) remove(typeURL, name string) {
	w.event("remove "+name, func() { w.origin.Remove(typeURL, name) })
}

func (w *chainWorld) reconnect() {
	w.event("reconnect", func() { w.client.Reconnect(w.relay.Conn()) })
}

// all subscribes as an Envoy does, and waits until every relay is sure of what it
// has.
func (w *chainWorld) all() {
	w.subscribe(typeCDS)
	w.pass(12 * time.Second)
	w.subscribe(typeEDS, "a", "b")
	w.subscribe(typeLDS)
	w.pass(12 * time.Second)
	w.subscribe(typeRDS, "route")
	w.subscribe(acmeType, "thing")
	w.pass(2 * time.Minute)
}

// chainSubscriptions takes wildcards and names, and gives them up again.
func chainSubscriptions(w *chainWorld) {
	w.all()
	w.subscribe(typeEDS, "missing")
	w.pass(time.Minute)
	w.put("missing", relaytest.Endpoints("missing", "127.0.0.1:1"))
	w.remove(typeEDS, "missing")
	w.put("missing", relaytest.Endpoints("missing", "127.0.0.1:2"))
	w.subscribe(typeEDS, "c")
	w.subscribe(typeEDS, "a") // again
	w.unsubscribe(typeEDS, "a")
	w.put("a unheard", relaytest.Endpoints("a", "127.0.0.1:2"))
	w.subscribe(typeEDS, "a")
	w.subscribe(typeCDS, "*", "c", "also missing")
	w.pass(time.Minute)
	w.unsubscribe(typeCDS, "*")
	w.put("b unheard", relaytest.Cluster("b", "elsewhere"))
	w.put("c", relaytest.StaticCluster("c", "127.0.0.1:2"))
	w.subscribe(typeCDS, "*")
	w.pass(time.Minute)
	w.unsubscribe(typeRDS, "route")
	w.subscribe(typeRDS, "other")
	w.unsubscribe(typeEDS, "a", "b", "c", "missing")
	w.put("all anew", chainResources("2")...)
	w.pass(time.Hour)
}

// chainChanges makes changes of all kinds, of which one is refused.
func chainChanges(w *chainWorld) {
	w.all()
	w.put("nothing new", chainResources("1")...)
	w.put("all anew", chainResources("2")...)
	w.remove(typeCDS, "c")
	w.remove(typeLDS, "api")
	w.remove(typeRDS, "route")
	w.remove(typeEDS, "a")
	w.put("what was gone", chainResources("2")...)
	w.refuse = true
	w.put("a bad cluster", relaytest.Cluster("a", "bad"))
	w.pass(time.Minute)
	w.put("the good one", relaytest.Cluster("a", "2"))
	w.event("swap", func() {
		w.origin.Apply(func(tx *relaytest.Tx) {
			tx.Put(relaytest.StaticCluster("d", "127.0.0.1:1"))
			tx.Remove(typeCDS, "c")
			tx.Put(relaytest.Route("route", []string{"*"}, "d"))
		})
	})
	w.event("another system version", func() {
		w.origin.Change(func(b *relaytest.Behaviour) { b.SystemVersion = "8~beta" })
		w.origin.Put(relaytest.Cluster("e"), relaytest.Endpoints("a", "127.0.0.1:3"))
	})
	w.pass(time.Hour)
}

// chainReturns has the client return with what it knows: nothing changed, or much.
func chainReturns(w *chainWorld) {
	w.all()
	w.reconnect()
	w.pass(time.Minute)
	w.client.Close()
	w.put("unheard", relaytest.Cluster("a", "2"), relaytest.Cluster("d"), relaytest.Endpoints("b", "127.0.0.1:2"))
	w.remove(typeCDS, "c")
	w.remove(typeLDS, "api")
	w.reconnect()
	w.pass(time.Minute)
	w.put("heard", relaytest.Cluster("d", "2"))
	w.remove(typeCDS, "d")
	w.event("another client", func() {
		w.client = w.relay.Client(relaytest.ClientOptions{Variant: relaytest.SotW, Node: relaytest.EnvoyNode("another")})
	})
	w.subscribe(typeCDS)
	w.subscribe(typeLDS, "web", "missing")
	w.pass(time.Minute)
	w.event("a client of another kind", func() {
		w.client = w.relay.Client(relaytest.ClientOptions{Variant: relaytest.SotW, Node: relaytest.GRPCNode("grpc")})
	})
	w.subscribe(typeLDS, "web")
	w.subscribe(typeRDS, "route")
	w.subscribe(typeCDS, "a")
	w.subscribe(typeEDS, "a")
	w.pass(time.Minute)
}

// chainOriginLost takes the origin away, and brings it back with something else.
func chainOriginLost(w *chainWorld) {
	w.all()
	w.event("the origin dies", w.origin.Stop)
	w.pass(time.Minute)
	w.reconnect()
	w.subscribe(typeEDS, "c") // asked for by nobody until now
	w.pass(time.Minute)
	w.origin.Put(relaytest.Cluster("a", "2"), relaytest.Cluster("d"), relaytest.Endpoints("a", "127.0.0.1:2"))
	w.origin.Remove(typeCDS, "c")
	w.restart("the origin returns")
	w.pass(10 * time.Minute)
	w.restart("the origin returns as it was")
	w.pass(10 * time.Minute)
	w.put("all anew", chainResources("2")...)
	w.pass(time.Hour)
}

// B.8: a chain whose origin is not there ends a client's stream without having said
// anything, each relay after the one above it; and serves within seconds once the
// origin is there, however long it was away.
func TestB8_AColdChainGivesUp(t *testing.T) {
	t.Parallel()
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		o.Put(chainResources("1")...)
		o.Stop()
		const coldWait, backoff = 10 * time.Second, 2 * time.Second
		last := start(t, o).downstreamRelay()
		c := last.Client(relaytest.ClientOptions{Variant: v})
		c.Subscribe(typeCDS)
		began := time.Now()
		expectStatus(t, c, codes.Unavailable)
		if took := time.Since(began); took < coldWait || took > 2*coldWait+backoff {
			t.Errorf("gave up after %v, want 10s to 22s", took)
		}
		if said := c.Responses(); len(said) > 0 {
			t.Errorf("was told %v before", said)
		}
		if got := last.Stats().Ended[guard.EndedCold]; got != 1 {
			t.Errorf("counted %d streams for which nothing was known, want 1", got)
		}
		time.Sleep(10 * time.Minute)
		o.Restart()
		began = time.Now()
		c.Reconnect(last.Conn())
		recvAndAck(t, c, typeCDS, "a", "b", "c")
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("served %v after the origin was there, want 5s at most", took)
		}
	})
}

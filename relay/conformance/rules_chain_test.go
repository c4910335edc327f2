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

// A relay may have another relay as its origin (B.41). Clients of the lower relay receive the same resources and
// removals in the same order and with the same versions as clients of the upper one. The differences are:
//
//   - Nonces: each relay counts the responses of its own streams (B.13).
//   - control_plane.identifier names the relay that serves (R126).
//   - Responses: simultaneous changes are sent in one response or in several (B.12). Complete sets are compared
//     one by one.
//   - Times: each relay adds up to 150 ms until the first set of a type settles (B.7). Times are compared with
//     the precision of chainTick.
//   - Unreachable origin: a lower relay ends cold streams later than the relay above it (B.8), see
//     TestB8_ColdChainEndsStreams.

// chainTick is the precision of compared times. No timeout of the relay ends just after a multiple of it: neither
// the 5 s until a set is confirmed (B.7), nor the 15 s of a sweep (B.18).
const chainTick = 4 * time.Second

// chainStep is a time in which all relays of a chain confirm sets and infer removals. After chainSettled, nothing more is
// sent.
const (
	chainStep    = 32 * time.Second
	chainSettled = 90 * time.Second
)

// chainOrigins are origins with different behaviour.
var chainOrigins = []struct {
	name      string
	behaviour relaytest.Behaviour
}{
	{"follows the protocol", relaytest.Behaviour{SystemVersion: "7"}},
	{"silent on missing", relaytest.Behaviour{SilentOnMissing: true}},
	{"without versions", relaytest.Behaviour{EmptyVersions: true}},
	{"ignores initial versions", relaytest.Behaviour{IgnoreIRV: true}},
}

// A client's conversation with two relays in a chain equals its conversation with one (B.41).
func TestB41_AChainIsOneRelay(t *testing.T) {
	t.Parallel()
	for i, conversation := range []struct {
		name string
		run  func(w *chainWorld)
	}{
		{"wildcards and names", chainSubscriptions},
		{"changes", chainChanges},
		{"returns", chainReturns},
		{"origin lost", chainOriginLost},
	} {
		for j, origin := range chainOrigins {
			for k, v := range []relaytest.Variant{relaytest.Delta, relaytest.SotW} {
				if j > 0 && (i+j+k)%2 > 0 {
					continue // both variants only with the first origin
				}
				t.Run(fmt.Sprint(conversation.name, "/", origin.name, "/", v), func(t *testing.T) {
					one := playChain(t, 1, origin.behaviour, v, conversation.run)
					two := playChain(t, 2, origin.behaviour, v, conversation.run)
					if diff := cmp.Diff(one, two); diff != "" {
						t.Errorf("a chain of two relays differs (-one +two):\n%s", diff)
					}
				})
			}
		}
	}
}

// A chainWorld is an origin, a chain of relays, and a client of the lowest one.
type chainWorld struct {
	t      *testing.T
	origin *relaytest.Origin
	relay  *running // the lowest
	client *relaytest.Client
	// NACK the next response.
	nackNext bool
	// Events and responses, as text.
	log []string
}

// playChain runs a conversation over a chain of relays, and returns its events and responses.
func playChain(t *testing.T, relays int, b relaytest.Behaviour, v relaytest.Variant,
	run func(w *chainWorld)) (log []string) {
	synctest.Test(t, func(t *testing.T) {
		o := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true, Behaviour: b})
		w := &chainWorld{t: t, origin: o, relay: start(t, o)}
		for range relays - 1 {
			w.relay = w.relay.downstreamRelay()
		}
		w.event("the origin has resources", func() { o.Put(chainResources("1")...) })
		w.client = w.relay.Client(relaytest.ClientOptions{Variant: v})
		run(w)
		if len(w.client.Responses()) == 0 {
			t.Error("the client got no response")
		}
		log = w.log
	})
	return log
}

// chainResources returns resources of each type; mark changes their content.
func chainResources(mark string) []proto.Message {
	return []proto.Message{
		relaytest.Cluster("a", mark), relaytest.Cluster("b"), relaytest.StaticCluster("c", "127.0.0.1:"+mark),
		relaytest.Endpoints("a", "127.0.0.1:"+mark), relaytest.Endpoints("b", "127.0.0.1:1"),
		relaytest.Endpoints("c", "127.0.0.1:1"),
		relaytest.Listener("web", "route-"+mark), relaytest.Listener("api", "route"),
		relaytest.Route("route", []string{mark + ".example"}, "a"), relaytest.Route("other", []string{"*"}, "b"),
		relaytest.Opaque(acmeType, "thing", []byte(mark)),
	}
}

// event runs happens, and logs the responses that it causes.
func (w *chainWorld) event(what string, happens func()) {
	w.log = append(w.log, "> "+what)
	happens()
	w.drain(time.Now())
}

// wait lets d pass, and logs responses with their times: by chainTick in the first minute, then by minutes.
func (w *chainWorld) wait(d time.Duration) {
	w.log = append(w.log, fmt.Sprint("> ", d, " pass"))
	for began := time.Now(); time.Since(began) < d; w.drain(began) {
		if time.Since(began) < time.Minute {
			time.Sleep(chainTick)
		} else {
			time.Sleep(time.Minute)
		}
	}
}

// drain answers and logs the available responses.
func (w *chainWorld) drain(since time.Time) {
	var run []*relaytest.Response // successive partial responses of one type
	note := func() {
		if len(run) > 0 {
			w.log = append(w.log, fmt.Sprintf("  after %v: %s", time.Since(since).Round(chainTick), chainDescribe(run)))
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
		if w.nackNext {
			w.client.Nack(r, "rejected")
		} else {
			w.client.Ack(r)
		}
		w.nackNext = false
		synctest.Wait()
	}
}

// chainDescribe formats successive responses of one type, without nonces and control_plane.
func chainDescribe(run []*relaytest.Response) string {
	var resources, removed []string
	for _, r := range run {
		for _, res := range r.Resources {
			resources = append(resources,
				fmt.Sprintf("%s version=%q aliases=%v ttl=%v %v", res.Name, res.Version, res.Aliases, res.TTL, res.Digest))
		}
		removed = append(removed, r.Removed...)
	}
	slices.Sort(resources)
	slices.Sort(removed)
	last := run[len(run)-1]
	return fmt.Sprintf("%s version=%q\n    %s\n    removed=%v", shortName(last.TypeURL), last.Version,
		strings.Join(resources, "\n    "), removed)
}

// restart restarts the origin and waits until a relay has reconnected, which takes up to 2 s (B.8).
func (w *chainWorld) restart(what string) {
	before := len(w.origin.State().Streams)
	w.event(what, func() {
		w.origin.Restart()
		w.origin.WaitFor(w.t.Context(), "a new stream",
			func(s *relaytest.OriginState) bool { return len(s.Streams) > before })
	})
}

func (w *chainWorld) subscribe(typeURL string, names ...string) {
	w.event(fmt.Sprintf("subscribe %s %q", shortName(typeURL), names), func() { w.client.Subscribe(typeURL, names...) })
}

func (w *chainWorld) unsubscribe(typeURL string, names ...string) {
	w.event(fmt.Sprintf("unsubscribe %s %q", shortName(typeURL), names),
		func() { w.client.Unsubscribe(typeURL, names...) })
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

// subscribeAll subscribes as an Envoy does, and waits until each relay has confirmed its sets.
func (w *chainWorld) subscribeAll() {
	w.subscribe(typeCDS)
	w.wait(12 * time.Second)
	w.subscribe(typeEDS, "a", "b")
	w.subscribe(typeLDS)
	w.wait(12 * time.Second)
	w.subscribe(typeRDS, "route")
	w.subscribe(acmeType, "thing")
	w.wait(chainStep)
}

// chainSubscriptions adds and ends wildcard and named subscriptions.
func chainSubscriptions(w *chainWorld) {
	w.subscribeAll()
	w.subscribe(typeEDS, "missing")
	w.wait(chainStep)
	w.put("missing", relaytest.Endpoints("missing", "127.0.0.1:1"))
	w.remove(typeEDS, "missing")
	w.put("missing", relaytest.Endpoints("missing", "127.0.0.1:2"))
	w.subscribe(typeEDS, "c")
	w.subscribe(typeEDS, "a") // already subscribed
	w.unsubscribe(typeEDS, "a")
	w.put("a without a subscription", relaytest.Endpoints("a", "127.0.0.1:2"))
	w.subscribe(typeEDS, "a")
	w.subscribe(typeCDS, "*", "c", "also missing")
	w.wait(chainStep)
	w.unsubscribe(typeCDS, "*")
	w.put("b without a subscription", relaytest.Cluster("b", "elsewhere"))
	w.put("c", relaytest.StaticCluster("c", "127.0.0.1:2"))
	w.subscribe(typeCDS, "*")
	w.wait(chainStep)
	w.unsubscribe(typeRDS, "route")
	w.subscribe(typeRDS, "other")
	w.unsubscribe(typeEDS, "a", "b", "c", "missing")
	w.put("changes of all types", chainResources("2")...)
	w.wait(chainSettled)
}

// chainChanges makes all kinds of changes, one of which the client NACKs.
func chainChanges(w *chainWorld) {
	w.subscribeAll()
	w.put("no change", chainResources("1")...)
	w.put("changes of all types", chainResources("2")...)
	w.remove(typeCDS, "c")
	w.remove(typeLDS, "api")
	w.remove(typeRDS, "route")
	w.remove(typeEDS, "a")
	w.put("removed resources", chainResources("2")...)
	w.nackNext = true
	w.put("a bad cluster", relaytest.Cluster("a", "bad"))
	w.wait(chainStep)
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
	w.wait(chainSettled)
}

// chainReturns has the client reconnect, without changes and after many.
func chainReturns(w *chainWorld) {
	w.subscribeAll()
	w.reconnect()
	w.wait(chainStep)
	w.client.Close()
	w.put("while disconnected", relaytest.Cluster("a", "2"), relaytest.Cluster("d"),
		relaytest.Endpoints("b", "127.0.0.1:2"))
	w.remove(typeCDS, "c")
	w.remove(typeLDS, "api")
	w.reconnect()
	w.wait(chainStep)
	w.put("while connected", relaytest.Cluster("d", "2"))
	w.remove(typeCDS, "d")
	w.event("another client", func() {
		w.client = w.relay.Client(relaytest.ClientOptions{Variant: relaytest.SotW, Node: relaytest.EnvoyNode("another")})
	})
	w.subscribe(typeCDS)
	w.subscribe(typeLDS, "web", "missing")
	w.wait(chainStep)
	w.event("a client of another kind", func() {
		w.client = w.relay.Client(relaytest.ClientOptions{Variant: relaytest.SotW, Node: relaytest.GRPCNode("grpc")})
	})
	w.subscribe(typeLDS, "web")
	w.subscribe(typeRDS, "route")
	w.subscribe(typeCDS, "a")
	w.subscribe(typeEDS, "a")
	w.wait(chainStep)
}

// chainOriginLost stops the origin, and restarts it with other resources.
func chainOriginLost(w *chainWorld) {
	w.subscribeAll()
	w.event("the origin stops", w.origin.Stop)
	w.wait(chainStep)
	w.reconnect()
	w.subscribe(typeEDS, "c") // a name that was not subscribed to before
	w.wait(chainStep)
	w.origin.Put(relaytest.Cluster("a", "2"), relaytest.Cluster("d"), relaytest.Endpoints("a", "127.0.0.1:2"))
	w.origin.Remove(typeCDS, "c")
	w.restart("the origin restarts with changes")
	w.wait(chainSettled)
	w.restart("the origin restarts unchanged")
	w.wait(chainSettled)
	w.put("changes of all types", chainResources("2")...)
	w.wait(chainSettled)
}

// While the origin of a chain is unreachable, a client's stream ends without a response, first at the upper relay.
// When the origin is up, the chain serves within seconds, however long the outage was (B.8).
func TestB8_ColdChainEndsStreams(t *testing.T) {
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
			t.Errorf("stream ended after %v, want 10s to 22s", took)
		}
		if got := c.Responses(); len(got) > 0 {
			t.Errorf("got %v before the end, want no response", got)
		}
		if got := last.Stats().Ended[guard.EndedCold]; got != 1 {
			t.Errorf("counted %d streams ended as cold, want 1", got)
		}
		time.Sleep(10 * time.Minute)
		o.Restart()
		began = time.Now()
		c.Reconnect(last.Conn())
		recvAndAck(t, c, typeCDS, "a", "b", "c")
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("served %v after the origin restarted, want 5s at most", took)
		}
	})
}

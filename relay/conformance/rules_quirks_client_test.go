package conformance_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay/relaytest"
)

// Real clients break rules of nonces. Their subscriptions must take effect nevertheless, and they must receive
// changes, with a delay of at most quirkWait.

// quirkWait is the longest delay for a client without valid ACKs: in SotW a wrong nonce shortens the wait (B.14),
// in Delta the ACK timeout ends it (B.12).
func quirkWait(v relaytest.Variant) time.Duration {
	if v == relaytest.SotW {
		return 3 * time.Second
	}
	return 5 * time.Second
}

// quirkRecv waits until the client receives the origin's version of a resource, within the delay for clients with
// wrong nonces. It sends no ACK.
func quirkRecv(t *testing.T, o *relaytest.Origin, c *relaytest.Client, v relaytest.Variant, typeURL,
	name string) *relaytest.Response {
	t.Helper()
	want := o.Resources().Digest(typeURL, name)
	for began := time.Now(); ; {
		remaining := quirkWait(v) + oddSoon - time.Since(began)
		r, _ := oddNext(c, max(remaining, 0))
		if r == nil {
			t.Fatalf("%v did not get %s %s within %v", c, shortName(typeURL), name, time.Since(began))
		}
		if r.TypeURL == typeURL &&
			slices.ContainsFunc(r.Resources,
				func(res relaytest.Resource) bool { return res.Name == name && res.Digest == want }) {
			return r
		}
	}
}

// quirkAck returns an ACK with any nonce, and further names.
func quirkAck(v relaytest.Variant, typeURL, nonce, version string, names, more []string) proto.Message {
	if v == relaytest.Delta {
		return &discoverypb.DeltaDiscoveryRequest{TypeUrl: typeURL, ResponseNonce: nonce, ResourceNamesSubscribe: more}
	}
	return &discoverypb.DiscoveryRequest{TypeUrl: typeURL, ResponseNonce: nonce, VersionInfo: version,
		ResourceNames: append(slices.Clone(names), more...)}
}

// A client uses the nonce of one type for the ACK of another. It is no ACK, but its subscriptions take effect, and
// changes are sent.
func TestQuirk_NonceOfAnotherType(t *testing.T) {
	t.Parallel()
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		put := func(mark string) {
			o.Put(relaytest.Endpoints("a", "127.0.0.1:"+mark), relaytest.Endpoints("b", "127.0.0.1:"+mark),
				domainRoute("a", mark), domainRoute("b", mark))
		}
		put("0")
		c := start(t, o).Client(relaytest.ClientOptions{Variant: v})
		for _, typeURL := range []string{typeEDS, typeRDS} {
			c.Send(newRequest(v, typeURL, "", "a"))
		}
		eds, rds := quirkRecv(t, o, c, v, typeEDS, "a"), c.Recv(t.Context())
		expectNames(t, rds, typeRDS, "a")
		crossed := func(more ...string) {
			c.Send(quirkAck(v, typeEDS, rds.Nonce, eds.Version, []string{"a"}, more))
			c.Send(quirkAck(v, typeRDS, eds.Nonce, rds.Version, []string{"a"}, more))
		}
		crossed()
		put("1")
		expectQuiet(t, c, 2*time.Second) // neither response was answered
		for i := range 3 {
			// Responses of the two types arrive in any order, so use the newest of each.
			quirkRecv(t, o, c, v, typeEDS, "a")
			eds, rds = quirkNewest(c, typeEDS), quirkNewest(c, typeRDS)
			crossed()
			synctest.Wait()
			put(fmt.Sprint(i + 2))
		}
		crossed("b")
		for c.TryRecv() != nil {
			continue // skip earlier responses
		}
		for _, typeURL := range []string{typeEDS, typeRDS} {
			quirkConverges(t, o, c, v, typeURL, "a", "b")
		}
	})
}

// quirkNewest returns the newest response of a type.
func quirkNewest(c *relaytest.Client, typeURL string) *relaytest.Response {
	all := c.Responses()
	for i := len(all) - 1; ; i-- {
		if all[i].TypeURL == typeURL {
			return all[i]
		}
	}
}

// quirkConverges checks that the client's newest resources are those of the origin, once all delays are over.
func quirkConverges(t *testing.T, o *relaytest.Origin, c *relaytest.Client, v relaytest.Variant, typeURL string,
	names ...string) {
	t.Helper()
	sleep(2 * quirkWait(v))
	got := make(map[string]relaytest.Digest)
	for _, r := range c.Responses() {
		for _, res := range r.Resources {
			if r.TypeURL == typeURL {
				got[res.Name] = res.Digest
			}
		}
	}
	for _, name := range names {
		if got[name] != o.Resources().Digest(typeURL, name) {
			t.Errorf("%v: the newest %s %s is %v, want %v as at the origin", c, shortName(typeURL), name, got[name],
				o.Resources().Digest(typeURL, name))
		}
	}
}

// C01: while the origin sends changes all the time, a client's nonces are always stale. Its new subscriptions take
// effect nevertheless.
func TestC01_SubscriptionsDuringConstantChanges(t *testing.T) {
	t.Parallel()
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		const roundTrip, trips = 50 * time.Millisecond, 260
		o.Put(domainRoute("busy", "0"), domainRoute("b0", "0"), domainRoute("b1", "0"), domainRoute("b2", "0"))
		c := start(t, o).Client(relaytest.ClientOptions{Variant: v})
		c.Send(newRequest(v, typeRDS, "", "busy"))
		behind := nextResponse(t, c)
		newest, names := behind, []string{"busy"}
		pending := make(map[string]time.Duration)
		for began, i := time.Now(), 0; i < trips; i++ {
			o.Put(domainRoute("busy", fmt.Sprint(i+1)))
			sleep(roundTrip)
			var more []string
			if i%60 == 10 && i < 180 {
				more = []string{fmt.Sprint("b", i/60)}
				pending[more[0]] = time.Since(began)
			}
			for r := c.TryRecv(); r != nil; r = c.TryRecv() {
				for _, name := range r.Names() {
					if at, waits := pending[name]; waits && time.Since(began)-at <= quirkWait(v)+oddSoon {
						delete(pending, name)
					}
				}
				behind, newest = newest, r
				c.Send(quirkAck(v, typeRDS, behind.Nonce, behind.Version, names, more))
				names, more = append(names, more...), nil
			}
			if more != nil {
				c.Send(quirkAck(v, typeRDS, behind.Nonce, behind.Version, names, more))
				names = append(names, more...)
			}
		}
		if len(pending) > 0 {
			t.Errorf("subscriptions without a response in time: %v", pending)
		}
	})
}

// C01: changes arrive once per round trip, so that each request crosses a response and carries a stale nonce. The
// next response contains the new subscription and not the ended one.
func TestC01_SubscriptionsThatCrossResponses(t *testing.T) {
	t.Parallel()
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		const roundTrip, trips = 50 * time.Millisecond, 40
		b := func(i int) string { return fmt.Sprintf("b%02d", i) }
		put := func(mark int, names ...string) {
			for _, name := range names {
				o.Put(domainRoute(name, fmt.Sprint(mark)))
			}
			sleep(roundTrip)
		}
		put(0, "busy")
		for i := range trips {
			put(0, b(i))
		}
		c := start(t, o).Client(relaytest.ClientOptions{Variant: v})
		c.Send(newRequest(v, typeRDS, "", "busy"))
		read, names := nextResponse(t, c), []string{"busy"}
		for i := range trips {
			put(i+1, "busy") // waits for the ACK, so the response contains it
			if i > 1 {
				put(i+1, b(i-2)) // no longer subscribed
			}
			c.Send(quirkAck(v, typeRDS, read.Nonce, read.Version, names, nil))
			crossed := nextResponse(t, c)
			if v == relaytest.SotW && i > 0 {
				expectNames(t, crossed, typeRDS, b(i-1), "busy")
			} else {
				expectNames(t, crossed, typeRDS, "busy")
			}
			// The client has not read this response when it changes its subscription.
			names = []string{"busy", b(i)}
			if v == relaytest.SotW {
				c.Send(quirkAck(v, typeRDS, read.Nonce, read.Version, names, nil))
				expectQuiet(t, c, roundTrip)
				read = crossed
				continue
			}
			change := &discoverypb.DeltaDiscoveryRequest{TypeUrl: typeRDS, ResourceNamesSubscribe: names[1:]}
			if i > 0 {
				change.ResourceNamesUnsubscribe = []string{b(i - 1)}
			}
			c.Send(change)
			time.Sleep(roundTrip)
			read = nextResponse(t, c) // Delta answers a request that is no ACK at once
			expectNames(t, read, typeRDS, b(i))
			c.Ack(crossed)
		}
	})
}

// C02: an Envoy that ignored a response keeps using the nonce of the one before. It receives each change and each
// new subscription.
func TestC02_OlderNonces(t *testing.T) {
	t.Parallel()
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		o.Put(domainRoute("a", "0"))
		c := start(t, o).Client(relaytest.ClientOptions{Variant: v})
		c.Subscribe(typeRDS, "a")
		good := recvAndAck(t, c, typeRDS, "a")
		names := []string{"a"}
		for i := range 5 {
			o.Put(domainRoute("a", fmt.Sprint(i+1)))
			quirkRecv(t, o, c, v, typeRDS, "a")
			added := fmt.Sprint("added", i)
			o.Put(domainRoute(added, "0"))
			c.Send(quirkAck(v, typeRDS, good.Nonce, good.Version, names, []string{added}))
			names = append(names, added)
			quirkRecv(t, o, c, v, typeRDS, added)
			c.Send(quirkAck(v, typeRDS, good.Nonce, good.Version, names, nil))
		}
	})
}

// C03: a client uses nonces of its previous stream. They have no meaning, even if the new stream has sent the same
// ones, and its subscriptions take effect.
func TestC03_NoncesOfThePreviousStream(t *testing.T) {
	t.Parallel()
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		for _, name := range []string{"a", "b", "c", "d"} {
			o.Put(domainRoute(name, "0"))
		}
		r := start(t, o)
		c := r.Client(relaytest.ClientOptions{Variant: v})
		c.Subscribe(typeRDS, "a")
		recvAndAck(t, c, typeRDS, "a")
		o.Put(domainRoute("a", "1"))
		old := recvAndAck(t, c, typeRDS, "a")
		c.Close()

		for _, wrong := range []string{old.Nonce, "1", "3"} { // this stream also uses "1" and "3"
			c := r.Client(relaytest.ClientOptions{Variant: v})
			c.Send(quirkAck(v, typeRDS, wrong, old.Version, nil, []string{"a"}))
			expectNames(t, nextResponse(t, c), typeRDS, "a")
			names := []string{"a"}
			for i, added := range []string{"b", "c", "d"} {
				c.Send(quirkAck(v, typeRDS, wrong, old.Version, names, []string{added}))
				names = append(names, added)
				quirkRecv(t, o, c, v, typeRDS, added)
				c.Send(quirkAck(v, typeRDS, wrong, old.Version, names, nil))
				o.Put(domainRoute("a", fmt.Sprint(wrong, i)))
				quirkRecv(t, o, c, v, typeRDS, "a")
			}
			c.Close()
		}
	})
}

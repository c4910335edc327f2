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

// Habits of real clients that are against the protocol, or against its spirit.
// Nonces are theirs to confuse: what they ask for is taken all the same, and they
// are sent what changes, after no more than quirkWait.

// quirkWait is how long a client waits at most that answers nothing rightly: in SotW
// a wrong nonce shortens the wait (B.14), in Delta the ACK wait ends (B.12).
func quirkWait(v relaytest.Variant) time.Duration {
	if v == relaytest.SotW {
		return 3 * time.Second
	}
	return 5 * time.Second
}

// quirkHears waits until the client is sent a resource as it is at the origin, not
// longer than a client with wrong nonces may have to wait. It answers nothing.
func quirkHears(t *testing.T, o *relaytest.Origin, c *relaytest.Client, v relaytest.Variant, typeURL, name string) *relaytest.Response {
	t.Helper()
	want := o.Resources().Digest(typeURL, name)
	for began := time.Now(); ; {
		left := quirkWait(v) + oddSoon - time.Since(began)
		r, _ := oddNext(c, max(left, 0))
		if r == nil {
			t.Fatalf("%v was not sent %s %s within %v", c, shortName(typeURL), name, time.Since(began))
		}
		if r.TypeURL == typeURL && slices.ContainsFunc(r.Resources, func(res relaytest.Resource) bool { return res.Name == name && res.Digest == want }) {
			return r
		}
	}
}

// quirkAck is an ACK under any nonce, with more names if there are any.
func quirkAck(v relaytest.Variant, typeURL, nonce, version string, names, more []string) proto.Message {
	if v == relaytest.Delta {
		return &discoverypb.DeltaDiscoveryRequest{TypeUrl: typeURL, ResponseNonce: nonce, ResourceNamesSubscribe: more}
	}
	return &discoverypb.DiscoveryRequest{TypeUrl: typeURL, ResponseNonce: nonce, VersionInfo: version, ResourceNames: append(slices.Clone(names), more...)}
}

// A client that keeps one nonce for the stream, and answers each type with that of
// another: it is no answer, what it asks for with it is sent, and changes come.
func TestQuirk_NonceOfAnotherType(t *testing.T) {
	t.Parallel()
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		put := func(mark string) {
			o.Put(relaytest.Endpoints("a", "127.0.0.1:"+mark), relaytest.Endpoints("b", "127.0.0.1:"+mark), domainRoute("a", mark), domainRoute("b", mark))
		}
		put("0")
		c := start(t, o).Client(relaytest.ClientOptions{Variant: v})
		for _, typeURL := range []string{typeEDS, typeRDS} {
			c.Send(newRequest(v, typeURL, "", "a"))
		}
		eds, rds := quirkHears(t, o, c, v, typeEDS, "a"), c.Recv(t.Context())
		expectNames(t, rds, typeRDS, "a")
		crossed := func(more ...string) {
			c.Send(quirkAck(v, typeEDS, rds.Nonce, eds.Version, []string{"a"}, more))
			c.Send(quirkAck(v, typeRDS, eds.Nonce, rds.Version, []string{"a"}, more))
		}
		crossed()
		put("1")
		expectQuiet(t, c, 2*time.Second) // neither was answered
		for i := range 3 {
			// The two in the order in which they come: of both, the newest.
			quirkHears(t, o, c, v, typeEDS, "a")
			eds, rds = quirkNewest(c, typeEDS), quirkNewest(c, typeRDS)
			crossed()
			synctest.Wait()
			put(fmt.Sprint(i + 2))
		}
		crossed("b")
		for c.TryRecv() != nil {
			continue // what is there already
		}
		for _, typeURL := range []string{typeEDS, typeRDS} {
			quirkConverges(t, o, c, v, typeURL, "a", "b")
		}
	})
}

// quirkNewest is the newest response of a type.
func quirkNewest(c *relaytest.Client, typeURL string) *relaytest.Response {
	all := c.Responses()
	for i := len(all) - 1; ; i-- {
		if all[i].TypeURL == typeURL {
			return all[i]
		}
	}
}

// quirkConverges checks that the newest that a client was sent of names is what the
// origin has, once all waits are over.
func quirkConverges(t *testing.T, o *relaytest.Origin, c *relaytest.Client, v relaytest.Variant, typeURL string, names ...string) {
	t.Helper()
	time.Sleep(2 * quirkWait(v))
	synctest.Wait()
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
			t.Errorf("%v was last sent %s %s as %v, the origin has %v", c, shortName(typeURL), name, got[name], o.Resources().Digest(typeURL, name))
		}
	}
}

// C01: while pushes never stop, a client is always behind with its nonces. The names
// that it asks for meanwhile are not lost.
func TestC01_NamesAreSeenThoughPushesNeverStop(t *testing.T) {
	t.Parallel()
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		const roundTrip, trips = 50 * time.Millisecond, 260
		o.Put(domainRoute("busy", "0"), domainRoute("b0", "0"), domainRoute("b1", "0"), domainRoute("b2", "0"))
		c := start(t, o).Client(relaytest.ClientOptions{Variant: v})
		c.Send(newRequest(v, typeRDS, "", "busy"))
		behind := nextResponse(t, c)
		newest, names := behind, []string{"busy"}
		asked := make(map[string]time.Duration)
		for began, i := time.Now(), 0; i < trips; i++ {
			o.Put(domainRoute("busy", fmt.Sprint(i+1)))
			time.Sleep(roundTrip)
			synctest.Wait()
			var more []string
			if i%60 == 10 && i < 180 {
				more = []string{fmt.Sprint("b", i/60)}
				asked[more[0]] = time.Since(began)
			}
			for r := c.TryRecv(); r != nil; r = c.TryRecv() {
				for _, name := range r.Names() {
					if at, waits := asked[name]; waits && time.Since(began)-at <= quirkWait(v)+oddSoon {
						delete(asked, name)
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
		if len(asked) > 0 {
			t.Errorf("asked for and not sent in time: %v", asked)
		}
	})
}

// C01: pushes match the round trip, so that each change of names crosses a response, and
// carries the nonce of the one before. What is asked for is in the next response, and
// what is given up is in none.
func TestC01_NamesThatCrossEachResponse(t *testing.T) {
	t.Parallel()
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		const roundTrip, trips = 50 * time.Millisecond, 40
		b := func(i int) string { return fmt.Sprintf("b%02d", i) }
		put := func(mark int, names ...string) {
			for _, name := range names {
				o.Put(domainRoute(name, fmt.Sprint(mark)))
			}
			time.Sleep(roundTrip)
			synctest.Wait()
		}
		put(0, "busy")
		for i := range trips {
			put(0, b(i))
		}
		c := start(t, o).Client(relaytest.ClientOptions{Variant: v})
		c.Send(newRequest(v, typeRDS, "", "busy"))
		read, names := nextResponse(t, c), []string{"busy"}
		for i := range trips {
			put(i+1, "busy") // waits for the answer, and so comes with it
			if i > 1 {
				put(i+1, b(i-2)) // which was given up
			}
			c.Send(quirkAck(v, typeRDS, read.Nonce, read.Version, names, nil))
			crossed := nextResponse(t, c)
			if v == relaytest.SotW && i > 0 {
				expectNames(t, crossed, typeRDS, b(i-1), "busy")
			} else {
				expectNames(t, crossed, typeRDS, "busy")
			}
			// The client has not read that when it changes its names.
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

// C02: an Envoy that ignored a response goes on with the nonce before it, for ever.
// Each change comes, and each name that it adds.
func TestC02_OlderNoncesForEver(t *testing.T) {
	t.Parallel()
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		o.Put(domainRoute("a", "0"))
		c := start(t, o).Client(relaytest.ClientOptions{Variant: v})
		c.Subscribe(typeRDS, "a")
		good := recvAndAck(t, c, typeRDS, "a")
		names := []string{"a"}
		for i := range 5 {
			o.Put(domainRoute("a", fmt.Sprint(i+1)))
			quirkHears(t, o, c, v, typeRDS, "a")
			added := fmt.Sprint("added", i)
			o.Put(domainRoute(added, "0"))
			c.Send(quirkAck(v, typeRDS, good.Nonce, good.Version, names, []string{added}))
			names = append(names, added)
			quirkHears(t, o, c, v, typeRDS, added)
			c.Send(quirkAck(v, typeRDS, good.Nonce, good.Version, names, nil))
		}
	})
}

// C03: a client that goes on with the nonces of the stream before. They mean nothing,
// not even where the new stream has given the same; and what it asks for is sent.
func TestC03_NoncesOfTheStreamBefore(t *testing.T) {
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

		for _, wrong := range []string{old.Nonce, "1", "3"} { // "1" and "3" are given here too, early and late
			c := r.Client(relaytest.ClientOptions{Variant: v})
			c.Send(quirkAck(v, typeRDS, wrong, old.Version, nil, []string{"a"}))
			expectNames(t, nextResponse(t, c), typeRDS, "a")
			names := []string{"a"}
			for i, added := range []string{"b", "c", "d"} {
				c.Send(quirkAck(v, typeRDS, wrong, old.Version, names, []string{added}))
				names = append(names, added)
				quirkHears(t, o, c, v, typeRDS, added)
				c.Send(quirkAck(v, typeRDS, wrong, old.Version, names, nil))
				o.Put(domainRoute("a", fmt.Sprint(wrong, i)))
				quirkHears(t, o, c, v, typeRDS, "a")
			}
			c.Close()
		}
	})
}

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
			t.Fatalf("%v was not sent %s %s within %v", c, orderShort(typeURL), name, time.Since(began))
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
	streamEach(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		put := func(mark string) {
			o.Put(relaytest.Endpoints("a", "127.0.0.1:"+mark), relaytest.Endpoints("b", "127.0.0.1:"+mark), streamRoute("a", mark), streamRoute("b", mark))
		}
		put("0")
		c := start(t, o).Client(relaytest.ClientOptions{Variant: v})
		for _, typeURL := range []string{streamEDS, streamRDS} {
			c.Send(streamRequest(v, typeURL, "", "a"))
		}
		eds, rds := quirkHears(t, o, c, v, streamEDS, "a"), c.Recv(t.Context())
		streamHas(t, rds, streamRDS, "a")
		crossed := func(more ...string) {
			c.Send(quirkAck(v, streamEDS, rds.Nonce, eds.Version, []string{"a"}, more))
			c.Send(quirkAck(v, streamRDS, eds.Nonce, rds.Version, []string{"a"}, more))
		}
		crossed()
		put("1")
		streamQuiet(t, c, 2*time.Second) // neither was answered
		for i := range 3 {
			// The two in the order in which they come: of both, the newest.
			quirkHears(t, o, c, v, streamEDS, "a")
			eds, rds = quirkNewest(c, streamEDS), quirkNewest(c, streamRDS)
			crossed()
			synctest.Wait()
			put(fmt.Sprint(i + 2))
		}
		crossed("b")
		for c.TryRecv() != nil {
			continue // what is there already
		}
		for _, typeURL := range []string{streamEDS, streamRDS} {
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
			t.Errorf("%v was last sent %s %s as %v, the origin has %v", c, orderShort(typeURL), name, got[name], o.Resources().Digest(typeURL, name))
		}
	}
}

// C01: while pushes never stop, a client is always behind with its nonces. The names
// that it asks for meanwhile are not lost.
func TestC01_NamesAreSeenThoughPushesNeverStop(t *testing.T) {
	t.Parallel()
	streamEach(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		const roundTrip, trips = 50 * time.Millisecond, 260
		o.Put(streamRoute("busy", "0"), streamRoute("b0", "0"), streamRoute("b1", "0"), streamRoute("b2", "0"))
		c := start(t, o).Client(relaytest.ClientOptions{Variant: v})
		c.Send(streamRequest(v, streamRDS, "", "busy"))
		behind := streamNext(t, c)
		newest, names := behind, []string{"busy"}
		asked := make(map[string]time.Duration)
		for began, i := time.Now(), 0; i < trips; i++ {
			o.Put(streamRoute("busy", fmt.Sprint(i+1)))
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
				c.Send(quirkAck(v, streamRDS, behind.Nonce, behind.Version, names, more))
				names, more = append(names, more...), nil
			}
			if more != nil {
				c.Send(quirkAck(v, streamRDS, behind.Nonce, behind.Version, names, more))
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
	streamEach(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		const roundTrip, trips = 50 * time.Millisecond, 40
		b := func(i int) string { return fmt.Sprintf("b%02d", i) }
		put := func(mark int, names ...string) {
			for _, name := range names {
				o.Put(streamRoute(name, fmt.Sprint(mark)))
			}
			time.Sleep(roundTrip)
			synctest.Wait()
		}
		put(0, "busy")
		for i := range trips {
			put(0, b(i))
		}
		c := start(t, o).Client(relaytest.ClientOptions{Variant: v})
		c.Send(streamRequest(v, streamRDS, "", "busy"))
		read, names := streamNext(t, c), []string{"busy"}
		for i := range trips {
			put(i+1, "busy") // waits for the answer, and so comes with it
			if i > 1 {
				put(i+1, b(i-2)) // which was given up
			}
			c.Send(quirkAck(v, streamRDS, read.Nonce, read.Version, names, nil))
			crossed := streamNext(t, c)
			if v == relaytest.SotW && i > 0 {
				streamHas(t, crossed, streamRDS, b(i-1), "busy")
			} else {
				streamHas(t, crossed, streamRDS, "busy")
			}
			// The client has not read that when it changes its names.
			names = []string{"busy", b(i)}
			if v == relaytest.SotW {
				c.Send(quirkAck(v, streamRDS, read.Nonce, read.Version, names, nil))
				streamQuiet(t, c, roundTrip)
				read = crossed
				continue
			}
			change := &discoverypb.DeltaDiscoveryRequest{TypeUrl: streamRDS, ResourceNamesSubscribe: names[1:]}
			if i > 0 {
				change.ResourceNamesUnsubscribe = []string{b(i - 1)}
			}
			c.Send(change)
			time.Sleep(roundTrip)
			read = streamNext(t, c) // Delta answers a request that is no ACK at once
			streamHas(t, read, streamRDS, b(i))
			c.Ack(crossed)
		}
	})
}

// C02: an Envoy that ignored a response goes on with the nonce before it, for ever.
// Each change comes, and each name that it adds.
func TestC02_OlderNoncesForEver(t *testing.T) {
	t.Parallel()
	streamEach(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		o.Put(streamRoute("a", "0"))
		c := start(t, o).Client(relaytest.ClientOptions{Variant: v})
		c.Subscribe(streamRDS, "a")
		good := streamTake(t, c, streamRDS, "a")
		names := []string{"a"}
		for i := range 5 {
			o.Put(streamRoute("a", fmt.Sprint(i+1)))
			quirkHears(t, o, c, v, streamRDS, "a")
			added := fmt.Sprint("added", i)
			o.Put(streamRoute(added, "0"))
			c.Send(quirkAck(v, streamRDS, good.Nonce, good.Version, names, []string{added}))
			names = append(names, added)
			quirkHears(t, o, c, v, streamRDS, added)
			c.Send(quirkAck(v, streamRDS, good.Nonce, good.Version, names, nil))
		}
	})
}

// C03: a client that goes on with the nonces of the stream before. They mean nothing,
// not even where the new stream has given the same; and what it asks for is sent.
func TestC03_NoncesOfTheStreamBefore(t *testing.T) {
	t.Parallel()
	streamEach(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		for _, name := range []string{"a", "b", "c", "d"} {
			o.Put(streamRoute(name, "0"))
		}
		r := start(t, o)
		c := r.Client(relaytest.ClientOptions{Variant: v})
		c.Subscribe(streamRDS, "a")
		streamTake(t, c, streamRDS, "a")
		o.Put(streamRoute("a", "1"))
		old := streamTake(t, c, streamRDS, "a")
		c.Close()

		for _, wrong := range []string{old.Nonce, "1", "3"} { // "1" and "3" are given here too, early and late
			c := r.Client(relaytest.ClientOptions{Variant: v})
			c.Send(quirkAck(v, streamRDS, wrong, old.Version, nil, []string{"a"}))
			streamHas(t, streamNext(t, c), streamRDS, "a")
			names := []string{"a"}
			for i, added := range []string{"b", "c", "d"} {
				c.Send(quirkAck(v, streamRDS, wrong, old.Version, names, []string{added}))
				names = append(names, added)
				quirkHears(t, o, c, v, streamRDS, added)
				c.Send(quirkAck(v, streamRDS, wrong, old.Version, names, nil))
				o.Put(streamRoute("a", fmt.Sprint(wrong, i)))
				quirkHears(t, o, c, v, streamRDS, "a")
			}
			c.Close()
		}
	})
}

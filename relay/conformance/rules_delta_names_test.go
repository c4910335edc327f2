package conformance_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/xdstender/tender/relay/relaytest"
)

// Delta: beside a wildcard, too, a name that does not exist is answered.
func TestR070_MissingBesideAWildcardIsRemoved(t *testing.T) {
	t.Parallel()
	for _, typeURL := range []string{relaytest.ClusterType, relaytest.EndpointType, relaytest.ListenerType, sendAcme} {
		o := sendOrigin(t, relaytest.OriginOptions{}, []string{typeURL}, "a")
		c := start(t, o).Client(relaytest.ClientOptions{})
		c.Subscribe(typeURL, "*")
		streamTake(t, c, typeURL, "a")
		c.Subscribe(typeURL, "nope")
		streamTake(t, c, typeURL, "-nope")
		c.Fence(t.Context(), typeURL, "nope", func() { o.Put(sendThing(typeURL, "nope", "first")) })
	}
}

// C08: the removal of a missing name ends its subscription on neither side, and
// no response narrows what the client subscribed to.
func TestC08_ResponsesDoNotChangeTheSubscription(t *testing.T) {
	t.Parallel()
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		for _, typeURL := range []string{relaytest.SecretType, relaytest.EndpointType} {
			o := sendOrigin(t, relaytest.OriginOptions{}, []string{typeURL}, "a")
			c := start(t, o).Client(relaytest.ClientOptions{Variant: v, AutoAck: true})
			c.Subscribe(typeURL, "a", "b")
			c.WaitState(t.Context(), func(s relaytest.State) bool { return s.Has(typeURL, "a") })
			for _, text := range []string{"second", "third"} {
				for _, name := range []string{"b", "a"} {
					o.Put(sendThing(typeURL, name, text))
					want := relaytest.DigestOf(sendThing(typeURL, name, text))
					c.WaitState(t.Context(), func(s relaytest.State) bool { return s.Digest(typeURL, name) == want })
				}
			}
			if s := o.State(); !s.Subscribed(typeURL, "a", "b") || len(s.Requests(typeURL)) == 0 {
				t.Errorf("the relay subscribes to %v, want a and b", s.Names(typeURL))
			}
			for _, req := range o.State().Requests(typeURL) {
				if got := req.Message.GetResourceNamesUnsubscribe(); len(got) > 0 {
					t.Errorf("the relay unsubscribed from %q", got)
				}
			}
		}
	})
}

// SotW: a name that a request leaves out is unsubscribed.
func TestR076_LeftOutIsUnsubscribed(t *testing.T) {
	t.Parallel()
	types := []string{relaytest.ClusterType, relaytest.ListenerType, relaytest.EndpointType, relaytest.SecretType, sendAcme}
	o := sendOrigin(t, relaytest.OriginOptions{}, types, "a", "b")
	c := start(t, o).Client(relaytest.ClientOptions{Variant: relaytest.SotW})
	for _, typeURL := range types {
		c.Subscribe(typeURL, "a", "b")
		for !c.State().Has(typeURL, "a", "b") {
			c.Ack(c.Recv(t.Context()))
		}
		c.Unsubscribe(typeURL, "b")
		sendSync(t, o, c)
		o.Put(sendThing(typeURL, "b", "second"))
		c.Fence(t.Context(), typeURL, "a", func() { o.Put(sendThing(typeURL, "a", "second")) })
	}
}

// Delta: names are unsubscribed one by one, which is not answered.
func TestR077_UnsubscribedNamesAreSentNoMore(t *testing.T) {
	t.Parallel()
	sendGiveUp(t, "b")
}

// Delta: to unsubscribe what is not subscribed is harmless, beside what is, once
// more, and as the first thing that is said of a type; and is not answered.
func TestR078_UnsubscribingWhatIsNotSubscribedIsHarmless(t *testing.T) {
	t.Parallel()
	o, c := sendGiveUp(t, "b", "phantom", "*")
	c.Unsubscribe(relaytest.RouteType, "phantom")
	sendWatchSentinel(t, o, c)
}

// sendGiveUp has a Delta client give up b, and further names twice, and checks
// that a is all that it is sent afterwards.
func sendGiveUp(t *testing.T, names ...string) (*relaytest.Origin, *relaytest.Client) {
	t.Helper()
	types := []string{relaytest.ClusterType, relaytest.ListenerType, relaytest.EndpointType, relaytest.SecretType, sendAcme}
	o := sendOrigin(t, relaytest.OriginOptions{}, types, "a", "b")
	c := start(t, o).Client(relaytest.ClientOptions{})
	for _, typeURL := range types {
		c.Subscribe(typeURL, "a", "b")
		for !c.State().Has(typeURL, "a", "b") {
			c.Ack(c.Recv(t.Context()))
		}
		c.Unsubscribe(typeURL, "b")
		if len(names) > 1 {
			c.Unsubscribe(typeURL, names...)
		}
		sendSync(t, o, c)
		o.Put(sendThing(typeURL, "b", "second"))
		c.Fence(t.Context(), typeURL, "a", func() { o.Put(sendThing(typeURL, "a", "second")) })
	}
	return o, c
}

// Under a wildcard, to give up a name is answered: with the resource if it is a
// member, with its removal if not.
func TestR079_GivenUpUnderAWildcard(t *testing.T) {
	t.Parallel()
	for _, typeURL := range wildcardTypes {
		o := sendOrigin(t, relaytest.OriginOptions{Behaviour: relaytest.Behaviour{
			NamedOnly: func(_, name string) bool { return name == "outside" },
		}}, []string{typeURL}, "inside", "outside")
		c := start(t, o).Client(relaytest.ClientOptions{})
		c.Subscribe(typeURL, "*")
		streamTake(t, c, typeURL, "inside")
		c.Subscribe(typeURL, "inside", "outside", "missing")
		for !c.State().Has(typeURL, "inside", "outside") {
			c.Ack(c.Recv(t.Context()))
		}
		for len(c.Responses()[len(c.Responses())-1].Removed) == 0 {
			c.Ack(c.Recv(t.Context()))
		}
		c.Unsubscribe(typeURL, "inside")
		streamTake(t, c, typeURL, "inside")
		c.Unsubscribe(typeURL, "outside", "missing")
		streamTake(t, c, typeURL, "-outside", "-missing")
		o.Put(sendThing(typeURL, "outside", "second"))
		c.Fence(t.Context(), typeURL, "inside", func() { o.Put(sendThing(typeURL, "inside", "second")) })
	}
}

// The end of the wildcard leaves the names, in both variants.
func TestR080_NamesOutliveTheWildcard(t *testing.T) {
	t.Parallel()
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		for _, typeURL := range wildcardTypes {
			o := sendOrigin(t, relaytest.OriginOptions{}, []string{typeURL}, "a", "b")
			c := start(t, o).Client(relaytest.ClientOptions{Variant: v})
			c.Subscribe(typeURL, "*", "a")
			for !c.State().Has(typeURL, "a", "b") {
				c.Ack(c.Recv(t.Context()))
			}
			c.Unsubscribe(typeURL, "*")
			sendSync(t, o, c)
			o.Put(sendThing(typeURL, "b", "second"))
			c.Fence(t.Context(), typeURL, "a", func() { o.Put(sendThing(typeURL, "a", "second")) })
		}
	})
}

// Delta: what a request subscribes to counts whatever its nonce is.
func TestR083_SubscriptionsCountWhateverTheNonce(t *testing.T) {
	t.Parallel()
	o := sendOrigin(t, relaytest.OriginOptions{}, []string{relaytest.EndpointType}, "a", "b", "c")
	c := start(t, o).Client(relaytest.ClientOptions{})
	c.Subscribe(relaytest.EndpointType, "a")
	old := streamTake(t, c, relaytest.EndpointType, "a")
	o.Put(sendThing(relaytest.EndpointType, "a", "second"))
	streamTake(t, c, relaytest.EndpointType, "a")
	for name, nonce := range map[string]string{"b": old.Nonce, "c": "never heard of"} {
		c.Send(&discoverypb.DeltaDiscoveryRequest{TypeUrl: relaytest.EndpointType, ResponseNonce: nonce, ResourceNamesSubscribe: []string{name}})
		streamTake(t, c, relaytest.EndpointType, name)
	}
}

// Delta: a name in a later request is always answered, * included.
func TestR084_NamedAgainIsAnsweredAgain(t *testing.T) {
	t.Parallel()
	for _, typeURL := range []string{relaytest.ClusterType, relaytest.EndpointType, relaytest.ListenerType, sendAcme} {
		o := sendOrigin(t, relaytest.OriginOptions{}, []string{typeURL}, "a", "b")
		c := start(t, o).Client(relaytest.ClientOptions{})
		again := func(names ...string) {
			c.Send(&discoverypb.DeltaDiscoveryRequest{TypeUrl: typeURL, ResourceNamesSubscribe: names})
		}
		c.Subscribe(typeURL, "a", "nope")
		for len(c.Responses()) == 0 || !c.State().Has(typeURL, "a") || !slices.ContainsFunc(c.Responses(), func(r *relaytest.Response) bool { return len(r.Removed) > 0 }) {
			c.Ack(c.Recv(t.Context()))
		}
		again("a")
		streamTake(t, c, typeURL, "a")
		again("nope")
		streamTake(t, c, typeURL, "-nope")
		c.Unsubscribe(typeURL, "a", "nope")
		c.Subscribe(typeURL, "*")
		streamTake(t, c, typeURL, "a", "b")
		again("*")
		streamTake(t, c, typeURL, "a", "b")
	}
}

// R081: what the last client gives up, on a stream that lives on, is given up at the
// origin once it has lingered, and once; what another one still wants is not.
func TestR081_WhatTheLastClientGivesUp(t *testing.T) {
	streamEach(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		o.Put(relaytest.Endpoints("a"), relaytest.Endpoints("b"), relaytest.Cluster("c"))
		r := start(t, o, "TENDER_LINGER=1m", "TENDER_WILDCARD_LINGER=1m")
		one := r.Client(relaytest.ClientOptions{Variant: v, AutoAck: true})
		two := r.Client(relaytest.ClientOptions{Variant: v, AutoAck: true})
		one.Subscribe(streamEDS, "a", "b")
		one.Subscribe(streamCDS, "*")
		two.Subscribe(streamEDS, "a")
		two.Subscribe(streamCDS, "*")
		wants := func(after time.Duration, endpoints ...string) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			if s := o.State(); !s.Subscribed(streamEDS, endpoints...) {
				t.Errorf("the relay subscribes to endpoints %q, want %q", s.Names(streamEDS), endpoints)
			}
		}
		wants(time.Second, "a", "b")
		one.Unsubscribe(streamEDS, "a", "b")
		one.Unsubscribe(streamCDS, "*")
		wants(40*time.Second, "a", "b")
		wants(2*time.Minute, "a")
		if !o.State().Subscribed(streamCDS, "*") {
			t.Error("the relay gave up clusters that the other client wants")
		}
		two.Unsubscribe(streamEDS, "a")
		two.Unsubscribe(streamCDS, "*")
		wants(40*time.Second, "a")
		wants(2 * time.Minute)
		var gone []string
		for _, typeURL := range []string{streamEDS, streamCDS} {
			for _, req := range o.State().Requests(typeURL) {
				gone = append(gone, req.Message.GetResourceNamesUnsubscribe()...)
			}
		}
		if !slices.Equal(gone, []string{"b", "a", "*"}) {
			t.Errorf("the relay gave up %q, want each of b, a and * once", gone)
		}
		if n := r.Streams(); n != 2 {
			t.Errorf("%d streams, want the 2 that there were", n)
		}
	})
}

// R077: what was asked for by an alias is given up by the resource's own name too,
// or by another alias.
func TestR077_GivenUpByAnotherName(t *testing.T) {
	t.Parallel()
	for _, other := range []string{"rc/real", "rc/two"} {
		o, put := sendAliased(t, sendAcme)
		c := start(t, o).Client(relaytest.ClientOptions{})
		c.Subscribe(sendAcme, "rc/one")
		streamTake(t, c, sendAcme, "rc/real")
		c.Unsubscribe(sendAcme, other)
		sendWatchSentinel(t, o, c)
		put("second")
		sendQuiet(t, o, c, "gave up by "+other)
	}
}

// sendAliased starts an origin with a resource that has two aliases, and returns
// how to change it.
func sendAliased(t *testing.T, typeURL string) (o *relaytest.Origin, put func(text string)) {
	t.Helper()
	o = relaytest.NewOrigin(t, relaytest.OriginOptions{})
	put = func(text string) {
		o.SetRaw(typeURL, &discoverypb.Resource{Name: "rc/real", Version: text, Aliases: []string{"rc/one", "rc/two"},
			Resource: sendThing(typeURL, "rc/real", text)})
	}
	put("first")
	return o, put
}

// An alias subscribes to the resource that has it, for changes and removals too;
// however many of its names ask for it, it is one.
func TestR092_AliasesSubscribe(t *testing.T) {
	t.Parallel()
	for _, typeURL := range []string{relaytest.VirtualHostType, sendAcme} {
		o, put := sendAliased(t, typeURL)
		c := start(t, o).Client(relaytest.ClientOptions{})
		c.Subscribe(typeURL, "rc/one")
		streamTake(t, c, typeURL, "rc/real")
		c.Fence(t.Context(), typeURL, "rc/real", func() { put("second") })
		c.Subscribe(typeURL, "rc/real", "rc/two")
		streamTake(t, c, typeURL, "rc/real")
		sendWatchSentinel(t, o, c)
		o.Remove(typeURL, "rc/real")
		for c.State().Has(typeURL, "rc/real") {
			c.Ack(c.Recv(t.Context()))
		}
		c.Unsubscribe(typeURL, "rc/one", "rc/two", "rc/real")
		sendSync(t, o, c)
		put("third")
		sendQuiet(t, o, c, "gave up all")
	}
}

// What was asked for by an alias comes under its own name, with all its aliases,
// however it is asked for.
func TestR093_NameAndAliasesAreKept(t *testing.T) {
	t.Parallel()
	for _, typeURL := range []string{relaytest.VirtualHostType, sendAcme} {
		o, put := sendAliased(t, typeURL)
		r := start(t, o)
		for i, name := range []string{"rc/one", "rc/two", "rc/real", "*"} {
			c := r.Client(relaytest.ClientOptions{})
			c.Subscribe(typeURL, name)
			for _, text := range []string{"first", "second"} {
				resp := streamTake(t, c, typeURL, "rc/real")
				if got := resp.Resources[0].Aliases; !slices.Equal(got, []string{"rc/one", "rc/two"}) {
					t.Errorf("subscribed to %s: got aliases %q", name, got)
				}
				if text == "first" {
					put(fmt.Sprint("second by ", i))
				}
			}
			c.Close()
		}
	}
}

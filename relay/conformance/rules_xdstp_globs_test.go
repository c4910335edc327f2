package conformance_test

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/xdstender/tender/relay/relaytest"
)

// The collection of the directory shop, and another.
const (
	shopGlob = shop + "*"
	mallGlob = "xdstp://one/acme.Thing/mall/*"
	mall     = "xdstp://one/acme.Thing/mall/"
)

// xdstpClient returns a client by hand that is told the names of what it gets.
func xdstpClient(w *orderWorld, v relaytest.Variant) *orderClient {
	return w.dial(relaytest.ClientOptions{Variant: v, Node: wrapNode()})
}

// TestR132_GlobsAreOneLevelDeep: a glob stands for the names of its directory, not for
// those above or below, nor for those with other context parameters (R131, X22); and
// it is one name to the origin.
func TestR132_GlobsAreOneLevelDeep(t *testing.T) {
	t.Parallel()
	others := []string{
		"acme " + shop + "deep/a@1", "acme xdstp://one/acme.Thing/a@1", "acme xdstp://one/acme.Thing/shop@1", "acme plain@1",
		"acme " + shop + "a?k=v@1", "acme xdstp://two/acme.Thing/shop/a@1", "acme xdstp://one/acme.Other/shop/a@1", "acme " + mall + "a@1",
	}
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		orderBubble(t, nil, func(w *orderWorld) {
			w.manual()
			c := xdstpClient(w, v).subscribe("acme", shopGlob)
			context := xdstpClient(w, v).subscribe("acme", shopGlob+"?k=v")
			w.pass(time.Second)
			if !w.origin.State().Subscribed(orderTypes["acme"], shopGlob, shopGlob+"?k=v") {
				t.Fatalf("want two globs at the origin:\n%v", w.origin.State())
			}
			// An origin that says more than it was asked for is not passed on.
			w.say(w.accept(), append(others, "acme "+shop+"a@1", "acme "+shop+"b@1")...)
			w.settle()
			c.hears(orderForm(v, "acme "+shop+"a@1 "+shop+"b@1"))
			context.hears(orderForm(v, "acme "+shop+"a?k=v@1"))
		})
	})
}

// TestR132_GlobsFollowTheirMembers: what comes, changes and goes in a directory is told
// by itself; several globs are asked for at once, and given up each.
func TestR132_GlobsFollowTheirMembers(t *testing.T) {
	t.Parallel()
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		orderBubble(t, nil, func(w *orderWorld) {
			w.change("acme "+shop+"a@1", "acme "+shop+"b@1", "acme "+mall+"a@1")
			c := xdstpClient(w, v).subscribe("acme", shopGlob+" "+mallGlob)
			w.settle()
			w.takes(c, "acme "+shop+"a@1", "acme "+shop+"b@1", "acme "+mall+"a@1")
			w.change("acme " + shop + "c@1")
			w.takes(c, "acme "+shop+"c@1")
			w.change("acme "+shop+"a@2", "acme "+mall+"a@2")
			w.takes(c, "acme "+shop+"a@2", "acme "+mall+"a@2")
			w.change("acme -" + shop + "b")
			w.takes(c, "acme -"+shop+"b")

			c.unsubscribe("acme", mallGlob)
			w.change("acme "+shop+"a@3", "acme "+mall+"a@3")
			w.takes(c, "acme "+shop+"a@3")
			c.unsubscribe("acme", shopGlob)
			w.change("acme " + shop + "a@4")
			w.takes(c)
		})
	})
}

// TestR132_EmptyGlobs: a glob that matches nothing is answered with its own name among
// the removed. It may fill later, and be empty again.
func TestR132_EmptyGlobs(t *testing.T) {
	t.Parallel()
	orderBubble(t, nil, func(w *orderWorld) {
		c := w.envoy(relaytest.Delta).subscribe("acme", shopGlob)
		w.pass(time.Second)
		c.hears("acme -" + shopGlob)
		w.change("acme " + shop + "a@1")
		c.hears("acme " + shop + "a@1")
		w.change("acme -" + shop + "a")
		c.hears("acme -" + shop + "a")
		late := w.envoy(relaytest.Delta).subscribe("acme", shopGlob)
		w.pass(time.Second)
		late.hears("acme -" + shopGlob)
		w.change("acme " + shop + "b@1")
		late.hears("acme " + shop + "b@1")
		c.hears("acme " + shop + "b@1")

		// The origin may say so of all members at once.
		w.origin.Inject(&discoverypb.DeltaDiscoveryResponse{TypeUrl: orderTypes["acme"], RemovedResources: []string{shopGlob}})
		c.hears("acme -" + shop + "b")
	})
}

// TestR132_SotWKnowsEmptyGlobs: a SotW client of a full-state type is told of an empty
// glob by a set without it, and a client with other types by nothing at all.
func TestR132_SotWKnowsEmptyGlobs(t *testing.T) {
	t.Parallel()
	const listeners = "xdstp://one/envoy.config.listener.v3.Listener/shop/"
	orderBubble(t, nil, func(w *orderWorld) {
		c := xdstpClient(w, relaytest.SotW).subscribe("lds", listeners+"*")
		w.settle()
		c.hears("lds {}")
		w.change("lds " + listeners + "a@1")
		c.hears("lds {" + listeners + "a@1}")
		w.change("lds -" + listeners + "a")
		c.hears("lds {}")
	})
}

// TestR084_AGlobAskedForAgainIsAnsweredAgain: in full, by its members or by its name.
func TestR084_AGlobAskedForAgainIsAnsweredAgain(t *testing.T) {
	t.Parallel()
	orderBubble(t, nil, func(w *orderWorld) {
		w.change("acme " + shop + "a@1")
		c := w.envoy(relaytest.Delta).subscribe("acme", shopGlob+" "+mallGlob)
		w.settle()
		w.takes(c, "acme "+shop+"a@1", "acme -"+mallGlob)
		for range 2 {
			c.subscribe("acme", shopGlob)
			c.hears("acme " + shop + "a@1")
			c.subscribe("acme", mallGlob)
			c.hears("acme -" + mallGlob)
		}
		w.pass(time.Hour)
		c.expect()
	})
}

// TestR084_AGlobWaitsForNoAnswer: who asks for one is answered although the response
// before is not.
func TestR084_AGlobWaitsForNoAnswer(t *testing.T) {
	t.Parallel()
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		orderBubble(t, nil, func(w *orderWorld) {
			w.change("acme "+shop+"a@1", "acme "+mall+"a@1")
			w.ready(v).subscribe("acme", shopGlob+" "+mallGlob)
			w.settle()
			c := xdstpClient(w, v).subscribe("acme", mallGlob)
			c.expect(orderForm(v, "acme "+mall+"a@1"))
			if v == relaytest.SotW { // without a nonce: not an answer
				c.Send(&discoverypb.DiscoveryRequest{TypeUrl: orderTypes["acme"], ResourceNames: []string{mallGlob, shopGlob}})
			} else {
				c.subscribe("acme", shopGlob)
			}
			c.expect(orderForm(v, "acme "+shop+"a@1"))
		})
	})
}

// TestR084_WhatAClientForgotIsSent: a glob that is asked for again is answered in full
// even by one who said that it has it.
func TestR084_WhatAClientForgotIsSent(t *testing.T) {
	t.Parallel()
	orderBubble(t, nil, func(w *orderWorld) {
		w.change("acme " + shop + "a@1")
		ready := w.ready(relaytest.Delta).subscribe("acme", shopGlob)
		w.settle()
		version := ready.State()[orderTypes["acme"]][shop+"a"].Version
		held := map[string]string{shop + "a": version}
		for name, ask := range map[string][][]string{"again": {{shopGlob}, {shopGlob}}, "later": {{mallGlob}, {shopGlob}}} {
			c := w.envoy(relaytest.Delta)
			c.Send(&discoverypb.DeltaDiscoveryRequest{Node: relaytest.EnvoyNode("n"), TypeUrl: orderTypes["acme"],
				ResourceNamesSubscribe: ask[0], InitialResourceVersions: held})
			c.Subscribe(orderTypes["acme"], ask[1]...)
			w.settle()
			if got := strings.Join(c.heard(), " "); !strings.Contains(got, shop+"a@1") {
				t.Errorf("%s: got %q, want %s", name, got, shop+"a@1")
			}
		}
	})
}

// TestR086_AReturningClientIsToldOfMembersThatWent: it gets what differs, hears what is
// gone, and nothing of what it has.
func TestR086_AReturningClientIsToldOfMembersThatWent(t *testing.T) {
	t.Parallel()
	orderBubble(t, nil, func(w *orderWorld) {
		w.change("acme "+shop+"a@1", "acme "+shop+"b@1", "acme "+shop+"c@1", "acme "+mall+"a@1", "acme "+mall+"b@1")
		c := w.ready(relaytest.Delta).subscribe("acme", shopGlob+" "+mallGlob+" "+shop+"c")
		w.settle()
		c.heard()
		stays := w.ready(relaytest.Delta).subscribe("acme", shopGlob)
		stays.heard()
		c.Close()
		w.change("acme -"+shop+"b", "acme "+shop+"a@2", "acme "+shop+"d@1", "acme -"+mall+"a", "acme -"+mall+"b")
		c.Reconnect(w.relay.Conn())
		w.settle()
		w.takes(c, "acme "+shop+"a@2", "acme -"+shop+"b", "acme "+shop+"d@1", "acme -"+mall+"a", "acme -"+mall+"b", "acme -"+mallGlob)
		if !c.State().SameContent(w.origin.Resources(), orderTypes["acme"]) {
			t.Errorf("the client has %v", c.State())
		}
	})
}

// TestR086_TheRelayIsToldOfMembersThatWent: it returns to the origin with what it
// holds, so that clients hear of what went meanwhile, and of nothing else.
func TestR086_TheRelayIsToldOfMembersThatWent(t *testing.T) {
	t.Parallel()
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		orderBubble(t, nil, func(w *orderWorld) {
			w.change("acme "+shop+"a@1", "acme "+shop+"b@1", "acme "+shop+"c@1", "acme "+mall+"a@1")
			c := xdstpClient(w, v).subscribe("acme", shopGlob+" "+mallGlob)
			w.settle()
			w.takes(c, "acme "+shop+"a@1", "acme "+shop+"b@1", "acme "+shop+"c@1", "acme "+mall+"a@1")
			w.stop()
			w.pass(time.Minute)
			w.change("acme -"+shop+"b", "acme "+shop+"a@2", "acme "+shop+"d@1", "acme -"+mall+"a")
			c.expect()
			w.restart()
			w.takes(c, "acme "+shop+"a@2", "acme -"+shop+"b", "acme "+shop+"d@1", "acme -"+mall+"a")
			if said := w.resumed(); len(said) != 4 {
				t.Errorf("the relay came back with %v, want the versions of what it held", said)
			}
		})
	})
}

// TestB15_MembersThatAnOriginForgotToRemove: one that is not told what is held, or does
// not look at it, leaves out what went: it is asked for by name, and what it then
// says is removed is gone.
func TestB15_MembersThatAnOriginForgotToRemove(t *testing.T) {
	t.Parallel()
	for name, env := range map[string][]string{"ignores versions": nil, "is not told": {"TENDER_RESYNC=full"}} {
		t.Run(name, func(t *testing.T) {
			orderBubble(t, env, func(w *orderWorld) {
				w.change("acme "+shop+"a@1", "acme "+shop+"b@1", "acme "+shop+"c@1")
				c := w.envoy(relaytest.Delta).subscribe("acme", shopGlob+" "+shop+"a")
				w.settle()
				c.heard()
				w.stop()
				w.origin.Change(func(b *relaytest.Behaviour) { b.IgnoreIRV = true })
				w.change("acme -"+shop+"b", "acme "+shop+"c@2")
				w.restart()
				w.pass(time.Minute)
				w.takes(c, "acme "+shop+"c@2", "acme -"+shop+"b")
				if !w.origin.State().Subscribed(orderTypes["acme"], shopGlob, shop+"a") {
					t.Errorf("the origin has more to do than clients want:\n%v", w.origin.State())
				}
			})
		})
	}
}

// TestR132_AGlobBesideAMember: a client may want a name and the glob that it belongs
// to; it gets both, and keeps what the other still gives it.
func TestR132_AGlobBesideAMember(t *testing.T) {
	t.Parallel()
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		for _, dropped := range []string{shopGlob, shop + "a"} {
			orderBubble(t, nil, func(w *orderWorld) {
				w.change("acme "+shop+"a@1", "acme "+shop+"b@1")
				c := w.dial(relaytest.ClientOptions{Variant: v, AutoAck: true, Node: wrapNode()}).subscribe("acme", shop+"a "+shopGlob)
				w.settle()
				has := func(want string) {
					t.Helper()
					c.heard()
					var got []string
					for _, name := range c.State().Names(orderTypes["acme"]) {
						got = append(got, strings.TrimPrefix(name, shop)+"@"+w.revs[c.State().Digest(orderTypes["acme"], name)])
					}
					if strings.Join(got, " ") != want {
						t.Errorf("without %s: the client has %q, want %q", dropped, got, want)
					}
				}
				has("a@1 b@1")
				w.change("acme "+shop+"a@2", "acme "+shop+"b@2")
				has("a@2 b@2")
				c.unsubscribe("acme", dropped)
				w.change("acme "+shop+"a@3", "acme "+shop+"b@3")
				if dropped == shopGlob {
					has("a@3")
				} else {
					has("a@3 b@3")
				}
				if v == relaytest.Delta {
					w.change("acme -" + shop + "a")
					if dropped == shopGlob {
						has("")
					} else {
						has("b@3")
					}
				}
			})
		}
	})
}

// TestR132_WildcardBesideGlobs: the wildcard of a type and its globs are different
// sets, from different subscriptions; what one loses and the other keeps stays.
func TestR132_WildcardBesideGlobs(t *testing.T) {
	t.Parallel()
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		for _, short := range []string{"acme", "cds"} { // partial, and full-state
			orderBubble(t, nil, func(w *orderWorld) {
				w.origin.Change(func(b *relaytest.Behaviour) {
					b.NamedOnly = func(_, name string) bool { return strings.HasPrefix(name, shop) }
				})
				w.change(short+" plain@1", short+" "+shop+"a@1", short+" "+mall+"a@1")
				c := w.dial(relaytest.ClientOptions{Variant: v, AutoAck: true, Node: wrapNode()})
				c.subscribe(short, "* "+shopGlob+" "+mallGlob)
				w.settle()
				has := func(names ...string) {
					t.Helper()
					w.settle()
					c.heard()
					if !c.State().Has(orderTypes[short], names...) {
						t.Errorf("%s: the client has %v, want %q", short, c.State(), names)
					}
				}
				has("plain", shop+"a", mall+"a")
				w.change(short+" "+shop+"b@1", short+" "+mall+"b@1", short+" other@1")
				has("plain", "other", shop+"a", shop+"b", mall+"a", mall+"b")
				if v == relaytest.SotW && short == "acme" {
					return // which cannot be told that something is gone
				}
				w.change(short+" -"+shop+"b", short+" -"+mall+"b", short+" -other")
				has("plain", shop+"a", mall+"a")
				// No longer part of the wildcard's set, by the origin's choice.
				w.origin.Inject(&discoverypb.DeltaDiscoveryResponse{TypeUrl: orderTypes[short], RemovedResources: []string{"plain"}})
				has(shop+"a", mall+"a")
			})
		}
	})
}

// TestR132_OneSetOfAllGlobs: to a SotW client of a full-state type, one set holds what
// it named, what its globs match, and all of the wildcard, each once.
func TestR132_OneSetOfAllGlobs(t *testing.T) {
	t.Parallel()
	const one = "xdstp://one/envoy.config.cluster.v3.Cluster/shop/"
	orderBubble(t, nil, func(w *orderWorld) {
		w.change("cds "+one+"a@1", "cds "+one+"b@1", "cds plain@1", "cds "+mall+"a@1")
		c := xdstpClient(w, relaytest.SotW).subscribe("cds", "plain "+one+"* "+one+"a "+mallGlob)
		w.settle()
		all := xdstpList([]string{"plain", one + "a", one + "b", mall + "a"}, "@1")
		c.hears("cds {" + all + "}")
		version := c.last[orderTypes["cds"]].Version
		wrapped := func(c *orderClient) bool {
			first := c.last[orderTypes["cds"]].Message.(*discoverypb.DiscoveryResponse).GetResources()[0]
			return first.GetTypeUrl() != orderTypes["cds"]
		}
		bare := w.envoy(relaytest.SotW).subscribe("cds", "plain "+one+"* "+mallGlob)
		bare.expect("cds {" + all + "}")
		if !wrapped(c) || wrapped(bare) {
			t.Errorf("with names %t, for one that does not understand it %t", wrapped(c), wrapped(bare))
		}
		bare.Close()
		w.change("cds " + one + "a@2")
		c.hears("cds {" + strings.Replace(all, one+"a@1", one+"a@2", 1) + "}")

		// Changed and changed back before the answer: the client has it, nothing is said.
		w.change("cds " + one + "a@1")
		c.expect("cds {" + all + "}")
		if got := c.last[orderTypes["cds"]].Version; got != version {
			t.Errorf("versions of one set: %q, then %q", version, got)
		}
		w.change("cds " + one + "a@3")
		w.change("cds " + one + "a@1")
		c.ack("cds")
		c.expect()
		other := xdstpClient(w, relaytest.SotW).subscribe("cds", "plain "+one+"* "+mallGlob)
		other.expect("cds {" + all + "}")
		if got := other.last[orderTypes["cds"]].Version; got != version {
			t.Errorf("the same set asked for otherwise has the version %q, want %q", got, version)
		}
	})
}

// TestB7_AGlobIsAnsweredOnceItSettles: what comes within 150 ms is one answer, as for a
// wildcard; and what a returning client holds is gone only once the set is confirmed.
func TestB7_AGlobIsAnsweredOnceItSettles(t *testing.T) {
	t.Parallel()
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		orderBubble(t, nil, func(w *orderWorld) {
			w.manual()
			c := xdstpClient(w, v).subscribe("acme", shopGlob)
			back := xdstpClient(w, relaytest.Delta).returns(relaytest.Delta, "acme", shopGlob, shop+"a "+shop+"old")
			w.pass(time.Minute)
			c.expect() // silence is no answer
			stream := w.accept()
			w.say(stream, "acme "+shop+"a@1")
			w.pass(100 * time.Millisecond)
			c.expect()
			w.say(stream, "acme "+shop+"b@1")
			w.pass(149 * time.Millisecond)
			c.expect()
			w.pass(2 * time.Millisecond)
			c.hears(orderForm(v, "acme "+shop+"a@1 "+shop+"b@1"))
			back.hears("acme " + shop + "a@1 " + shop + "b@1")
			w.pass(4 * time.Second)
			back.expect()
			w.pass(2 * time.Minute)
			back.hears("acme -" + shop + "old")
			c.expect()
		})
	})
}

// TestB7_ASetIsNotHeldForEverForAGlob: an origin may know nothing of globs and say
// nothing. What else is asked for is answered after 10 s; by a lost origin, never to
// one who may hold what would be missing.
func TestB7_ASetIsNotHeldForEverForAGlob(t *testing.T) {
	t.Parallel()
	orderBubble(t, nil, func(w *orderWorld) {
		w.origin.Change(func(b *relaytest.Behaviour) { b.SilentOnMissing = true })
		w.change("lds plain@1")
		names := "plain " + shopGlob
		c := w.envoy(relaytest.SotW).subscribe("lds", names)
		back := w.envoy(relaytest.SotW).returns(relaytest.SotW, "lds", names, "")
		w.pass(9 * time.Second)
		c.expect()
		back.expect()
		w.pass(4 * time.Second)
		c.hears("lds {plain@1}")
		back.hears("lds {plain@1}")
		w.stop()
		w.pass(time.Minute)
		late := w.envoy(relaytest.SotW).returns(relaytest.SotW, "lds", names, "")
		w.pass(3 * time.Minute)
		late.expect()
	})
}

// TestB8_AGlobOfAColdRelay: without an origin, who asks for a glob alone is sent away
// without a response.
func TestB8_AGlobOfAColdRelay(t *testing.T) {
	t.Parallel()
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		for _, short := range []string{"acme", "lds"} {
			orderBubble(t, nil, func(w *orderWorld) {
				w.stop()
				w.envoy(v).subscribe(short, shopGlob).endsUnserved()
			})
		}
	})
}

// TestB6_CollectionsLinger: a glob that no client wants stays for the while that a
// wildcard does, and then nothing of it is left at the origin.
func TestB6_CollectionsLinger(t *testing.T) {
	t.Parallel()
	orderBubble(t, []string{"TENDER_WILDCARD_LINGER=10m"}, func(w *orderWorld) {
		w.change("acme "+shop+"a@1", "acme "+mall+"a@1")
		stays := w.envoy(relaytest.Delta).subscribe("acme", mallGlob)
		c := w.envoy(relaytest.Delta).subscribe("acme", shopGlob)
		w.settle()
		c.hears("acme " + shop + "a@1")
		stays.hears("acme " + mall + "a@1")
		c.Close()
		w.pass(7 * time.Minute)
		again := w.envoy(relaytest.Delta).subscribe("acme", shopGlob)
		again.hears("acme " + shop + "a@1") // at once
		again.Close()
		w.pass(7 * time.Minute)
		if !w.origin.State().Subscribed(orderTypes["acme"], shopGlob, mallGlob) {
			t.Errorf("given up too early:\n%v", w.origin.State())
		}
		w.pass(7 * time.Minute)
		if !w.origin.State().Subscribed(orderTypes["acme"], mallGlob) {
			t.Errorf("not given up:\n%v", w.origin.State())
		}
		w.change("acme "+shop+"a@2", "acme "+mall+"a@2")
		stays.hears("acme " + mall + "a@2")
		w.envoy(relaytest.Delta).subscribe("acme", shopGlob)
		w.settle()
	})
}

// TestR132_EndpointsOfALocality: LEDS, which is Delta only and of globs alone, on a
// stream of its own and on an aggregated one.
func TestR132_EndpointsOfALocality(t *testing.T) {
	t.Parallel()
	const zone = "xdstp://one/envoy.config.endpoint.v3.LbEndpoint/web/zone-1/"
	for _, typeURL := range []string{"", relaytest.LocalityEndpointType} {
		orderBubble(t, nil, func(w *orderWorld) {
			for i := range 3 {
				w.change(fmt.Sprintf("leds %s%d@1", zone, i))
			}
			w.change("leds xdstp://one/envoy.config.endpoint.v3.LbEndpoint/web/zone-2/0@1")
			c := w.dial(relaytest.ClientOptions{TypeURL: typeURL}).subscribe("leds", zone+"*")
			w.settle()
			c.hears("leds " + zone + "0@1 " + zone + "1@1 " + zone + "2@1")
			w.change("leds "+zone+"1@2", "leds -"+zone+"0")
			c.hears("leds " + zone + "1@2 -" + zone + "0")
		})
	}
}

// TestR132_AHalfClosedStreamIsAnsweredForEachGlob: a client that has said all that it has
// to say is told of each glob before its stream ends.
func TestR132_AHalfClosedStreamIsAnsweredForEachGlob(t *testing.T) {
	t.Parallel()
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		orderBubble(t, nil, func(w *orderWorld) {
			w.change("acme "+shop+"a@1", "acme "+mall+"a@1")
			began := time.Now()
			c := xdstpClient(w, v).subscribe("acme", shopGlob+" "+mallGlob)
			c.CloseSend()
			if err := c.WaitEnd(w.t.Context()); !errors.Is(err, io.EOF) {
				t.Errorf("the stream ended with %v, want OK", err)
			}
			got := c.heard()
			slices.Sort(got)
			if want := []string{orderForm(v, "acme "+mall+"a@1"), orderForm(v, "acme "+shop+"a@1")}; !slices.Equal(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
			if took := time.Since(began); took > time.Second {
				t.Errorf("it took %v", took)
			}
		})
	})
}

// TestB16_EndpointsOfAGlobFollowTheirCluster: a cluster that changed is followed by its
// endpoints, although these did not, where a glob has them.
func TestB16_EndpointsOfAGlobFollowTheirCluster(t *testing.T) {
	t.Parallel()
	const dir = "xdstp://one/envoy.config.endpoint.v3.ClusterLoadAssignment/dir/"
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		orderBubble(t, nil, func(w *orderWorld) {
			w.change("eds "+dir+"a@1", "eds "+dir+"b@1")
			cluster := func(stat string) {
				c := relaytest.Cluster("c", dir+"a")
				c.AltStatName = stat
				w.origin.Put(c)
				synctest.Wait()
			}
			cluster("1")
			c := w.dial(relaytest.ClientOptions{Variant: v, AutoAck: true, Node: wrapNode()}).subscribe("eds", dir+"*")
			w.settle()
			c.expect(orderForm(v, "eds "+dir+"a@1 "+dir+"b@1"))
			c.subscribe("cds", "")
			w.settle()
			c.expect(orderForm(v, "cds c@?"), orderForm(v, "eds "+dir+"a@1"))
			cluster("2")
			c.expect(orderForm(v, "cds c@?"), orderForm(v, "eds "+dir+"a@1"))
			w.pass(time.Hour)
			c.expect()
		})
	})
}

// TestB11_ClustersOfAGlobComeFirst: a route does not overtake a cluster that a glob
// has and that waits for the answer to the one before.
func TestB11_ClustersOfAGlobComeFirst(t *testing.T) {
	t.Parallel()
	const dir = "xdstp://one/envoy.config.cluster.v3.Cluster/dir/"
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		orderBubble(t, nil, func(w *orderWorld) {
			w.change("cds "+dir+"a@1", "rds r@1")
			c := xdstpClient(w, v).subscribe("cds", dir+"*").subscribe("rds", "r")
			w.settle()
			w.takes(c, "cds "+dir+"a@1", "rds r@1")
			w.change("cds " + dir + "a@2")
			c.expect(orderForm(v, "cds "+dir+"a@2"))
			w.change("cds " + dir + "b@1")
			w.change("rds r@2") // the two come on two streams, without an order between them
			c.expect()          // the cluster waits for the answer, and the route for the cluster
			c.ack("cds")
			c.expect(orderForm(v, "cds "+xdstpSet(v, dir+"a@2 "+dir+"b@1", dir+"b@1")), orderForm(v, "rds r@2"))
		})
	})
}

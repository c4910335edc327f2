package conformance_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/xdstender/tender/relay/relaytest"
)

// vhdsBubble runs f in a world whose origin has virtual hosts on demand: its wildcard
// has rc/base alone, and for a host that it does not know it says so.
func vhdsBubble(t *testing.T, f func(w *orderWorld)) {
	t.Helper()
	orderBubble(t, nil, func(w *orderWorld) {
		w.onDemand()
		w.change("vhds rc/base@1", "vhds rc/web@1=rc/a.example=rc/b.example")
		f(w)
	})
}

// onDemand has the origin's wildcard of virtual hosts hold rc/base alone, and the origin
// say of hosts that it does not know that they mean nothing.
func (w *orderWorld) onDemand() {
	host := func(typeURL, name string) bool { return typeURL == relaytest.VirtualHostType && name != "rc/base" }
	w.origin.Change(func(b *relaytest.Behaviour) { b.NamedOnly, b.Unresolved = host, host })
}

// asked returns how often the origin was asked for a name.
func (w *orderWorld) asksFor(short, name string) (n int) {
	for _, r := range w.origin.State().Requests(orderTypes[short]) {
		if slices.Contains(r.Message.GetResourceNamesSubscribe(), name) {
			n++
		}
	}
	return n
}

// An Envoy follows the wildcard in its legacy form, and asks for hosts as requests for
// them come. The answer is a resource of another name that has the host as an alias,
// and is passed on as it came (R093).
func TestR094_VirtualHostsOnDemand(t *testing.T) {
	t.Parallel()
	vhdsBubble(t, func(w *orderWorld) {
		c := w.envoy(relaytest.Delta).subscribe("vhds", "")
		w.settle()
		c.hears("vhds rc/base@1")
		c.subscribe("vhds", "rc/a.example")
		w.pass(time.Second)
		c.hears("vhds rc/web@1=rc/a.example=rc/b.example")
		got := c.read[0].Message.(*discoverypb.DeltaDiscoveryResponse).GetResources()[0]
		if diff := cmp.Diff(w.resource(w.parse("vhds rc/web@1=rc/a.example=rc/b.example")), got, protocmp.Transform()); diff != "" {
			t.Errorf("passed on (-origin +client):\n%s", diff)
		}
		w.change("vhds rc/web@2=rc/a.example=rc/b.example", "vhds rc/other@1=rc/o.example")
		c.hears("vhds rc/web@2=rc/a.example=rc/b.example")
		w.change("vhds rc/base@2")
		c.hears("vhds rc/base@2")
		if got := w.origin.State().Names(orderTypes["vhds"]); !slices.Equal(got, []string{"*", "rc/a.example"}) {
			t.Errorf("the origin is asked for %q, want the wildcard and the host", got)
		}
		w.pass(time.Hour)
		c.expect()
	})
}

// That a host means nothing is passed on as the origin says it, to who asks within 5s
// too, and then the origin is asked again when somebody asks (B.20).
func TestR095_UnknownHosts(t *testing.T) {
	t.Parallel()
	vhdsBubble(t, func(w *orderWorld) {
		first := w.envoy(relaytest.Delta).subscribe("vhds", "rc/nope")
		w.pass(time.Second)
		first.hears("vhds rc/nope?")
		w.pass(3 * time.Second)
		second := w.envoy(relaytest.Delta).subscribe("vhds", "rc/nope")
		second.hears("vhds rc/nope?")
		if n := w.asksFor("vhds", "rc/nope"); n != 1 {
			t.Errorf("the origin was asked %d times within 5s, want once", n)
		}
		w.pass(time.Hour)
		first.expect()
		second.expect()
		if n := w.asksFor("vhds", "rc/nope"); n != 1 {
			t.Errorf("the origin was asked %d times though nobody asked again, want once", n)
		}
		third := w.envoy(relaytest.Delta).subscribe("vhds", "rc/nope")
		w.pass(time.Second)
		third.hears("vhds rc/nope?")
		if n := w.asksFor("vhds", "rc/nope"); n != 2 {
			t.Errorf("the origin was asked %d times, want again after 5s", n)
		}
		w.pass(time.Minute)
		first.expect() // it has been told that before
		again := &discoverypb.DeltaDiscoveryRequest{TypeUrl: orderTypes["vhds"], ResourceNamesSubscribe: []string{"rc/nope"}}
		first.Send(again)
		w.pass(time.Second)
		first.hears("vhds rc/nope?")
		if n := w.asksFor("vhds", "rc/nope"); n != 3 {
			t.Errorf("the origin was asked %d times, want again for one who has asked before", n)
		}

		// Once it means something, all are told.
		w.change("vhds rc/new@1=rc/nope")
		for _, c := range []*orderClient{first, second, third} {
			c.hears("vhds rc/new@1=rc/nope")
		}
		w.envoy(relaytest.Delta).subscribe("vhds", "rc/nope").hears("vhds rc/new@1=rc/nope")
		if n := w.asksFor("vhds", "rc/nope"); n != 3 {
			t.Errorf("the origin was asked %d times, want no more", n)
		}
	})
}

// An Envoy that asks for a host may give up the one before. The origin does not hear
// of that, and is not asked when it comes back to it, until it was away for long.
func TestC37_HostAfterHost(t *testing.T) {
	t.Parallel()
	vhdsBubble(t, func(w *orderWorld) {
		for i := range 3 {
			host := fmt.Sprint("rc/", i)
			w.change(fmt.Sprint("vhds rc/vh", i, "@1=", host))
		}
		c := w.envoy(relaytest.Delta).subscribe("vhds", "rc/0")
		w.pass(time.Second)
		c.hears("vhds rc/vh0@1=rc/0")
		for i := 1; i <= 30; i++ {
			host, last := fmt.Sprint("rc/", i%3), fmt.Sprint("rc/", (i-1)%3)
			c.Send(&discoverypb.DeltaDiscoveryRequest{
				TypeUrl: orderTypes["vhds"], ResourceNamesSubscribe: []string{host}, ResourceNamesUnsubscribe: []string{last},
			})
			w.pass(time.Second)
			c.hears(fmt.Sprint("vhds rc/vh", i%3, "@1=", host))
		}
		for _, r := range w.origin.State().Requests(orderTypes["vhds"]) {
			if got := r.Message.GetResourceNamesUnsubscribe(); len(got) > 0 {
				t.Errorf("the origin was told that nobody wants %q", got)
			}
		}
		for i := range 3 {
			if n := w.asksFor("vhds", fmt.Sprint("rc/", i)); n != 1 {
				t.Errorf("the origin was asked %d times for rc/%d, want once", n, i)
			}
		}
		w.pass(10 * time.Minute)
		if got := w.origin.State().Names(orderTypes["vhds"]); !slices.Equal(got, []string{"rc/0"}) {
			t.Errorf("after long the origin is asked for %q, want rc/0 alone", got)
		}
	})
}

// The removal of a resource reaches those who asked for it by an alias, by its own
// name; who asks for the alias then is told that that does not exist.
func TestR092_RemovalReachesAliases(t *testing.T) {
	t.Parallel()
	for _, short := range []string{"vhds", "cds", "lds", "rds", "acme"} {
		orderVariants(t, func(t *testing.T, v relaytest.Variant) {
			orderBubble(t, nil, func(w *orderWorld) {
				w.change(short + " real@1=one=two")
				c := w.envoy(v).subscribe(short, "one")
				w.pass(time.Second)
				c.hears(orderForm(v, short+" real@1=one=two"))
				w.change(short + " -real")
				if v == relaytest.Delta {
					c.hears(short + " -real")
				} else if complete(v, short) {
					c.hears(short + " {}")
				}
				next := w.envoy(v).subscribe(short, "one")
				w.pass(time.Second)
				if v == relaytest.Delta {
					next.hears(short + " -one")
				} else if complete(v, short) {
					next.hears(short + " {}")
				}
				w.change(short + " real@2=one=two")
				c.hears(orderForm(v, short+" real@2=one=two"))
				next.hears(orderForm(v, short+" real@2=one=two"))
			})
		})
	}
}

// Under a wildcard, a host that is given up is answered by the name of what the client
// has (R079): whether that is its own still, and not at all if another name keeps it.
func TestR079_HostsGivenUpUnderTheWildcard(t *testing.T) {
	t.Parallel()
	vhdsBubble(t, func(w *orderWorld) {
		w.change("vhds rc/base@1=rc/base.example")
		c := w.envoy(relaytest.Delta).subscribe("vhds", "")
		w.settle()
		c.hears("vhds rc/base@1=rc/base.example")
		c.subscribe("vhds", "rc/a.example rc/b.example rc/base.example")
		w.pass(time.Second)
		c.hears("vhds rc/base@1=rc/base.example rc/web@1=rc/a.example=rc/b.example")
		unsubscribe := func(name string) {
			c.Unsubscribe(orderTypes["vhds"], name)
			w.pass(time.Second)
		}
		unsubscribe("rc/a.example")
		c.expect()
		unsubscribe("rc/b.example")
		c.hears("vhds -rc/web")
		unsubscribe("rc/base.example")
		c.hears("vhds rc/base@1=rc/base.example")
	})
}

// What a client sees as a member and by an alias goes for it when both are gone.
func TestR092_MemberAndAlias(t *testing.T) {
	t.Parallel()
	orderBubble(t, nil, func(w *orderWorld) {
		w.manual()
		c := w.envoy(relaytest.Delta).subscribe("acme", "*")
		members := w.accept()
		w.say(members, "acme real@1=alias")
		w.settle()
		c.hears("acme real@1=alias")
		c.subscribe("acme", "alias")
		named := w.accept()
		w.pass(time.Second)
		w.say(named, "acme real@1=alias")
		c.hears("acme real@1=alias")
		w.say(members, "acme -real")
		c.expect()
		w.say(named, "acme -real")
		c.hears("acme -real")
		w.say(members, "acme real@1=alias")
		c.hears("acme real@1=alias")
		w.say(named, "acme real@1=alias")
		c.heard()
		c.ackAll()
		w.say(named, "acme -real")
		c.expect()
		w.say(members, "acme -real")
		c.hears("acme -real")
	})
}

// In SotW aliases count too: a resource is in a response once, however often it was
// asked for, and nothing is said again for it.
func TestR092_AliasesInSotW(t *testing.T) {
	t.Parallel()
	for _, short := range []string{"cds", "lds", "rds", "eds", "acme"} {
		for _, names := range []string{"one", "one two", "real one", "* one", "* one real two"} {
			whole := completeFor(relaytest.SotW, short, names)
			orderBubble(t, nil, func(w *orderWorld) {
				w.change(short+" real@1=one=two", short+" other@1")
				c := w.envoy(relaytest.SotW).subscribe(short, names+" other")
				w.settle()
				for len(c.heard()) > 0 {
					c.ackAll()
				}
				if got, want := c.w.describe(c.last[orderTypes[short]]), short+" {other@1 real@1}"; whole && got != want {
					t.Errorf("%s %q: was told %q, want %q", short, names, got, want)
				}
				plain := w.envoy(relaytest.SotW).subscribe(short, "real other")
				w.pass(time.Second)
				plain.takeAll()
				if got, want := c.last[orderTypes[short]].Version, plain.last[orderTypes[short]].Version; got != want {
					t.Errorf("%s %q: got version %q, and %q for the same set by other names", short, names, got, want)
				}
				w.pass(time.Hour)
				c.expect()
				w.change(short + " other@2")
				if whole {
					c.hears(short + " {other@2 real@1}")
				} else {
					c.hears(short + " {other@2}")
				}
				w.change(short + " real@2=one=two")
				want := short + " {real@2}"
				if whole {
					want = short + " {other@2 real@2}"
				}
				if !strings.HasPrefix(names, "*") {
					c.hears(want)
				}
				// A wildcard beside names comes on two streams, without an order between them.
				w.pass(time.Hour)
				for len(c.heard()) > 0 {
					c.ackAll()
				}
				if got := c.w.describe(c.last[orderTypes[short]]); got != want {
					t.Errorf("%s %q: was told %q last, want %q", short, names, got, want)
				}
			})
		}
	}
}

// SotW has no way to say that an alias means nothing: a complete set is without it, at
// once, and otherwise nothing is said.
func TestR095_UnknownAliasesInSotW(t *testing.T) {
	t.Parallel()
	for _, short := range []string{"cds", "lds", "rds", "acme"} {
		orderBubble(t, nil, func(w *orderWorld) {
			w.origin.Change(func(b *relaytest.Behaviour) { b.Unresolved = func(_, name string) bool { return name == "nope" } })
			w.change(short + " a@1")
			c := w.envoy(relaytest.SotW).subscribe(short, "nope")
			w.pass(time.Second)
			if complete(relaytest.SotW, short) {
				c.hears(short + " {}")
			}
			c.expect()
			c.subscribe(short, "a")
			w.pass(time.Second)
			c.hears(short + " {a@1}")
			w.pass(time.Minute)
			c.expect()
			w.change(short + " real@1=nope")
			if complete(relaytest.SotW, short) {
				c.hears(short + " {a@1 real@1}")
			} else {
				c.hears(short + " {real@1}")
			}
		})
	}
}

// What a returning client holds, it says by the resource's own name, and asks for it
// by an alias.
func TestR092_AliasesOfWhatIsHeld(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"v1", "v0"} {
		orderBubble(t, nil, func(w *orderWorld) {
			w.change("vhds real@1=one", "vhds other@1")
			c := w.dial(relaytest.ClientOptions{})
			c.Send(&discoverypb.DeltaDiscoveryRequest{
				Node: relaytest.EnvoyNode("returning"), TypeUrl: orderTypes["vhds"],
				ResourceNamesSubscribe: []string{"one", "other"}, InitialResourceVersions: map[string]string{"real": version},
			})
			w.pass(time.Second)
			if version == "v1" {
				c.hears("vhds other@1")
			} else {
				c.hears("vhds other@1 real@1=one")
			}
			w.change("vhds real@2=one")
			c.hears("vhds real@2=one")
		})
	}
}

// What a returning client holds and asks for by an alias may have gone while it was away:
// it is told by the alias, which is its answer, and by the name under which it holds it.
func TestR086_HeldByAnAliasAndGone(t *testing.T) {
	t.Parallel()
	orderBubble(t, nil, func(w *orderWorld) {
		w.change("vhds real@1=one")
		stays := w.envoy(relaytest.Delta).subscribe("vhds", "one")
		w.pass(time.Second)
		stays.hears("vhds real@1=one")
		w.change("vhds -real")
		stays.hears("vhds -real")

		c := w.dial(relaytest.ClientOptions{})
		c.Send(&discoverypb.DeltaDiscoveryRequest{
			Node: relaytest.EnvoyNode("returning"), TypeUrl: orderTypes["vhds"],
			ResourceNamesSubscribe: []string{"one"}, InitialResourceVersions: map[string]string{"real": "v1"},
		})
		w.pass(time.Second)
		c.hears("vhds -one -real")
		w.change("vhds real@2=one")
		c.hears("vhds real@2=one")
	})
}

// Some origins list only the alias that they were asked for. Changes reach those who
// asked by another one all the same, and nobody is asked over and over.
func TestB20_AliasesThatAreNotListed(t *testing.T) {
	t.Parallel()
	orderBubble(t, nil, func(w *orderWorld) {
		w.manual()
		one := w.envoy(relaytest.Delta).subscribe("vhds", "rc/one")
		s := w.accept()
		w.pass(time.Second)
		w.say(s, "vhds rc/web@1=rc/one")
		one.hears("vhds rc/web@1=rc/one")
		two := w.envoy(relaytest.Delta).subscribe("vhds", "rc/two")
		w.pass(time.Second)
		w.say(s, "vhds rc/web@1=rc/two")
		two.hears("vhds rc/web@1=rc/two")
		one.expect()
		w.say(s, "vhds rc/web@2=rc/two")
		two.hears("vhds rc/web@2=rc/two")
		one.hears("vhds rc/web@2=rc/two")
		w.pass(time.Hour)
		if n := w.asksFor("vhds", "rc/one") + w.asksFor("vhds", "rc/two"); n != 2 {
			t.Errorf("the origin was asked %d times, want once for each host", n)
		}

		// Who comes next by the alias that is not listed needs an answer that has it.
		next := w.envoy(relaytest.Delta).subscribe("vhds", "rc/one")
		w.pass(time.Second)
		if n := w.asksFor("vhds", "rc/one"); n != 2 {
			t.Errorf("the origin was asked %d times for rc/one, want again", n)
		}
		next.heard()
		next.ackAll()
		w.say(s, "vhds rc/web@2=rc/one")
		next.hears("vhds rc/web@2=rc/one")
		one.hears("vhds rc/web@2=rc/one")
		two.expect()
		w.say(s, "vhds -rc/web")
		for _, c := range []*orderClient{one, two, next} {
			if got := c.heard(); !slices.Contains(got, "vhds -rc/web") {
				t.Errorf("%v was told %q, want the removal", c.Client, got)
			}
		}
	})
}

// After a reconnect the origin is not told that anything is held for a host that means
// nothing, and is asked for it.
func TestB20_UnknownHostsAreAskedAfterAReconnect(t *testing.T) {
	t.Parallel()
	vhdsBubble(t, func(w *orderWorld) {
		c := w.envoy(relaytest.Delta).subscribe("vhds", "rc/nope rc/a.example")
		w.pass(time.Second)
		c.hears("vhds rc/nope? rc/web@1=rc/a.example=rc/b.example")
		w.stop()
		w.change("vhds rc/new@1=rc/nope")
		w.restart()
		c.hears("vhds rc/new@1=rc/nope")
		if got := w.resumed(); len(got) != 1 || got["rc/web"] == "" {
			t.Errorf("the origin was told that %v is held, want rc/web", got)
		}
	})
}

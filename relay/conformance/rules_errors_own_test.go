package conformance_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"

	"github.com/xdstender/tender/relay/relaytest"
)

// tp3 returns the options of a client that is known to understand resource_errors.
func tp3(v relaytest.Variant) relaytest.ClientOptions {
	return relaytest.ClientOptions{Variant: v, Node: relaytest.GRPCNode("grpc")}
}

// While the origin is down for long, clients that understand it are told of names that
// nobody can be asked for: once, and UNAVAILABLE is all that the relay ever says of its
// own. Others are told nothing, and so is who knows complete sets (B.7).
func TestR137_OriginDownIsUnavailable(t *testing.T) {
	t.Parallel()
	relayNode := &corepb.Node{Id: "below", UserAgentName: "tender"}
	tests := []struct {
		name  string
		opts  relaytest.ClientOptions
		short string
		told  bool
	}{
		{"grpc delta", tp3(relaytest.Delta), "rds", true},
		{"grpc delta listeners", tp3(relaytest.Delta), "lds", true},
		{"grpc sotw", tp3(relaytest.SotW), "rds", true},
		{"grpc sotw listeners", tp3(relaytest.SotW), "lds", false},
		{"another relay", relaytest.ClientOptions{Node: relayNode}, "rds", true},
		{"envoy delta", relaytest.ClientOptions{}, "rds", false},
		{"envoy sotw", relaytest.ClientOptions{Variant: relaytest.SotW}, "rds", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			orderBubble(t, nil, func(w *orderWorld) {
				form := func(what string) string { return orderForm(tt.opts.Variant, tt.short+" "+what) }
				w.change("eds known@1", tt.short+" late@1")
				c := w.dial(tt.opts).subscribe("eds", "known")
				w.pass(time.Second)
				c.hears(orderForm(tt.opts.Variant, "eds known@1"))
				w.stop()
				w.pass(time.Minute)
				c.subscribe(tt.short, "late")
				w.pass(9900 * time.Millisecond)
				c.expect()
				w.pass(100 * time.Millisecond)
				if tt.told {
					c.hears(form("!late:Unavailable"))
					if got := c.read[0].Errors[0].Message; !strings.Contains(got, "origin") {
						t.Errorf("got message %q, want one that speaks of the origin", got)
					}
				}
				w.pass(time.Hour)
				c.expect()
				w.restart()
				c.hears(form("late@1"))
			})
		})
	}
}

// A stream to the origin that ends and is opened again is no reason to say anything; a
// name that the origin was silent on is unavailable once that takes long.
func TestR137_ShortAbsenceIsNotTold(t *testing.T) {
	t.Parallel()
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		orderBubble(t, nil, func(w *orderWorld) {
			w.origin.Change(func(b *relaytest.Behaviour) { b.SilentOnMissing = true })
			w.change("rds known@1")
			c := w.dial(tp3(v)).subscribe("rds", "known silent")
			w.pass(time.Hour)
			c.hears(orderForm(v, "rds known@1"))
			w.stop()
			w.pass(7 * time.Second)
			c.expect()
			w.restart()
			c.expect()
			w.stop()
			w.pass(11 * time.Second)
			c.hears(orderForm(v, "rds !silent:Unavailable"))
			w.restart()
			w.stop()
			w.pass(time.Hour)
			c.expect() // it knows
			if v == relaytest.Delta {
				c.Unsubscribe(orderTypes["rds"], "silent")
				c.subscribe("rds", "silent")
				w.pass(time.Minute)
				c.hears("rds !silent:Unavailable") // and asks again
			}
		})
	})
}

// A client of which nothing can be answered is sent away without a response, and so
// without an error too: it may know another server (B.8).
func TestB8_ColdStreamsAreNotToldOfErrors(t *testing.T) {
	t.Parallel()
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		orderBubble(t, nil, func(w *orderWorld) {
			w.stop()
			c := w.dial(tp3(v)).subscribe("rds", "a xdstp://authority/envoy.config.route.v3.RouteConfiguration/a?x=1&x=2")
			w.pass(9900 * time.Millisecond)
			c.expect()
			w.pass(200 * time.Millisecond)
			c.endsUnserved()
		})
	})
}

// A name that no resource can have is told to be one, at once and once, to clients that
// understand it; the origin is not asked for it, and the other names are served.
func TestB23_NamesThatCannotBe(t *testing.T) {
	t.Parallel()
	bad := []string{
		"xdstp://authority/envoy.config.route.v3.RouteConfiguration/a?x=1&x=2",
		"xdstp://authority/envoy.config.route.v3.RouteConfiguration/a%zz",
	}
	slices.Sort(bad)
	for _, short := range []string{"rds", "lds", "acme"} {
		orderVariants(t, func(t *testing.T, v relaytest.Variant) {
			orderBubble(t, nil, func(w *orderWorld) {
				w.change(short + " a@1")
				opts := tp3(v)
				opts.AutoAck = true
				c := w.dial(opts).subscribe(short, "a "+strings.Join(bad, " "))
				w.pass(time.Minute)
				c.subscribe(short, "b "+bad[0])
				w.pass(time.Hour)
				var told []string
				for _, r := range c.Responses() {
					for _, e := range r.Errors {
						told = append(told, e.Name)
						if e.Code != codes.Unavailable || e.Message == "" {
							t.Errorf("%s: got error %v %q, want UNAVAILABLE and why", short, e.Code, e.Message)
						}
					}
				}
				if slices.Sort(told); !slices.Equal(told, bad) {
					t.Errorf("%s: told of %q, want %q, each once", short, told, bad)
				}
				if _, has := c.State()[orderTypes[short]]["a"]; !has {
					t.Errorf("%s: the client was not given a", short)
				}
				if got := w.origin.State().Names(orderTypes[short]); !slices.Equal(got, []string{"a", "b"}) {
					t.Errorf("%s: the origin is asked for %q, want a and b", short, got)
				}
				w.envoy(v).subscribe(short, "a "+bad[0]).expect(orderForm(v, short+" a@1"))
			})
		})
	}
}

// What a client was told of counts as its names do: it cannot make up as many as it likes.
func TestB35_NamesThatCannotBeAreCounted(t *testing.T) {
	t.Parallel()
	orderBubble(t, []string{"TENDER_MAX_NAMES=10"}, func(w *orderWorld) {
		c := w.dial(tp3(relaytest.Delta))
		for i := range 11 {
			c.expect()
			c.subscribe("rds", fmt.Sprintf("xdstp://authority/envoy.config.route.v3.RouteConfiguration/a?x=%d&x=", i))
			if heard := len(c.heard()); heard != min(10-i, 1) {
				w.t.Errorf("%d responses tell of name %d, want 1 for each of the first ten", heard, i)
			}
			c.ackAll()
		}
		streamQuiet(w.t, c.Client, time.Minute)
	})
}

// Who asks only for what cannot be is told so, though there is no origin to ask.
func TestB23_NothingButANameThatCannotBe(t *testing.T) {
	t.Parallel()
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		orderBubble(t, nil, func(w *orderWorld) {
			const name = "xdstp://authority/envoy.config.route.v3.RouteConfiguration/a?x=1&x=2"
			c := w.dial(tp3(v)).subscribe("rds", name)
			c.hears(orderForm(v, "rds !"+name+":Unavailable"))
			w.pass(time.Hour)
			c.expect()
		})
	})
}

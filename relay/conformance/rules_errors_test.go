package conformance_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"

	"github.com/xdstender/tender/relay/relaytest"
)

// errorTypes are types of each kind of SotW response: complete sets and not.
var errorTypes = []string{"cds", "lds", "eds", "rds", "acme"}

// complete reports whether a SotW response of a type holds the client's whole set.
func complete(v relaytest.Variant, short string) bool {
	return v == relaytest.SotW && (short == "cds" || short == "lds")
}

// completeFor is complete for a client that asked for names, as subscribe has them: of an unknown type, the set is
// complete if it asked for all (B.17).
func completeFor(v relaytest.Variant, short, names string) bool {
	all := names == "" || strings.HasPrefix(names, "*")
	return complete(v, short) || v == relaytest.SotW && short == "acme" && all
}

// errorCases runs a test for each variant and each type.
func errorCases(t *testing.T, f func(w *orderWorld, v relaytest.Variant, short string)) {
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		for _, short := range errorTypes {
			t.Run(short, func(t *testing.T) {
				orderBubble(t, nil, func(w *orderWorld) { f(w, v, short) })
			})
		}
	})
}

// An error is told to those who asked for the resource, once, and to those who come
// later without asking the origin. The resource ends it, and is sent although it may
// be the one that was known before; and so does its removal.
func TestR124_ErrorsAreRememberedUntilTheResourceComes(t *testing.T) {
	t.Parallel()
	errorCases(t, func(w *orderWorld, v relaytest.Variant, short string) {
		say := func(what string) string { return orderForm(v, short+" "+what) }
		w.change(short+" a@1", short+" !b:PermissionDenied")
		c := w.envoy(v).subscribe(short, "a b")
		w.pass(time.Second)
		c.hears(say("a@1 !b:PermissionDenied"))
		for _, e := range c.read[0].Errors {
			if e.Message != orderWhy {
				w.t.Errorf("got message %q, want %q", e.Message, orderWhy)
			}
		}
		w.pass(time.Hour)
		c.expect()
		asked := len(w.origin.State().Requests(orderTypes[short]))
		next := w.envoy(v).subscribe(short, "b")
		next.hears(say("!b:PermissionDenied"))
		if got := len(w.origin.State().Requests(orderTypes[short])); got != asked {
			w.t.Errorf("the origin was sent %d requests for who came later, want none", got-asked)
		}

		w.change(short + " b@1")
		if complete(v, short) {
			c.hears(short + " {a@1 b@1}")
		} else {
			c.hears(say("b@1"))
		}
		next.hears(say("b@1"))
		w.change(short + " !b:Internal")
		if !complete(v, short) { // where the resource is in the set, as it was
			c.hears(say("!b:Internal"))
			next.hears(say("!b:Internal"))
		}
		w.change(short + " b@1")
		if !complete(v, short) {
			c.hears(say("b@1"))
			next.hears(say("b@1"))
		}
		c.expect()
		next.expect()

		w.change(short + " !b:Internal")
		c.heard()
		c.ackAll()
		next.heard()
		next.ackAll()
		w.change(short + " -b")
		third := w.envoy(v).subscribe(short, "b")
		if v == relaytest.Delta {
			third.hears(say("-b"))
		} else if complete(v, short) {
			third.hears(say(""))
		}
		third.expect()
		w.pass(time.Hour)
		c.heard()
		c.expect()
	})
}

// To ask for a name again is to be told again what is wrong with it (R084).
func TestR124_AskedAgainToldAgain(t *testing.T) {
	t.Parallel()
	orderBubble(t, nil, func(w *orderWorld) {
		w.change("rds !b:Internal")
		c := w.envoy(relaytest.Delta).subscribe("rds", "b")
		w.pass(time.Second)
		c.hears("rds !b:Internal")
		c.Send(&discoverypb.DeltaDiscoveryRequest{TypeUrl: orderTypes["rds"], ResourceNamesSubscribe: []string{"b"}})
		c.hears("rds !b:Internal")
		w.change("rds !b:Internal") // said again, and no news
		c.expect()
		w.change("rds !b:Unavailable")
		c.hears("rds !b:Unavailable")
	})
}

// NOT_FOUND is a removal, and in Delta told as such; why comes after it, since a name
// is never in two lists of a response.
func TestR123_NotFoundIsARemoval(t *testing.T) {
	t.Parallel()
	errorCases(t, func(w *orderWorld, v relaytest.Variant, short string) {
		w.change(short+" a@1", short+" b@1", short+" !never:NotFound")
		c := w.envoy(v).subscribe(short, "a b never")
		w.pass(time.Second)
		switch {
		case v == relaytest.Delta:
			c.hears(short + " a@1 b@1 -never")
			c.hears(short + " !never:NotFound")
		case short == "eds": // whose removals come later, and with them this
			c.hears(short + " {a@1 b@1}")
			c.hears(short + " {!never:NotFound}")
		default:
			c.hears(short + " {a@1 b@1 !never:NotFound}")
		}
		w.change(short + " !b:NotFound")
		switch {
		case v == relaytest.Delta:
			c.hears(short + " -b")
			c.hears(short + " !b:NotFound")
		case complete(v, short):
			c.hears(short + " {a@1 !b:NotFound}")
		default:
			c.hears(short + " {!b:NotFound}")
		}
		w.pass(time.Hour)
		c.expect()

		next := w.envoy(v).subscribe(short, "b")
		if v == relaytest.Delta {
			next.hears(short + " -b")
			next.hears(short + " !b:NotFound")
		} else {
			next.hears(short + " {!b:NotFound}")
		}
		w.change(short + " b@1")
		next.hears(orderForm(v, short+" b@1"))
	})
}

// A removal and its reason in one response of the origin are no different, however
// often they come.
func TestR124_RemovedWithReason(t *testing.T) {
	t.Parallel()
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		orderBubble(t, nil, func(w *orderWorld) {
			w.manual()
			c := w.envoy(v).subscribe("rds", "a")
			s := w.accept()
			w.pass(time.Second)
			for range 3 {
				w.say(s, "rds -a", "rds !a:NotFound")
			}
			if v == relaytest.Delta {
				c.hears("rds -a")
				c.hears("rds !a:NotFound")
			} else {
				c.hears("rds {!a:NotFound}")
			}
			w.say(s, "rds -a", "rds !a:NotFound")
			c.expect()
			w.say(s, "rds -a")
			w.envoy(relaytest.Delta).subscribe("rds", "a").hears("rds -a") // it is only gone now
		})
	})
}

// An error that says that a cluster is gone does not come before the removal, which
// waits for what refers to the cluster.
func TestB11_NotFoundWaitsAsItsRemovalDoes(t *testing.T) {
	t.Parallel()
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		for _, wildcard := range []bool{false, true} {
			orderBubble(t, nil, func(w *orderWorld) {
				w.change("cds old@1", "rds r@1")
				names := "old new"
				if wildcard {
					names = ""
				}
				c := w.envoy(v).subscribe("cds", names)
				w.settle()
				for len(c.heard()) > 0 {
					c.ack("cds")
				}
				c.subscribe("rds", "r")
				w.pass(time.Second)
				c.expect(orderForm(v, "rds r@1")) // and does not answer yet
				w.change("cds new@1", "cds !old:NotFound", "rds r@2")
				if v == relaytest.Delta {
					c.expect("cds new@1")
				} else {
					c.expect("cds {new@1 old@1}")
				}
				c.ack("cds")
				c.expect()
				c.ack("rds")
				if v == relaytest.Delta {
					c.expect("rds r@2", "cds -old")
					c.ack("rds", "cds")
					c.hears("cds !old:NotFound")
				} else {
					c.expect("rds {r@2}", "cds {new@1 !old:NotFound}")
					c.ack("rds", "cds")
				}
				w.pass(time.Hour)
				c.expect()
			})
		}
	})
}

// What the origin fails to say just now, clients go on with (R137): who comes is given
// the last good resource, and then told. In a complete SotW set, where an error would
// have to stand in place of the resource, it is not told.
func TestR137_TransientErrorsKeepTheResource(t *testing.T) {
	t.Parallel()
	errorCases(t, func(w *orderWorld, v relaytest.Variant, short string) {
		for i, code := range []string{"Unavailable", "Internal", "Unknown", "ResourceExhausted"} {
			name := fmt.Sprint("n", i)
			failure := orderForm(v, short+" !"+name+":"+code)
			w.change(short + " " + name + "@1")
			c := w.envoy(v).subscribe(short, name)
			w.pass(time.Second)
			c.hears(orderForm(v, short+" "+name+"@1"))
			w.change(short + " !" + name + ":" + code)
			next := w.envoy(v).subscribe(short, name)
			next.hears(orderForm(v, short+" "+name+"@1"))
			if !complete(v, short) {
				c.hears(failure)
				next.hears(failure)
			}
			w.pass(time.Hour)
			c.expect()
			next.expect()
		}
	})
}

// What the origin denies, it is told who has it, and who does not have it is told so
// and not given it, until the origin gives it again.
func TestR137_DeniedIsNotGivenToNewcomers(t *testing.T) {
	t.Parallel()
	errorCases(t, func(w *orderWorld, v relaytest.Variant, short string) {
		w.change(short+" a@1", short+" b@1")
		c := w.envoy(v).subscribe(short, "a b")
		w.pass(time.Second)
		c.hears(orderForm(v, short+" a@1 b@1"))
		w.change(short + " !b:PermissionDenied")
		next := w.envoy(v).subscribe(short, "a b")
		next.hears(orderForm(v, short+" a@1 !b:PermissionDenied"))
		if !complete(v, short) {
			c.hears(orderForm(v, short+" !b:PermissionDenied"))
		}
		c.expect()
		next.expect()

		// The sets of both stay what they are.
		w.change(short + " a@2")
		if complete(v, short) {
			c.hears(short + " {a@2 b@1}")
		} else {
			c.hears(orderForm(v, short+" a@2"))
		}
		next.hears(orderForm(v, short+" a@2"))
		w.pass(time.Hour)
		c.expect()
		next.expect()

		w.change(short + " b@1")
		if complete(v, short) {
			next.hears(short + " {a@2 b@1}")
		} else {
			c.hears(orderForm(v, short+" b@1"))
			next.hears(orderForm(v, short+" b@1"))
		}
		c.expect()
	})
}

// A client that returns to a complete set may hold what is denied: the set has it.
func TestR137_DeniedIsLeftToWhoReturns(t *testing.T) {
	t.Parallel()
	for _, names := range []string{"a b", ""} {
		orderBubble(t, nil, func(w *orderWorld) {
			w.change("cds a@1", "cds b@1")
			w.ready(relaytest.SotW).subscribe("cds", names)
			w.settle()
			w.change("cds !b:PermissionDenied")
			c := w.envoy(relaytest.SotW).returns(relaytest.SotW, "cds", names, "")
			c.hears("cds {a@1 b@1}")
			w.change("cds a@2")
			c.hears("cds {a@2 b@1}")
		})
	}
}

// An error is an answer: a complete SotW set does not wait for the resource.
func TestB7_AnErrorIsAnAnswer(t *testing.T) {
	t.Parallel()
	for _, short := range []string{"cds", "lds"} {
		orderBubble(t, nil, func(w *orderWorld) {
			w.manual()
			c := w.envoy(relaytest.SotW).returns(relaytest.SotW, short, "a b", "")
			s := w.accept()
			w.pass(time.Second)
			w.say(s, short+" a@1")
			c.expect()
			w.say(s, short+" !b:Unavailable")
			c.hears(short + " {a@1 !b:Unavailable}")
		})
	}
}

// Followers of the wildcard are told what is wrong with its members, those who come
// later too, and are not given what is denied.
func TestR123_ErrorsOfMembers(t *testing.T) {
	t.Parallel()
	errorCases(t, func(w *orderWorld, v relaytest.Variant, short string) {
		w.change(short+" a@1", short+" b@1", short+" c@1", short+" !d:Internal")
		c := w.envoy(v).subscribe(short, "*")
		w.settle()
		c.hears(orderForm(v, short+" a@1 b@1 c@1 !d:Internal"))
		w.change(short+" !a:PermissionDenied", short+" !b:Unavailable", short+" !c:NotFound")
		switch {
		case completeFor(v, short, "*"):
			c.hears(short + " {a@1 b@1 !c:NotFound}")
		case v == relaytest.Delta && (short == "cds" || short == "eds"): // whose removals come later
			c.hears(short + " !a:PermissionDenied !b:Unavailable")
			c.hears(short + " -c")
			c.hears(short + " !c:NotFound")
		case v == relaytest.Delta:
			c.hears(short + " -c !a:PermissionDenied !b:Unavailable")
			c.hears(short + " !c:NotFound")
		case short == "eds":
			c.hears(short + " {!a:PermissionDenied !b:Unavailable}")
			c.hears(short + " {!c:NotFound}")
		default:
			c.hears(short + " {!a:PermissionDenied !b:Unavailable !c:NotFound}")
		}
		w.pass(time.Hour)
		c.expect()

		next := w.envoy(v).subscribe(short, "*")
		w.pass(time.Second)
		switch {
		case completeFor(v, short, "*"):
			next.hears(short + " {b@1 !a:PermissionDenied !c:NotFound !d:Internal}")
		default:
			next.hears(orderForm(v, short+" b@1 !a:PermissionDenied !c:NotFound !d:Internal"))
			next.hears(orderForm(v, short+" !b:Unavailable"))
		}
		w.change(short + " b@2")
		if completeFor(v, short, "*") {
			c.hears(short + " {a@1 b@2}")
		} else {
			c.hears(orderForm(v, short+" b@2"))
		}
		next.hears(orderForm(v, short+" b@2"))
		w.change(short + " a@1")
		if completeFor(v, short, "*") {
			next.hears(short + " {a@1 b@2}")
		} else {
			c.hears(orderForm(v, short+" a@1"))
			next.hears(orderForm(v, short+" a@1"))
		}
		w.pass(time.Hour)
		c.expect()
		next.expect()
	})
}

// A client that has names and then asks for the wildcard is told of errors that were
// there before.
func TestR124_ErrorsOfMembersForOneWhoHadNames(t *testing.T) {
	t.Parallel()
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		orderBubble(t, nil, func(w *orderWorld) {
			w.change("eds a@1", "eds !b:Internal")
			w.ready(v).subscribe("eds", "*")
			w.settle()
			c := w.envoy(v).subscribe("eds", "a")
			w.pass(time.Second)
			c.hears(orderForm(v, "eds a@1"))
			c.Subscribe(orderTypes["eds"], "*")
			c.hears(orderForm(v, "eds !b:Internal"))
		})
	})
}

// An error of the wildcard itself says nothing about what there is: nobody takes it
// for an empty set. It ends when members come.
func TestR123_ErrorOfTheWildcard(t *testing.T) {
	t.Parallel()
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		orderBubble(t, nil, func(w *orderWorld) {
			w.change("cds !*:PermissionDenied")
			c := w.envoy(v).subscribe("cds", "")
			old := w.envoy(v).returns(v, "cds", "*", "a")
			w.pass(time.Hour)
			if v == relaytest.Delta {
				c.hears("cds !*:PermissionDenied")
				old.hears("cds !*:PermissionDenied")
			}
			c.expect()
			old.expect()
			w.change("cds a@1")
			w.settle()
			c.hears(orderForm(v, "cds a@1"))
			old.hears(orderForm(v, "cds a@1"))
			w.envoy(v).subscribe("cds", "*").hears(orderForm(v, "cds a@1"))
		})
	})
}

// A glob is told what is wrong with it and with what it matches, as a wildcard is; if it
// is not found, it matches nothing.
func TestR123_ErrorsOfGlobs(t *testing.T) {
	t.Parallel()
	for short, message := range map[string]string{"rds": "envoy.config.route.v3.RouteConfiguration", "lds": "envoy.config.listener.v3.Listener"} {
		orderVariants(t, func(t *testing.T, v relaytest.Variant) {
			orderBubble(t, nil, func(w *orderWorld) {
				shop := "xdstp://authority/" + message + "/shop/"
				glob, x := shop+"*", shop+"x"
				say := func(what string) string { return orderForm(v, short+" "+what) }
				w.change(short + " !" + glob + ":Unavailable")
				c := w.envoy(v).subscribe(short, glob)
				w.pass(time.Minute) // a complete set waits for a glob as long as for a name
				c.hears(say("!" + glob + ":Unavailable"))
				c.expect()
				w.change(short + " " + x + "@1")
				w.settle()
				c.hears(say(x + "@1"))
				w.change(short + " !" + x + ":PermissionDenied")
				next := w.envoy(v).subscribe(short, glob)
				w.pass(time.Second)
				if !complete(v, short) {
					c.hears(say("!" + x + ":PermissionDenied"))
				}
				next.hears(say("!" + x + ":PermissionDenied"))
				w.change(short + " " + x + "@2")
				c.hears(say(x + "@2"))
				next.hears(say(x + "@2"))

				w.change(short + " !" + glob + ":NotFound")
				if v == relaytest.Delta {
					c.hears(say("-" + x + " !" + glob + ":NotFound"))
				} else {
					c.hears(say("!" + glob + ":NotFound"))
				}
				w.pass(time.Hour)
				c.expect()
			})
		})
	}
}

// An error of a name that nobody asked for is nobody's.
func TestR123_ErrorsThatNobodyAskedForAreIgnored(t *testing.T) {
	t.Parallel()
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		orderBubble(t, nil, func(w *orderWorld) {
			w.manual()
			c := w.envoy(v).subscribe("rds", "a")
			s := w.accept()
			w.pass(time.Second)
			w.say(s, "rds !stranger:Internal", "rds a@1")
			c.hears(orderForm(v, "rds a@1"))
			next := w.envoy(v).subscribe("rds", "stranger")
			w.pass(time.Second)
			next.expect()
			if got := w.origin.State().Names(orderTypes["rds"]); !slices.Equal(got, []string{"a", "stranger"}) {
				t.Errorf("the origin is asked for %q, want a and stranger", got)
			}
		})
	})
}

// A response with an error that names nothing is refused, and nothing of it is taken.
func TestR123_NamelessErrorsAreRefused(t *testing.T) {
	t.Parallel()
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		orderBubble(t, nil, func(w *orderWorld) {
			w.manual()
			c := w.envoy(v).subscribe("rds", "a")
			s := w.accept()
			w.pass(time.Second)
			w.say(s, "rds a@1")
			c.hears(orderForm(v, "rds a@1"))
			s.Send(&discoverypb.DeltaDiscoveryResponse{
				TypeUrl:        orderTypes["rds"],
				Resources:      []*discoverypb.Resource{w.resource(w.parse("rds a@2"))},
				ResourceErrors: []*discoverypb.ResourceError{{}},
			})
			c.expect()
			if n := w.origin.State().Type(orderTypes["rds"]); n.NACKs != 1 || n.ACKs != 1 {
				t.Errorf("got %d ACKs and %d NACKs, want one of each", n.ACKs, n.NACKs)
			}
		})
	})
}

// Errors outlive the connection on which they were said, but that something does not
// exist has to be said again (B.7).
func TestB39_ErrorsAreKeptWhileTheOriginIsDown(t *testing.T) {
	t.Parallel()
	errorCases(t, func(w *orderWorld, v relaytest.Variant, short string) {
		w.change(short+" a@1", short+" b@1", short+" !b:Unavailable", short+" !c:PermissionDenied", short+" !d:NotFound")
		w.ready(v).subscribe(short, "a b c d")
		w.pass(time.Second)
		w.stop()
		w.pass(time.Minute)
		c := w.envoy(v).subscribe(short, "a b c d")
		if complete(v, short) {
			w.pass(time.Minute) // that d does not exist has to be said again
			c.hears(short + " {a@1 !b:Unavailable !c:PermissionDenied}")
		} else {
			c.hears(orderForm(v, short+" a@1 !b:Unavailable !c:PermissionDenied"))
		}
		w.pass(time.Hour)
		c.expect()
		w.restart()
		if v == relaytest.Delta {
			c.hears(short+" -d", short+" !d:NotFound")
		} else {
			c.hears(short + " {" + map[bool]string{true: "a@1 "}[complete(v, short)] + "!d:NotFound}")
		}
	})
}

// A client that is slow is not told of an error that is over by the time that it
// could be.
func TestR124_ErrorsThatAreOverAreNotTold(t *testing.T) {
	t.Parallel()
	errorCases(t, func(w *orderWorld, v relaytest.Variant, short string) {
		w.change(short+" a@1", short+" b@1")
		c := w.envoy(v).subscribe(short, "a b")
		w.pass(time.Second)
		c.expect(orderForm(v, short+" a@1 b@1")) // and does not answer
		w.change(short + " !b:PermissionDenied")
		c.expect()
		w.change(short + " b@2")
		c.ack(short)
		if complete(v, short) {
			c.hears(short + " {a@1 b@2}")
		} else {
			c.hears(orderForm(v, short+" b@2"))
		}
		c.expect()
	})
}

// What the client gave up by the time that it could be told is not told.
func TestR124_ErrorsOfWhatWasGivenUpAreNotTold(t *testing.T) {
	t.Parallel()
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		orderBubble(t, nil, func(w *orderWorld) {
			w.change("rds a@1", "rds b@1")
			c := w.envoy(v).subscribe("rds", "a b")
			w.pass(time.Second)
			c.expect(orderForm(v, "rds a@1 b@1"))
			w.change("rds !b:Internal")
			c.Unsubscribe(orderTypes["rds"], "b")
			c.ack("rds")
			c.expect()
		})
	})
}

// Who asked for a resource by an alias is told what is wrong with it, by the name that
// the origin says; who has both names, once.
func TestR092_ErrorsReachAliases(t *testing.T) {
	t.Parallel()
	orderBubble(t, nil, func(w *orderWorld) {
		w.change("vhds rc/web@1=rc/a=rc/b")
		c := w.envoy(relaytest.Delta).subscribe("vhds", "rc/a")
		both := w.envoy(relaytest.Delta).subscribe("vhds", "rc/a rc/web")
		w.pass(time.Second)
		c.hears("vhds rc/web@1=rc/a=rc/b")
		both.hears("vhds rc/web@1=rc/a=rc/b")
		both.hears("vhds rc/web@1=rc/a=rc/b") // asked for twice
		w.change("vhds !rc/web:Internal")
		c.hears("vhds !rc/web:Internal")
		both.hears("vhds !rc/web:Internal")
		w.pass(time.Hour)
		both.expect()
		w.change("vhds rc/web@1=rc/a=rc/b")
		c.hears("vhds rc/web@1=rc/a=rc/b")
		both.hears("vhds rc/web@1=rc/a=rc/b")
		w.change("vhds !rc/web:NotFound")
		c.hears("vhds -rc/web")
		c.hears("vhds !rc/web:NotFound")
	})
}

// ackAll accepts what was heard last.
func (c *orderClient) ackAll() {
	for _, r := range c.read {
		c.Ack(r)
	}
	synctest.Wait()
}

// Whatever happens in whatever order, clients end with the errors that the origin has
// said, a name is never in two lists of a response (the clients check that), and
// nothing is said over and over.
func TestD4_ErrorsConverge(t *testing.T) {
	t.Parallel()
	for seed := range uint64(40) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			orderBubble(t, nil, func(w *orderWorld) { errorsConverge(w, rand.New(rand.NewPCG(seed, 39))) })
		})
	}
}

func errorsConverge(w *orderWorld, rng *rand.Rand) {
	short := errorTypes[rng.IntN(len(errorTypes))]
	names := []string{"a", "b", "c", "d"}
	failing := []string{"NotFound", "PermissionDenied", "Unavailable", "Internal"}
	last := make(map[string]string)
	var clients []*orderClient
	var variants []relaytest.Variant
	var whole []bool // whether responses hold the complete set
	join := func() {
		v := []relaytest.Variant{relaytest.Delta, relaytest.SotW}[rng.IntN(2)]
		want := strings.Join(names, " ")
		if rng.IntN(2) == 0 {
			want = "*"
		}
		clients, variants = append(clients, w.ready(v).subscribe(short, want)), append(variants, v)
		whole = append(whole, completeFor(v, short, want))
	}
	join()
	for range 40 {
		name := names[rng.IntN(len(names))]
		switch rng.IntN(6) {
		case 0:
			if len(clients) < 8 {
				join()
			}
		case 1, 2:
			last[name] = fmt.Sprintf("%s@%d", name, rng.IntN(3))
			w.change(short + " " + last[name])
		case 3:
			last[name] = ""
			w.change(short + " -" + name)
		default:
			last[name] = "!" + name + ":" + failing[rng.IntN(len(failing))]
			w.change(short + " " + last[name])
		}
		if rng.IntN(3) == 0 {
			w.pass(time.Duration(rng.IntN(8)) * time.Second)
		}
	}
	w.pass(time.Hour) // removals that are held back come to an end
	before := make([]int, len(clients))
	for i, c := range clients {
		before[i] = len(c.Responses())
	}
	w.pass(time.Hour)
	for i, c := range clients {
		if n := len(c.Responses()) - before[i]; n != 0 {
			w.t.Errorf("%s: %v was sent %d responses without a change", short, c.Client, n)
		}
		has := errorsOf(c)
		for _, name := range names {
			want, failed := strings.CutPrefix(last[name], "!")
			_, have := c.State()[orderTypes[short]][name]
			_, code, _ := strings.Cut(want, ":")
			got, told := has[name]
			told = told && (failed || got != codes.NotFound) // which is as good as to be told that it is gone
			switch {
			case !failed && told && (last[name] != "" || variants[i] == relaytest.Delta): // SotW cannot say that a failing one is gone
				w.t.Errorf("%s: %v was left with error %v of %q, want none", short, c.Client, got, name)
			case failed && !told && (!whole[i] || !have):
				w.t.Errorf("%s: %v was not told that %q fails with %s", short, c.Client, name, code)
			case failed && told && got.String() != code:
				w.t.Errorf("%s: %v was left with error %v of %q, want %s", short, c.Client, got, name, code)
			case !failed && have != (last[name] != "") && variants[i] == relaytest.Delta:
				w.t.Errorf("%s: %v has %q: %t, want %t", short, c.Client, name, have, last[name] != "")
			}
		}
	}
}

// errorsOf returns the errors that a client was told and that nothing has ended.
func errorsOf(c *orderClient) map[string]codes.Code {
	left := make(map[string]codes.Code)
	for _, r := range c.Responses() {
		for _, name := range append(r.Names(), r.Removed...) {
			delete(left, name)
		}
		for _, e := range r.Errors {
			left[e.Name] = e.Code
		}
	}
	return left
}

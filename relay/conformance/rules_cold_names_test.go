package conformance_test

import (
	"testing"
	"time"

	"github.com/xdstender/tender/relay/relaytest"
)

// TestR070_MissingNameIsRemoved: a Delta client that asks for what does not exist
// is told so, once the origin has said it; the next one at once.
func TestR070_MissingNameIsRemoved(t *testing.T) {
	t.Parallel()
	for _, short := range []string{"cds", "eds", "lds", "rds", "acme"} {
		t.Run(short, func(t *testing.T) {
			orderBubble(t, nil, func(w *orderWorld) {
				c := w.ready(relaytest.Delta).subscribe(short, "nope")
				w.pass(time.Second)
				c.expect(short + " -nope")
				next := w.ready(relaytest.Delta).subscribe(short, "nope")
				next.expect(short + " -nope")
				w.pass(time.Minute)
				c.expect()
				next.expect()
			})
		})
	}
}

// TestR071_SilenceUntilTheOriginSpeaks: while the origin has not answered, nobody is
// told that a name does not exist.
func TestR071_SilenceUntilTheOriginSpeaks(t *testing.T) {
	t.Parallel()
	orderBubble(t, nil, func(w *orderWorld) {
		w.origin.Change(func(b *relaytest.Behaviour) { b.Delay = 5 * time.Second })
		delta := w.ready(relaytest.Delta).subscribe("lds", "nope").subscribe("rds", "nope")
		sotw := w.ready(relaytest.SotW).subscribe("lds", "nope").subscribe("rds", "nope")
		w.pass(4900 * time.Millisecond)
		delta.expect()
		sotw.expect()
		w.pass(200 * time.Millisecond)
		delta.expect("lds -nope", "rds -nope")
		sotw.expect("lds {}")
	})
}

// TestR072_MissingNameStaysSubscribed: a name that did not exist is sent when it
// comes to be, whether the origin said that it was missing or was silent.
func TestR072_MissingNameStaysSubscribed(t *testing.T) {
	t.Parallel()
	for _, silent := range []bool{false, true} {
		orderVariants(t, func(t *testing.T, v relaytest.Variant) {
			for _, short := range []string{"cds", "eds", "lds", "rds"} {
				orderBubble(t, nil, func(w *orderWorld) {
					w.origin.Change(func(b *relaytest.Behaviour) { b.SilentOnMissing = silent })
					c := w.ready(v).subscribe(short, "late")
					w.pass(20 * time.Second)
					c.heard()
					w.change(short + " late@1")
					c.expect(orderForm(v, short+" late@1"))
				})
			}
		})
	}
}

// TestR074_NewNameIsAskedForAtOnce: clients take silence for absence after 15s, so
// the relay adds next to nothing to the time that its origin takes.
func TestR074_NewNameIsAskedForAtOnce(t *testing.T) {
	t.Parallel()
	const added = 10 * time.Millisecond
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		for _, short := range []string{"cds", "eds", "lds", "rds"} {
			orderBubble(t, nil, func(w *orderWorld) {
				w.change(short+" a@1", short+" b@1")
				c := w.ready(v).subscribe(short, "a")
				w.pass(added)
				c.expect(orderForm(v, short+" a@1"))
				w.origin.Change(func(b *relaytest.Behaviour) { b.Delay = time.Second })
				c.Subscribe(orderTypes[short], "a", "b")
				if v == relaytest.SotW {
					c.expect()
				} else {
					c.expect(short + " a@1") // asked for again
				}
				w.pass(time.Second + added)
				want := orderForm(v, short+" b@1")
				if v == relaytest.SotW && (short == "cds" || short == "lds") {
					want = short + " {a@1 b@1}"
				}
				c.expect(want)
			})
		}
	})
}

// TestR075_NothingIsLeftOutBeforeItIsKnown: a SotW client that may hold A and B gets
// no set without A only because the origin has answered for B first.
func TestR075_NothingIsLeftOutBeforeItIsKnown(t *testing.T) {
	t.Parallel()
	for _, short := range []string{"cds", "lds"} {
		for answer, want := range map[string]string{short + " a@1": short + " {a@1 b@1}", short + " -a": short + " {b@1}"} {
			orderBubble(t, nil, func(w *orderWorld) {
				w.manual()
				c := w.envoy(relaytest.SotW).returns(relaytest.SotW, short, "a b", "")
				s := w.accept()
				w.pass(time.Second)
				w.say(s, short+" b@1")
				w.pass(8 * time.Second)
				c.expect()
				w.say(s, answer)
				c.hears(want)
			})
		}
	}
}

// TestB7_HoldIsBounded: with the origin up, a set is held back for a name that the
// origin is silent on, 10s from when it was asked: who comes later does not wait
// again, and a name that is added later waits for itself.
func TestB7_HoldIsBounded(t *testing.T) {
	t.Parallel()
	for _, short := range []string{"cds", "lds"} {
		for _, stateful := range []bool{false, true} {
			orderBubble(t, nil, func(w *orderWorld) {
				w.origin.Change(func(b *relaytest.Behaviour) { b.SilentOnMissing = true })
				w.change(short + " a@1")
				open := func(names string) *orderClient {
					c := w.envoy(relaytest.SotW)
					if stateful {
						return c.returns(relaytest.SotW, short, names, "")
					}
					return c.subscribe(short, names)
				}
				first := open("a b")
				w.pass(6 * time.Second)
				second := open("a b")
				w.pass(3900 * time.Millisecond)
				first.expect()
				second.expect()
				w.pass(200 * time.Millisecond)
				first.hears(short + " {a@1}")
				second.hears(short + " {a@1}")
				w.pass(3 * time.Minute)
				third := open("a b")
				third.hears(short + " {a@1}")
				w.change(short + " a@2")
				first.hears(short + " {a@2}") // nothing waits any more
				w.change(short + " b@1")
				first.hears(short + " {a@2 b@1}")
			})
		}
	}
}

// TestB7_OtherSotWTypesWaitForNothing: of types whose responses need not be complete,
// what is known is sent while other names are unknown.
func TestB7_OtherSotWTypesWaitForNothing(t *testing.T) {
	t.Parallel()
	for _, short := range []string{"eds", "rds"} {
		orderBubble(t, nil, func(w *orderWorld) {
			w.origin.Change(func(b *relaytest.Behaviour) { b.SilentOnMissing = true })
			w.change(short + " a@1")
			c := w.envoy(relaytest.SotW).returns(relaytest.SotW, short, "a b", "")
			w.pass(10 * time.Millisecond)
			c.hears(short + " {a@1}")
			w.pass(time.Minute)
			c.expect()
		})
	}
}

// TestB7_OriginDown: of what was asked for and never answered, nobody is told
// anything while the origin is down; what is known is served, however old.
func TestB7_OriginDown(t *testing.T) {
	t.Parallel()
	served := func(w *orderWorld, short string) {
		w.change(short+" a@1", short+" b@1")
		w.ready(relaytest.Delta).subscribe(short, "a")
		w.pass(time.Second)
		w.stop()
		w.pass(3 * time.Minute)
	}
	t.Run("delta", func(t *testing.T) {
		orderBubble(t, nil, func(w *orderWorld) {
			served(w, "lds")
			c := w.envoy(relaytest.Delta).subscribe("lds", "a b")
			c.hears("lds a@1")
			w.pass(3 * time.Minute)
			c.expect()
			w.restart()
			c.hears("lds b@1")
		})
	})
	t.Run("sotw with state", func(t *testing.T) {
		orderBubble(t, nil, func(w *orderWorld) {
			served(w, "lds")
			c := w.envoy(relaytest.SotW).returns(relaytest.SotW, "lds", "a b", "")
			w.pass(3 * time.Minute)
			c.expect()
			w.restart()
			c.hears("lds {a@1 b@1}")
		})
	})
	t.Run("sotw with state, all known", func(t *testing.T) {
		orderBubble(t, nil, func(w *orderWorld) {
			served(w, "lds")
			w.envoy(relaytest.SotW).returns(relaytest.SotW, "lds", "a", "").hears("lds {a@1}")
		})
	})
	t.Run("sotw without state", func(t *testing.T) {
		orderBubble(t, nil, func(w *orderWorld) {
			served(w, "lds")
			c := w.envoy(relaytest.SotW).subscribe("lds", "a b")
			w.pass(9900 * time.Millisecond)
			c.expect()
			w.pass(200 * time.Millisecond)
			c.hears("lds {a@1}")
			w.restart()
			c.hears("lds {a@1 b@1}")
		})
	})
	t.Run("sotw, partial type", func(t *testing.T) {
		orderBubble(t, nil, func(w *orderWorld) {
			served(w, "rds")
			c := w.envoy(relaytest.SotW).subscribe("rds", "a b")
			c.hears("rds {a@1}")
			w.pass(3 * time.Minute)
			c.expect()
		})
	})
}

// TestB7_AbsentBeforeADisconnect: what the origin called missing before it was lost
// has to be said again before anybody is told.
func TestB7_AbsentBeforeADisconnect(t *testing.T) {
	t.Parallel()
	orderBubble(t, nil, func(w *orderWorld) {
		w.change("lds a@1")
		omitted := w.envoy(relaytest.SotW).subscribe("lds", "a b")
		w.pass(time.Second)
		omitted.hears("lds {a@1}")
		w.stop()
		w.manual()

		delta := w.envoy(relaytest.Delta).subscribe("lds", "a b")
		delta.hears("lds a@1")
		sotw := w.envoy(relaytest.SotW).returns(relaytest.SotW, "lds", "a b", "")
		w.pass(3 * time.Minute)
		delta.expect()
		sotw.expect()

		w.origin.Restart()
		s := w.accept()
		w.pass(time.Second)
		w.say(s, "lds a@2")
		omitted.hears("lds {a@2}") // what was omitted stays so
		delta.hears("lds a@2")
		sotw.expect()
		w.say(s, "lds -b")
		omitted.expect()
		delta.hears("lds -b")
		sotw.hears("lds {a@2}")
	})
}

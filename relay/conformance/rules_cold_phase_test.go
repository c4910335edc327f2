package conformance_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/xdstender/tender/relay/relaytest"
)

// TestB7_SettledForClientsWithoutState: an initial set has no end mark. Clients that
// hold nothing are answered once the origin has been quiet for 150ms, or after 2s.
func TestB7_SettledForClientsWithoutState(t *testing.T) {
	t.Parallel()
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		orderBubble(t, nil, func(w *orderWorld) {
			w.manual()
			c := w.envoy(v).subscribe("cds", "")
			s := w.accept()
			w.pass(time.Minute) // an origin that has not answered is not empty
			c.expect()
			w.say(s, "cds a@1")
			w.pass(100 * time.Millisecond)
			w.say(s, "cds b@1")
			w.pass(149 * time.Millisecond)
			c.expect()
			w.pass(time.Millisecond)
			c.hears(orderForm(v, "cds a@1 b@1"))
		})
		orderBubble(t, nil, func(w *orderWorld) {
			w.manual()
			c := w.envoy(v).subscribe("cds", "")
			s := w.accept()
			for i := range 20 {
				w.say(s, fmt.Sprintf("cds c%02d@1", i))
				c.expect()
				w.pass(100 * time.Millisecond)
			}
			if got := c.heard(); len(got) != 1 || strings.Count(got[0], "@") != 20 {
				t.Errorf("after 2s: got %q, want the 20 clusters", got)
			}
		})
	})
}

// TestB7_ConfirmedForClientsWithState: a client that holds something learns from an
// absence only once no new name has come for TENDER_COLD_WAIT, in a set or as a removal.
func TestB7_ConfirmedForClientsWithState(t *testing.T) {
	t.Parallel()
	for _, short := range []string{"cds", "lds", "srds"} {
		t.Run("sotw "+short, func(t *testing.T) {
			orderBubble(t, nil, func(w *orderWorld) {
				w.manual()
				c := w.envoy(relaytest.SotW).returns(relaytest.SotW, short, "", "")
				s := w.accept()
				w.pass(time.Second)
				w.say(s, short+" a@1")
				w.pass(9 * time.Second)
				w.say(s, short+" b@1") // a new name
				w.pass(8 * time.Second)
				w.say(s, short+" b@2") // not one
				w.pass(1900 * time.Millisecond)
				c.expect()
				w.pass(200 * time.Millisecond)
				c.hears(short + " {a@1 b@2}")
			})
		})
		t.Run("delta "+short, func(t *testing.T) {
			orderBubble(t, nil, func(w *orderWorld) {
				w.manual()
				c := w.envoy(relaytest.Delta).returns(relaytest.Delta, short, "", "a gone")
				s := w.accept()
				w.pass(time.Second)
				w.say(s, short+" a@1")
				w.pass(time.Second)
				c.hears(short + " a@1")
				w.pass(8900 * time.Millisecond)
				c.expect()
				w.pass(200 * time.Millisecond)
				c.hears(short + " -gone")
				w.pass(time.Minute)
				c.expect()
			})
		})
	}
}

// TestB7_ConfirmedThoughTheClientNeverAnswers: the removal does not need the answer
// for what was sent before, only the end of the wait for it.
func TestB7_ConfirmedThoughTheClientNeverAnswers(t *testing.T) {
	t.Parallel()
	for _, short := range []string{"cds", "lds"} {
		orderBubble(t, []string{"TENDER_ACK_WAIT=30s"}, func(w *orderWorld) {
			w.change(short + " a@1")
			w.ready(relaytest.Delta).subscribe(short, "")
			w.settle()
			c := w.envoy(relaytest.Delta).returns(relaytest.Delta, short, "", "a gone")
			c.expect(short + " a@1")
			w.pass(29 * time.Second)
			c.expect()
			w.pass(time.Second)
			c.expect(short + " -gone")
		})
	}
}

// TestH04_LargeRemovalsForAReturningClientAreHeld: if much of what a client holds was never heard of,
// it is removed only after a hold: it looks like an origin that lost
// its state. What comes to be meanwhile is never removed.
func TestH04_LargeRemovalsForAReturningClientAreHeld(t *testing.T) {
	t.Parallel()
	held := func(n int) string {
		var names []string
		for i := range n {
			names = append(names, fmt.Sprintf("n%03d", i))
		}
		return strings.Join(names, " ")
	}
	present := func(from, to int) (changes []string) {
		for i := from; i < to; i++ {
			changes = append(changes, fmt.Sprintf("cds n%03d@1", i))
		}
		return changes
	}
	for _, tt := range []struct {
		name          string
		holds, exists int
		want          time.Duration
	}{
		{"ten of a hundred", 100, 90, 0},
		{"half of ten", 10, 5, 0},
		{"more than half", 10, 4, 10 * time.Minute},
		{"more than ten and than a tenth", 100, 89, 10 * time.Minute},
		{"ten of ten", 10, 0, 10 * time.Minute},
	} {
		t.Run(tt.name, func(t *testing.T) {
			orderBubble(t, nil, func(w *orderWorld) {
				w.change(present(0, tt.exists)...)
				c := w.ready(relaytest.Delta).returns(relaytest.Delta, "cds", "", held(tt.holds))
				removed := func() (n int) {
					for _, r := range c.heard() {
						n += strings.Count(r, "-n")
					}
					return n
				}
				w.pass(9 * time.Second)
				if n := removed(); n > 0 {
					t.Fatalf("%d removals before the set was confirmed", n)
				}
				w.pass(2 * time.Second)
				if tt.want > 0 {
					w.pass(tt.want - 2*time.Second)
					if n := removed(); n > 0 {
						t.Fatalf("%d removals before the hold was over", n)
					}
					w.pass(20 * time.Second) // with a second look at the origin
				}
				if n := removed(); n != tt.holds-tt.exists {
					t.Errorf("%d removals, want %d", n, tt.holds-tt.exists)
				}
			})
		})
	}
	t.Run("they come back", func(t *testing.T) {
		orderBubble(t, []string{"TENDER_MASS_DELETE_HOLD=1m"}, func(w *orderWorld) {
			c := w.ready(relaytest.Delta).returns(relaytest.Delta, "cds", "", held(20))
			w.pass(30 * time.Second)
			w.change(present(0, 18)...)
			w.pass(2 * time.Minute)
			all := strings.Join(c.heard(), "; ")
			if strings.Count(all, "@1") != 18 || strings.Count(all, "-n") != 2 || !strings.Contains(all, "-n018 -n019") {
				t.Errorf("got %s, want n00 to n17, and n18 and n19 removed", all)
			}
		})
	})
}

// TestC15_InterruptedFirstSetIsNotComplete: an origin that dies amid its first set has
// not said that the rest does not exist. Silence counts only on a connection.
func TestC15_InterruptedFirstSetIsNotComplete(t *testing.T) {
	t.Parallel()
	for _, pause := range []time.Duration{0, time.Second} { // not settled; settled, but not confirmed
		orderVariants(t, func(t *testing.T, v relaytest.Variant) {
			orderBubble(t, nil, func(w *orderWorld) {
				w.manual()
				held := w.envoy(v).returns(v, "cds", "", "a b")
				s := w.accept()
				w.pass(time.Second)
				w.say(s, "cds a@1")
				w.pass(pause)
				w.stop()
				w.pass(9 * time.Second)
				for _, got := range held.heard() {
					if v == relaytest.SotW || strings.Contains(got, "-b") {
						t.Errorf("a client with state was told %q by half a set", got)
					}
				}
				if pause == 0 {
					w.envoy(v).subscribe("cds", "").endsUnserved()
				}
			})
		})
	}
}

// TestC15_EmptyOriginAfterARestart: an origin that comes back with nothing has not
// said that all is gone.
func TestC15_EmptyOriginAfterARestart(t *testing.T) {
	t.Parallel()
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		orderBubble(t, nil, func(w *orderWorld) {
			w.change("cds a@1", "cds b@1", "lds l@1")
			c := w.ready(v).subscribe("cds", "").subscribe("lds", "")
			w.settle()
			c.heard()
			w.stop()
			w.manual()
			w.origin.Restart()
			w.accept()
			w.pass(10 * time.Minute)
			c.expect()
			fresh := w.ready(v).subscribe("cds", "")
			fresh.expect(orderForm(v, "cds a@1 b@1"))
		})
	})
}

// TestC29_NothingIsEvictedUnderSubscribers: whatever limits what lingers, and whoever
// comes or goes, a subscribed stream keeps its names and hears of nothing.
func TestC29_NothingIsEvictedUnderSubscribers(t *testing.T) {
	t.Parallel()
	orderVariants(t, func(t *testing.T, v relaytest.Variant) {
		orderBubble(t, []string{"TENDER_MAX_LINGERING=1", "TENDER_LINGER=1m", "TENDER_WILDCARD_LINGER=2m"}, func(w *orderWorld) {
			for i := range 8 {
				w.change(fmt.Sprintf("rds r%d@1", i), fmt.Sprintf("cds c%d@1", i))
			}
			stays := w.ready(v).subscribe("rds", "r0 r1").subscribe("cds", "c0")
			w.settle()
			stays.heard()
			for i := range 4 {
				guest := w.ready(v).subscribe("rds", fmt.Sprintf("r1 r%d r%d", 2*i, 2*i+1)).subscribe("cds", "*")
				w.settle()
				guest.Close()
				w.pass(5 * time.Minute) // all that lingers has expired
			}
			stays.expect()
			if names := w.origin.State().Names(relaytest.RouteType); strings.Join(names, " ") != "r0 r1" {
				t.Errorf("subscribed at the origin: %q, want r0 and r1", names)
			}
			if names := w.origin.State().Names(relaytest.ClusterType); strings.Join(names, " ") != "c0" {
				t.Errorf("subscribed at the origin: %q, want c0", names)
			}
			w.change("rds r1@2")
			stays.expect(orderForm(v, "rds r1@2"))
			w.change("cds c0@2")
			stays.expect(orderForm(v, "cds c0@2"))
		})
	})
}

package conformance_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
)

// Changes that wait for the minimum push interval when an operator rolls back are not sent before the thaw.
func TestB45_RollbacksWithinAnInterval(t *testing.T) {
	t.Parallel()
	const interval = 10 * time.Second
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		o.Put(relaytest.Cluster("a"), relaytest.Listener("l", "r"))
		r := start(t, o, operated, "TENDER_MIN_PUSH_INTERVAL=cds=10s,lds=10s")
		c := r.Client(relaytest.ClientOptions{Variant: v, AutoAck: true})
		c.Subscribe(typeCDS)
		c.Subscribe(typeLDS)
		has := func(when, cluster, listener string) {
			t.Helper()
			s := c.State()
			if s.Digest(typeCDS, "a") != relaytest.DigestOf(relaytest.Cluster("a", cluster)) ||
				s.Digest(typeLDS, "l") != relaytest.DigestOf(relaytest.Listener("l", listener)) {
				t.Errorf("%s: want the client to have the cluster of %q and the listener of %q", when, cluster, listener)
			}
		}
		pass := func(d time.Duration) {
			sleep(d)
		}
		change := func(cluster, listener string) {
			o.Apply(func(tx *relaytest.Tx) { tx.Put(relaytest.Cluster("a", cluster), relaytest.Listener("l", listener)) })
			pass(time.Second)
		}
		pass(time.Minute)
		change("good", "good")
		has("the first change is sent at once", "good", "good")
		pass(time.Minute)
		good := generationsOf(t, r)[0].Generation
		change("bad", "bad")
		has("as is the next one after a pause", "bad", "bad")
		pass(2 * time.Second)
		change("worse", "worse")
		has("one within the interval waits", "bad", "bad")
		seen := len(c.Responses())

		operate[admin.RollbackScope, admin.Rollbacks](t, r, "rollback",
			admin.RollbackScope{To: good, Why: admin.Why{Reason: "bad"}})
		pass(interval)
		has("rolled back", "good", "good")
		change("later", "later")
		pass(interval)
		has("a change waits for the thaw", "good", "good")
		r.thaw()
		pass(interval)
		has("thawed", "later", "later")
		change("last", "last")
		pass(interval)
		has("changes go on", "last", "last")

		worse := relaytest.DigestOf(relaytest.Cluster("a", "worse"))
		for _, response := range c.Responses()[seen:] {
			for _, res := range response.Resources {
				if res.Digest == worse {
					t.Errorf("the client got changes that were waiting: %v", response)
				}
			}
		}
	})
}

// A rollback and a thaw are sent at once, also within an interval: they are decisions of an operator. Clusters are sent before
// listeners and removed after them. Changes that wait for the interval are not part of them. Finally, clients have exactly the
// generation.
func TestB45_RollbacksKeepTheOrder(t *testing.T) {
	t.Parallel()
	const interval = 10 * time.Second
	eachVariant(t, func(t *testing.T, v relaytest.Variant) {
		worldBubble(t, []string{operated, "TENDER_MIN_PUSH_INTERVAL=cds=10s"}, func(w *world) {
			w.change("cds a@1", "cds b@1", "lds l@1")
			c := w.autoClient(v).subscribe("cds", "").subscribe("lds", "")
			w.sleep(time.Minute)
			good := generationsOf(w.t, w.relay)[0].Generation
			w.change("cds a@2", "cds c@1", "cds -b", "lds l@2", "lds new@2")
			w.sleep(time.Minute)
			c.ackPending()

			rollBack := func() { w.relay.rollback(good) }
			thaw := func() { w.relay.thaw() }
			// sent expects responses now, and others after the rest of the interval.
			sent := func(now, then []string) {
				w.t.Helper()
				w.sleep(time.Millisecond)
				c.expect(now...)
				w.sleep(interval)
				c.expect(then...)
			}
			exact := func() {
				w.t.Helper()
				late := w.autoClient(v).subscribe("cds", "").subscribe("lds", "")
				w.sleep(time.Second)
				for _, typeURL := range []string{relaytest.ClusterType, relaytest.ListenerType} {
					diff := cmp.Diff(late.State()[typeURL], c.State()[typeURL])
					if diff != "" || len(c.State()[typeURL]) == 0 {
						w.t.Errorf("the client differs from a new one (-new +got):\n%s", diff)
					}
				}
				late.Close()
			}
			either := func(delta, sotw []string) []string {
				return map[relaytest.Variant][]string{relaytest.Delta: delta, relaytest.SotW: sotw}[v]
			}

			rollBack()
			sent(either(
				[]string{"cds a@1 b@1", "lds l@1 -new", "cds -c"},
				[]string{"cds {a@1 b@1 c@1}", "lds {l@1}", "cds {a@1 b@1}"},
			), nil)
			exact()
			thaw()
			sent(either(
				[]string{"cds a@2 c@1", "lds l@2 new@2", "cds -b"},
				[]string{"cds {a@2 b@1 c@1}", "lds {l@2 new@2}", "cds {a@2 c@1}"},
			), nil)
			exact()

			w.sleep(time.Minute)
			w.change("cds a@3")
			c.expect(formatFor(v, either([]string{"cds a@3"}, []string{"cds a@3 c@1"})[0]))
			w.sleep(3 * time.Second)
			w.change("cds a@4", "cds -c", "lds l@4", "lds -new") // waits
			rollBack()
			sent(either(
				[]string{"cds a@1 b@1", "lds l@1 -new", "cds -c"},
				[]string{"cds {a@1 b@1 c@1}", "lds {l@1}", "cds {a@1 b@1}"},
			), nil)
			exact()
			thaw()
			sent(either(
				[]string{"cds a@4", "lds l@4", "cds -b"},
				[]string{"cds {a@4 b@1}", "lds {l@4}", "cds {a@4}"},
			), nil)
			exact()
		})
	})
}

package conformance_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
)

// TestB45_RollbacksWithinAnInterval: a rollback and a thaw wait for the minimum push interval at most, and what waited before never
// reaches clients: neither before the earlier generation nor after it.
func TestB45_RollbacksWithinAnInterval(t *testing.T) {
	t.Parallel()
	const interval = 10 * time.Second
	streamEach(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		o.Put(relaytest.Cluster("a"), relaytest.Listener("l", "r"))
		r := start(t, o, operated, "TENDER_MIN_PUSH_INTERVAL=cds=10s,lds=10s")
		c := r.Client(relaytest.ClientOptions{Variant: v, AutoAck: true})
		c.Subscribe(streamCDS)
		c.Subscribe(streamLDS)
		has := func(when, cluster, listener string) {
			t.Helper()
			s := c.State()
			if s.Digest(streamCDS, "a") != relaytest.DigestOf(relaytest.Cluster("a", cluster)) || s.Digest(streamLDS, "l") != relaytest.DigestOf(relaytest.Listener("l", listener)) {
				t.Errorf("%s: the client has not the cluster of %q and the listener of %q", when, cluster, listener)
			}
		}
		pass := func(d time.Duration) {
			time.Sleep(d)
			synctest.Wait()
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

		operate[admin.RollbackScope, admin.Rollbacks](t, r, "rollback", admin.RollbackScope{To: good, Why: admin.Why{Reason: "bad"}})
		pass(interval)
		has("rolled back", "good", "good")
		change("later", "later")
		pass(interval)
		has("a change waits for the thaw", "good", "good")
		operate[admin.FreezeScope, admin.Freezes](t, r, "thaw", admin.FreezeScope{})
		pass(interval)
		has("thawed", "later", "later")
		change("last", "last")
		pass(interval)
		has("changes go on", "last", "last")

		worse := relaytest.DigestOf(relaytest.Cluster("a", "worse"))
		for _, response := range c.Responses()[seen:] {
			for _, res := range response.Resources {
				if res.Digest == worse {
					t.Errorf("the client was sent what had waited: %v", response)
				}
			}
		}
	})
}

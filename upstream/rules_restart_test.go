package upstream_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/upstream"
)

// afterRestart runs a test with a view that was restored from the snapshot of an earlier process. The origin contains
// the clusters a@1 and b@1, subscribed to by wildcard, and the endpoints x@1, subscribed to by name. Stream 0 is that
// of the earlier process.
func afterRestart(t *testing.T, b relaytest.Behaviour, cfg upstream.Config, test func(t *testing.T, r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		o := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true})
		old := viewSync(t, o, cfg)
		old.put(clusters, "a@1", "b@1")
		old.put(endpoints, "x@1")
		old.watch.SubscribeAll(clusters)
		old.watch.Subscribe(endpoints, []string{"x"})
		old.pass(10 * time.Second)
		old.stop()
		s, _ := old.w.Snapshot(true)
		o.Change(func(now *relaytest.Behaviour) { *now = b })
		test(t, restored(t, o, cfg, s))
	})
}

// phase returns the phase of the wildcard set of a type or collection.
func (r *rig) phase(typeURL string) cache.Phase { return r.view.Generation().Type(typeURL).Phase }

// TestR089_FirstStreamAfterRestartReportsVersions: the first stream after a restart reports the cached versions, and
// subscribes to the resources of earlier clients.
func TestR089_FirstStreamAfterRestartReportsVersions(t *testing.T) {
	afterRestart(t, relaytest.Behaviour{}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.expect("members before the first stream", r.members(clusters), "a@1 b@1")
		seq := r.view.Generation().Seq
		r.pass(soon)
		r.expect("requests", r.conversation(1), "[Cluster node a=1 b=1] [ClusterLoadAssignment +x x=1]")
		r.pass(time.Minute)
		if now := r.view.Generation().Seq; now != seq {
			t.Errorf("the position changed from %d to %d although the origin has not changed", seq, now)
		}
	})
}

// TestB15_NoVersionsReportedToAnotherTarget: the relay does not report versions to another target, where they may mean
// other content.
func TestB15_NoVersionsReportedToAnotherTarget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true})
		old := viewSync(t, o, upstream.Config{})
		old.put(clusters, "a@1")
		old.watch.SubscribeAll(clusters)
		old.pass(10 * time.Second)
		old.stop()
		s, _ := old.w.Snapshot(true)
		if s.Target != o.Target() {
			t.Errorf("target of the snapshot: %q, want %q", s.Target, o.Target())
		}
		s.Target = "passthrough:///another"
		r := restored(t, o, upstream.Config{}, s)
		r.pass(10 * time.Second)
		r.expect("requests", r.conversation(1), "[Cluster node] [Cluster ack 1]")
		if s, _ := r.w.Snapshot(true); s.Target != o.Target() {
			t.Errorf("target of the snapshot after a resend: %q, want %q", s.Target, o.Target())
		}
	})
}

// TestB42_RemovalsDuringRestartAreApplied: after a restart, exactly the resources are removed that the origin removed
// while the relay was stopped.
func TestB42_RemovalsDuringRestartAreApplied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true})
		old := viewSync(t, o, upstream.Config{})
		old.put(clusters, "a@1", "b@1", "c@1")
		old.watch.SubscribeAll(clusters)
		old.pass(10 * time.Second)
		old.stop()
		s, _ := old.w.Snapshot(true)
		o.Apply(func(tx *relaytest.Tx) {
			tx.Remove(clusters, "b")
			putIn(tx, clusters, "c@2")
		})
		r := restored(t, o, upstream.Config{}, s)
		r.pass(soon)
		r.expect("members before the set is confirmed", present(r.members(clusters)), "a@1 b@1 c@2")
		r.pass(confirmed)
		r.expect("members once the set is confirmed", present(r.members(clusters)), "a@1 c@2")
	})
}

// TestB7_RestoredSetIsConfirmedByTheOrigin: a restored set is confirmed 10s after the last new name, or after 15s
// without a response to the reported versions. Without the origin it is never confirmed.
func TestB7_RestoredSetIsConfirmedByTheOrigin(t *testing.T) {
	t.Run("answer", func(t *testing.T) {
		afterRestart(t, relaytest.Behaviour{Manual: true}, upstream.Config{}, func(t *testing.T, r *rig) {
			r.Accept(t.Context()) // the stream of the earlier process
			s := r.Accept(t.Context())
			s.Send(response(clusters, "c@1"))
			r.pass(9 * time.Second)
			r.expect("after 9s", r.phase(clusters).String(), "settled")
			r.pass(2 * time.Second)
			r.expect("after 11s", r.phase(clusters).String(), "confirmed")
			r.expect("members", r.members(clusters), "a@1 b@1 c@1")
		})
	})
	t.Run("silence", func(t *testing.T) {
		afterRestart(t, relaytest.Behaviour{Manual: true}, upstream.Config{}, func(t *testing.T, r *rig) {
			r.pass(14 * time.Second)
			r.expect("after 14s", r.phase(clusters).String(), "settled")
			r.pass(2 * time.Second)
			r.expect("after 16s", r.phase(clusters).String(), "confirmed")
			r.expect("members", r.members(clusters), "a@1 b@1")
		})
	})
	t.Run("no origin", func(t *testing.T) {
		afterRestart(t, relaytest.Behaviour{}, upstream.Config{}, func(t *testing.T, r *rig) {
			r.Stop()
			r.pass(10 * time.Minute)
			r.expect("after 10m", r.phase(clusters).String(), "settled")
			r.expect("members", r.members(clusters), "a@1 b@1")
		})
	})
}

// TestB42_RestoredResourcesLinger: restored resources linger as if clients had just disconnected.
func TestB42_RestoredResourcesLinger(t *testing.T) {
	cfg := upstream.Config{Linger: time.Minute, WildcardLinger: 3 * time.Minute}
	afterRestart(t, relaytest.Behaviour{}, cfg, func(t *testing.T, r *rig) {
		r.namedAfter(45*time.Second, "names after 45s", endpoints, "x@1")
		r.namedAfter(30*time.Second, "names after 75s", endpoints, "")
		r.expect("members after 75s", r.members(clusters), "a@1 b@1")
		r.membersAfter(3*time.Minute, "members after 255s", clusters, "")
		r.expect("last two words of the requests", tail(r.conversation(2), 2), "-x] [Cluster -*]")
	})
}

// tail returns the last n words of a text.
func tail(text string, n int) string {
	for at := len(text) - 1; at >= 0; at-- {
		if text[at] != ' ' {
			continue
		}
		if n--; n < 0 {
			return text[at+1:]
		}
	}
	return text
}

// TestB42_ReturningClientsKeepRestoredResources: restored resources stay while returning clients need them, and are not
// requested twice.
func TestB42_ReturningClientsKeepRestoredResources(t *testing.T) {
	cfg := upstream.Config{Linger: time.Minute, WildcardLinger: time.Minute}
	afterRestart(t, relaytest.Behaviour{}, cfg, func(t *testing.T, r *rig) {
		r.watch.SubscribeAll(clusters)
		r.pass(soon)
		r.watch.Subscribe(endpoints, []string{"x"})
		r.membersAfter(10*time.Minute, "members", clusters, "a@1 b@1")
		r.expect("names", r.named(endpoints), "x@1")
		r.expect("requests", r.conversation(1), "[Cluster node a=1 b=1] [ClusterLoadAssignment +x x=1]")
	})
}

// TestB15_FullResyncOnceForAnotherInstanceAfterRestart: as after a reconnect, another instance after a restart causes
// one full resync.
func TestB15_FullResyncOnceForAnotherInstanceAfterRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true})
		o.SetControlPlane("one")
		old := viewSync(t, o, upstream.Config{})
		old.put(clusters, "a@1")
		old.watch.SubscribeAll(clusters)
		old.pass(10 * time.Second)
		old.stop()
		s, _ := old.w.Snapshot(true)
		o.SetControlPlane("two")
		r := restored(t, o, upstream.Config{}, s)
		r.pass(soon)
		r.put(clusters, "b@1")
		r.pass(30 * time.Second)
		r.expect("first stream", r.conversation(1), "[Cluster node a=1] [Cluster ack 1]")
		r.expect("second stream", r.conversation(2), "[Cluster node] [Cluster ack 1]")
	})
}

// TestB42_RestoredGlobsAreSubscribed: the relay subscribes to restored globs and reports the versions of their members.
func TestB42_RestoredGlobsAreSubscribed(t *testing.T) {
	const glob, member = "xdstp://a/envoy.config.cluster.v3.Cluster/*", "xdstp://a/envoy.config.cluster.v3.Cluster/m"
	cfg := upstream.Config{WildcardLinger: time.Minute}
	synctest.Test(t, func(t *testing.T) {
		o := relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true})
		old := viewSync(t, o, cfg)
		old.put(clusters, member+"@1")
		old.watch.SubscribeAll(cache.Collection(clusters, glob))
		old.pass(10 * time.Second)
		old.stop()
		s, _ := old.w.Snapshot(true)
		r := restored(t, o, cfg, s)
		r.pass(20 * time.Second)
		r.expect("first request", r.conversation(1), "[Cluster node +"+glob+" "+member+"=1]")
		r.expect("phase", r.phase(cache.Collection(clusters, glob)).String(), "confirmed")
		r.pass(time.Minute)
		r.expect("requests after the linger time", r.conversation(2), "[Cluster node +"+glob+"] [Cluster ack 1] [Cluster -"+glob+"]")
	})
}

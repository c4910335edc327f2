package upstream_test

import (
	"slices"
	"testing"
	"time"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/upstream"
	"github.com/xdstender/tender/upstream/reconcile"
)

// Commands for the pending removals of every type.
var (
	pass = reconcile.Command{Do: reconcile.Pass}
	drop = reconcile.Command{Do: reconcile.Drop}
)

// heldNow returns the number of removals that are held.
func heldNow(s *upstream.Session) int {
	pending := s.Stats().Pending
	return pending[reconcile.SecondLook] + pending[reconcile.LargeRemoval]
}

// expectHolds fails the test unless held removals are pending and kept ones dropped.
func (r *rig) expectHolds(when string, held, kept int) {
	r.t.Helper()
	gotHeld, gotKept := 0, 0
	for _, h := range r.control.Operate(r.t.Context(), reconcile.Command{}) {
		if h.Reason == reconcile.Dropped {
			gotKept += len(h.Names)
		} else {
			gotHeld += len(h.Names)
		}
	}
	if gotHeld != held || gotKept != kept || heldNow(r.session) != held {
		r.t.Errorf("%s: %d removals pending (status: %d) and %d dropped, want %d and %d",
			when, gotHeld, heldNow(r.session), gotKept, held, kept)
	}
}

// TestB15_Pass: a removal that an operator passes is applied at once.
func TestB15_Pass(t *testing.T) {
	losesHalf(t, func(t *testing.T, r *rig) {
		r.expectHolds("before", 50, 0)
		if got := r.control.Operate(t.Context(), reconcile.Command{Do: reconcile.Pass, TypeURL: listeners}); len(got) != 0 || r.count() != 100 {
			t.Errorf("passed %d holds of another type, %d members remain; want 0 and 100", len(got), r.count())
		}
		got := r.control.Operate(t.Context(), pass)
		if len(got) != 1 || got[0].TypeURL != clusters || !slices.Equal(got[0].Names, lost()) || got[0].Until.Sub(got[0].Since) != 10*time.Minute {
			t.Errorf("passed %+v, want the 50 clusters with a hold of 10 minutes", got)
		}
		r.clustersAfter(0, "members", 50)
		r.expectHolds("after", 0, 0)
		if s := r.session.Stats(); s.Held != 50 || s.Applied != 50 {
			t.Errorf("%d removals counted as held and %d as applied, want 50 and 50", s.Held, s.Applied)
		}
		streams := r.streams()
		r.pass(longAfter)
		if n := r.log.count(heldLine); n != 1 || r.streams() != streams {
			t.Errorf("%d log lines about held removals and %d further streams, want 1 and 0: no removal is pending", n, r.streams()-streams)
		}
	})
}

// TestB15_PassBackwards: resources that reference clusters are removed before them (B.11).
func TestB15_PassBackwards(t *testing.T) {
	inBubble(t, forgetful, upstream.Config{}, func(t *testing.T, r *rig) {
		for _, typeURL := range []string{clusters, listeners} {
			r.put(typeURL, numbered(100)...)
			r.watch.SubscribeAll(typeURL)
		}
		r.pass(confirmed)
		r.changeWhileDown(func(tx *relaytest.Tx) {
			removing(clusters, lost()...)(tx)
			removing(listeners, lost()...)(tx)
		})
		r.pass(2 * time.Minute)
		got := r.control.Operate(t.Context(), pass)
		if len(got) != 2 || got[0].TypeURL != listeners || got[1].TypeURL != clusters {
			t.Errorf("passed %+v, want listeners, then clusters", got)
		}
	})
}

// TestB15_Drop: a resource whose removal an operator dropped stays without another hold or log line, until the
// origin mentions it.
func TestB15_Drop(t *testing.T) {
	losesHalf(t, func(t *testing.T, r *rig) {
		if got := r.control.Operate(t.Context(), drop); len(got) != 1 || len(got[0].Names) != 50 {
			t.Errorf("dropped %+v, want one hold of 50", got)
		}
		r.expectHolds("dropped", 0, 50)
		if got := r.session.Stats(); got.Dropped != 50 || got.Held != 50 || got.Applied != 0 {
			t.Errorf("counted: %d dropped, %d held, %d applied; want 50, 50 and none", got.Dropped, got.Held, got.Applied)
		}
		streams := r.streams()
		r.pass(longAfter)
		if n := r.streams(); n != streams {
			t.Errorf("%d further streams, want 0: no removal is pending", n-streams)
		}
		for range 3 { // the origin returns without the same resources
			r.changeWhileDown(removing(clusters))
			r.pass(longAfter)
		}
		if n, alarms := r.count(), r.log.count(heldLine); n != 100 || alarms != 1 {
			t.Errorf("%d members and %d log lines about held removals, want 100 and 1", n, alarms)
		}
		r.expectHolds("after three restarts", 0, 50)

		// The relay still applies resources that the origin sends again, and removals of other resources.
		r.put(clusters, numbered(100)[50:60]...)
		r.pass(time.Second)
		r.expectHolds("after ten resources have returned", 0, 40)
		r.Apply(removing(clusters, "n060"))
		r.clustersAfter(time.Second, "after an explicit removal", 99)
		r.changeWhileDown(removing(clusters, "n000", "n050"))
		r.clustersAfter(5*time.Minute, "after removals that were not dropped", 97)

		if got := r.control.Operate(t.Context(), pass); len(got) != 0 {
			t.Errorf("passed %+v, want none: all removals were dropped", got)
		}
		if got := r.control.Operate(t.Context(), reconcile.Command{Do: reconcile.Pass, Reason: reconcile.Dropped}); len(got) != 1 || len(got[0].Names) != 39 {
			t.Errorf("passed %+v, want the 39 removals that are still dropped", got)
		}
		r.clustersAfter(0, "members", 58)
	})
}

// TestB15_AlarmIsRepeated: a pending removal is logged again at long intervals.
func TestB15_AlarmIsRepeated(t *testing.T) {
	losesHalf(t, func(t *testing.T, r *rig) {
		r.pass(7 * time.Minute)
		if n := r.log.count("removals still held"); n != 1 {
			t.Errorf("%d repeated log lines in seven minutes, want 1", n)
		}
		r.control.Operate(t.Context(), drop)
		r.pass(longAfter)
		if n := r.log.count("removals still held"); n != 1 {
			t.Errorf("%d repeated log lines although no removal is pending, want 1", n)
		}
		if n := r.log.count("removals no longer held"); n != 1 {
			t.Errorf("logged %d times that no removals are held, want once", n)
		}
	})
}

// TestFreeze_Mirror: a frozen view still receives and ACKs responses, also on later streams. A thaw shows its current
// content. Unused subscriptions do not expire during the freeze.
func TestFreeze_Mirror(t *testing.T) {
	inBubble(t, relaytest.Behaviour{}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.put(clusters, "a@1", "b@1")
		r.put(endpoints, "a@1")
		wildcard := r.watch.SubscribeAll(clusters)
		names := r.watch.Subscribe(endpoints, []string{"a"})
		r.pass(confirmed)
		r.control.Freeze(t.Context())
		r.put(clusters, "a@2", "c@2")
		r.put(endpoints, "a@2", "late@1")
		r.pass(time.Second)
		r.changeWhileDown(removing(clusters, "b"))
		r.pass(time.Minute)
		r.put(clusters, "a@3")
		late := r.view.Watch()
		late.Subscribe(endpoints, []string{"late"})
		r.membersAfter(time.Minute, "frozen members", clusters, "a@1 b@1")
		r.expect("frozen names", r.named(endpoints), "a@1 late@1")

		r.watch.UnsubscribeAll(wildcard)
		r.watch.Unsubscribe(endpoints, names)
		r.membersAfter(longAfter, "frozen members long after the last client", clusters, "a@1 b@1")
		r.expect("frozen names long after the last client", r.named(endpoints), "a@1 late@1")
		r.watch.SubscribeAll(clusters)
		r.watch.Subscribe(endpoints, []string{"a"})
		r.pass(time.Second)

		r.control.Thaw(t.Context())
		r.expect("thawed members", present(r.members(clusters)), "a@3 c@2")
		r.expect("thawed names", r.named(endpoints), "a@2 late@1")
	})
}

// TestFreeze_MirrorEnded: a command to a sync that has ended does nothing.
func TestFreeze_MirrorEnded(t *testing.T) {
	inBubble(t, relaytest.Behaviour{}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.stop()
		r.control.Freeze(t.Context())
		if h := r.control.Operate(t.Context(), reconcile.Command{}); len(h) != 0 || !r.view.Generation().First().Frozen.IsZero() {
			t.Errorf("holds %v, frozen since %v; want no holds and no freeze", h, r.view.Generation().First().Frozen)
		}
	})
}

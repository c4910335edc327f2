package upstream_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/upstream"
)

// heldLine is part of the log line about pending removals.
const heldLine = "removals held"

// forgetful is an origin that never reports removals.
var forgetful = relaytest.Behaviour{IgnoreIRV: true, SilentOnMissing: true}

// TestH03_C15_LargeRemovalsAreHeld: inferred removals of more than half of a type, or of more than ten resources and
// more than a tenth, stay pending for ten minutes. Then the relay checks again, and applies them if the result is the
// same.
func TestH03_C15_LargeRemovalsAreHeld(t *testing.T) {
	tests := []struct {
		members, lost int
		held          bool
	}{
		{100, 10, false},
		{100, 11, true},
		{20, 10, false},
		{19, 10, true},
		{200, 20, false},
		{200, 21, true},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("%d of %d", tt.lost, tt.members), func(t *testing.T) {
			inBubble(t, forgetful, upstream.Config{}, func(t *testing.T, r *rig) {
				r.follow(clusters, numbered(tt.members)...)
				r.changeWhileDown(removing(clusters, nameOnly(numbered(tt.members))[tt.members-tt.lost:]...))
				r.pass(9 * time.Minute)
				want := tt.members
				if !tt.held {
					want -= tt.lost
				}
				check.Equal(t, "members after 9 minutes", r.view.Generation().Type(clusters).Wildcard.Count(), want)
				if n := r.log.count("ERROR removals held"); (n == 1) != tt.held {
					t.Errorf("%d log lines about held removals, want one only if held=%v", n, tt.held)
				}
				streams := r.streams()
				r.clustersAfter(3*time.Minute, "after 12 minutes", tt.members-tt.lost)
				check.Equal(t, "second resync", r.streams() > streams, tt.held)
				if tt.held {
					for _, req := range r.State().Last().Requests {
						if n := len(req.Message.GetInitialResourceVersions()); n != 0 {
							t.Errorf("the second check reported %d versions, want none", n)
						}
					}
				}
				r.clustersAfter(longAfter, "long after", tt.members-tt.lost)
			})
		})
	}
}

// lost returns the names of the resources that an origin loses in losesHalf.
func lost() []string { return nameOnly(numbered(100))[50:] }

// losesHalf runs a test with an origin that has restarted without half of its 100 clusters. The removals are held.
func losesHalf(t *testing.T, test func(t *testing.T, r *rig)) {
	t.Helper()
	losesAs(t, forgetful, test)
}

// losesAs is losesHalf for an origin with another behaviour.
func losesAs(t *testing.T, b relaytest.Behaviour, test func(t *testing.T, r *rig)) {
	t.Helper()
	inBubble(t, b, upstream.Config{}, func(t *testing.T, r *rig) {
		r.follow(clusters, numbered(100)...)
		r.changeWhileDown(removing(clusters, lost()...))
		r.pass(2 * time.Minute)
		if n := r.log.count(heldLine); n != 1 || r.count() != 100 {
			t.Fatalf("%d log lines about held removals and %d members, want 1 and 100", n, r.count())
		}
		test(t, r)
	})
}

// losesHalfInBoth is losesHalf for both variants of xDS.
func losesHalfInBoth(t *testing.T, test func(t *testing.T, r *rig)) {
	t.Run("Delta", func(t *testing.T) { losesAs(t, forgetful, test) })
	t.Run("SotW", func(t *testing.T) { losesAs(t, sotwOnly, test) })
}

// count returns the number of clusters in the wildcard set.
func (r *rig) count() int { return r.view.Generation().Type(clusters).Wildcard.Count() }

// TestB15_SecondConfirmationDiffers: if the second check finds other removals, these become pending in turn.
func TestB15_SecondConfirmationDiffers(t *testing.T) {
	losesHalf(t, func(t *testing.T, r *rig) {
		r.changeWhileDown(removing(clusters, "n000"))
		r.clustersAfter(9*time.Minute, "at the end of the first hold", 100)
		r.clustersAfter(5*time.Minute, "after the second hold", 49)
	})
}

// TestB15_HeldResourceReturns: a resource that returns while its removal is pending is not removed.
func TestB15_HeldResourceReturns(t *testing.T) {
	t.Run("all", func(t *testing.T) {
		losesHalfInBoth(t, func(t *testing.T, r *rig) {
			r.put(clusters, numbered(100)...)
			r.clustersAfter(longAfter, "members", 100)
			// The next loss is held in full, although the relay has seen the same loss before.
			r.changeWhileDown(removing(clusters, lost()...))
			r.clustersAfter(5*time.Minute, "five minutes after the next loss", 100)
			r.clustersAfter(10*time.Minute, "after the next hold", 50)
		})
	})
	t.Run("some", func(t *testing.T) {
		losesHalfInBoth(t, func(t *testing.T, r *rig) {
			r.put(clusters, numbered(100)[:80]...)
			r.clustersAfter(9*time.Minute, "after 9 minutes: the hold restarts when a resource returns", 100)
			r.clustersAfter(longAfter, "long after", 80)
		})
	})
	t.Run("after another restart", func(t *testing.T) {
		losesHalf(t, func(t *testing.T, r *rig) {
			r.changeWhileDown(func(tx *relaytest.Tx) { putIn(tx, clusters, numbered(100)...) })
			r.pass(longAfter)
			r.changeWhileDown(removing(clusters, lost()...))
			r.clustersAfter(5*time.Minute, "five minutes after the next loss", 100)
		})
	})
}

// TestB15_HeldResourceRemoved: a resource that the origin removes explicitly while its removal is pending is removed at
// once. The others stay pending.
func TestB15_HeldResourceRemoved(t *testing.T) {
	losesHalf(t, func(t *testing.T, r *rig) {
		r.Apply(removing(clusters, lost()[:20]...))
		r.clustersAfter(time.Second, "members", 80)
		r.clustersAfter(12*time.Minute, "after the hold", 50)
	})
}

// TestB15_HoldSurvivesReconnects: a disconnect does not shorten the hold.
func TestB15_HoldSurvivesReconnects(t *testing.T) {
	losesHalfInBoth(t, func(t *testing.T, r *rig) {
		for range 4 {
			r.Restart()
			r.pass(90 * time.Second)
		}
		check.Equal(t, "members after 8 minutes", r.count(), 100)
		if n := r.log.count(heldLine); n != 1 {
			t.Errorf("%d log lines about held removals, want 1", n)
		}
		r.clustersAfter(5*time.Minute, "after the hold", 50)
	})
}

// TestB15_C15_EmptyOrigin: an origin that returns empty has no resource for a control query. Missing resources stay
// pending, however few they are.
func TestB15_C15_EmptyOrigin(t *testing.T) {
	for _, silent := range []bool{false, true} {
		t.Run(fmt.Sprintf("silent=%v", silent), func(t *testing.T) {
			b := relaytest.Behaviour{IgnoreIRV: true, SilentOnMissing: silent}
			inBubble(t, b, upstream.Config{FullResync: true}, func(t *testing.T, r *rig) {
				r.follow(clusters, numbered(30)...)
				r.changeWhileDown(removing(clusters, nameOnly(numbered(30))...))
				r.clustersAfter(9*time.Minute, "after the origin has restarted empty", 30)
				r.put(clusters, numbered(30)...)
				r.membersAfter(longAfter, "members", clusters, joined(numbered(30)))
			})
		})
	}
}

// TestB15_C07_SilenceOnANamedMember: silence about a member that clients also subscribe to by name does not remove it.
// Not every origin responds twice for a name (C07).
func TestB15_C07_SilenceOnANamedMember(t *testing.T) {
	inBubble(t, relaytest.Behaviour{Manual: true}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.watch.SubscribeAll(clusters)
		all := r.Accept(t.Context())
		all.Send(response(clusters, "a@1", "b@1", "c@1"))
		r.pass(time.Second)
		r.watch.Subscribe(clusters, []string{"b"})
		named := r.Accept(t.Context())
		named.Send(response(clusters, "b@1"))
		r.pass(confirmed)
		r.Stop()
		r.Restart()
		// Both streams open at the same time: their first requests show which stream is which.
		streams := map[string]*relaytest.OriginStream{}
		for range 2 {
			s := r.Accept(t.Context())
			streams[strings.Join(s.Recv(t.Context()).GetResourceNamesSubscribe(), "")] = s
		}
		all, named = streams[""], streams["b"]
		named.Send(response(clusters, "b@1"))
		all.Send(response(clusters, "a@1"))
		r.pass(16 * time.Second)
		named.Send(response(clusters, "a@1")) // a response to the control query, but none to b and c
		r.pass(time.Minute)
		r.expect("members", present(r.members(clusters)), "a@1 b@1")
	})
}

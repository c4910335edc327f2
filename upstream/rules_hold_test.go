package upstream_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/upstream"
	"github.com/xdstender/tender/upstream/reconcile"
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

// count returns the number of clusters in the wildcard set.
func (r *rig) count() int { return r.view.Generation().Type(clusters).Wildcard.Count() }

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

// TestB15_ASecondLookIsTheComparison: the time of a hold is over while a comparison of all content is due. The second look requests
// all content, so that the origin is not asked twice.
func TestB15_ASecondLookIsTheComparison(t *testing.T) {
	inBubble(t, relaytest.Behaviour{}, upstream.Config{}, func(t *testing.T, r *rig) {
		r.follow(clusters, numbered(100)...)
		r.changeWhileDown(removing(clusters, lost()...))
		r.pass(2 * time.Minute)
		holds := r.control.Operate(t.Context(), reconcile.Command{})
		if len(holds) != 1 || holds[0].Until.IsZero() {
			t.Fatalf("holds: %+v, want one with a deadline", holds)
		}
		r.pass(time.Until(holds[0].Until) - 10*time.Second)
		r.Stop()
		r.Restart()
		before := r.streams()
		r.clustersAfter(2*time.Minute, "after the second look", 50)
		var whole, resumed int
		for _, st := range r.State().Streams[before:] {
			switch first := described(st.Requests[0]); {
			case first == "[cds node]":
				whole++
			case strings.Contains(first, "=1"):
				resumed++
			}
		}
		check.Equal(t, "streams that report versions", resumed, 1)
		check.Equal(t, "streams that request all resources", whole, 1)
	})
}

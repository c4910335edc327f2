package upstream_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/upstream"
)

// TestH03_C15_LargeRemovalsBySotWAreHeld: resources that the first response of a stream omits are removed at once, by
// wildcard and by name. If they are many, or all, the origin may have just started. Then their removal stays pending
// and is checked again after ten minutes (B.15).
func TestH03_C15_LargeRemovalsBySotWAreHeld(t *testing.T) {
	tests := []struct {
		there, lost int
		held        bool
	}{
		{100, 10, false},
		{100, 11, true},
		{20, 10, false},
		{19, 10, true},
		{200, 20, false},
		{200, 21, true},
		{9, 8, true},
		{4, 2, false},
		{3, 3, true},
		{1, 1, true},
		{100, 100, true},
	}
	for _, tt := range tests {
		for _, named := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d of %d, named=%v", tt.lost, tt.there, named), func(t *testing.T) {
				inBubble(t, sotwOnly, upstream.Config{}, func(t *testing.T, r *rig) {
					r.put(listeners, numbered(tt.there)...)
					count := func() int { return r.view.Generation().Type(listeners).Wildcard.Count() }
					if named {
						r.watch.Subscribe(listeners, nameOnly(numbered(tt.there)))
						count = func() int { return r.view.Generation().Type(listeners).ByName.Count() }
					} else {
						r.watch.SubscribeAll(listeners)
					}
					r.pass(confirmed)
					r.changeWhileDown(removing(listeners, nameOnly(numbered(tt.there))[tt.there-tt.lost:]...))
					r.pass(3 * time.Second)
					held := tt.there
					if !tt.held {
						held -= tt.lost
					}
					check.Equal(t, "listeners 3s after the restart", count(), held)
					r.pass(9 * time.Minute)
					check.Equal(t, "listeners after 9 minutes", count(), held)
					if n := r.log.count("ERROR removals held"); (n == 1) != tt.held {
						t.Errorf("%d log lines about held removals, want one only if held=%v", n, tt.held)
					}
					check.Equal(t, "streams without a query by name", r.streams(), 2)
					r.pass(2 * time.Minute)
					check.Equal(t, "listeners after 11 minutes", count(), tt.there-tt.lost)
				})
			})
		}
	}
}

// TestC15_SotWOriginLoadsGradually: an origin that starts empty and loads gradually removes nothing while it loads. Its
// later responses omit only resources that no earlier response on the stream listed.
func TestC15_SotWOriginLoadsGradually(t *testing.T) {
	inBubble(t, sotwOnly, upstream.Config{}, func(t *testing.T, r *rig) {
		r.follow(clusters, numbered(100)...)
		r.changeWhileDown(removing(clusters, nameOnly(numbered(100))...))
		for i := range 10 {
			r.pass(time.Second)
			r.put(clusters, numbered(100)[10*i:10*i+10]...)
			check.Equal(t, fmt.Sprintf("members when the origin has loaded %d", 10*i), r.count(), 100)
		}
		r.membersAfter(longAfter, "members", clusters, joined(numbered(100)))
	})
}

// TestB15_SotWExplicitRemovalDuringHold: while removals are pending, resources that the origin listed on the new stream
// are removed as usual.
func TestB15_SotWExplicitRemovalDuringHold(t *testing.T) {
	losesAs(t, sotwOnly, func(t *testing.T, r *rig) {
		r.Apply(removing(clusters, nameOnly(numbered(100))[:30]...))
		r.clustersAfter(soon, "after 30 removals: 50 held and 20 listed", 70)
		r.clustersAfter(15*time.Minute, "after the hold", 20)
	})
}

// TestB15_SotWSecondConfirmation: pending removals are applied only if the second check confirms them.
func TestB15_SotWSecondConfirmation(t *testing.T) {
	t.Run("all names return", func(t *testing.T) {
		inBubble(t, sotwOnly, upstream.Config{}, func(t *testing.T, r *rig) {
			r.put(listeners, numbered(20)...)
			r.watch.Subscribe(listeners, nameOnly(numbered(20)))
			r.pass(confirmed)
			r.changeWhileDown(removing(listeners, nameOnly(numbered(20))[5:]...))
			r.pass(time.Minute)
			r.put(listeners, numbered(20)...)
			r.namedAfter(longAfter, "named", listeners, joined(numbered(20)))
			check.Equal(t, "streams without a second check", r.streams(), 2)
		})
	})
	t.Run("the origin is stopped when the hold ends", func(t *testing.T) {
		losesAs(t, sotwOnly, func(t *testing.T, r *rig) {
			r.Stop()
			r.clustersAfter(longAfter, "while the origin is stopped", 100)
			r.Restart()
			r.clustersAfter(2*time.Minute, "after its restart", 50)
		})
	})
}

// TestB15_SotWSweepOfPartialTypes: for a wildcard of a partial type, the relay queries resources by name that the
// origin no longer sends, as in Delta.
func TestB15_SotWSweepOfPartialTypes(t *testing.T) {
	inBubble(t, sotwOnly, upstream.Config{}, func(t *testing.T, r *rig) {
		const acme = "type.googleapis.com/acme.Foo"
		r.follow(acme, numbered(20)...)
		r.changeWhileDown(removing(acme, "n003"))
		r.pass(29 * time.Second)
		check.Equal(t, "members after 29s", r.view.Generation().Type(acme).Wildcard.Count(), 20)
		r.pass(5 * time.Second)
		check.Equal(t, "members after 34s", r.view.Generation().Type(acme).Wildcard.Count(), 19)
		r.expect("query by name", showList(r.State().Last().Requests[0].SotW), "[Foo node n000 n003]")
	})
}

// TestB15_R132_SotWMissingCollectionMembers: the first response of a stream also shows which members of a collection
// are missing. A few are removed at once; most or all stay pending.
func TestB15_R132_SotWMissingCollectionMembers(t *testing.T) {
	const dir = "xdstp://authority/envoy.config.listener.v3.Listener/dir/"
	tests := []struct {
		there, lost int
		held        bool
	}{{3, 1, false}, {4, 3, true}, {3, 3, true}}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("%d of %d", tt.lost, tt.there), func(t *testing.T) {
			inBubble(t, sotwOnly, upstream.Config{}, func(t *testing.T, r *rig) {
				var members []string
				for i := range tt.there {
					members = append(members, fmt.Sprint(dir, i))
				}
				for _, name := range append(members, "plain") {
					r.put(listeners, name+"@1")
				}
				key := cache.Collection(listeners, dir+"*")
				r.watch.SubscribeAll(key)
				r.watch.Subscribe(listeners, []string{"plain"})
				r.pass(confirmed)
				count := func() int { return r.view.Generation().Type(key).Wildcard.Count() }
				if n := count(); n != tt.there {
					t.Fatalf("%d members, want %d", n, tt.there)
				}
				r.changeWhileDown(removing(listeners, members[:tt.lost]...))
				r.pass(3 * time.Second)
				want := tt.there
				if !tt.held {
					want -= tt.lost
				}
				check.Equal(t, "members 3s after the restart", count(), want)
				r.pass(longAfter)
				check.Equal(t, "members long after", count(), tt.there-tt.lost)
				if n := r.log.count("ERROR removals held"); (n > 0) != tt.held {
					t.Errorf("%d log lines about held removals, want some only if held=%v", n, tt.held)
				}
			})
		})
	}
}

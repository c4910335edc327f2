package upstream_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/upstream"
)

// TestH03_C15_LargeRemovalsBySotWAreHeld: resources that the first response of a stream omits are removed once the set is
// complete, by wildcard and by name. If they are many, or all, the origin may have just started. Then their removal stays
// pending and is checked again after ten minutes; that of one or two resources, at once (B.15).
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
		{1, 1, false},
		{2, 2, false},
		{3, 2, false},
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
					r.pass(9 * time.Second)
					check.Equal(t, "listeners 9s after the restart", count(), tt.there)
					held := tt.there
					if !tt.held {
						held -= tt.lost
					}
					r.pass(21 * time.Second)
					check.Equal(t, "listeners 30s after the restart", count(), held)
					r.pass(9 * time.Minute)
					check.Equal(t, "listeners after 9 minutes", count(), held)
					if n := r.log.count("ERROR removals held"); (n == 1) != tt.held {
						t.Errorf("%d log lines about held removals, want one only if held=%v", n, tt.held)
					}
					streams := 2
					if !tt.held && 2*tt.lost > tt.there { // a second look at a few
						streams++
					}
					check.Equal(t, "streams without a query by name", r.streams(), streams)
					r.pass(2 * time.Minute)
					check.Equal(t, "listeners after 11 minutes", count(), tt.there-tt.lost)
				})
			})
		}
	}
}

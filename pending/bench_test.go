package pending

import (
	"fmt"
	"testing"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// BenchmarkNothingPending measures a response with one assignment of 1,000, if nothing waits: applied to the view as it is, through a
// list without a clock, and through one whose clusters have an interval (P7).
func BenchmarkNothingPending(b *testing.B) {
	for _, how := range []string{"writer", "list", "clock"} {
		b.Run(how, func(b *testing.B) {
			_, w := cache.New(cache.Config{})
			l := &rig{New(w, nil), b, w.View()}
			apply := l.Apply
			switch how {
			case "writer":
				apply = w.Apply
			case "clock":
				l.clock = clockOf(map[string]time.Duration{wire.ClusterType: time.Second})
			}
			l.SetConnected(true)
			for i := range 1000 {
				l.state(wire.EndpointType, fmt.Sprintf("%d=1", i))
			}
			l.SetPhase(wire.EndpointType, cache.Confirmed)
			updates := make([]wire.Update, 2)
			for i := range updates {
				updates[i] = wire.Update{TypeURL: wire.EndpointType, Resources: []*wire.Resource{l.resource(wire.EndpointType, "7", fmt.Sprint(i))}}
			}
			n := 0
			for b.Loop() {
				apply(cache.Wildcard, updates[n%2])
				n++
			}
		})
	}
}

// BenchmarkAnAdditionBesideOthers measures a response with one cluster that waits, beside thousands of others: its cost must not
// depend on their number (P7).
func BenchmarkAnAdditionBesideOthers(b *testing.B) {
	for _, n := range []int{1000, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			_, w := cache.New(cache.Config{})
			l := &rig{New(w, clockOf(map[string]time.Duration{wire.ClusterType: time.Hour})), b, w.View()}
			l.SetConnected(true)
			l.confirm(wire.ClusterType, "a=1")
			l.state(wire.ClusterType, "a=2")
			for i := range n {
				l.state(wire.ClusterType, fmt.Sprintf("%d=1", i))
			}
			for i := 0; b.Loop(); i++ {
				l.state(wire.ClusterType, fmt.Sprintf("0=%d", i))
			}
		})
	}
}

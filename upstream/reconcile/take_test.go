package reconcile

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// TestB50_RequiredRemovalsByErrorWait: an error may remove a resource while nothing else waits.
func TestB50_RequiredRemovalsByErrorWait(t *testing.T) {
	f := newFakeSet(wire.ClusterType, slog.DiscardHandler, "auth", "b")
	f.require("auth")
	f.confirmed = true
	notFound := wire.NewResourceError("auth", codes.NotFound, "gone")
	f.Take(wire.Update{TypeURL: f.TypeURL, Errors: []*wire.ResourceError{notFound}}, epoch)
	f.wantHolds(t, "removed by an error", epoch, "required auth")
}

// TestB15_AStatedResourceIsNotMissing: that an earlier stream has omitted it shortens no wait, although nothing waits.
func TestB15_AStatedResourceIsNotMissing(t *testing.T) {
	f := newFakeSet(wire.ClusterType, slog.DiscardHandler, "a", "b", "c")
	f.beginStream(epoch)
	f.respond(epoch, "b")
	f.Infer(seq("a"), false, epoch)
	now := epoch.Add(5 * time.Second)
	f.beginStream(now)
	f.group.Decide(now)
	check.Equal(t, "sets with removals", len(f.group.withRemovals), 0)
	check.Equal(t, "missing resources", len(f.missing), 1)
	f.respond(now, "a")
	check.Equal(t, "missing resources, all of which the origin has stated", len(f.missing), 0)
}

// BenchmarkTakePlain takes a response that changes some of 1,000 clusters, none of which any policy concerns.
func BenchmarkTakePlain(b *testing.B) {
	for _, changed := range []int{1, 1000} {
		b.Run(fmt.Sprint(changed), func(b *testing.B) {
			f := newFakeSet(wire.ClusterType, slog.DiscardHandler)
			f.group.cfg.Growth, f.confirmed, f.known = NewGrowthLimit(10), true, true
			var versions [2][]*wire.Resource
			for i := range 1000 {
				name := fmt.Sprint("c", i)
				f.resources[name] = textResource(wire.ClusterType, name, "0")
				versions[0] = append(versions[0], textResource(wire.ClusterType, name, "1"))
				versions[1] = append(versions[1], textResource(wire.ClusterType, name, "2"))
			}
			now := time.Unix(1000, 0)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				f.Take(wire.Update{TypeURL: f.TypeURL, Resources: versions[i%2][:changed]}, now)
			}
		})
	}
}

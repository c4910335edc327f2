package cache

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/xdstender/tender/cache/wire"
)

// editionsOf are so many resources in two versions.
func editionsOf(tb tester, n int) (updates [2]wire.Update) {
	for i := range updates {
		updates[i].TypeURL = wire.ClusterType
		for j := range n {
			content := fmt.Sprintf("cluster %05d in version %d", j, i)
			updates[i].Resources = append(updates[i].Resources, newResource(tb, wire.ClusterType, fmt.Sprintf("cluster-%05d", j), fmt.Sprint(i), content))
		}
	}
	return updates
}

// heapInUse returns how many bytes are in use.
func heapInUse() int64 {
	var stats runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

// openEdition returns an origin of which all resources changed, and the edition of it, which the first cohort is shown.
func openEdition(tb tester, cohorts int, updates [2]wire.Update) (*origin, *Edition) {
	o := newOrigin(tb, Config{Cohorts: cohorts, Waits: func(string) bool { return true }})
	o.Apply(Wildcard, updates[0])
	o.SetPhase(wire.ClusterType, Confirmed)
	o.Apply(Wildcard, updates[1])
	if cohorts == 0 {
		return o, nil
	}
	e := o.Pin()
	o.Compare(e)
	o.Show(0, e)
	return o, e
}

// TestI13_OffCostsNothing: a node group has one view, whose writer has no other generation beside it, and a change allocates no more than
// before there were cohorts (16 times, as counted then).
func TestI13_OffCostsNothing(t *testing.T) {
	o := newOrigin(t, Config{})
	w := o.view.Watch()
	o.want(w, "a")
	w.SubscribeAll(acme)
	if len(o.view.views) != 1 || o.closed() || len(o.branches) != 1 {
		t.Errorf("without cohorts there are %d views and %d ledgers, closed %t", len(o.view.views), len(o.branches), o.closed())
	}
	for _, kind := range kinds {
		var updates [2]wire.Update
		for i, content := range []string{"x", "y"} {
			updates[i] = wire.Update{TypeURL: acme, Resources: []*wire.Resource{o.resource("a", content, content)}}
		}
		turn := 0
		if got := testing.AllocsPerRun(200, func() { turn++; o.Apply(kind, updates[turn%2]) }); got > 16 {
			t.Errorf("a change allocates %v times, want at most 16", got)
		}
	}
}

// TestMemoryOfAnEdition: of 10,000 resources that all changed, with two stages, each cohort takes at most half a KiB for each name, and
// all of it less than 16 MiB beside the resources.
func TestMemoryOfAnEdition(t *testing.T) {
	const names, stages = 10_000, 2
	updates := editionsOf(t, names)
	before := heapInUse()
	plain, _ := openEdition(t, 0, updates)
	without := heapInUse() - before
	runtime.KeepAlive(plain)
	before = heapInUse()
	o, e := openEdition(t, stages, updates)
	with := heapInUse() - before
	runtime.KeepAlive(e)
	runtime.KeepAlive(o)
	runtime.KeepAlive(updates)
	t.Logf("%d bytes without cohorts, %d with %d of them: %d for each name and cohort", without, with, stages, (with-without)/(names*stages))
	if with >= 16<<20 || with-without > names*stages*512 {
		t.Errorf("an edition of %d names and %d stages takes %d bytes, without cohorts it is %d", names, stages, with, without)
	}
}

// BenchmarkApplyWithCohorts is a change of one resource of 10,000, of a type that waits or passes, while nothing else waits.
func BenchmarkApplyWithCohorts(b *testing.B) {
	for _, cohorts := range []int{0, 2} {
		for _, waits := range []bool{true, false} {
			b.Run(fmt.Sprintf("cohorts=%d/waits=%t", cohorts, waits), func(b *testing.B) {
				updates := editionsOf(b, 10_000)
				o := newOrigin(b, Config{Cohorts: cohorts, Waits: func(string) bool { return waits }})
				o.Apply(Wildcard, updates[0])
				o.SetPhase(wire.ClusterType, Confirmed)
				var one [2]wire.Update
				for i := range one {
					one[i] = wire.Update{TypeURL: wire.ClusterType, Resources: updates[i].Resources[5000:5001]}
				}
				applies := 1
				b.ReportAllocs()
				for b.Loop() {
					if c := o.Apply(Wildcard, one[applies%2]); c.Changed != 1 {
						b.Fatalf("got %+v, want one change", c)
					}
					applies++
				}
			})
		}
	}
}

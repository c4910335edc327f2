package pending

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// twoVersions returns two updates with n resources each, in two versions.
func twoVersions(tb tester, n int) (updates [2]wire.Update) {
	for i := range updates {
		updates[i].TypeURL = wire.ClusterType
		for j := range n {
			content := fmt.Sprintf("cluster %05d in version %d", j, i)
			r, err := wire.NewResource(wire.ClusterType, fmt.Sprintf("cluster-%05d", j), fmt.Sprint(i), []byte(content))
			if err != nil {
				tb.Fatal(err)
			}
			updates[i].Resources = append(updates[i].Resources, r)
		}
	}
	return updates
}

// heapBytes returns the number of heap bytes in use after a garbage collection.
func heapBytes() int64 {
	var stats runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

// openEdition returns an origin of which all resources changed, and an edition of these changes that the first cohort
// is shown.
func openEdition(tb tester, cohorts int, updates [2]wire.Update) (*origin, *Edition) {
	o := newOrigin(tb, cache.Config{Cohorts: cohorts, Waits: func(string) bool { return true }})
	o.Apply(cache.Wildcard, updates[0])
	o.SetPhase(wire.ClusterType, cache.Confirmed)
	o.Apply(cache.Wildcard, updates[1])
	if cohorts == 0 {
		return o, nil
	}
	e := o.Pin()
	o.Compare(e)
	o.Show(0, e)
	return o, e
}

// TestMemoryOfAnEdition: of changed resources and two stages, each cohort takes at most 640 bytes for each name, and
// 10,000 names take less than 16 MiB in addition to the resources. Memory grows with the names, so a tenth is measured.
func TestMemoryOfAnEdition(t *testing.T) {
	const names, stages = 1000, 2
	updates := twoVersions(t, names)
	before := heapBytes()
	plain, _ := openEdition(t, 0, updates)
	without := heapBytes() - before
	runtime.KeepAlive(plain)
	before = heapBytes()
	o, e := openEdition(t, stages, updates)
	with := heapBytes() - before
	runtime.KeepAlive(e)
	runtime.KeepAlive(o)
	runtime.KeepAlive(updates)
	t.Logf("%d bytes without cohorts, %d with %d cohorts: %d bytes for each name and cohort", without, with, stages,
		(with-without)/(names*stages))
	if 10*with >= 16<<20 || with-without > names*stages*640 {
		t.Errorf("edition of %d names, %d stages: %d bytes, without cohorts %d", names, stages, with, without)
	}
}

// BenchmarkApplyWithCohorts measures a change of one resource of 10,000, of a type whose changes wait or pass, while no
// other change waits.
func BenchmarkApplyWithCohorts(b *testing.B) {
	for _, cohorts := range []int{0, 2} {
		for _, waits := range []bool{true, false} {
			b.Run(fmt.Sprintf("cohorts=%d/waits=%t", cohorts, waits), func(b *testing.B) {
				updates := twoVersions(b, 10_000)
				o := newOrigin(b, cache.Config{Cohorts: cohorts, Waits: func(string) bool { return waits }})
				o.Apply(cache.Wildcard, updates[0])
				o.SetPhase(wire.ClusterType, cache.Confirmed)
				var one [2]wire.Update
				for i := range one {
					one[i] = wire.Update{TypeURL: wire.ClusterType, Resources: updates[i].Resources[5000:5001]}
				}
				applies := 1
				b.ReportAllocs()
				for b.Loop() {
					if c := o.Apply(cache.Wildcard, one[applies%2]); c.Changed != 1 {
						b.Fatalf("got %+v, want one change", c)
					}
					applies++
				}
			})
		}
	}
}

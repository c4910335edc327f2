package guard

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xdstender/tender/relay/relaytest/check"
)

// TestB35_SlotsAreFreedInOrder: the number of concurrent first responses that may block on their clients is limited.
// Waiting streams take slots in order of arrival. A client that does not read keeps its slot for one second.
func TestB35_SlotsAreFreedInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const waiters = 10
		p := NewSlots()
		var frees []func()
		for range cap(p.taken) {
			frees = append(frees, p.Take())
			time.Sleep(time.Microsecond) // timers of a bubble that fire at the same time crash the race detector (Go 1.26)
		}
		began := time.Now()
		var mu sync.Mutex
		var order []int // guarded by mu
		for i := range waiters {
			go func() { // ends after it has taken a slot
				p.Take()
				mu.Lock()
				defer mu.Unlock()
				order = append(order, i)
			}()
			synctest.Wait()
		}
		served := func() []int {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(order)
		}
		check.Equal(t, "waiting streams", p.waiting.Load(), waiters)
		for i := range waiters - 1 {
			frees[i]()
			frees[i]() // a second call must not free another slot
			synctest.Wait()
			time.Sleep(time.Microsecond)
			if got := served(); len(got) != i+1 || got[i] != i {
				t.Fatalf("streams with a slot after %d were freed: %v, want the first ones in order", i+1, got)
			}
		}
		time.Sleep(slotTimeout)
		synctest.Wait()
		if n := len(served()); n != waiters || p.waiting.Load() != 0 {
			t.Errorf("%d of %d streams have taken slots after %v, want all", n, waiters, time.Since(began))
		}
		time.Sleep(slotTimeout)
		synctest.Wait()
		check.Equal(t, "slots in use after the timeout", len(p.taken), 0)
	})
}

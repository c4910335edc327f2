package guard

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xdstender/tender/relay/relaytest/check"
)

// B.35: the number of concurrent first responses that may block on their clients is limited, first come, first served.
// A client that does not read keeps its slot for one second.
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
			go func() { // ends once it had its slot
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
		check.Equal(t, "streams that wait", p.waiting.Load(), waiters)
		for i := range waiters - 1 {
			frees[i]()
			frees[i]() // freeing again is harmless
			synctest.Wait()
			time.Sleep(time.Microsecond)
			if got := served(); len(got) != i+1 || got[i] != i {
				t.Fatalf("after %d slots were freed, they were taken by %v", i+1, got)
			}
		}
		time.Sleep(slotTimeout)
		synctest.Wait()
		if n := len(served()); n != waiters || p.waiting.Load() != 0 {
			t.Errorf("%d of %d had slots after %v", n, waiters, time.Since(began))
		}
		time.Sleep(slotTimeout)
		synctest.Wait()
		check.Equal(t, "slots that are taken in the end", len(p.taken), 0)
	})
}

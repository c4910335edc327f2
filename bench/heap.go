package main

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"time"

	"github.com/xdstender/tender/bench/load"
	"github.com/xdstender/tender/bench/serve"
)

// tracing makes Go's runtime log the live heap after each garbage collection, and collect
// often. CPU time measured with it is not comparable with other runs.
var tracing = []string{"GODEBUG=gctrace=1", "GOGC=20"}

// collection matches a line of the trace; the group captures the live heap in MiB.
var collection = regexp.MustCompile(`(?m)^gc \d+ @.* \d+->\d+->(\d+) MB, `)

// collections is the number of garbage collections to wait for. The second one frees
// everything that was garbage at the start of the first. The later ones differ by the
// responses that are in flight, so the least live heap of them is used.
const collections = 5

// liveHeap makes changes, which produce garbage, until the server has run enough
// collections, and returns the live heap in bytes.
func (st *stage) liveHeap(c serve.Changes) (float64, error) {
	if err := st.inSync(); err != nil {
		return 0, err
	}
	before := len(collection.FindAllStringSubmatch(st.stderr.String(), -1))
	for deadline := time.Now().Add(patience); ; {
		if _, err := st.change(c); err != nil {
			return 0, err
		}
		if err := st.inSync(); err != nil {
			return 0, err
		}
		traced := collection.FindAllStringSubmatch(st.stderr.String(), -1)
		if len(traced) >= before+collections {
			return leastAlive(traced[before+1:])
		}
		if time.Now().After(deadline) {
			return 0, fmt.Errorf("live heap: no %d collections in %v", collections, patience)
		}
	}
}

// leastAlive returns the least live heap among lines of the trace, in bytes.
func leastAlive(traced [][]string) (float64, error) {
	least := math.MaxInt
	for _, match := range traced {
		mebibytes, err := strconv.Atoi(match[1])
		if err != nil {
			return 0, fmt.Errorf("live heap: %w", err)
		}
		least = min(least, mebibytes)
	}
	return float64(least) * (1 << 20), nil
}

// heapOfIdle connects one client, and then n in all, and returns the live heap in bytes of each further one. Nothing changes
// meanwhile, so that pooled buffers are free: the second of two collections frees them.
func (st *stage) heapOfIdle(n int) (float64, error) {
	var live [2]float64
	for i, clients := range []int{1, n} {
		if _, err := st.open(clients); err != nil {
			return 0, err
		}
		if err := st.inSync(); err != nil {
			return 0, err
		}
		for range 2 {
			var err error
			if live[i], err = read("http://"+st.operator+"/debug/pprof/heap?gc=1&debug=1", "# HeapAlloc = "); err != nil {
				return 0, err
			}
		}
	}
	return (live[1] - live[0]) / float64(n-1), nil
}

// stall makes the clients with small receive buffers stop reading. It then changes every
// resource of the first kind, so that the server queues responses for them.
func (st *stage) stall() error {
	if err := st.load.Call("Stall", st.buffered, &struct{}{}); err != nil {
		return err
	}
	k := st.kinds[0]
	if _, err := st.change(serve.Changes{TypeURL: k.TypeURL, Count: k.Count}); err != nil {
		return err
	}
	return st.inSync()
}

// heapOfStalled measures the live heap per client that has stopped reading. Clients whose
// connections the server has closed by the end are not counted.
func (st *stage) heapOfStalled(f *figures, c serve.Changes) error {
	if err := st.fill(f); err != nil {
		return err
	}
	few := serve.Changes{TypeURL: c.TypeURL, Count: 5, Every: 50 * time.Millisecond}
	before, err := st.liveHeap(few)
	if err != nil {
		return err
	}
	connected, err := st.servers.Open()
	if err != nil {
		return err
	}
	if err := st.stall(); err != nil {
		return err
	}
	if _, err := st.change(c); err != nil {
		return err
	}
	after, err := st.liveHeap(few)
	if err != nil {
		return err
	}
	still, err := st.servers.Open()
	if err != nil {
		return err
	}
	stalled := st.buffered - (connected - still)
	if stalled <= 0 {
		return errors.New("live heap of stalled clients: the server has closed all of them")
	}
	*f = figures{heap: (after - before) / float64(stalled), stalled: float64(stalled)}
	return nil
}

// dropAndReturn disconnects all clients, makes one change, and reconnects the clients with
// their resource versions. It measures until all of them have received the change.
func (st *stage) dropAndReturn(f *figures) error {
	if err := st.load.Call("Drop", struct{}{}, &struct{}{}); err != nil {
		return err
	}
	c := serve.Changes{TypeURL: st.kinds[0].TypeURL, Count: 1, First: 1}
	expected, err := st.change(c)
	if err != nil {
		return err
	}
	if err := st.load.Call("Mark", struct{}{}, &struct{}{}); err != nil {
		return err
	}
	allocations, err := st.counting()
	if err != nil {
		return err
	}
	cpu, err := st.servers.CPU()
	if err != nil {
		return err
	}
	start := time.Now()
	if err := st.load.Call("Return", struct{}{}, &struct{}{}); err != nil {
		return err
	}
	p, err := st.await("all clients in sync again", func(p load.Progress) bool { return p.Deliveries >= expected })
	if err != nil {
		return err
	}
	if err := st.inSync(); err != nil {
		return err
	}
	time.Sleep(settle) // until the servers have read the last ACKs
	after, err := st.servers.CPU()
	if err != nil {
		return err
	}
	f.sync, f.syncCPU = milliseconds(time.Unix(0, p.Last).Sub(start)), milliseconds(after-cpu)
	f.again = float64(p.Again) / float64(st.clients)
	f.bytes = float64(p.Bytes) / float64(p.Deliveries)
	objects, err := allocations()
	if err != nil {
		return err
	}
	f.allocs = objects / float64(p.Deliveries)
	f.connects = float64(p.Connected) / (f.sync / 1000)
	f.resumed = 100 * float64(p.Resumed) / float64(st.clients)
	return nil
}

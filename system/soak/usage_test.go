package soak

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"time"
)

// A usage holds the resource usage and the state of a relay, from its metrics.
type usage struct {
	streams    int // client streams
	goroutines int
	files      int // open file descriptors
	heap       int // target size of the heap in bytes, about twice the live heap
	faults     int // faults that the drift audit has found
	frozen     int // frozen origins
	pending    int // changes that clients do not receive yet, without dropped ones
}

func (u usage) String() string {
	return fmt.Sprintf("%d streams, %d goroutines, %d files, a heap of %d MiB, %d frozen origins, %d pending changes", u.streams, u.goroutines, u.files, u.heap>>20, u.frozen, u.pending)
}

// usage reads the usage of the relay from its metrics.
func (o operator) usage() (u usage, err error) {
	m, err := o.metrics()
	return usage{
		streams: int(m["tender_client_streams"]), goroutines: int(m["go_goroutines"]), files: int(m["process_open_fds"]),
		heap: int(m["go_memstats_next_gc_bytes"]), faults: int(total(m, "tender_audit_faults_total")),
		frozen: int(total(m, "tender_origin_frozen")), pending: int(total(m, "tender_pending_changes") - total(m, `tender_pending_changes{origin="default",reason="dropped"}`)),
	}, err
}

// total returns the sum of all series of a metric.
func total(values map[string]float64, name string) (sum float64) {
	for series, value := range values {
		if series == name || strings.HasPrefix(series, name+"{") {
			sum += value
		}
	}
	return sum
}

// Growth that is allowed to a relay without clients after the warm-up. It may have more connections and streams to
// origins, for subscriptions that linger, and more goroutines of the runtime.
const (
	moreGoroutines = 48
	moreFiles      = 24
)

// Limits of the heap with clients: growth times the heap after the warm-up, plus moreHeap. All clients may have
// connected to one relay meanwhile, and the ledgers of the test grow in the same process.
const (
	growth   = 3
	moreHeap = 32 << 20 // bytes
)

// within is the timeout for a relay to release the state of clients that vanished. It detects them by pings, after 40s
// (B.34).
const within = 90 * time.Second

// A baseline is the usage of a relay after the warm-up.
type baseline struct {
	idle usage // without clients
	heap int   // usage.heap with clients
}

// exceeded reports whether the usage of a relay without clients exceeds the allowed growth.
func (b baseline) exceeded(now usage) bool {
	return now.goroutines > b.idle.goroutines+moreGoroutines || now.files > b.idle.files+moreFiles || b.grown(now)
}

// grown reports whether the heap exceeds the allowed growth.
func (b baseline) grown(now usage) bool { return now.heap > growth*b.heap+moreHeap }

// warm starts and stops all clients and measures the baselines of the relays.
func (w *world) warm() {
	w.t.Helper()
	w.come()
	w.agree("the start")
	runtime.GC() // one relay runs in this process
	for _, r := range w.relays() {
		w.baselines = append(w.baselines, baseline{heap: w.usage(r).heap})
	}
	w.depart()
	for i, r := range w.relays() {
		w.baselines[i].idle = w.await(r, func(now usage) bool { return now.streams == 0 })
	}
}

// sober checks the relays between rounds. Their heaps must not grow, no origin may be frozen, and the drift audit
// must have found no fault.
func (w *world) sober() {
	w.t.Helper()
	for i, r := range w.relays() {
		now := w.usage(r)
		if w.baselines[i].grown(now) {
			w.t.Errorf("a relay has %v; after the warm-up it had a heap of %d MiB", now, w.baselines[i].heap>>20)
		}
		if now.frozen > 0 {
			w.t.Errorf("after all relays were thawed, one has %v", now)
		}
		if now.faults > 0 {
			w.t.Errorf("the drift audit found %d faults", now.faults)
		}
	}
}

// rid waits until the relays, which must have no clients, have no streams, freezes or pending changes.
// Their usage must be back at the baseline.
func (w *world) rid() {
	w.t.Helper()
	for i, r := range w.relays() {
		base := w.baselines[i]
		now := w.await(r, func(now usage) bool {
			return now.streams == 0 && now.frozen+now.pending == 0 && !base.exceeded(now)
		})
		w.t.Logf("without clients, a relay has %v; after the warm-up it had %v", now, base.idle)
	}
}

// usage returns the usage of a relay, which must run.
func (w *world) usage(r server) usage {
	w.t.Helper()
	u, err := r.operator().usage()
	if err != nil {
		w.t.Fatal(err)
	}
	return u
}

// await waits until cond returns true for the usage of a relay.
func (w *world) await(r server, cond func(usage) bool) usage {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, within)
	defer cancel()
	for {
		runtime.GC()
		now := w.usage(r)
		if cond(now) {
			return now
		}
		select {
		case <-time.After(500 * time.Millisecond): // no event reports a closed file, so poll
		case <-ctx.Done():
			w.t.Fatalf("without clients, a relay still has %v: %v; its baselines: %+v", now, context.Cause(ctx), w.baselines)
		}
	}
}

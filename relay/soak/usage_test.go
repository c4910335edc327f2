package soak

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"time"
)

// A usage is what the process of a relay takes, by its own word.
type usage struct {
	streams    int // of clients
	goroutines int
	files      int
	heap       int // bytes: how large it becomes before it is collected, about twice what lives
	faults     int // that its drift audit has found
	frozen     int // origins
	withheld   int // names of which clients are not shown what the origin says
	held       int // removals that are held back
}

func (u usage) String() string {
	return fmt.Sprintf("%d streams, %d goroutines, %d files, a heap of %d MiB, %d frozen origins, %d names and %d removals withheld", u.streams, u.goroutines, u.files, u.heap>>20, u.frozen, u.withheld, u.held)
}

func (o operator) usage() (u usage, err error) {
	m, err := o.metrics()
	return usage{
		streams: int(m["tender_client_streams"]), goroutines: int(m["go_goroutines"]), files: int(m["process_open_fds"]),
		heap: int(m["go_memstats_next_gc_bytes"]), faults: int(total(m, "tender_audit_faults_total")),
		frozen: int(total(m, "tender_origin_frozen")), withheld: int(total(m, "tender_view_withheld")), held: int(total(m, "tender_origin_deletions_holding")),
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

// What a relay without clients may have that it did not have when the first ones had come and
// gone: connections to origins, streams on them for what lingers, what the runtime needs.
const (
	moreGoroutines = 48
	moreFiles      = 24
)

// growth is how many times as large a heap with clients may be as when the first ones had
// just come: all of them may have come to one relay since, and what was said is written down.
const (
	growth   = 3
	moreHeap = 32 << 20
)

// within is how long a relay may need to be rid of clients that have gone without a word: it
// finds them by pings, after 40s (B.34).
const within = 90 * time.Second

// A baseline is what a relay takes when it is warm.
type baseline struct {
	idle usage // without clients
	heap int   // with them
}

func (b baseline) exceeded(now usage) bool {
	return now.goroutines > b.idle.goroutines+moreGoroutines || now.files > b.idle.files+moreFiles || b.grown(now)
}

func (b baseline) grown(now usage) bool { return now.heap > growth*b.heap+moreHeap }

// warm has clients come and go, and measures what the relays take then.
func (w *world) warm() {
	w.t.Helper()
	w.come()
	w.agree("at first")
	runtime.GC() // one relay is in this process
	for _, r := range w.relays() {
		w.baselines = append(w.baselines, baseline{heap: w.usage(r).heap})
	}
	w.depart()
	for i, r := range w.relays() {
		w.baselines[i].idle = w.await(r, func(now usage) bool { return now.streams == 0 })
	}
}

// sober looks whether relays that have clients take more and more of memory, and whether they
// are right about what they hold.
func (w *world) sober() {
	w.t.Helper()
	for i, r := range w.relays() {
		now := w.usage(r)
		if w.baselines[i].grown(now) {
			w.t.Errorf("a relay has %v; warm, it had a heap of %d MiB", now, w.baselines[i].heap>>20)
		}
		if now.frozen > 0 {
			w.t.Errorf("all relays were told to thaw, and one has %v", now)
		}
		if now.faults > 0 {
			w.t.Errorf("the drift audit found %d faults", now.faults)
		}
	}
}

// rid looks whether the relays, all of whose clients have left, are rid of them, and of all that
// operators and masses of removals had them hold back.
func (w *world) rid() {
	w.t.Helper()
	for i, r := range w.relays() {
		base := w.baselines[i]
		now := w.await(r, func(now usage) bool {
			return now.streams == 0 && now.frozen+now.withheld+now.held == 0 && !base.exceeded(now)
		})
		w.t.Logf("without clients, a relay has %v; it had %v", now, base.idle)
	}
}

func (w *world) usage(r server) usage {
	w.t.Helper()
	u, err := r.operator().usage()
	if err != nil {
		w.t.Fatal(err)
	}
	return u
}

// await waits until a relay's usage is as it is to be.
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
		case <-time.After(500 * time.Millisecond): // nobody tells of a file that is closed
		case <-ctx.Done():
			w.t.Fatalf("without clients, a relay still has %v: %v; its baselines: %+v", now, context.Cause(ctx), w.baselines)
		}
	}
}

package files

import (
	"context"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/upstream"
	"github.com/xdstender/tender/upstream/reconcile"
)

// Writer implements upstream.Controlled.
func (v originView) Writer() *cache.Writer { return v.w }

// Keep implements upstream.Controlled. The reader has the removals that are held back for all views. A view has those of
// what its returning clients hold.
func (v originView) Keep(discarded []reconcile.Hold) {
	for _, hold := range discarded {
		for _, name := range hold.Names {
			v.reports.Keep(hold.TypeURL, name)
		}
	}
}

// Operate implements upstream.Controlled.
func (v originView) Operate(c reconcile.Command) []reconcile.Hold {
	return v.reports.Operate(c, time.Now())
}

// Status returns the state of the files at the last read.
func (f *Origin) Status() Status { return *f.status.Load() }

// Broken returns the changes that are held since they break clients (B.46).
func (f *Origin) Broken() []reconcile.Hold {
	if all := f.broken.Load(); all != nil {
		return *all
	}
	return nil
}

// Held returns the number of resources whose removal is held back.
func (f *Origin) Held() int { return int(f.cfg.counts.Holding.Load()) }

// Stats returns the counters of removals; a directory has no others.
func (f *Origin) Stats() upstream.Stats {
	c := f.cfg.counts
	return upstream.Stats{Held: c.Held.Load(), Applied: c.Applied.Load(), Holding: c.Holding.Load(), Discarded: c.Discarded.Load()}
}

// Operate carries out a command about the removals that are held back, and those that were discarded, and returns which
// it is about. What is discarded is served until a file has it again.
func (f *Origin) Operate(ctx context.Context, c reconcile.Command) (chosen []reconcile.Hold) {
	f.withReader(ctx, func(r *reader) {
		chosen = r.group.Operate(c, time.Now())
		r.publishBroken()
	})
	return chosen
}

// do calls a function in the goroutine that has the reader, which then reads the files again.
func (f *Origin) withReader(ctx context.Context, call func(*reader)) {
	done := make(chan struct{})
	select {
	case f.calls <- func(r *reader) { call(r); close(done) }:
		<-done // it is called at once
	case r := <-f.idleReader: // no goroutine has the reader
		call(r)
		f.idleReader <- r // there is room: it was taken out
	case <-ctx.Done():
	}
}

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

// Keep implements upstream.Controlled. What is held back of the files, Files knows for all of its views. A view knows what its returning clients hold.
func (v originView) Keep(discarded []reconcile.Hold) {
	for _, hold := range discarded {
		for _, name := range hold.Names {
			v.reports.Keep(hold.TypeURL, name)
		}
	}
}

// Deciders implements upstream.Controlled.
func (v originView) Deciders() []upstream.Decider { return []upstream.Decider{v.reports} }

// Status returns how the files stood when they were last read.
func (f *Origin) Status() Status { return *f.standing.Load() }

// Held returns of how many resources the removal is held back.
func (f *Origin) Held() int { return int(f.cfg.counts.Holding.Load()) }

// Stats returns what was done about the directory: of deletions alone.
func (f *Origin) Stats() upstream.Stats {
	c := f.cfg.counts
	return upstream.Stats{Held: c.Held.Load(), Applied: c.Applied.Load(), Holding: c.Holding.Load(), Discarded: c.Discarded.Load()}
}

// Holds returns the removals that are held back, and those that were discarded.
func (f *Origin) Holds(ctx context.Context) (holds []reconcile.Hold) {
	f.do(ctx, func(r *reader) { holds = r.group.Holds(time.Now()) })
	return holds
}

// Release has removals made that are held back, and returns which.
func (f *Origin) Release(ctx context.Context, of reconcile.HoldChoice) (released []reconcile.Hold) {
	f.do(ctx, func(r *reader) { released = r.group.Release(of, time.Now()) })
	return released
}

// Discard has resources kept whose removal is held back, and returns which. They are
// served until a file has them again.
func (f *Origin) Discard(ctx context.Context, of reconcile.HoldChoice) (discarded []reconcile.Hold) {
	f.do(ctx, func(r *reader) { discarded = r.group.Discard(of, time.Now()) })
	return discarded
}

// do has whoever has the reader do something, and then look at the files again.
func (f *Origin) do(ctx context.Context, call func(*reader)) {
	done := make(chan struct{})
	select {
	case f.calls <- func(r *reader) { call(r); close(done) }:
		<-done // it is called at once
	case r := <-f.lead: // nobody reads
		call(r)
		f.lead <- r // there is room: it was taken out
	case <-ctx.Done():
	}
}

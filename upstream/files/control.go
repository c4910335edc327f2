package files

import (
	"context"
	"time"

	"github.com/xdstender/tender/pending"
	"github.com/xdstender/tender/upstream"
	"github.com/xdstender/tender/upstream/reconcile"
)

// List implements upstream.Controlled.
func (v originView) List() *pending.List { return v.pending }

// Report implements upstream.Controlled. It does nothing: a directory has nobody to tell.
func (v originView) Report([]upstream.Rejection) {}

// Keep implements upstream.Controlled. Removals from the directory are pending at the reader, for all views. Those of
// resources that returning clients report are pending at the view.
func (v originView) Keep(dropped []reconcile.Hold) {
	for i := range dropped {
		hold := &dropped[i]
		for _, name := range hold.Names {
			v.reports.RestoreDropped(name, hold)
		}
	}
}

// Operate implements upstream.Controlled.
func (v originView) Operate(c reconcile.Command) []reconcile.Hold {
	return append(v.reports.Operate(c, time.Now()), c.OperateList(v.pending)...)
}

// Status returns the state of the files at the last read.
func (f *Origin) Status() Status { return *f.status.Load() }

// Stats returns the counters of removals. All other counters are zero for a directory.
func (f *Origin) Stats() upstream.Stats {
	c := f.cfg.counts
	return upstream.Stats{
		Held: c.HeldTotal.Load(), Pending: c.Pending(),
		Applied: c.AppliedTotal.Load(), Dropped: c.DroppedTotal.Load(),
	}
}

// Operate executes a command on pending and dropped removals, and returns those that it applies to. A resource whose
// removal is dropped is served until a file contains it again.
func (f *Origin) Operate(ctx context.Context, c reconcile.Command) (chosen []reconcile.Hold) {
	f.withReader(ctx, func(r *reader) {
		chosen = r.group.Operate(c, time.Now())
	})
	return chosen
}

// withReader calls a function in the goroutine that owns the reader, which then reads the files again. If no goroutine
// owns it, withReader calls the function itself. If ctx ends first, it does not call the function.
func (f *Origin) withReader(ctx context.Context, call func(*reader)) {
	done := make(chan struct{})
	select {
	case f.calls <- func(r *reader) { call(r); close(done) }:
		<-done // does not block: the function is called at once
	case r := <-f.idleReader: // no goroutine owns the reader
		call(r)
		f.idleReader <- r // does not block: the channel has capacity 1
	case <-ctx.Done():
	}
}

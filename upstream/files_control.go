package upstream

import (
	"context"
	"time"

	"github.com/xdstender/tender/cache"
)

// filesView is one view of a directory, as its control sees it.
type filesView struct{ *Local }

func (v filesView) writer() *cache.Writer { return v.w }

// What is held back of the files, Files knows for all of its views. A view knows what its returning clients hold.
func (v filesView) keep(discarded []Hold) {
	for _, hold := range discarded {
		for _, name := range hold.Names {
			v.reported.keep(hold.TypeURL, name)
		}
	}
}

func (v filesView) dockets() []docket { return v.reported.dockets() }

// local returns a local origin that withholds what clients report.
func (f *Files) local(w *cache.Writer) *Local {
	l := NewLocal(w)
	l.reported = f.reports(w)
	w.AwaitReports(time.Now().Add(f.cfg.ColdWait))
	return l
}

// reports returns what decides about what clients of a view report. A directory is known as a whole once it was read.
func (f *Files) reports(w *cache.Writer) *reported {
	now := time.Now()
	return &reported{
		w: w, atOnce: true, wait: f.cfg.MassDeleteHold, log: f.cfg.Logger, counters: f.counters,
		complete: func(cache.ReportedSet) (at, asked time.Time) { return now, now },
		again:    func() {}, began: now, sets: make(map[batch]*removals),
	}
}

// A FilesStatus says how the files of a directory stand.
type FilesStatus struct {
	Files   int       // that are there
	Bad     []BadFile // of these, those that do not count as a whole, by name
	Trouble error     // why the directory itself cannot be read; nil if it can
	At      time.Time // when it was looked at last
}

// Status returns how the files stood when they were last read.
func (f *Files) Status() FilesStatus { return *f.standing.Load() }

// Held returns of how many resources the removal is held back.
func (f *Files) Held() int { return int(f.counters.holding.Load()) }

// Holds returns the removals that are held back, and those that were discarded.
func (f *Files) Holds(ctx context.Context) (holds []Hold) {
	f.do(ctx, func(r *reader) { holds = holdsOf(r.holds.dockets()) })
	return holds
}

// Release has removals made that are held back, unless the files have changed since, and
// returns which.
func (f *Files) Release(ctx context.Context, of HoldChoice) (released []Hold) {
	f.do(ctx, func(r *reader) { released = decide(r.holds.dockets(), of, false, time.Now()) })
	return released
}

// Discard has resources kept whose removal is held back, and returns which. They are
// served until a file has them again.
func (f *Files) Discard(ctx context.Context, of HoldChoice) (discarded []Hold) {
	of.Discarded = false
	f.do(ctx, func(r *reader) { discarded = decide(r.holds.dockets(), of, true, time.Now()) })
	for _, hold := range discarded {
		f.counters.discarded.Add(int64(len(hold.Names)))
	}
	return discarded
}

// do has whoever has the reader do something, and then look at the files again.
func (f *Files) do(ctx context.Context, call func(*reader)) {
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

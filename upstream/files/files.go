package files

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/upstream"
	"github.com/xdstender/tender/upstream/reconcile"
)

// Origin is an origin that is a directory of resources.
//
// Each file directly in the directory counts, or symbolic link to one, whose
// extension [schema.IsFile] knows and whose name does not begin with a dot. All
// resources of a type in all files together are the complete set of that type;
// what is in none of them does not exist.
//
// One that cannot be read is bad: nothing of it counts but what it last held while it could be
// read, as far as no other file has the names. A file that repeats a name which another
// file has in the same type is bad for that name: the first file in the order of names
// counts, whichever came first, so that all relays serve the same of the same
// directory. A bad file is logged, with its line where that is known, and Status has it.
//
// What a file no longer has is removed. A file that is gone takes its resources with it, unless they are
// too many to be believed, as all or more than half of a type are, or if no
// file is left or the directory itself is gone: then the removal is held back for
// MassDeleteHold, and happens if then the resources are still missing. A
// directory that cannot be read changes nothing, and one in which no file was good
// yet says nothing: clients wait, and are not told that there is nothing.
//
// Writers do best to write elsewhere and rename: a change is read 50ms after
// the last sign of it, and half a list may look like a whole one.
//
// # Concurrency properties
//
// One of the syncs that run, or Follow, reads for all of them: its reader is a
// goroutine that it waits for. When that sync ends, another takes the reader over.
// While none of them runs, nothing is read.
type Origin struct {
	cfg      Config
	known    chan struct{}
	standing *atomic.Pointer[Status] // which the reader keeps

	// lead holds the reader whenever nobody reads. Its state belongs to whom takes
	// it out.
	lead chan *reader

	// newest is written by whom has the reader.
	newest atomic.Pointer[publication]

	calls chan func(*reader) // to whom has the reader

	frozen atomic.Pointer[sets] // what frozen views show; nil if that is theirs alone to know
}

// A publication is what the directory held at one time. It carries the signal
// that there is a newer one.
type publication struct {
	at         time.Time // when it was made
	sets       sets      // nil if it is not known, or nobody follows the directory
	superseded chan struct{}
}

// Open opens a directory as an origin. Files in it that are bad are logged,
// and no error.
//
// Errors: no directory, or one that cannot be read.
func Open(cfg Config) (*Origin, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	switch info, err := os.Stat(cfg.Dir); {
	case err != nil:
		return nil, fmt.Errorf("open file origin: %w", err)
	case !info.IsDir():
		return nil, fmt.Errorf("open file origin: %s is not a directory; name the one that holds the files", cfg.Dir)
	}
	if _, err := os.ReadDir(cfg.Dir); err != nil {
		return nil, fmt.Errorf("open file origin: %w", err)
	}
	r := newReader(&cfg)
	r.read(time.Now()) // so that bad files are known at once
	f := &Origin{cfg: cfg, known: r.settled, standing: &r.standing, lead: make(chan *reader, 1), calls: make(chan func(*reader))}
	f.lead <- r
	f.newest.Store(&publication{superseded: make(chan struct{})})
	return f, nil
}

// Known returns a channel that is closed once it is known what the directory holds: a file was good, or
// there was none.
func (f *Origin) Known() <-chan struct{} { return f.known }

// Follow reads the directory whenever it changes until ctx ends, whether or not a sync runs.
func (f *Origin) Follow(ctx context.Context) {
	select {
	case r := <-f.lead:
		f.follow(ctx, r)
	case <-ctx.Done():
	}
}

// Dir returns the directory.
func (f *Origin) Dir() string { return f.cfg.Dir }

// Sync keeps the view of w like the directory until ctx ends, and returns once
// everything that it started has ended. Several syncs may run at once.
//
// The control has it do what an operator wants. What is held back concerns all views, so [Origin.Holds] has it.
func (f *Origin) Sync(ctx context.Context, w *cache.Writer, control *upstream.Control) {
	l := originView{f.local(w)}
	defer l.reports.Close()
	defer control.End()
	control.Begin(l)
	defer w.SetConnected(false)
	var following sync.WaitGroup
	defer following.Wait() // ends with ctx
	trim := time.NewTicker(upstream.TrimEvery)
	defer trim.Stop()
	var (
		seen    *publication
		applied sets
		demand  <-chan struct{} // nil until it is known what there is
	)
	for {
		p := f.newest.Load()
		to := f.shown(p, w)
		if p != seen && to != nil && (applied == nil || !w.Frozen()) {
			f.replace(w, l, applied, to, p.at)
			applied, demand = to, l.Demand()
		}
		seen = p
		select {
		case <-demand:
			l.Answer()
			l.reports.Check(time.Now())
		case <-p.superseded:
		case call := <-control.Calls():
			call(l)
			seen = nil // if it was thawed, there may be something else to show
		case r := <-f.lead:
			following.Go(func() { f.follow(ctx, r) }) // waited for above
		case <-trim.C:
			w.Trim(time.Now())
			l.reports.Check(time.Now())
		case <-ctx.Done():
			return
		}
	}
}

// shown returns what a view is to show. Of one that is frozen, new clients find out what there was then.
func (f *Origin) shown(p *publication, w *cache.Writer) sets {
	if frozen := f.frozen.Load(); frozen != nil && w.Frozen() {
		return *frozen
	}
	return p.sets
}

// replace brings a view up to date with what was published at some time.
func (f *Origin) replace(w *cache.Writer, l originView, from, to sets, at time.Time) {
	var trace upstream.Trace
	if f.cfg.Trace != nil {
		trace = f.cfg.Trace(upstream.Received{Origin: f.cfg.Dir, At: at})
		defer trace.Answered(nil)
	}
	w.SetCause(upstream.CauseOf(trace, at))
	defer w.SetCause(cache.Cause{})
	l.replace(from, to)
}

// follow reads the directory whenever it changes until ctx ends, then gives the
// reader back.
func (f *Origin) follow(ctx context.Context, r *reader) {
	defer func() { f.lead <- r }() // there is room: it was taken out
	if ctx.Err() != nil {
		return
	}
	defer f.publish(nil) // a sync that begins later must not take over what may have changed since
	d := newDirWatch(f.cfg)
	defer d.close()
	for {
		d.renew() // first, so that no change falls between
		now := time.Now()
		until := now.Add(f.cfg.Poll)
		if over := r.read(now); !over.IsZero() && over.Before(until) {
			until = over
		}
		if p := f.newest.Load(); r.known && (p.sets == nil || !maps.Equal(p.sets, r.serving)) {
			f.publish(r.serving)
		}
		call, more := d.wait(ctx, until, f.calls)
		if call != nil {
			call(r)
		}
		if !more {
			return
		}
	}
}

func (f *Origin) publish(s sets) {
	old := f.newest.Swap(&publication{at: time.Now(), sets: s, superseded: make(chan struct{})})
	close(old.superseded)
}

// replace makes one state of all types into another: first what is new and
// changed, clusters first, then what is removed, clusters last, so that nothing
// that a client holds refers to what it is told is gone (B.11).
func (l *Local) replace(from, to sets) {
	all := maps.Clone(to)
	for typeURL := range from { // of what an earlier process served, the files may have nothing
		if all[typeURL] == nil {
			all[typeURL] = new(typeSet)
		}
	}
	order := slices.SortedFunc(maps.Keys(all), func(a, b string) int {
		return cmp.Or(wire.Rank(a)-wire.Rank(b), cmp.Compare(a, b))
	})
	for _, typeURL := range order {
		if was, is := from.of(typeURL), all[typeURL]; was != is {
			l.Update(wire.Update{TypeURL: typeURL, SystemVersion: is.version, Resources: is.changedSince(was)})
		}
	}
	for _, typeURL := range slices.Backward(order) {
		if was, is := from.of(typeURL), all[typeURL]; was != is && len(was.without(is)) > 0 {
			l.Set(typeURL, is.version, slices.Collect(maps.Values(is.byName)))
		}
	}
}

// originView is one view of a directory, as its control sees it.
type originView struct{ *Local }

// local returns a local origin that withholds what clients report.
func (f *Origin) local(w *cache.Writer) *Local {
	l := NewLocal(w)
	w.AwaitReports(time.Now().Add(f.cfg.ColdWait))
	now := time.Now()
	l.reports = reconcile.NewReports(w, reconcile.ReportsConfig{ // a directory is known as a whole once it was read
		Config: f.cfg.reconcile(), AtOnce: true, Again: func() {},
		Complete: func(cache.ReportedSet) (at, asked time.Time) { return now, now },
	})
	return l
}

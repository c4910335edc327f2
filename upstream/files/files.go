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

// An Origin is a directory of resources.
//
// It reads each file directly in the directory, or symbolic link to one, whose extension [schema.IsFile] accepts and
// whose name does not begin with a dot. The resources of a type in all files together are the complete set of that type.
// A resource that is in no file does not exist.
//
// A file that cannot be read or parsed is bad. The relay goes on with what the file last held while it was good, except
// for names that another file has. If several files have a resource of the same name and type, the first file in the
// order of file names counts, so that all relays serve the same content of the same directory; the others are bad for
// that name. A bad file is logged, with the line if that is known, and Status has it.
//
// A resource that is removed from a file is removed from the views. The resources of a file that is deleted are removed
// too, unless they are all or more than half of a type, or no file is left, or the directory itself is gone. Then the
// removal is held back for MassDeleteHold, and made if the resources are still missing by then. A directory that cannot
// be read changes nothing. Until the first good file, clients wait.
//
// Writers should write elsewhere and rename: the relay reads a change 50ms after the last event, and half a list may be
// valid.
//
// # Concurrency properties
//
// One of the running syncs, or Follow, has the reader, and reads the directory for all of them. When it ends, another
// one takes the reader over. While none of them runs, the directory is not read.
type Origin struct {
	cfg      Config
	contentKnown    chan struct{}
	status *atomic.Pointer[Status]           // written by the reader
	broken   *atomic.Pointer[[]reconcile.Hold] // likewise

	// lead holds the reader while it is not in use. Its state belongs to the goroutine that takes it out.
	idleReader chan *reader

	// newest is written by the goroutine that has the reader.
	published atomic.Pointer[publication]

	calls chan func(*reader) // to the goroutine that has the reader

	frozenSets atomic.Pointer[sets] // what frozen views show; nil: each shows what it froze
}

// A publication is the content of the directory at one time. It has the signal that a newer one exists.
type publication struct {
	at         time.Time // when it was made
	sets       sets      // nil while it is unknown, or the directory is not followed
	outdated chan struct{}
}

// Open opens a directory as an origin. It logs bad files; they are no error.
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
	f := &Origin{cfg: cfg, contentKnown: r.contentKnown, status: &r.status, broken: &r.broken, idleReader: make(chan *reader, 1), calls: make(chan func(*reader))}
	f.idleReader <- r
	f.published.Store(&publication{outdated: make(chan struct{})})
	return f, nil
}

// Known returns a channel that is closed once the content of the directory is known: a file was good, or there was none.
func (f *Origin) Known() <-chan struct{} { return f.contentKnown }

// Follow reads the directory whenever it changes until ctx ends, whether or not a sync runs.
func (f *Origin) Follow(ctx context.Context) {
	select {
	case r := <-f.idleReader:
		f.follow(ctx, r)
	case <-ctx.Done():
	}
}

// Dir returns the directory.
func (f *Origin) Dir() string { return f.cfg.Dir }

// Sync keeps the view of w equal to the directory until ctx ends, and returns once everything that it started has ended.
// Several syncs may run at once.
//
// The control has it do what an operator wants. What is held back concerns all views, so [Origin.Holds] has it.
func (f *Origin) Sync(ctx context.Context, w *cache.Writer, control *upstream.Control) {
	l := originView{f.newLocal(w)}
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
		demand  <-chan struct{} // nil until the content is known
	)
	for {
		p := f.published.Load()
		to := f.visibleSets(p, w)
		if p != seen && to != nil && (applied == nil || !w.Frozen()) {
			f.replace(w, l, applied, to, p.at)
			applied, demand = to, l.Demand()
		}
		seen = p
		select {
		case <-demand:
			l.Answer()
			l.reports.Check(time.Now())
		case <-p.outdated:
		case call := <-control.Calls():
			call(l)
			seen = nil // if it was thawed, there may be something else to show
		case r := <-f.idleReader:
			following.Go(func() { f.follow(ctx, r) }) // waited for above
		case <-trim.C:
			w.Trim(time.Now())
			l.Trim()
			l.reports.Check(time.Now())
		case <-ctx.Done():
			return
		}
	}
}

// shown returns what a view is to show. A frozen view shows what was frozen, also to new clients.
func (f *Origin) visibleSets(p *publication, w *cache.Writer) sets {
	if frozen := f.frozenSets.Load(); frozen != nil && w.Frozen() {
		return *frozen
	}
	return p.sets
}

// replace brings a view up to date with what was published at a time.
func (f *Origin) replace(w *cache.Writer, l originView, from, to sets, at time.Time) {
	var trace upstream.Trace
	if f.cfg.Trace != nil {
		trace = f.cfg.Trace(upstream.Received{Origin: f.cfg.Dir, At: at})
		defer trace.Answered(nil)
	}
	w.SetCause(upstream.CauseOf(trace, at))
	defer w.SetCause(cache.Cause{})
	l.replace(from, to)
	if from == nil && !w.Source().Restored.IsZero() {
		l.removeRestored(to)
	}
}

// follow reads the directory whenever it changes until ctx ends, then returns the reader.
func (f *Origin) follow(ctx context.Context, r *reader) {
	defer func() { f.idleReader <- r }() // there is room: it was taken out
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
		if p := f.published.Load(); r.hasContent && (p.sets == nil || !maps.Equal(p.sets, r.serving)) {
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
	old := f.published.Swap(&publication{at: time.Now(), sets: s, outdated: make(chan struct{})})
	close(old.outdated)
}

// replace changes the view from one state of all types to another: first additions and changes, clusters first, then
// removals, clusters last, so that no resource of a client refers to a removed one (B.11).
func (l *Local) replace(from, to sets) {
	all := maps.Clone(to)
	for typeURL := range from { // the files may lack a type that an earlier process served
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
func (f *Origin) newLocal(w *cache.Writer) *Local {
	l := NewLocal(w)
	w.AwaitReports(time.Now().Add(f.cfg.ColdWait))
	now := time.Now()
	l.reports = reconcile.NewReports(w, reconcile.ReportsConfig{ // a directory is known as a whole once it was read
		Config: f.cfg.reconcile(), AtOnce: true, Again: func() {},
		Complete: func(cache.ReportedSet) (at, asked time.Time) { return now, now },
	})
	return l
}

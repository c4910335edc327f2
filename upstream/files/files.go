package files

import (
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
	"github.com/xdstender/tender/pending"
	"github.com/xdstender/tender/upstream"
	"github.com/xdstender/tender/upstream/reconcile"
)

// An Origin is a directory of resources.
//
// It reads each regular file in the directory, or symbolic link to one, whose extension [schema.IsFile] accepts and
// whose name does not start with a dot. The resources of a type in all files together are the complete set of that
// type. A resource that no file contains does not exist.
//
// A file that cannot be read or parsed is bad. The relay serves the last good content of the file, except names that
// another file contains. If several good files contain a resource of the same name and type, the first file by name
// takes precedence. So all relays serve the same content for the same directory. The other files are bad for that name.
// A bad file is logged, with the line if it is known, and is part of Status.
//
// A resource that is removed from a file, or whose file is deleted, is removed from the views. The removal of deleted
// files is pending for MassDeleteHold if it is suspiciously large, if no file remains, or if the directory does not
// exist. It is applied if the resources are still missing after that. If the directory cannot be read, the views do not
// change. Clients receive no response before the first file is good.
//
// Writers should write a file elsewhere and rename it. The relay reads a change 50ms after the last event, and a
// truncated list may be valid.
//
// # Concurrency properties
//
// The goroutine of one running sync, or of Follow, owns the reader and reads the directory for all views. When it ends,
// another one takes over. While none of them runs, the directory is not read.
type Origin struct {
	cfg          Config
	contentKnown chan struct{}           // closed by the reader
	status       *atomic.Pointer[Status] // written by the reader

	// idleReader contains the reader while no goroutine owns it. It has capacity 1.
	idleReader chan *reader

	// published is written by the goroutine that owns the reader.
	published atomic.Pointer[publication]

	calls chan func(*reader) // to the goroutine that owns the reader

	frozenSets atomic.Pointer[sets] // content of frozen views; if nil, each shows its own content at the freeze
}

// A publication is the content of the directory at one time, with a signal that a newer one exists. It is immutable.
type publication struct {
	at       time.Time     // time of the publication
	sets     sets          // nil if the content is unknown, or no goroutine follows the directory
	awaited  additions     // that wait
	waited   pending.Delay // of the oldest change in it that the reader has held
	outdated chan struct{} // closed when there is a newer one
}

// Open opens a directory as an origin and reads it once. Bad files are logged; they are not an error.
//
// Errors: the configuration is invalid, or the directory does not exist or cannot be read.
func Open(cfg Config) (*Origin, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := Check(cfg.Dir); err != nil {
		return nil, err
	}
	r := newReader(&cfg)
	r.read(time.Now()) // makes Status complete
	f := &Origin{
		cfg: cfg, contentKnown: r.contentKnown, status: &r.status,
		idleReader: make(chan *reader, 1), calls: make(chan func(*reader)),
	}
	f.idleReader <- r
	f.published.Store(&publication{outdated: make(chan struct{})})
	return f, nil
}

// Check returns an error if a directory does not exist or cannot be read.
func Check(dir string) error {
	switch info, err := os.Stat(dir); {
	case err != nil:
		return fmt.Errorf("open file origin: %w", err)
	case !info.IsDir():
		return fmt.Errorf("open file origin: %s is not a directory; name the one that holds the files", dir)
	}
	if _, err := os.ReadDir(dir); err != nil {
		return fmt.Errorf("open file origin: %w", err)
	}
	return nil
}

// Known returns a channel that is closed once the content of the directory is known: a file was good, or the directory
// contained no file.
func (f *Origin) Known() <-chan struct{} { return f.contentKnown }

// Follow reads the directory whenever it changes, until ctx ends, even if no sync runs.
func (f *Origin) Follow(ctx context.Context) {
	select {
	case r := <-f.idleReader:
		f.follow(ctx, r)
	case <-ctx.Done():
	}
}

// Dir returns the directory.
func (f *Origin) Dir() string { return f.cfg.Dir }

// Sync keeps the view of w in sync with the directory until ctx ends and all its goroutines have ended. Several syncs
// may run at once.
//
// The control passes commands of operators to the sync. Pending removals concern all views: see [Origin.Operate].
func (f *Origin) Sync(ctx context.Context, list *pending.List, control *upstream.Control) {
	w, l, counted := list.Writer(), originView{f.newLocal(list)}, 0
	var following sync.WaitGroup
	defer following.Wait() // ends with ctx, but last: a read may hang, and others wait for the end of the loop
	defer func() {
		list.Close()
		f.cfg.counts.CountList(list, counted)
	}()
	defer l.reports.Close()
	defer control.End()
	control.Begin(l)
	defer list.SetConnected(false)
	trim := time.NewTicker(upstream.TrimEvery)
	defer trim.Stop()
	due := time.NewTimer(upstream.TrimEvery) // set to the result of Step
	defer due.Stop()
	var (
		seen    *publication
		since   = time.Now() // since when a publication that was not applied concerns the view
		applied sets
		waited  pending.Delay   // of the oldest change that was not applied
		demand  <-chan struct{} // nil until the content is known
	)
	for {
		p := f.published.Load()
		to := f.visibleSets(p, list)
		waited = p.delay(waited, applied, list.Frozen())
		l.await(p.awaited, p.sets)
		if p != seen && outdated(applied, to, list.Frozen()) {
			f.replace(l, applied, to, later(p.at, since), waited)
			applied, waited, demand = to, pending.Delay{}, l.Demand()
		}
		seen = p
		resetTo(due, list.Step(time.Now()))
		counted = f.cfg.counts.CountList(list, counted)
		select {
		case <-demand:
			l.Answer()
			l.reports.Step(time.Now())
		case <-p.outdated:
		case <-list.Wake():
		case <-due.C:
		case call := <-control.Calls():
			call(l)
			seen, since = nil, time.Now() // after a thaw, there may be new content to show
		case r := <-f.idleReader:
			following.Go(func() { f.follow(ctx, r) }) // following.Wait waits for it
		case <-trim.C:
			w.Trim(time.Now())
			l.Trim()
			l.reports.Step(time.Now())
		case <-ctx.Done():
			return
		}
	}
}

// resetTo makes a timer fire at a time, unless that is zero.
func resetTo(timer *time.Timer, at time.Time) {
	if !at.IsZero() {
		timer.Reset(max(time.Until(at), time.Nanosecond))
	}
}

// outdated reports whether a view with some content must be given other content. The content is nil if it is unknown, or
// was not applied yet.
func outdated(applied, to sets, frozen bool) bool {
	return to != nil && (applied == nil || !frozen && !maps.Equal(applied, to))
}

// later returns the later of two times.
func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// visibleSets returns the content for a view. A frozen view shows the frozen content, also to new clients.
func (f *Origin) visibleSets(p *publication, list *pending.List) sets {
	if frozen := f.frozenSets.Load(); frozen != nil && list.Frozen() {
		return *frozen
	}
	return p.sets
}

// delay returns the delay of the oldest change in the publication that a view with some content has not applied. It may have
// waited before.
func (p *publication) delay(before pending.Delay, applied sets, frozen bool) pending.Delay {
	if applied == nil || p.sets == nil || maps.Equal(applied, p.sets) {
		return pending.Delay{}
	}
	if before = before.Oldest(p.waited); frozen {
		before = before.Oldest(pending.Frozen(p.at))
	}
	return before
}

// replace applies a publication, which concerns the view since a time, to the view. The trace begins when the oldest change was
// read.
func (f *Origin) replace(l originView, from, to sets, at time.Time, waited pending.Delay) {
	var trace upstream.Trace
	if f.cfg.Trace != nil {
		began := at
		if !waited.Since.IsZero() {
			began = waited.Since
		}
		trace = f.cfg.Trace(upstream.Received{Origin: f.cfg.Dir, At: began})
		defer trace.Answered(nil)
		if waited.Cause.Trace = trace; !waited.Since.IsZero() {
			waited.End(time.Now())
		}
	}
	l.pending.SetCause(upstream.CauseOf(trace, at))
	defer l.pending.SetCause(cache.Cause{})
	if from == nil && !l.w.Source().Restored.IsZero() {
		from = l.restoredBeside(to)
	}
	l.replace(from, to)
}

// follow reads the directory whenever it changes, until ctx ends, then returns the reader to idleReader.
func (f *Origin) follow(ctx context.Context, r *reader) {
	defer func() { f.idleReader <- r }() // does not block: the channel has capacity 1
	if ctx.Err() != nil {
		return
	}
	defer f.publish(nil, nil, pending.Delay{}) // a later sync must not apply content that may be outdated
	d := newDirWatch(f.cfg)
	defer d.close()
	for {
		d.renew() // before the read, so that no change is missed
		now := time.Now()
		until := now.Add(f.cfg.Poll)
		if over := r.read(now); !over.IsZero() && over.Before(until) {
			until = over
		}
		if p := f.published.Load(); r.hasContent && (p.sets == nil || !maps.Equal(p.sets, r.serving) || !maps.EqualFunc(p.awaited, r.awaited, maps.Equal)) {
			f.publish(r.serving, r.awaited, r.waited)
		}
		r.waited = pending.Delay{}
		call, more := d.wait(ctx, until, f.calls)
		if call != nil {
			call(r)
		}
		if !more {
			return
		}
	}
}

// publish makes s the current publication and wakes the syncs. s is nil if no goroutine follows the directory any
// longer. awaited are the additions that wait. waited is the delay of the oldest change in s that was held.
func (f *Origin) publish(s sets, awaited additions, waited pending.Delay) {
	old := f.published.Swap(&publication{
		at: time.Now(), sets: s, awaited: awaited, waited: waited, outdated: make(chan struct{}),
	})
	close(old.outdated)
}

// replace changes the view from one content to another. It applies additions and changes first, clusters first, then
// removals, clusters last. So no resource of a client references a removed one (B.11). If resources of a type exclude one
// another, a removal may make room for an addition: both are one change.
func (l *Local) replace(from, to sets) {
	all := maps.Clone(to)
	for typeURL := range from { // to may lack a type, for example after a freeze of an earlier process
		if all[typeURL] == nil {
			all[typeURL] = new(typeSet)
		}
	}
	order := slices.SortedFunc(maps.Keys(all), wire.CompareTypes)
	for _, typeURL := range order {
		if was, is := from.of(typeURL), all[typeURL]; was != is {
			u := wire.Update{TypeURL: typeURL, SystemVersion: is.version, Resources: is.changedSince(was)}
			if wire.HasKeys(typeURL) {
				u.Removed = slices.Collect(maps.Keys(was.without(is)))
			}
			l.Update(u)
		}
	}
	for _, typeURL := range slices.Backward(order) {
		if was, is := from.of(typeURL), all[typeURL]; was != is && !wire.HasKeys(typeURL) && len(was.without(is)) > 0 {
			l.Update(wire.Update{TypeURL: typeURL, SystemVersion: is.version, Removed: slices.Collect(maps.Keys(was.without(is)))})
		}
	}
}

// An originView is one view of a directory. It implements upstream.Controlled.
type originView struct{ *Local }

// newLocal returns the Local of a view. It keeps resources that clients report until their removal is decided.
func (f *Origin) newLocal(list *pending.List) *Local {
	l, w := NewLocal(list), list.Writer()
	w.AwaitReports(time.Now().Add(f.cfg.ColdWait))
	now := time.Now()
	l.reports = reconcile.NewReports(w, reconcile.ReportsConfig{ // a directory is complete after one read
		Config: f.cfg.reconcile(), AlwaysComplete: true, Verify: func(time.Time) {},
		CompleteAt: func(cache.ReportedSet) (at, requestedAt time.Time) { return now, now },
	})
	return l
}

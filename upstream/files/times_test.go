package files

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/fanout"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/pending"
	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/upstream"
)

// noTrace is a trace that records nothing.
type noTrace struct{}

func (noTrace) Applied(cache.Application) fanout.Span { return nil }
func (noTrace) Waited(string, time.Time, time.Time)   {}

func (noTrace) Waits(time.Time)               {}
func (noTrace) Answered(error)                {}
func (noTrace) IDs() (traceID, spanID string) { return "", "" }

// TestB43_TimesBeginWhenTheChangeConcernsTheView checks when changes of files are received: when they are read or, for a
// view that follows the directory only later, when it begins to follow. Changes that a freeze withheld are received at the
// thaw, in a trace that begins when they were read. Without a change there is no trace.
func TestB43_TimesBeginWhenTheChangeConcernsTheView(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := writeFiles(t, t.TempDir(), "few.yaml", clusters("a"))
		var mu sync.Mutex
		var traced []time.Time // guarded by mu
		files := check.Must(Open(Config{Dir: dir, disableEvents: true, Poll: time.Second,
			Trace: func(r upstream.Received) upstream.Trace {
				mu.Lock()
				defer mu.Unlock()
				traced = append(traced, r.At)
				return noTrace{}
			}}))
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		defer running.Wait()
		defer cancel()
		follow := func() (*cache.View, *upstream.Control) {
			view, w := cache.New(cache.Config{})
			control := upstream.NewControl(false, nil)
			running.Go(func() { files.Sync(ctx, pending.New(w, nil), control) })
			view.Watch().SubscribeAll(wire.ClusterType)
			synctest.Wait()
			return view, control
		}
		received := func(when string, view *cache.View, began, want time.Time) {
			t.Helper()
			mu.Lock()
			defer mu.Unlock()
			check.Equal(t, when+": traces", len(traced), 1)
			check.Equal(t, when+": begin of the trace", traced[0], began)
			var newest cache.Seq
			for e := range view.Generation().Type(wire.ClusterType).Wildcard.Since(0) {
				newest = max(newest, e.Seq)
			}
			check.Equal(t, when+": received", view.Cause(newest).Received, want)
			traced = nil
		}
		first, control := follow()
		received("at the start", first, time.Now(), time.Now())
		time.Sleep(46 * time.Second)
		late, _ := follow()
		received("a group that connects late", late, time.Now(), time.Now())
		time.Sleep(time.Minute)
		control.Freeze(t.Context())
		control.Thaw(t.Context())
		synctest.Wait()
		mu.Lock()
		check.Equal(t, "traces without a change", len(traced), 0)
		mu.Unlock()

		control.Freeze(t.Context())
		writeFiles(t, dir, "few.yaml", clusters("a=2"))
		time.Sleep(time.Hour)
		synctest.Wait()
		read := time.Now().Add(-time.Hour + time.Second)
		received("while another view is frozen", late, read, read)
		control.Thaw(t.Context())
		synctest.Wait()
		received("after the thaw", first, read, time.Now())
	})
}

// TestB43_DelaysOfFiles: the trace of a change that was held, or that a freeze delayed, begins when the change was read, and has
// the reason and the time for which it waited. That of the next change has none.
func TestB43_DelaysOfFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := writeFiles(t, t.TempDir(), "mass.yaml", clusters(many(20)...), "few.yaml", clusters("x"))
		traces := new(waitedTraces)
		m := mirrorDir(t, Config{Dir: dir, disableEvents: true, Poll: time.Second, Trace: traces.received})
		_, late := startMirror(t, m.files)
		m.until(strings.Join(many(20), " ") + " x")
		want := func(when string, waits ...string) {
			t.Helper()
			synctest.Wait()
			check.Equal(t, when+": waits", traces.take(), strings.Join(waits, ", "))
		}
		want("at the start", "", "")
		check.OK(t, os.Remove(filepath.Join(dir, "mass.yaml")))
		time.Sleep(10 * time.Minute)
		m.until("x")
		want("held", "large-removal 10m0s", "large-removal 10m0s")
		writeFiles(t, dir, "few.yaml", clusters("x=1"))
		m.until("x=1")
		want("not held", "", "")
		late()
		m.stop()

		view, w := cache.New(cache.Config{})
		control := upstream.NewControl(false, nil)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { m.files.Sync(ctx, pending.New(w, nil), control) })
		view.Watch().SubscribeAll(wire.ClusterType)
		want("another view", "")
		control.Freeze(t.Context())
		writeFiles(t, dir, "few.yaml", clusters("x=2"))
		time.Sleep(time.Minute)
		writeFiles(t, dir, "few.yaml", clusters("x=3"))
		time.Sleep(time.Hour)
		want("frozen")
		control.Thaw(t.Context())
		want("thawed", "frozen 1h0m59s")
		cancel()
		running.Wait()
	})
}

// waitedTraces record for each trace why its change has waited, and how long since the trace began.
type waitedTraces struct {
	mu  sync.Mutex
	all []*waitedTrace // guarded by mu
}

// A waitedTrace is a trace of a read of a directory.
type waitedTrace struct {
	noTrace
	began  time.Time
	waited string
}

// received starts a trace.
func (w *waitedTraces) received(r upstream.Received) upstream.Trace {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, &waitedTrace{began: r.At})
	return w.all[len(w.all)-1]
}

// Waited implements cache.Trace.
func (x *waitedTrace) Waited(reason string, since, until time.Time) {
	if x.waited = fmt.Sprint(reason, " ", until.Sub(since)); !since.Equal(x.began) {
		x.waited += fmt.Sprint(" ", since.Sub(x.began), " after the trace began")
	}
}

// take returns what was recorded, and forgets it.
func (w *waitedTraces) take() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []string
	for _, x := range w.all {
		all = append(all, x.waited)
	}
	w.all = nil
	return strings.Join(all, ", ")
}

// TestB45_RenamedListenersAreOneChange: a listener takes the place of another one, in the directory or since a snapshot. Clients are
// sent both changes at once, also within a minimum push interval.
func TestB45_RenamedListenersAreOneChange(t *testing.T) {
	for _, restored := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			view, w := cache.New(cache.Config{})
			if restored {
				w.Apply(cache.Wildcard, wire.Update{TypeURL: wire.ListenerType, Resources: listeners("old").all()})
				w.SetSource(cache.Source{Restored: time.Now()})
			}
			clock := pending.NewClock(func(string) time.Duration { return time.Second })
			l, f := originView{NewLocal(pending.New(w, clock))}, new(Origin)
			view.Watch().SubscribeAll(wire.ListenerType)
			l.Answer()
			var from sets
			if !restored {
				from = sets{wire.ListenerType: listeners("old")}
				f.replace(l, nil, from, time.Now(), pending.Delay{})
				time.Sleep(time.Minute)
			}
			f.replace(l, from, sets{wire.ListenerType: listeners("new")}, time.Now(), pending.Delay{})
			l.pending.Step(time.Now())
			var served []string
			for e := range view.Generation().Type(wire.ListenerType).Wildcard.Since(0) {
				if e.Present() {
					served = append(served, e.Name.String())
				}
			}
			if !slices.Equal(served, []string{"new"}) {
				t.Errorf("restored %v: clients see listeners %q, want new alone", restored, served)
			}
		})
	}
}

// listeners returns a set of listeners with the same content.
func listeners(names ...string) *typeSet {
	set := &typeSet{version: "1", byName: make(map[string]*wire.Resource)}
	for _, name := range names {
		set.byName[name] = check.Must(wire.NewResource(wire.ListenerType, name, "1", nil))
	}
	return set
}

// all returns the resources of a set.
func (s *typeSet) all() []*wire.Resource { return slices.Collect(maps.Values(s.byName)) }

// A hangingLog is a log handler that blocks for warnings and errors.
type hangingLog struct {
	slog.Handler
	release chan struct{}
}

// Enabled implements slog.Handler.
func (hangingLog) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelWarn }

// Handle implements slog.Handler. It returns when release is closed.
func (h hangingLog) Handle(context.Context, slog.Record) error {
	<-h.release
	return nil
}

// TestB56_AHangingReadDoesNotDelayTheEnd: a view whose sync reads the directory ends although the read hangs. Its list is closed,
// so that a snapshot has what waits.
func TestB56_AHangingReadDoesNotDelayTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := writeFiles(t, t.TempDir(), "good.yaml", clusters("a"))
		hangs := hangingLog{slog.DiscardHandler, make(chan struct{})}
		files := check.Must(Open(Config{Dir: dir, disableEvents: true, Poll: time.Second, Logger: slog.New(hangs)}))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		_, w := cache.New(cache.Config{})
		list, control := pending.New(w, nil), upstream.NewControl(false, nil)
		ended := make(chan struct{})
		go func() { // awaited below
			defer close(ended)
			files.Sync(ctx, list, control)
		}()
		synctest.Wait()
		writeFiles(t, dir, "bad.yaml", "{")
		time.Sleep(2 * time.Second) // the next read logs the bad file, which hangs like a volume
		cancel()
		synctest.Wait()
		select {
		case <-list.Closed():
		default:
			t.Error("the list is open while a read hangs")
		}
		called := false
		control.Edit(context.Background(), func(*pending.List) { called = true }) // returns: the loop has ended
		close(hangs.release)
		if <-ended; called {
			t.Error("the loop executed a command after its end")
		}
	})
}

package files

import (
	"context"
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
// thaw. Without a change there is no trace.
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
		received := func(when string, view *cache.View, want time.Time) {
			t.Helper()
			mu.Lock()
			defer mu.Unlock()
			check.Equal(t, when+": traces", len(traced), 1)
			check.Equal(t, when+": begin of the trace", traced[0], want)
			var newest cache.Seq
			for e := range view.Generation().Type(wire.ClusterType).Wildcard.Since(0) {
				newest = max(newest, e.Seq)
			}
			check.Equal(t, when+": received", view.Cause(newest).Received, want)
			traced = nil
		}
		first, control := follow()
		received("at the start", first, time.Now())
		time.Sleep(46 * time.Second)
		late, _ := follow()
		received("a group that connects late", late, time.Now())
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
		received("while another view is frozen", late, time.Now().Add(-time.Hour+time.Second))
		control.Thaw(t.Context())
		synctest.Wait()
		received("after the thaw", first, time.Now())
	})
}

package files

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/pending"
	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/upstream"
	"github.com/xdstender/tender/upstream/reconcile"
)

// TestMassDeleteHoldOfFiles checks, without events of the file system, that mass removals are held for ten minutes.
// Other changes are applied at once.
func TestMassDeleteHoldOfFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := writeFiles(t, t.TempDir(), "mass.yaml", clusters(many(20)...), "few.yaml", clusters("x", "y"))
		m := mirrorDir(t, Config{Dir: dir, disableEvents: true})
		count := func() int { return m.view.Generation().Type(wire.ClusterType).Wildcard.Count() }
		m.until(strings.Join(many(20), " ") + " x y")
		start := time.Now()
		check.OK(t, os.Remove(filepath.Join(dir, "mass.yaml")))
		writeFiles(t, dir, "few.yaml", clusters("x=1", "z")) // y is removed too
		m.until(strings.Join(many(20), " ") + " x=1 z")
		m.log.await(t, slog.LevelError, "removals held")
		check.Equal(t, "time until additions and changes", time.Since(start), 10*time.Second)
		time.Sleep(10*time.Minute - time.Nanosecond)
		check.Equal(t, "clusters just before the end of the hold", count(), 22)
		m.until("x=1 z")
		check.Equal(t, "time until the removals", time.Since(start), 10*time.Minute+10*time.Second)
		if got := m.log.logged(slog.LevelError); len(got) > 0 {
			t.Errorf("more errors in the log: %q, want none", got)
		}
		check.OK(t, os.Remove(filepath.Join(dir, "few.yaml")))
		time.Sleep(10 * time.Minute)
		m.until("x=1 z")
		m.until("") // removals from an empty directory are held, but for no longer than others
		m.stop()
	})
}

// serveDeleted calls serve as if the files of all missing resources had been deleted.
func (r *reader) serveDeleted(found sets, now time.Time) {
	vanished := make(map[string]map[string]struct{})
	for typeURL, set := range r.serving {
		vanished[typeURL] = set.without(found.of(typeURL))
	}
	r.serve(found, vanished, found == nil, now)
}

// TestH03_FileHolds checks that removals from a directory are held by the same rule as those of other origins.
func TestH03_FileHolds(t *testing.T) {
	type step struct {
		at       time.Duration // in minutes
		found    int           // number of resources in the files, c00 and so on
		extra    string        // names of more resources
		doubtful bool          // the directory contains no files
		want     string        // number of served resources, and of new held (held) and applied (-) removals
	}
	tests := []struct {
		name  string
		steps []step
	}{
		{"half is removed at once", []step{{0, 20, "", false, "20"}, {1, 10, "", false, "10 -10"}}},
		{"a tenth is removed at once", []step{{0, 200, "", false, "200"}, {1, 180, "", false, "180 -20"}}},
		{"more than ten and more than a tenth are held", []step{{0, 100, "", false, "100"}, {1, 89, "", false, "100 held 11"}, {2, 89, "", false, "100"}}},
		{"more than half is held", []step{{0, 9, "", false, "9"}, {1, 4, "", false, "9 held 5"}}},
		{"the only resource is held", []step{{0, 1, "", false, "1"}, {1, 0, "new", false, "2 held 1"}}},
		{"the hold ends", []step{{0, 100, "", false, "100"}, {1, 80, "", false, "100 held 20"}, {10, 80, "", false, "100"}, {11, 80, "", false, "80 -20 over"}, {12, 80, "", false, "80"}}},
		{"additions are not held", []step{{0, 100, "", false, "100"}, {1, 80, "new", false, "101 held 20"}, {11, 80, "new", false, "81 -20 over"}}},
		{"resources that reappear are not removed", []step{{0, 100, "", false, "100"}, {1, 80, "", false, "100 held 20"}, {2, 100, "", false, "100 over"}, {12, 100, "", false, "100"}}},
		{"more missing resources restart the hold", []step{{0, 100, "", false, "100"}, {1, 80, "", false, "100 held 20"}, {10, 70, "", false, "100 held 10"}, {11, 70, "", false, "100"}, {20, 70, "", false, "70 -30 over"}}},
		{"resources that reappear restart the hold", []step{{0, 100, "", false, "100"}, {1, 80, "", false, "100 held 20"}, {2, 95, "", false, "100"}, {11, 95, "", false, "100"}, {12, 95, "", false, "95 -5 over"}}},
		{"one removal is held if the directory contains no files", []step{{0, 1, "", false, "1"}, {1, 0, "", true, "1 held 1"}, {11, 0, "", true, "0 -1 over"}, {12, 0, "", true, "0"}}},
		{"no resources, no hold", []step{{0, 0, "", true, "0"}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, counts := holdingReader()
			for i, s := range tt.steps {
				now := time.Unix(0, 0).Add(s.at * time.Minute)
				found := sets{wire.ClusterType: {byName: make(map[string]*wire.Resource)}}
				for _, name := range append(many(s.found), strings.Fields(s.extra)...) {
					found[wire.ClusterType].byName[name] = &wire.Resource{Name: name}
				}
				if s.doubtful {
					found = nil
				}
				held, applied, holding := counts.HeldTotal.Load(), counts.AppliedTotal.Load(), heldRemovals(counts)
				r.serveDeleted(found, now)
				got := fmt.Sprint(r.serving.count())
				if n := counts.HeldTotal.Load() - held; n > 0 {
					got += fmt.Sprint(" held ", n)
				}
				if n := counts.AppliedTotal.Load() - applied; n > 0 {
					got += fmt.Sprint(" -", n)
				}
				if holding > 0 && heldRemovals(counts) == 0 {
					got += " over"
				}
				if got != s.want {
					t.Errorf("step %d: %s, want %s", i, got, s.want)
				}
			}
		})
	}
}

// TestB15_FilesPassOneOfTwoHolds checks that an operator can pass dropped and newly pending removals of one
// type separately. Pass removes only the resources that are still missing.
func TestB15_FilesPassOneOfTwoHolds(t *testing.T) {
	now := time.Unix(0, 0)
	look := func(r *reader, names ...string) {
		found := sets{wire.ClusterType: {byName: make(map[string]*wire.Resource)}}
		for _, name := range names {
			found[wire.ClusterType].byName[name] = &wire.Resource{Name: name}
		}
		r.serveDeleted(found, now)
	}
	for _, dropped := range []bool{false, true} {
		r, _ := holdingReader()
		all := many(60)
		look(r, all...)
		look(r, all[:40]...)
		r.group.Operate(reconcile.Command{Do: reconcile.Drop}, now) // the last 20 resources
		look(r, all[20:40]...)
		before := r.group.Operate(reconcile.Command{}, now)
		if len(before) != 2 || r.serving.count() != 60 {
			t.Fatalf("holds %+v, %d resources; want two holds and 60 resources", before, r.serving.count())
		}
		passed, left := before[:1], before[1:]
		if dropped {
			passed, left = left, passed
		}
		passed, left = slices.Clone(passed), slices.Clone(left)
		names := cmpopts.IgnoreFields(reconcile.Hold{}, "Changes")
		if got := r.group.Operate(reconcile.Command{Do: reconcile.Pass, Reason: reasonIf(dropped)}, now); !cmp.Equal(got, passed, names) {
			t.Errorf("passed %+v, want %+v", got, passed)
		}
		if r.serving.count() != 40 {
			t.Errorf("dropped %t: %d resources after pass, want 40", dropped, r.serving.count())
		}
		if look(r, append(slices.Clone(all[20:40]), passed[0].Names[:5]...)...); r.serving.count() != 45 {
			t.Errorf("dropped %t: %d resources, want 45 with those that reappeared", dropped, r.serving.count())
		}
		if got := r.group.Operate(reconcile.Command{}, now); !cmp.Equal(got, left, names) {
			t.Errorf("dropped=%t: holds %+v, want %+v", dropped, got, left)
		}
	}
}

// holdingReader returns a reader that holds removals for 10 minutes, with its counters.
func holdingReader() (*reader, *reconcile.Counts) {
	cfg, _ := Config{Dir: "none", MassDeleteHold: 10 * time.Minute}.withDefaults()
	return newReader(&cfg), cfg.counts
}

// TestB15_FilesPassAndDrop checks the commands of an operator for pending removals of files. A passed removal
// is removed at once. A dropped removal stays until a file contains the resource again.
func TestB15_FilesPassAndDrop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := writeFiles(t, t.TempDir(), "mass.yaml", clusters(many(20)...), "few.yaml", clusters("x"))
		m := mirrorDir(t, Config{Dir: dir, disableEvents: true})
		lose := func() {
			t.Helper()
			m.until(strings.Join(many(20), " ") + " x")
			check.OK(t, os.Remove(filepath.Join(dir, "mass.yaml")))
			time.Sleep(time.Minute)
			if h := m.files.Operate(t.Context(), reconcile.Command{}); len(h) != 1 || len(h[0].Names) != 20 || h[0].Reason == reconcile.Dropped || heldRemovals(m.files.cfg.counts) != 20 {
				t.Fatalf("holds %+v, %d held resources; want one hold of 20", h, heldRemovals(m.files.cfg.counts))
			}
		}
		lose()
		if got := m.files.Operate(t.Context(), reconcile.Command{Do: reconcile.Drop}); len(got) != 1 || len(got[0].Names) != 20 {
			t.Errorf("dropped %+v, want one hold of 20", got)
		}
		time.Sleep(time.Hour)
		m.until(strings.Join(many(20), " ") + " x")
		if h := m.files.Operate(t.Context(), reconcile.Command{}); len(h) != 1 || h[0].Reason != reconcile.Dropped || heldRemovals(m.files.cfg.counts) != 0 {
			t.Errorf("an hour later: holds %+v, %d held resources; want one dropped hold and no held resources", h, heldRemovals(m.files.cfg.counts))
		}
		if got := m.files.Operate(t.Context(), reconcile.Command{Do: reconcile.Pass, Reason: reconcile.Dropped}); len(got) != 1 {
			t.Errorf("passed %+v, want the dropped hold", got)
		}
		m.until("x")

		writeFiles(t, dir, "mass.yaml", clusters(many(20)...))
		lose()
		if got := m.files.Operate(t.Context(), reconcile.Command{Do: reconcile.Pass, TypeURL: wire.ListenerType}); len(got) != 0 {
			t.Errorf("passed %+v of another type, want none", got)
		}
		if got := m.files.Operate(t.Context(), reconcile.Command{Do: reconcile.Pass}); len(got) != 1 || len(got[0].Names) != 20 {
			t.Errorf("passed %+v, want one hold of 20", got)
		}
		m.until("x")

		writeFiles(t, dir, "mass.yaml", clusters(many(20)...))
		lose()
		m.files.Operate(t.Context(), reconcile.Command{Do: reconcile.Drop})
		writeFiles(t, dir, "mass.yaml", clusters(many(20)...))
		time.Sleep(time.Minute)
		if h := m.files.Operate(t.Context(), reconcile.Command{}); len(h) != 0 {
			t.Errorf("holds %+v of resources that reappeared, want none", h)
		}
		lose() // a new hold, which is not dropped
		m.stop()
		if h := m.files.Operate(t.Context(), reconcile.Command{}); len(h) != 1 {
			t.Errorf("holds %+v after the end of Sync, want the last one", h)
		}
	})
}

// TestFreeze_Files checks that a frozen view keeps the content of the files at the time of the freeze, also for new
// subscriptions by name. After a thaw, it has the current content.
func TestFreeze_Files(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := writeFiles(t, t.TempDir(), "few.yaml", clusters("a", "b"))
		control := upstream.NewControl(false, nil)
		files := check.Must(Open(Config{Dir: dir, disableEvents: true}))
		view, w := cache.New(cache.Config{})
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { files.Sync(ctx, pending.New(w, nil), control) })
		watch := view.Watch()
		watch.SubscribeAll(wire.ClusterType)
		time.Sleep(time.Second)
		control.Freeze(t.Context())
		writeFiles(t, dir, "few.yaml", clusters("a=2", "c"))
		watch.Subscribe(wire.ClusterType, []string{"b"})
		time.Sleep(time.Minute)
		check.Equal(t, "frozen clusters", clustersOf(view.Generation()), "a b")
		if e, _ := view.Generation().Type(wire.ClusterType).Lookup(view.Find(wire.ClusterType, []string{"b"})[0]); !e.Present() {
			t.Error("frozen: a new subscription to b by name gets no resource, want the frozen content")
		}
		check.Equal(t, "changes of a thaw", thawing(t, files, control), "+c -b ~a=2")
		check.Equal(t, "still frozen", clustersOf(view.Generation()), "a b")
		control.Thaw(t.Context())
		time.Sleep(time.Second)
		check.Equal(t, "thawed clusters", clustersOf(view.Generation()), "a=2 c")
		cancel()
		running.Wait()
	})
}

// thawing returns the changes that a thaw of a view would make, as +added, -removed and ~changed.
func thawing(t *testing.T, files *Origin, control *upstream.Control) string {
	t.Helper()
	var all []string
	edition := files.Thawing(t.Context())
	control.Edit(t.Context(), func(l *pending.List) {
		for d := range edition(l).Diff() {
			switch {
			case d.Is == nil:
				all = append(all, "-"+d.Name)
			case d.Was == nil:
				all = append(all, "+"+clusterText(&cache.Entry{Resource: d.Is}))
			default:
				all = append(all, "~"+clusterText(&cache.Entry{Resource: d.Is}))
			}
		}
	})
	slices.Sort(all)
	return strings.Join(all, " ")
}

// TestB11_AWaitingFileThatIsGone: a listener that waits for the removal of another one, and is deleted from the files, reaches
// nobody.
func TestB11_AWaitingFileThatIsGone(t *testing.T) {
	listeners := func(all ...string) string {
		text := "resources:\n"
		for _, l := range all {
			name, port, _ := strings.Cut(l, ":")
			text += "- \"@type\": " + wire.ListenerType + "\n  name: " + name +
				"\n  address: {socket_address: {address: 127.0.0.1, port_value: " + port + "}}\n"
		}
		return text
	}
	synctest.Test(t, func(t *testing.T) {
		dir := writeFiles(t, t.TempDir(), "l.yaml", listeners("a:80", "c:81"))
		m := mirrorDir(t, Config{Dir: dir, disableEvents: true})
		m.view.Watch().SubscribeAll(wire.ListenerType)
		served := func(when, want string) {
			t.Helper()
			time.Sleep(11 * time.Second) // longer than between two reads, and shorter than two
			var names []string
			for e := range m.view.Generation().Type(wire.ListenerType).Wildcard.Since(0) {
				if e.Present() {
					names = append(names, e.Name.String())
				}
			}
			slices.Sort(names)
			check.Equal(t, when, strings.Join(names, " "), want)
		}
		served("at first", "a c")
		writeFiles(t, dir, "l.yaml", listeners("a:80", "b:80", "c:81"))
		served("b waits", "a c")
		writeFiles(t, dir, "l.yaml", listeners("a:80", "c:81"))
		time.Sleep(time.Minute)
		served("b is gone", "a c")
		writeFiles(t, dir, "l.yaml", listeners("b:80", "c:81"))
		served("b replaces a", "b c")
	})
}

// TestB51_DirectoriesGrow: too many additions wait, and each view awaits them, so that a client that has one from another relay keeps
// it. The files that are written soon after the first good one are the first state.
func TestB51_DirectoriesGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := writeFiles(t, t.TempDir(), "few.yaml", clusters("x"))
		m := mirrorDir(t, Config{Dir: dir, disableEvents: true, Growth: reconcile.GrowthLimit{Factor: 2, Names: 4, Bytes: 1 << 20}})
		m.until("x")
		awaits := func(view *cache.View) (n int) {
			synctest.Wait()
			for _, name := range many(50) {
				if view.Generation().Type(wire.ClusterType).Wildcard.Awaits(name) {
					n++
				}
			}
			return n
		}
		writeFiles(t, dir, "more.yaml", clusters(many(9)...))
		m.until(strings.Join(many(9), " ") + " x")
		time.Sleep(time.Minute)
		few := strings.Join(many(9), " ") + " x"

		writeFiles(t, dir, "more.yaml", clusters(many(30)...))
		time.Sleep(9 * time.Minute)
		m.until(few)
		m.log.await(t, slog.LevelError, "growth held")
		check.Equal(t, "awaited by the view", awaits(m.view), 21)
		late, stop := startMirror(t, m.files)
		late.Watch().SubscribeAll(wire.ClusterType)
		time.Sleep(time.Second)
		check.Equal(t, "awaited by a new view", awaits(late), 21)
		check.Equal(t, "clusters of a new view", clustersOf(late.Generation()), few)
		stop()
		writeFiles(t, dir, "more.yaml", clusters(many(12)...))
		m.until(strings.Join(many(12), " ") + " x")
		check.Equal(t, "awaited after a normal state", awaits(m.view), 0)

		time.Sleep(time.Minute)
		writeFiles(t, dir, "more.yaml", clusters(many(40)...))
		time.Sleep(10*time.Minute - time.Nanosecond)
		check.Equal(t, "clusters before the deadline", clustersOf(m.view.Generation()), strings.Join(many(12), " ")+" x")
		m.until(strings.Join(many(40), " ") + " x")
		check.Equal(t, "awaited in the end", awaits(m.view), 0)
		m.stop()
	})
}

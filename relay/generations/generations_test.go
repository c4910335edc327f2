package generations

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/pending"
)

// A served is the line of a view, with the writer of the view.
type served struct {
	*testing.T
	*Line
	w           *cache.Writer
	list        *pending.List // in front of w
	unsubscribe func()        // ends the wildcard subscription to clusters; nil if there is none
}

// open adds a line for a new view with a wildcard subscription to clusters. The caller must call stop.
func open(t *testing.T, s *Store, group string, restored []cache.GenerationSnapshot) (v *served, stop func()) {
	view, w := cache.New(cache.Config{Waits: func(typeURL string) bool { return typeURL == wire.ClusterType }})
	watch := view.Watch()
	all := watch.SubscribeAll(wire.ClusterType)
	w.TakeDemand()
	w.SetConnected(true)
	line := s.Open(Key{Origin: "o", Group: group}, view, 0, restored)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { // stop waits for it
		defer close(ended)
		line.Run(ctx)
	}()
	unsubscribe := sync.OnceFunc(func() { watch.UnsubscribeAll(all) })
	return &served{t, line, w, pending.New(w, nil), unsubscribe}, func() {
		cancel()
		<-ended
		unsubscribe()
		watch.Close()
	}
}

// change applies changes of clusters, each in the form name=content, or -name for a removal.
func (v *served) change(changes ...string) {
	v.Helper()
	u := wire.Update{TypeURL: wire.ClusterType}
	for _, change := range changes {
		if name, removed := strings.CutPrefix(change, "-"); removed {
			u.Removed = append(u.Removed, name)
			continue
		}
		name, content, _ := strings.Cut(change, "=")
		r, err := wire.NewResource(wire.ClusterType, name, content, append([]byte{0x0a, byte(len(name))}, name+content...))
		if err != nil {
			v.Fatalf("cluster %q: %v", change, err)
		}
		u.Resources = append(u.Resources, r)
	}
	v.list.Apply(cache.Wildcard, u)
	v.w.SetPhase(wire.ClusterType, cache.Confirmed)
}

// settle waits, in a bubble, until all changes are recorded as a generation.
func settle() {
	time.Sleep(time.Minute)
	synctest.Wait()
}

// shown returns the clusters that readers see, each in the form name=content.
func (v *served) shown() string {
	var all []string
	for e := range v.view.Generation().Type(wire.ClusterType).Wildcard.Since(0) {
		if e.Present() {
			all = append(all, e.Name.String()+"="+e.Resource.OriginVersion)
		}
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// bubble runs a test with a store and one line, and checks that the store is empty after the end of the line.
func bubble(t *testing.T, limit int64, test func(t *testing.T, s *Store, v *served)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := New(limit)
		v, stop := open(t, s, "g", nil)
		stop = sync.OnceFunc(stop)
		defer stop()
		test(t, s, v)
		stop()
		if n, bytes := s.Stats(); n != 0 || bytes != 0 || len(s.refs) != 0 || len(s.Lines()) != 0 {
			t.Errorf("after the end of the line, the store has %d generations, %d bytes and %d resources, want none", n, bytes, len(s.refs))
		}
	})
}

// TestH13_ChangesInSuccessionAreOneGeneration checks that changes in quick succession make one generation. It has the
// digest of its content, the time of its last change, and the numbers of changed resources.
func TestH13_ChangesInSuccessionAreOneGeneration(t *testing.T) {
	bubble(t, 1<<20, func(t *testing.T, _ *Store, v *served) {
		v.change("a=1", "b=1")
		settle()
		first := v.Digest()
		began := time.Now()
		v.change("a=2")
		time.Sleep(quiet / 2)
		v.change("c=1", "-b")
		settle()
		all := v.Generations()
		if len(all) != 2 {
			t.Fatalf("%d generations, want 2: %+v", len(all), all)
		}
		if is := all[0]; is.Added != 1 || is.Changed != 1 || is.Removed != 1 || !is.Until.IsZero() || is.Digest != v.Digest() || is.Digest == first || is.Since.Sub(began) > quiet {
			t.Errorf("newest generation: %+v, want one resource added, changed and removed since %v", is, began)
		}
		if was := all[1]; was.Digest != first || !was.Until.Equal(all[0].Since) || was.Bytes == 0 {
			t.Errorf("previous generation: %+v, want the digest %s, Bytes above 0, and Until %v", was, first, all[0].Since)
		}
		v.change("a=1", "b=1", "-c")
		settle()
		if got := v.Digest(); got != first {
			t.Errorf("the same content has the digest %s, want %s as before", got, first)
		}
	})
}

// TestH13_EndlessChangesAreGenerations checks that continuous changes are recorded as a generation after quietMost.
func TestH13_EndlessChangesAreGenerations(t *testing.T) {
	bubble(t, 1<<20, func(t *testing.T, _ *Store, v *served) {
		v.change("a=0")
		settle()
		for i := range 100 {
			v.change(fmt.Sprint("a=", i+1))
			time.Sleep(quiet / 2)
		}
		if n := len(v.Generations()); n < 4 || n > 7 {
			t.Errorf("%d generations in 50s of changes, want one every 10s", n)
		}
	})
}

// TestH13_TheOldestAreForgotten checks that the oldest generations of all lines are dropped first, and that At returns
// ErrForgotten for their time.
func TestH13_TheOldestAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(4 * 1024)
		one, stopOne := open(t, s, "one", nil)
		two, stopTwo := open(t, s, "two", nil)
		defer stopTwo()
		defer stopOne()
		began := time.Now()
		one.change("a=0")
		two.change("a=0")
		settle()
		for i := range 10 {
			one.change(fmt.Sprintf("a=%d%s", i+1, strings.Repeat("x", 100)))
			settle()
			if i < 3 {
				two.change(fmt.Sprint("a=", i+1))
				settle()
			}
		}
		n, bytes := s.Stats()
		if bytes > 4*1024 || n < 4 || len(one.Generations())+len(two.Generations())-2 != n {
			t.Errorf("Stats: %d generations with %d bytes; lines have %d and %d", n, bytes, len(one.Generations())-1, len(two.Generations())-1)
		}
		if got := len(two.Generations()); got != 1 {
			t.Errorf("the line without recent changes has %d generations, want only the newest", got)
		}
		for _, v := range []*served{one, two} {
			if _, err := v.At(began); !errors.Is(err, ErrForgotten) || !strings.Contains(err.Error(), v.Group) {
				t.Errorf("group %s: At for the first generation: %v, want ErrForgotten with the group", v.Group, err)
			}
			if target, err := v.At(time.Now()); err != nil || target.Digest != v.Digest() {
				t.Errorf("group %s: At for now: %+v, %v, want the newest generation", v.Group, target, err)
			}
			if _, err := v.Find("none"); !errors.Is(err, ErrUnknown) {
				t.Errorf("group %s: Find of an unknown digest: %v, want ErrUnknown", v.Group, err)
			}
		}
	})
}

// TestH13_TheServedGenerationIsAlwaysKept checks that the newest generation is kept even if the limit is smaller than
// one generation.
func TestH13_TheServedGenerationIsAlwaysKept(t *testing.T) {
	bubble(t, 1, func(t *testing.T, s *Store, v *served) {
		v.change("a=1")
		settle()
		v.change("a=2")
		settle()
		if n, bytes := s.Stats(); n != 0 || bytes != 0 || len(v.Generations()) != 1 {
			t.Errorf("%d earlier generations with %d bytes, %d in total, want only the newest", n, bytes, len(v.Generations()))
		}
		if target, err := v.Find(v.Digest()); err != nil || target.Edition(v.list) == nil {
			t.Errorf("Find of the newest generation: %v, want its edition", err)
		}
	})
}

// TestH13_GenerationsSurviveARestart checks that a snapshot contains the generations with their times and digests, and
// that a restored line can return to them.
func TestH13_GenerationsSurviveARestart(t *testing.T) {
	bubble(t, 1<<20, func(t *testing.T, s *Store, v *served) {
		v.change("a=1", "b=1")
		settle()
		v.change("a=2")
		settle()
		v.change("-b")
		settle()
		before := v.Generations()
		snap := new(cache.Snapshot)
		v.Snapshot(true, func() *cache.Snapshot {
			snap, _ = v.w.Snapshot(true)
			return snap
		})

		view, w := cache.New(cache.Config{Waits: func(typeURL string) bool { return typeURL == wire.ClusterType }})
		w.Restore(snap, time.Now())
		line := s.Open(Key{Origin: "o", Group: "restored"}, view, 0, snap.Generations)
		restored := &served{t, line, w, pending.New(w, nil), nil}
		defer line.close()
		after := restored.Generations()
		if len(after) != len(before) {
			t.Fatalf("%d generations, want %d", len(after), len(before))
		}
		for i, g := range after {
			if g.Digest != before[i].Digest || g.Since.Sub(before[i].Since).Abs() > time.Millisecond || g.Changed != before[i].Changed || g.Removed != before[i].Removed {
				t.Errorf("generation %d: %+v, want %+v", i, g, before[i])
			}
		}
		target, err := restored.Find(before[2].Digest)
		if err != nil {
			t.Fatal(err)
		}
		restored.list.RollBack(target.Formers(restored.w.View()), time.Now())
		if got := restored.shown(); got != "a=1 b=1" {
			t.Errorf("after restart and rollback, readers see %q, want a=1 b=1", got)
		}
	})
}

// TestH13_EachGenerationIsWhatWasServed applies random changes. Each stored generation must have the content that was
// served, equal digests must mean equal content, and the store must count its bytes correctly.
func TestH13_EachGenerationIsWhatWasServed(t *testing.T) {
	change := rapid.Custom(func(t *rapid.T) string {
		name := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name")
		if rapid.Bool().Draw(t, "removed") {
			return "-" + name
		}
		return name + "=" + rapid.StringMatching("[0-9]x{0,100}").Draw(t, "content")
	})
	rapid.Check(t, func(rt *rapid.T) {
		limit, changes := rapid.Int64Range(0, 8192).Draw(rt, "limit"), rapid.SliceOfN(change, 1, 15).Draw(rt, "changes")
		var err error
		synctest.Test(t, func(t *testing.T) { err = history(t, limit, changes) })
		if err != nil {
			rt.Fatal(err)
		}
	})
}

// history applies changes one after the other. It returns an error if a generation differs from the content that was
// served.
func history(t *testing.T, limit int64, changes []string) error {
	s := New(limit)
	v, stop := open(t, s, "g", nil)
	defer stop()
	was := make(map[string]string) // content by digest
	for _, change := range changes {
		v.change(change)
		settle()
		if before, known := was[v.Digest()]; known && before != v.shown() {
			return fmt.Errorf("%q and %q have the digest %s", before, v.shown(), v.Digest())
		}
		was[v.Digest()] = v.shown()
	}
	if err := s.count(); err != nil {
		return err
	}
	newest := v.shown()
	for _, g := range v.Generations() {
		if g.Digest == "" { // a generation without resources, which Find cannot return
			continue
		}
		target, err := v.Find(g.Digest)
		if err != nil {
			return fmt.Errorf("generation %s: %w", g.Digest, err)
		}
		v.list.RollBack(target.Formers(v.w.View()), time.Now())
		if got := v.shown(); got != was[g.Digest] {
			return fmt.Errorf("after the rollback to %s, readers see %q, want %q", g.Digest, got, was[g.Digest])
		}
		v.list.Thaw()
		if got := v.shown(); got != newest {
			return fmt.Errorf("after the thaw, readers see %q, want %q", got, newest)
		}
	}
	return nil
}

// count returns an error unless the store counts the correct number of bytes and is within its limit.
func (s *Store) count() error {
	bytes := size(s.order)
	if bytes != s.bytes || s.bytes > s.limit {
		return fmt.Errorf("the store counts %d bytes, want %d, and at most %d", s.bytes, bytes, s.limit)
	}
	return nil
}

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
)

// A served is a view whose generations are kept, and what writes it.
type served struct {
	*testing.T
	*Line
	w           *cache.Writer
	unsubscribe func() // from all clusters; nil if nothing is subscribed
}

// open begins a line of a new view with clusters. The caller calls stop.
func open(t *testing.T, s *Store, group string, restored []cache.GenerationSnapshot) (v *served, stop func()) {
	view, w := cache.New(cache.Config{Waits: func(typeURL string) bool { return typeURL == wire.ClusterType }})
	watch := view.Watch()
	all := watch.SubscribeAll(wire.ClusterType)
	w.TakeDemand()
	w.SetConnected(true)
	line := s.Open(Key{Origin: "o", Group: group}, view, 0, restored)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { // awaited by stop
		defer close(ended)
		line.Run(ctx)
	}()
	unsubscribe := sync.OnceFunc(func() { watch.UnsubscribeAll(all) })
	return &served{t, line, w, unsubscribe}, func() {
		cancel()
		<-ended
		unsubscribe()
		watch.Close()
	}
}

// change applies changes of clusters, each written name=content, or -name for a removal.
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
	v.w.Apply(cache.Wildcard, u)
	v.w.SetPhase(wire.ClusterType, cache.Confirmed)
}

// settle lets time pass after which what has changed is a generation, in a bubble.
func settle() {
	time.Sleep(time.Minute)
	synctest.Wait()
}

// shown returns what readers see, as name=content.
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

// bubble runs a test with a store and one line.
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
			t.Errorf("after the end of the line, %d generations hold %d bytes and %d resources", n, bytes, len(s.refs))
		}
	})
}

// H13: changes that come together are one generation, which has its content's digest, the time at which it came and what it changed.
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
			t.Fatalf("%d generations, want two: %+v", len(all), all)
		}
		if is := all[0]; is.Added != 1 || is.Changed != 1 || is.Removed != 1 || !is.Until.IsZero() || is.Digest != v.Digest() || is.Digest == first || is.Since.Sub(began) > quiet {
			t.Errorf("the newest: %+v, want one added, changed and removed since %v", is, began)
		}
		if was := all[1]; was.Digest != first || !was.Until.Equal(all[0].Since) || was.Bytes == 0 {
			t.Errorf("the one before: %+v, want the digest %s, bytes, and until %v", was, first, all[0].Since)
		}
		v.change("a=1", "b=1", "-c")
		settle()
		if got := v.Digest(); got != first {
			t.Errorf("the same content has the digest %s, and had %s", got, first)
		}
	})
}

// H13: changes that never pause are a generation after quietMost.
func TestH13_EndlessChangesAreGenerations(t *testing.T) {
	bubble(t, 1<<20, func(t *testing.T, _ *Store, v *served) {
		v.change("a=0")
		settle()
		for i := range 100 {
			v.change(fmt.Sprint("a=", i+1))
			time.Sleep(quiet / 2)
		}
		if n := len(v.Generations()); n < 4 || n > 7 {
			t.Errorf("%d generations in 50s of changes, want one each 10s", n)
		}
	})
}

// H13: the oldest generations of all lines are given up first, and what was served then is said to be forgotten.
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
			t.Errorf("%d generations with %d bytes, of which %d and %d are shown", n, bytes, len(one.Generations())-1, len(two.Generations())-1)
		}
		if got := len(two.Generations()); got != 1 {
			t.Errorf("the line that changed long ago has %d generations, want its newest alone", got)
		}
		for _, v := range []*served{one, two} {
			if _, err := v.At(began); !errors.Is(err, ErrForgotten) || !strings.Contains(err.Error(), v.Group) {
				t.Errorf("group %s at the beginning: %v, want that it is forgotten", v.Group, err)
			}
			if target, err := v.At(time.Now()); err != nil || target.Digest != v.Digest() {
				t.Errorf("group %s now: %+v, %v", v.Group, target, err)
			}
			if _, err := v.Find("none"); !errors.Is(err, ErrUnknown) {
				t.Errorf("group %s, a digest that no generation has: %v", v.Group, err)
			}
		}
	})
}

// H13: a limit that not even one generation fits keeps what is served.
func TestH13_TheServedGenerationIsAlwaysKept(t *testing.T) {
	bubble(t, 1, func(t *testing.T, s *Store, v *served) {
		v.change("a=1")
		settle()
		v.change("a=2")
		settle()
		if n, bytes := s.Stats(); n != 0 || bytes != 0 || len(v.Generations()) != 1 {
			t.Errorf("%d generations with %d bytes, and %d are shown", n, bytes, len(v.Generations()))
		}
		if target, err := v.Find(v.Digest()); err != nil || target.Edition(v.w) == nil {
			t.Errorf("the served generation: %v", err)
		}
	})
}

// H13: a snapshot has the generations, their times and digests, and a line that is restored goes back to them.
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
		restored := &served{t, line, w, nil}
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
		restored.w.RollBack(target.Edition(restored.w), time.Now())
		if got := restored.shown(); got != "a=1 b=1" {
			t.Errorf("rolled back after the restart, readers see %q, want a=1 b=1", got)
		}
	})
}

// H13: whatever changes in whatever order, each kept generation is what was served, its digest is its content's, and the bytes are
// counted as they are.
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

// history makes changes one after the other, and returns what is wrong with the generations then.
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
		if g.Digest == "" { // nothing was served: no digest finds that
			continue
		}
		target, err := v.Find(g.Digest)
		if err != nil {
			return fmt.Errorf("generation %s: %w", g.Digest, err)
		}
		v.w.RollBack(target.Edition(v.w), time.Now())
		if got := v.shown(); got != was[g.Digest] {
			return fmt.Errorf("rolled back to %s, readers see %q, want %q", g.Digest, got, was[g.Digest])
		}
		v.w.Thaw()
		if got := v.shown(); got != newest {
			return fmt.Errorf("thawed, readers see %q, want %q", got, newest)
		}
	}
	return nil
}

// count returns an error unless the store counts what it holds.
func (s *Store) count() error {
	bytes := size(s.order)
	if bytes != s.bytes || s.bytes > s.limit {
		return fmt.Errorf("the store counts %d bytes, has %d, and may have %d", s.bytes, bytes, s.limit)
	}
	return nil
}

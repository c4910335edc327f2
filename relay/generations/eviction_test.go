package generations

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// follow begins another line of the view, in another store. The caller calls stop.
func (v *served) follow(s *Store) (l *Line, stop func()) {
	l = s.Open(v.Key, v.view, v.source, nil)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { // awaited by stop
		defer close(ended)
		l.Run(ctx)
	}()
	return l, func() {
		cancel()
		<-ended
	}
}

// identify returns generations as texts that name their line, content and time.
func identify(all []*generation) (texts []string) {
	for _, g := range all {
		texts = append(texts, fmt.Sprint(g.line.Group, " ", g.Digest, " ", g.Since.UnixNano()))
	}
	return texts
}

// size returns the bytes that generations hold.
func size(all []*generation) (bytes int64) {
	seen := make(map[*wire.Resource]bool)
	for _, g := range all {
		bytes += overhead * int64(1+len(g.formers))
		for _, f := range g.formers {
			if f.Resource != nil && !seen[f.Resource] {
				seen[f.Resource] = true
				bytes += int64(f.Resource.Size())
			}
		}
	}
	return bytes
}

// TestH13_OnlyTheOldestAreEvicted: of all lines together, the store evicts the generation that ended first, and no more
// generations than the limit requires.
func TestH13_OnlyTheOldestAreEvicted(t *testing.T) {
	change := rapid.Custom(func(t *rapid.T) string {
		line := rapid.SampledFrom([]string{"0", "1"}).Draw(t, "line")
		name := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "name")
		return line + name + "=" + rapid.StringMatching("[0-9]x{0,300}").Draw(t, "content")
	})
	evicted := 0
	rapid.Check(t, func(rt *rapid.T) {
		limit, changes := rapid.Int64Range(0, 4096).Draw(rt, "limit"), rapid.SliceOfN(change, 1, 20).Draw(rt, "changes")
		var err error
		synctest.Test(t, func(t *testing.T) {
			var dropped int
			dropped, err = evict(t, limit, changes)
			evicted += dropped
		})
		if err != nil {
			rt.Fatal(err)
		}
	})
	if evicted == 0 {
		t.Error("no generation was evicted")
	}
}

var errKept = errors.New("it is kept")

// evict makes changes of two lines, beside a store without a limit. It returns how many generations were evicted, and
// an error if these are not the right ones.
func evict(t *testing.T, limit int64, changes []string) (evicted int, _ error) {
	limited, all := New(limit), New(1<<40)
	var lines [2]*served
	for i := range lines {
		var stop func()
		lines[i], stop = open(t, limited, fmt.Sprint(i), nil)
		defer stop()
		_, stop = lines[i].follow(all)
		defer stop()
	}
	for _, change := range changes {
		lines[change[0]-'0'].change(change[1:])
		settle()
		for size(all.order[evicted:]) > limit {
			evicted++
		}
		if want, got := identify(all.order[evicted:]), identify(limited.order); !slices.Equal(want, got) {
			return evicted, fmt.Errorf("after %s, the store has the generations %q, want %q", change, got, want)
		}
	}
	for _, v := range lines {
		_, err := v.At(time.Time{})
		lost := slices.ContainsFunc(all.order[:evicted], func(g *generation) bool { return g.line.Group == v.Group })
		if errors.Is(err, ErrForgotten) != lost {
			err = cmp.Or(err, errKept)
			return evicted, fmt.Errorf("group %s lost generations: %t; its first one: %w", v.Group, lost, err)
		}
	}
	return evicted, nil
}

// TestH13_GenerationsByTimeAndDigest: a time names the generation that was served then, a time before the first one the
// first, and a digest, or the beginning of one, the newest generation with that content.
func TestH13_GenerationsByTimeAndDigest(t *testing.T) {
	bubble(t, 1<<20, func(t *testing.T, _ *Store, v *served) {
		v.change("a=1")
		settle()
		for _, content := range []string{"2", "1", "3"} {
			v.change("a=" + content)
			settle()
		}
		all := v.Generations()
		if len(all) != 4 || all[1].Digest != all[3].Digest {
			t.Fatalf("generations %+v, want four, of which the first and the third are equal", all)
		}
		for i, g := range all {
			until := g.Until
			if until.IsZero() {
				until = time.Now()
			}
			for _, at := range []time.Time{g.Since, until.Add(-1)} {
				if target, err := v.At(at); err != nil || target.Generation != g {
					t.Errorf("generation %d at %v: %+v, %v, want %+v", i, at, target, err, g)
				}
			}
		}
		if target, err := v.At(all[3].Since.Add(-time.Hour)); err != nil || target.Since != all[3].Since {
			t.Errorf("before the first generation: %+v, %v, want the first", target, err)
		}
		for _, digits := range []int{6, 12} {
			if target, err := v.Find(all[3].Digest[:digits]); err != nil || target.Since != all[1].Since {
				t.Errorf("%d digits of a digest that recurs: %+v, %v, want the newer of both", digits, target, err)
			}
		}
	})
}

// TestH13_TheHeadOfARollbackStays: while readers are served an earlier generation, what the control plane changes is no
// generation, and neither is the earlier one evicted: a target keeps its content although the store has forgotten it.
func TestH13_TheHeadOfARollbackStays(t *testing.T) {
	bubble(t, 4*overhead, func(t *testing.T, s *Store, v *served) {
		v.change("a=good")
		settle()
		good := v.Digest()
		v.change("a=bad")
		settle()
		target, err := v.Find(good)
		if err != nil {
			t.Fatal(err)
		}
		other, stop := open(t, s, "other", nil)
		defer stop()
		for i := range 5 { // evicts it
			other.change(fmt.Sprint("a=", i, strings.Repeat("x", overhead)))
			settle()
		}
		if _, err := v.Find(good); !errors.Is(err, ErrUnknown) {
			t.Errorf("the store still finds the generation: %v", err)
		}
		v.w.RollBack(target.Edition(v.w), time.Now())
		settle()
		head := v.Generations()[0]
		if got := v.shown(); got != "a=good" || head.Digest != good {
			t.Errorf("rolled back, readers see %q as generation %s, want a=good as %s", got, head.Digest, good)
		}
		v.change("a=later", "b=later")
		settle()
		if now := v.Generations()[0]; now != head {
			t.Errorf("a change that waits made the generation %+v, want %+v", now, head)
		}
		v.w.Thaw()
		settle()
		now := v.Generations()[0]
		if got := v.shown(); got != "a=later b=later" || now.Changed != 1 || now.Added != 1 || now.Digest == good {
			t.Errorf("thawed, readers see %q as generation %+v, want what had waited, as one generation", got, now)
		}
	})
}

// TestH13_AForgottenSetEndsItsGenerations: once no client follows a wildcard set, its generations lead nowhere, and the
// store gives them up.
func TestH13_AForgottenSetEndsItsGenerations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(1 << 20)
		v, stop := open(t, s, "g", nil)
		defer stop()
		v.change("a=1")
		settle()
		v.change("a=2")
		settle()
		if n, bytes := s.Stats(); n != 1 || bytes == 0 {
			t.Fatalf("%d generations with %d bytes, want one", n, bytes)
		}
		v.unsubscribe()
		v.w.TakeDemand()
		if !v.w.ForgetWildcard(wire.ClusterType) {
			t.Fatal("the set is still followed")
		}
		settle()
		if n, bytes := s.Stats(); n != 0 || bytes != 0 || len(v.Generations()) != 1 || v.Digest() != "" {
			t.Errorf("%d generations with %d bytes; shown are %+v, want an empty one", n, bytes, v.Generations())
		}
		if _, err := v.At(time.Time{}); !errors.Is(err, ErrForgotten) {
			t.Errorf("the first generation: %v, want that it is forgotten", err)
		}
	})
}

// TestH13_WhatASnapshotHasOfGenerations: it has a change that is not yet a generation as one, and without sensitive
// content no generation with a resource that may be sensitive, nor those before it, since each needs those after it.
func TestH13_WhatASnapshotHasOfGenerations(t *testing.T) {
	bubble(t, 1<<20, func(t *testing.T, s *Store, v *served) {
		v.change("a", "b") // without content; with it, the bytes of a cluster are malformed, and may be sensitive
		settle()
		for _, change := range []string{"b=1", "b"} {
			v.change(change)
			settle()
		}
		v.change("c")
		v.change("d")
		all := []string{v.Generations()[2].Digest, v.Generations()[1].Digest, v.state.Digest(), v.Digest()}
		for sensitive, want := range map[bool][]string{true: all, false: all[2:]} {
			var snap *cache.Snapshot
			v.Snapshot(sensitive, func() *cache.Snapshot {
				snap, _ = v.w.Snapshot(sensitive)
				return snap
			})
			_, w := cache.New(cache.Config{Waits: func(typeURL string) bool { return typeURL == wire.ClusterType }})
			w.Restore(snap, time.Now())
			line := s.Open(Key{Origin: "o", Group: "restored"}, w.View(), 0, snap.Generations)
			var got []string
			for _, g := range slices.Backward(line.Generations()) {
				got = append(got, g.Digest)
			}
			if !slices.Equal(got, want) {
				t.Errorf("restored with sensitive content %t: generations %q, want %q", sensitive, got, want)
			}
			if newest := line.Generations()[0]; newest.Added != 2 || newest.Since.After(time.Now()) {
				t.Errorf("the newest generation: %+v, want two resources added", newest)
			}
			line.close()
		}
	})
}

// TestH13_TheLimitIsInclusive: generations that hold exactly as many bytes as the limit are kept. A limit of one byte
// less evicts one.
func TestH13_TheLimitIsInclusive(t *testing.T) {
	kept := func(limit int64) (n int, bytes int64) {
		bubble(t, limit, func(_ *testing.T, s *Store, v *served) {
			for _, change := range []string{"a=1", "a=2", "a=3"} {
				v.change(change)
				settle()
			}
			n, bytes = s.Stats()
		})
		return n, bytes
	}
	n, exact := kept(1 << 20)
	if again, bytes := kept(exact); again != n || n != 2 || bytes != exact {
		t.Errorf("a limit of %d bytes keeps %d generations with %d bytes, want %d", exact, again, bytes, n)
	}
	if fewer, bytes := kept(exact - 1); fewer != n-1 || bytes >= exact {
		t.Errorf("a limit of %d bytes keeps %d generations with %d bytes, want %d", exact-1, fewer, bytes, n-1)
	}
}

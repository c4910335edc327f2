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

// follow adds another line for the view, in another store. The caller must call stop.
func (v *served) follow(s *Store) (l *Line, stop func()) {
	l = s.Open(v.Key, v.view, v.source, nil)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { // stop waits for it
		defer close(ended)
		l.Run(ctx)
	}()
	return l, func() {
		cancel()
		<-ended
	}
}

// identify returns the line, digest and time of each generation as text, for comparison.
func identify(all []*generation) (texts []string) {
	for _, g := range all {
		texts = append(texts, fmt.Sprint(g.line.Group, " ", g.Digest, " ", g.Since.UnixNano()))
	}
	return texts
}

// size returns the bytes that a store must count for generations.
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

// TestH13_OnlyTheOldestAreEvicted checks that the store evicts the generations of all lines in the order in which they
// ended. It must not evict more generations than the limit requires.
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
		t.Error("no generation was evicted in any run")
	}
}

var errKept = errors.New("it is kept")

// evict applies changes to two lines in a store with a limit and in a store without one. It returns the number of
// evicted generations, and an error if others were evicted than expected.
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

// TestH13_GenerationsByTimeAndDigest checks At and Find. A time before the first generation finds the first one. A
// digest, or a prefix of it, finds the newest generation with this content.
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
			t.Fatalf("generations %+v, want 4, with equal digests of the first and the third", all)
		}
		for i, g := range all {
			until := g.Until
			if until.IsZero() {
				until = time.Now()
			}
			for _, at := range []time.Time{g.Since, until.Add(-1)} {
				if target, err := v.At(at); err != nil || target.Generation != g {
					t.Errorf("generation %d: At(%v) = %+v, %v, want %+v", i, at, target, err, g)
				}
			}
		}
		if target, err := v.At(all[3].Since.Add(-time.Hour)); err != nil || target.Since != all[3].Since {
			t.Errorf("At before the first generation = %+v, %v, want the first", target, err)
		}
		for _, digits := range []int{6, 12} {
			if target, err := v.Find(all[3].Digest[:digits]); err != nil || target.Since != all[1].Since {
				t.Errorf("Find of %d digits of a digest of two generations = %+v, %v, want the newer one", digits, target, err)
			}
		}
	})
}

// TestH13_TheHeadOfARollbackStays checks that changes of the control plane during a rollback are not recorded until the
// thaw. The target of the rollback keeps its content after the store has dropped the generation.
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
		for i := range 5 { // evicts the generation "good"
			other.change(fmt.Sprint("a=", i, strings.Repeat("x", overhead)))
			settle()
		}
		if _, err := v.Find(good); !errors.Is(err, ErrUnknown) {
			t.Errorf("Find of the evicted generation: %v, want ErrUnknown", err)
		}
		v.list.RollBack(target.Formers(v.w.View()), time.Now())
		settle()
		head := v.Generations()[0]
		if got := v.shown(); got != "a=good" || head.Digest != good {
			t.Errorf("after the rollback, readers see %q as generation %s, want a=good as %s", got, head.Digest, good)
		}
		v.change("a=later", "b=later")
		settle()
		if now := v.Generations()[0]; now != head {
			t.Errorf("after a pending change, the newest generation is %+v, want %+v", now, head)
		}
		v.list.Thaw()
		settle()
		now := v.Generations()[0]
		if got := v.shown(); got != "a=later b=later" || now.Changed != 1 || now.Added != 1 || now.Digest == good {
			t.Errorf("after the thaw, readers see %q as generation %+v, want all pending changes as one generation", got, now)
		}
	})
}

// TestH13_AForgottenSetEndsItsGenerations checks that the store drops the generations of a wildcard set when the relay
// drops the set, which no client subscribes to. Their differences cannot be applied any more.
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
			t.Fatalf("%d earlier generations with %d bytes, want one with content", n, bytes)
		}
		v.unsubscribe()
		v.w.TakeDemand()
		if !v.w.ForgetWildcard(wire.ClusterType) {
			t.Fatal("ForgetWildcard: the set is still in use")
		}
		settle()
		if n, bytes := s.Stats(); n != 0 || bytes != 0 || len(v.Generations()) != 1 || v.Digest() != "" {
			t.Errorf("%d earlier generations with %d bytes; Generations: %+v, want one without content", n, bytes, v.Generations())
		}
		if _, err := v.At(time.Time{}); !errors.Is(err, ErrForgotten) {
			t.Errorf("At for the first generation: %v, want ErrForgotten", err)
		}
	})
}

// TestH13_WhatASnapshotHasOfGenerations checks that a snapshot contains a change that is not recorded yet as a
// generation. Without sensitive content, it omits generations with resources that may be sensitive, and all generations
// before these, since each generation needs the later ones.
func TestH13_WhatASnapshotHasOfGenerations(t *testing.T) {
	bubble(t, 1<<20, func(t *testing.T, s *Store, v *served) {
		v.change("a", "b") // not sensitive: clusters with content are malformed here, so they may be sensitive
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
				t.Errorf("restored from a snapshot with sensitive content: %t: generations %q, want %q", sensitive, got, want)
			}
			if newest := line.Generations()[0]; newest.Added != 2 || newest.Since.After(time.Now()) {
				t.Errorf("newest generation: %+v, want two resources added", newest)
			}
			line.close()
		}
	})
}

// TestB56_ASnapshotWaitsWithoutTheStore: a snapshot may wait for the loop of a view. Meanwhile no other line waits for the store,
// and what changes before or after the capture is recorded. The snapshot has the generations up to its own, the last of which has
// the digest of its content. If no snapshot can be taken, nothing is added.
func TestB56_ASnapshotWaitsWithoutTheStore(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(v *served)
		known  int // generations in the snapshot
	}{
		"a change":        {func(v *served) { v.change("a=3") }, 3},
		"several changes": {func(v *served) { v.change("a=3"); settle(); v.change("a=4", "b=1") }, 3},
		"a forgotten set": {func(v *served) {
			v.unsubscribe()
			v.w.TakeDemand()
			v.w.ForgetWildcard(wire.ClusterType)
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, 1<<20, func(t *testing.T, s *Store, v *served) {
				v.change("a=1")
				settle()
				v.change("a=2")
				settle()
				var snap *cache.Snapshot
				var digest string
				v.Snapshot(true, func() *cache.Snapshot {
					if !s.mu.TryLock() {
						t.Fatal("the store is locked while a snapshot waits")
					}
					s.mu.Unlock()
					tt.change(v)
					settle()
					snap, _ = v.w.Snapshot(true)
					digest = v.Digest()
					v.change("c=1")
					settle()
					return snap
				})
				if n := len(snap.Generations); n != tt.known || snap.Generations[n-1].Digest != digest {
					t.Errorf("the snapshot has generations %+v, want %d, the last with digest %q", snap.Generations, tt.known, digest)
				}
				v.Snapshot(true, func() *cache.Snapshot { return nil })
			})
		})
	}
}

// TestH13_TheLimitIsInclusive checks that generations with exactly as many bytes as the limit are kept. A limit of one
// byte less evicts one.
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

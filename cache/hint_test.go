package cache

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// TestRandomHintsMatchLogs: after any sequence of responses, the hints of a stream have the names that the logs have after
// its position, or report that they are incomplete, which they may only after many changes.
func TestRandomHintsMatchLogs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := newOrigin(t, Config{})
		w := o.view.WatchFunc(func() {})
		watched := o.subscribe(w, "a", "b", "c", "d")
		texts := rapid.SampledFrom([]string{"a", "b", "c", "d", "unwatched"})
		p, changes := Seq(0), 0
		for i := range rapid.IntRange(1, 60).Draw(t, "steps") {
			text, kind := texts.Draw(t, "name"), Kind(rapid.IntRange(0, 1).Draw(t, "kind"))
			changes++
			switch rapid.IntRange(0, 9).Draw(t, "step") {
			case 0:
				o.remove(kind, text)
				changes++ // may also clear an error
			case 1:
				changes++ // may also remove a resource
				o.Apply(kind,
					wire.Update{TypeURL: acme, Errors: []*wire.ResourceError{wire.NewResourceError(text, 7, fmt.Sprint(i))}})
			case 2:
				o.Trim(time.Now().Add(time.Hour))
			case 3:
				o.ForgetWildcard(acme)
				changes += 3 // may clear the error of each name
			case 4: // of another type
				o.Apply(kind, updateOf(other, newResource(t, other, text, "", fmt.Sprint(i))))
			case 5, 6:
				checkHints(t, o, w, watched, p, changes <= maxHints)
				p, changes = o.view.Generation().Seq, 0
				w.PassHints(p)
			default:
				o.put(kind, text, "", fmt.Sprint("content ", i/3))
			}
		}
		checkHints(t, o, w, watched, p, changes <= maxHints)
	})
}

func checkHints(t *rapid.T, o *origin, w *Watch, watched []*Name, p Seq, few bool) {
	hinted, known := w.Hinted(acme, p, nil)
	if !known {
		if few {
			t.Fatalf("hints after %d are incomplete after few changes", p)
		}
		return
	}
	if len(hinted) > maxHints {
		t.Fatalf("got %d hints, want at most %d", len(hinted), maxHints)
	}
	for _, set := range []*Set{&o.typ().Wildcard, &o.typ().ByName} {
		for e := range set.Since(p) {
			if slices.Contains(watched, e.Name) && !slices.Contains(hinted, e.Name) {
				t.Fatalf("after %d: got hints for %v, want one for %v, which changed at %d", p, hinted, e.Name, e.Seq)
			}
		}
	}
}

// TestHintsAreKeptUntilRead: a hint stays until the reader has processed the generation of its change.
func TestHintsAreKeptUntilRead(t *testing.T) {
	o := newOrigin(t, Config{})
	w := o.view.WatchFunc(func() {})
	a := o.subscribe(w, "a")[0]
	o.put(ByName, "a", "", "x")
	before := o.view.Generation().Seq
	o.put(ByName, "a", "", "y")
	w.PassHints(before)
	if got, known := w.Hinted(acme, before, nil); !known || len(got) != 1 || got[0] != a {
		t.Errorf("after the first generation: got %v, %t, want the hint at the second change", got, known)
	}
	w.PassHints(o.view.Generation().Seq)
	if got, known := w.Hinted(acme, 0, nil); !known || len(got) != 0 {
		t.Errorf("after the second generation: got %v, %t, want no hint", got, known)
	}
}

// TestHintsNeedWatchFunc: a watch with a channel has no hints.
func TestHintsNeedWatchFunc(t *testing.T) {
	o, w := newSubscribed(t, "a")
	o.put(ByName, "a", "", "x")
	if got, known := w.Hinted(acme, 0, nil); known {
		t.Errorf("got %v, want incomplete hints", got)
	}
}

// TestRandomHintsAreNotLost: streams that read only hinted names have the state of each generation that they process,
// while the origin sends few and many changes as fast as it can.
func TestRandomHintsAreNotLost(t *testing.T) {
	const streams, names, changes = 40, 40, 120
	for range check.Rounds(1) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			o := newOrigin(t, Config{})
			var ready, done sync.WaitGroup
			for i := range streams { // joined by done
				ready.Add(1)
				done.Go(func() {
					if err := followHints(ctx, o.view, ready.Done, i, names); err != nil {
						t.Errorf("stream %d: %v", i, err)
					}
				})
			}
			ready.Wait()
			o.TakeDemand()
			for i := range changes {
				content := fmt.Sprint(i)
				if i == changes-1 {
					content = final
				}
				u := wire.Update{TypeURL: acme}
				for k := range names {
					u.Resources = append(u.Resources, o.resource(fmt.Sprint("n", k), "", content))
				}
				if i%3 != 2 {
					u.Resources = u.Resources[i%names:][:1]
				}
				o.Apply(ByName, u)
				jitter(i)
			}
			done.Wait()
		})
	}
}

// followHints runs one stream of TestRandomHintsAreNotLost.
func followHints(ctx context.Context, v *View, ready func(), i, names int) error {
	woken := make(chan struct{}, 1)
	w := v.WatchFunc(func() {
		select {
		case woken <- struct{}{}:
		default:
		}
	})
	defer w.Close()
	var texts []string
	for k := range maxHints - 2 {
		texts = append(texts, fmt.Sprint("n", (i+k*3)%names))
	}
	watched := w.Subscribe(acme, texts)
	defer w.Unsubscribe(acme, watched)
	ready()
	held := map[*Name]string{}
	for p := Seq(0); ctx.Err() == nil; {
		g := v.Generation()
		look, known := w.Hinted(acme, p, nil)
		if !known {
			look = watched
		}
		for _, n := range look {
			e, _ := g.Type(acme).Lookup(n)
			held[n] = contentOf(e)
		}
		finals := 0
		for _, n := range watched {
			e, _ := g.Type(acme).Lookup(n)
			if got, want := held[n], contentOf(e); got != want {
				return fmt.Errorf("at %d, after %d: has %q of %v, want %q", g.Seq, p, got, n, want)
			}
			if held[n] == final {
				finals++
			}
		}
		if finals == len(watched) {
			return nil
		}
		p = g.Seq
		w.PassHints(p)
		if i%10 == 0 { // read generations before the wake-up
			runtime.Gosched()
			continue
		}
		select {
		case <-woken:
		case <-ctx.Done():
		}
	}
	return fmt.Errorf("has %v at the timeout", held)
}

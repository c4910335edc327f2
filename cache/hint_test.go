package cache

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/xdstender/tender/cache/wire"
)

// TestHintsNameWhatTheLogsHave: whatever an origin says, of the names that a stream
// watches the hints name those that the logs have after the stream's position, or say that
// they do not know; which they may only after many.
func TestHintsNameWhatTheLogsHave(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := newOrigin(t, Config{})
		w := o.view.WatchFunc(func() {})
		watched := o.want(w, "a", "b", "c", "d")
		texts := rapid.SampledFrom([]string{"a", "b", "c", "d", "unwatched"})
		p, said := Seq(0), 0
		for i := range rapid.IntRange(1, 60).Draw(t, "steps") {
			text, kind := texts.Draw(t, "name"), Kind(rapid.IntRange(0, 1).Draw(t, "kind"))
			said++
			switch rapid.IntRange(0, 9).Draw(t, "step") {
			case 0:
				o.remove(kind, text)
				said++ // it may end an error, too
			case 1:
				said++ // it may replace a resource
				o.Apply(kind, wire.Update{TypeURL: acme, Errors: []*wire.ResourceError{wire.NewResourceError(text, 7, fmt.Sprint(i))}})
			case 2:
				o.Trim(time.Now().Add(time.Hour))
			case 3:
				o.ForgetWildcard(acme)
				said += 3 // it may say something of each
			case 4: // of another type
				o.Apply(kind, wire.Update{TypeURL: other, Resources: []*wire.Resource{newResource(t, other, text, "", fmt.Sprint(i))}})
			case 5, 6:
				checkHints(t, o, w, watched, p, said <= maxHints)
				p, said = o.view.Generation().Seq, 0
				w.PassHints(p)
			default:
				o.put(kind, text, "", fmt.Sprint("content ", i/3))
			}
		}
		checkHints(t, o, w, watched, p, said <= maxHints)
	})
}

func checkHints(t *rapid.T, o *origin, w *Watch, watched []*Name, p Seq, few bool) {
	hinted, known := w.Hinted(acme, p, nil)
	if !known {
		if few {
			t.Fatalf("nothing is known of what was said after %d, though it was little", p)
		}
		return
	}
	if len(hinted) > maxHints {
		t.Fatalf("got %d hints, want at most %d", len(hinted), maxHints)
	}
	for _, set := range []*Set{&o.typ().Wildcard, &o.typ().ByName} {
		for e := range set.Since(p) {
			if slices.Contains(watched, e.Name) && !slices.Contains(hinted, e.Name) {
				t.Fatalf("after %d got hints at %v, want one at %v, of which something was said at %d", p, hinted, e.Name, e.Seq)
			}
		}
	}
}

// TestHintsAreOfAHead: a hint stays until a head was read that has what it is about.
func TestHintsAreOfAHead(t *testing.T) {
	o := newOrigin(t, Config{})
	w := o.view.WatchFunc(func() {})
	a := o.want(w, "a")[0]
	o.put(ByName, "a", "", "x")
	before := o.view.Generation().Seq
	o.put(ByName, "a", "", "y")
	w.PassHints(before)
	if got, known := w.Hinted(acme, before, nil); !known || len(got) != 1 || got[0] != a {
		t.Errorf("after the first head: got %v, %t, want the hint at the second change", got, known)
	}
	w.PassHints(o.view.Generation().Seq)
	if got, known := w.Hinted(acme, 0, nil); !known || len(got) != 0 {
		t.Errorf("after the second head: got %v, %t, want no hint", got, known)
	}
}

// TestHintsAreOnlyForFunctions: who receives from a channel reads the logs.
func TestHintsAreOnlyForFunctions(t *testing.T) {
	o, w := watched(t, "a")
	o.put(ByName, "a", "", "x")
	if got, known := w.Hinted(acme, 0, nil); known {
		t.Errorf("got %v, want that it does not know", got)
	}
}

// TestNoHintIsLost: streams that look at nothing but what they are told of know at each
// head that they see what it has, while the origin says little and much as fast as it can.
func TestNoHintIsLost(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	const streams, names, rounds = 50, 40, 150
	o := newOrigin(t, Config{})
	var ready, done sync.WaitGroup
	for i := range streams { // done joins them
		ready.Add(1)
		done.Go(func() {
			if err := followHints(ctx, o.view, ready.Done, i, names); err != nil {
				t.Errorf("stream %d: %v", i, err)
			}
		})
	}
	ready.Wait()
	o.TakeDemand()
	for i := range rounds {
		content := fmt.Sprint(i)
		if i == rounds-1 {
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
}

// followHints is one stream of TestNoHintIsLost.
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
		if i%10 == 0 { // it looks at heads that it was not woken for yet
			runtime.Gosched()
			continue
		}
		select {
		case <-woken:
		case <-ctx.Done():
		}
	}
	return fmt.Errorf("has %v when the time is up", held)
}

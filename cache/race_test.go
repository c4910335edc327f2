package cache

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest/check"
)

const (
	members = 10 // of the wildcard set
	final   = "final"
)

// TestRandomWakeUpsAreNotLost: streams of all three kinds subscribe at any time of a busy writer, and each must read the
// final state. A stream that misses a wake-up waits until the timeout.
func TestRandomWakeUpsAreNotLost(t *testing.T) {
	const streams, changes = 150, 40 // enough for each kind of stream with each name, and each kind of change
	for range check.Rounds(12) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			o := newOrigin(t, Config{})
			var open sync.WaitGroup
			for i := range streams { // joined by Wait below
				open.Go(func() {
					jitter(i)
					if err := raceWildcard(ctx, o.view, i); err != nil {
						t.Errorf("stream %d: %v", i, err)
					}
				})
			}
			done := make(chan struct{})
			go func() { // ends with the streams, which end with ctx at the latest
				open.Wait()
				close(done)
			}()
			o.runRace(changes, done)
		})
	}
}

// jitter yields to other goroutines for a varying time.
func jitter(i int) {
	for range (i*7 + rand.IntN(20)) % 50 {
		runtime.Gosched()
	}
}

// runRace is the origin of the race: it makes changes, then the final change, and responds to late subscribers.
func (o *origin) runRace(changes int, done <-chan struct{}) {
	requested := map[string]bool{}
	answer := func(content string) {
		u := wire.Update{TypeURL: acme}
		for _, d := range o.TakeDemand() {
			if d.Name != nil {
				requested[d.Name.String()] = true
			}
		}
		for name := range requested {
			u.Resources = append(u.Resources, o.resource(name, "", content))
		}
		o.Apply(ByName, u)
	}
	for i := range changes {
		o.put(Wildcard, fmt.Sprint("m", rand.IntN(members)), "", fmt.Sprint(i))
		switch i % 7 {
		case 0:
			o.remove(Wildcard, fmt.Sprint("m", rand.IntN(members)))
		case 3:
			answer(fmt.Sprint(i))
		case 5:
			o.Trim(time.Now())
		}
		jitter(i)
	}
	u := wire.Update{TypeURL: acme}
	for i := range members {
		u.Resources = append(u.Resources, o.resource(fmt.Sprint("m", i), "", final))
	}
	o.Apply(Wildcard, u)
	answer(final)
	for {
		select {
		case <-o.Demand():
			answer(final)
		case <-done:
			return
		}
	}
}

// raceWildcard runs one stream: it subscribes, and then reads and waits until it has read the final state.
func raceWildcard(ctx context.Context, v *View, i int) error {
	text := fmt.Sprint("n", i%50)
	if i%5 == 0 { // a stream that unsubscribes and subscribes again
		w := v.Watch()
		w.UnsubscribeAll(w.SubscribeAll(acme))
		w.Unsubscribe(acme, w.Subscribe(acme, []string{text}))
		w.Close()
	}
	w := v.Watch()
	defer w.Close()
	if i%3 == 0 {
		return raceNamed(ctx, v, w, text)
	}
	wc := w.SubscribeAll(acme)
	defer w.UnsubscribeAll(wc)
	holds := map[string]string{}
	sent := Seq(0)
	for {
		g := v.Generation()
		for e := range g.Type(acme).Wildcard.Since(sent) {
			if e.Seq <= sent {
				return fmt.Errorf("entry %v of %d after position %d", e.Name, e.Seq, sent)
			}
			holds[e.Name.String()] = contentOf(e)
		}
		sent = g.Seq
		wc.Passed(sent)
		finals := 0
		for _, content := range holds {
			if content == final {
				finals++
			}
		}
		if finals == members {
			return nil
		}
		select {
		case <-w.C:
		case <-ctx.Done():
			return fmt.Errorf("waits at %d of %d with %v", sent, v.Generation().Seq, holds)
		}
	}
}

func raceNamed(ctx context.Context, v *View, w *Watch, text string) error {
	names := w.Subscribe(acme, []string{text})
	defer w.Unsubscribe(acme, names)
	for {
		if e, _ := v.Generation().Type(acme).Lookup(names[0]); contentOf(e) == final {
			return nil
		}
		select {
		case <-w.C:
		case <-ctx.Done():
			return fmt.Errorf("waits for %s", text)
		}
	}
}

// TestRandomRegistrationsRaceWithPublishing: a stream that registers while a change is published either finds it in the
// generation, or is woken. Each round uses another delay.
func TestRandomRegistrationsRaceWithPublishing(t *testing.T) {
	type registered struct {
		watch *Watch
		wc    *WildcardWatch
		seen  Seq
	}
	o := newOrigin(t, Config{})
	starts, results := make(chan int), make(chan registered)
	go func() { // ends when starts is closed
		for spins := range starts {
			for range spins {
				o.view.HasType(acme)
			}
			w := o.view.Watch()
			wc := w.SubscribeAll(acme)
			results <- registered{w, wc, o.view.Generation().Seq}
		}
	}()
	defer close(starts)
	updates := []wire.Update{
		{TypeURL: acme, Resources: []*wire.Resource{o.resource("a", "1", "x")}},
		{TypeURL: acme, Resources: []*wire.Resource{o.resource("a", "2", "y")}},
	}
	for i := range check.Rounds(10_000) {
		starts <- rand.IntN(20)
		o.Apply(Wildcard, updates[i%2])
		r := <-results
		if want := o.view.Generation().Seq; r.seen < want && !woken(r.watch) {
			t.Fatalf("round %d: stream read the generation of %d, not of %d, and was not woken", i, r.seen, want)
		}
		r.watch.UnsubscribeAll(r.wc)
		r.watch.Close()
	}
}

package pending

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/xdstender/tender/cache"
)

// A randomStep is a step of a random history.
type randomStep struct {
	do, name, version string
	kind              cache.Kind
	choice            int // for steps that choose
}

// drawSteps draws a history of these steps.
func drawSteps(t *rapid.T, names []string, do ...string) (steps []randomStep) {
	for range rapid.IntRange(1, 40).Draw(t, "steps") {
		steps = append(steps, randomStep{
			do:      rapid.SampledFrom(do).Draw(t, "step"),
			name:    rapid.SampledFrom(names).Draw(t, "name"),
			version: rapid.SampledFrom([]string{"1", "2"}).Draw(t, "version"),
			kind:    rapid.SampledFrom([]cache.Kind{cache.Wildcard, cache.ByName}).Draw(t, "kind"),
			choice:  rapid.IntRange(0, 40).Draw(t, "choice"),
		})
	}
	return steps
}

// A bubble is the tester of a property that runs in a synctest bubble, where rapid.T must not be used. The first failure ends
// it.
type bubble struct{ *rapid.T }

type failure string

func (b bubble) Helper()                           {}
func (b bubble) Fatal(args ...any)                 { panic(failure(fmt.Sprint(args...))) }
func (b bubble) Fatalf(format string, args ...any) { panic(failure(fmt.Sprintf(format, args...))) }
func (b bubble) Errorf(format string, args ...any) { b.Fatalf(format, args...) }

// inBubble runs a property in a synctest bubble.
func inBubble(t *testing.T, rt *rapid.T, property func(tester)) {
	failed := failure("")
	synctest.Test(t, func(*testing.T) {
		defer func() {
			switch f := recover().(type) {
			case nil:
			case failure:
				failed = f
			default:
				panic(f)
			}
		}()
		property(bubble{})
	})
	if failed != "" {
		rt.Fatal(string(failed))
	}
}

// A client subscribes to the wildcard and to names of an origin.
type client struct {
	watch *cache.Watch
	wants map[string][]*cache.Name
	all   *cache.WildcardWatch
}

// A pair is an origin whose list is stopped from time to time, and one that does the same and is never stopped.
type pair struct {
	stopped, plain *origin
	clients        map[*origin]*client
}

func newOriginPair(t tester, cfg cache.Config) *pair {
	p := &pair{newOrigin(t, cfg), newOrigin(t, cfg), make(map[*origin]*client)}
	for _, o := range []*origin{p.stopped, p.plain} {
		c := &client{watch: o.view.Watch(), wants: map[string][]*cache.Name{}}
		c.all = c.watch.SubscribeAll(acme)
		o.Writer().TakeDemand()
		p.clients[o] = c
	}
	return p
}

// apply applies a step to both origins.
func (p *pair) apply(s randomStep) {
	if s.do == "expire" {
		for _, after := range []time.Duration{2 * time.Second, 10 * time.Second, time.Hour, 2 * time.Hour} {
			time.Sleep(after) // in bubble time
			p.expire()
		}
		return
	}
	for o, c := range p.clients {
		if s.do == "resubscribe wildcard" {
			c.all = o.resubscribeAll(c.watch, c.all, acme)
		} else {
			o.randomStep(s.do, s.kind, s.name, s.version, c.watch, c.wants)
		}
	}
}

// expire processes the timers of both origins that are due.
func (p *pair) expire() {
	p.stopped.expire(time.Now())
	p.plain.expire(time.Now())
}

// checkEqual fails the test unless readers of both origins see the same.
func (p *pair) checkEqual(t tester) {
	time.Sleep(2 * time.Second) // what waits has no uncacheable content, not even for a second
	p.expire()
	p.stopped.checkEntries()
	got, want := visible(p.stopped.view.Generation()), visible(p.plain.view.Generation())
	for key := range want {
		if got[key] != want[key] {
			t.Fatalf("thawed: readers see %q of %s, want %[3]q, as if it had never been stopped", got[key], key, want[key])
		}
	}
	if got, want := p.stopped.typ().Wildcard.Sum(), p.plain.typ().Wildcard.Sum(); got != want {
		t.Fatalf("thawed: version %v, want %v, as if it had never been stopped", got, want)
	}
	if n := p.stopped.view.Withheld(0); n != 0 {
		t.Fatalf("thawed: %d names are withheld", n)
	}
}

// TestH13_RandomFreezes: while an origin is frozen, random steps change nothing that readers saw. After the thaw, readers see
// the same state as those of an origin that was never frozen.
func TestH13_RandomFreezes(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		steps := drawSteps(rt, []string{"a", "b", "c", "d"},
			"put", "put", "put", "put alias", "remove", "fail", "subscribe", "unsubscribe", "confirm", "reconnect",
			"freeze", "thaw", "trim", "put TTL", "put uncacheable", "expire", "resubscribe wildcard", "snapshot")
		inBubble(t, rt, func(t tester) {
			p := newOriginPair(t, cache.Config{})
			frozen, before := p.stopped, map[string]string{}
			for i, s := range steps {
				switch s.do {
				case "freeze":
					if !frozen.Frozen() {
						before = map[string]string{}
					}
					frozen.Freeze()
				case "thaw":
					frozen.checkThaw()
				case "snapshot":
					checkRestoredList(t, frozen, restart(t, frozen))
				default:
					p.apply(s)
				}
				switch s.do {
				case "unsubscribe":
					delete(before, "named "+s.name)
					delete(before, "error of named "+s.name)
				case "resubscribe wildcard":
					maps.DeleteFunc(before, func(key, _ string) bool { return strings.Contains(key, "member ") })
				}
				frozen.checkEntries()
				if !frozen.Frozen() {
					continue
				}
				g := frozen.view.Generation()
				for key, want := range before {
					if got := visible(g)[key]; got != want && !exempt(g)[key] {
						t.Fatalf("step %d, %+v: readers see %q of %s, want %q", i, s, got, key, want)
					}
				}
				maps.Copy(before, mustKeep(g)) // including first state that has passed since
				maps.DeleteFunc(before, func(key, _ string) bool { return exempt(g)[key] })
			}
			frozen.checkThaw()
			p.checkEqual(t)
		})
	})
}

// TestFreeze_GenerationsAreImmutable: readers read generations while the writer is frozen and thawed, and latest shares
// memory with them. The race detector finds writes to shared memory.
func TestFreeze_GenerationsAreImmutable(t *testing.T) {
	o := newFrozenOrigin(t)
	done, stopped := make(chan struct{}), make(chan struct{})
	go func() { // ends when done is closed
		defer close(stopped)
		for {
			g := o.view.Generation()
			first, second := visible(g), visible(g)
			if !maps.Equal(first, second) {
				t.Errorf("one generation has %v, and then %v", first, second)
				return
			}
			select {
			case <-done:
				return
			default:
			}
		}
	}()
	for i := range 300 {
		name := fmt.Sprint("m", i%20)
		switch i % 7 {
		case 0:
			o.Freeze()
		case 3:
			o.Thaw()
		case 5:
			o.remove(cache.Wildcard, name)
		default:
			o.put(cache.Wildcard, name, fmt.Sprint(i), fmt.Sprint(i))
		}
	}
	close(done)
	<-stopped
}

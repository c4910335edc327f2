package cache

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestH13_FreezeAtAnyTime: whatever an origin says and clients want, while it is frozen nothing
// that readers saw becomes something else, and once it is thawed they see what those of an origin
// do that never was frozen. Names are counted right throughout.
func TestH13_FreezeAtAnyTime(t *testing.T) {
	names := []string{"a", "b", "c", "d"}
	rapid.Check(t, func(t *rapid.T) {
		frozen, plain := newOrigin(t, Config{}), newOrigin(t, Config{})
		type client struct {
			watch *Watch
			wants map[string][]*Name
			all   *WildcardWatch
		}
		clients := map[*origin]*client{}
		both := func(do func(o *origin, c *client)) {
			for _, o := range []*origin{frozen, plain} {
				if clients[o] == nil {
					clients[o] = &client{watch: o.view.Watch(), wants: map[string][]*Name{}}
				}
				do(o, clients[o])
			}
		}
		both(func(o *origin, c *client) { c.all = c.watch.SubscribeAll(acme); o.TakeDemand() })
		before := map[string]string{}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			name := rapid.SampledFrom(names).Draw(t, "name")
			kind := rapid.SampledFrom([]Kind{Wildcard, ByName}).Draw(t, "kind")
			version := rapid.SampledFrom([]string{"1", "2"}).Draw(t, "version")
			step := rapid.SampledFrom([]string{"put", "put", "put", "alias", "remove", "fail", "want", "forget", "confirm", "reconnect", "freeze", "thaw", "trim",
				"lives", "uncached", "expire", "members"}).Draw(t, "step")
			switch step {
			case "freeze":
				if !frozen.Frozen() {
					before = map[string]string{}
				}
				frozen.Freeze()
			case "thaw":
				frozen.thaws()
			default:
				both(func(o *origin, c *client) {
					if step == "members" { // those who follow them leave, and return
						c.watch.UnsubscribeAll(c.all)
						o.TakeDemand()
						o.ForgetWildcard(acme)
						c.all = c.watch.SubscribeAll(acme)
						o.TakeDemand()
					}
					o.random(step, kind, name, version, c.watch, c.wants)
				})
			}
			switch step {
			case "forget":
				delete(before, "named "+name)
				delete(before, "error of named "+name)
			case "members":
				maps.DeleteFunc(before, func(key, _ string) bool { return strings.Contains(key, "member ") })
			}
			frozen.check()
			if !frozen.Frozen() {
				continue
			}
			for key, want := range before {
				if got := sight(frozen.view.Generation())[key]; got != want && !passing(frozen.view.Generation())[key] {
					t.Fatalf("after %s of %s, readers see %q of %s, want %q", step, name, got, key, want)
				}
			}
			maps.Copy(before, kept(frozen.view.Generation())) // also of what has come since
			maps.DeleteFunc(before, func(key, _ string) bool { return passing(frozen.view.Generation())[key] })
		}
		frozen.thaws()
		frozen.check()
		got, want := sight(frozen.view.Generation()), sight(plain.view.Generation())
		for key := range want {
			if got[key] != want[key] {
				t.Fatalf("thawed, readers see %q of %s, those of an origin that was not frozen %q", got[key], key, want[key])
			}
		}
		if got, want := frozen.typ().Wildcard.Sum(), plain.typ().Wildcard.Sum(); got != want {
			t.Fatalf("thawed, the version is %v, that of an origin that was not frozen %v", got, want)
		}
	})
}

// TestFreeze_HeadsAreImmutable: readers go through heads while the writer is frozen and
// thawed; latest shares memory with what they see. The race detector would
// find what is written to both.
func TestFreeze_HeadsAreImmutable(t *testing.T) {
	o := newCold(t)
	done, over := make(chan struct{}), make(chan struct{})
	go func() { // ends when done is closed, awaited below
		defer close(over)
		for {
			g := o.view.Generation()
			first, again := sight(g), sight(g)
			if !maps.Equal(first, again) {
				t.Errorf("one head shows %v, and then %v", first, again)
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
			o.remove(Wildcard, name)
		default:
			o.put(Wildcard, name, fmt.Sprint(i), fmt.Sprint(i))
		}
	}
	close(done)
	<-over
}

package cache

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestH13_RandomFreezes: while an origin is frozen, random steps change nothing that readers saw. After the thaw,
// readers see the same state as those of an origin that was never frozen. The entries of names are counted correctly at
// all times.
func TestH13_RandomFreezes(t *testing.T) {
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
			step := rapid.SampledFrom([]string{
				"put", "put", "put", "put alias", "remove", "fail", "subscribe", "unsubscribe", "confirm", "reconnect",
				"freeze", "thaw", "trim", "put TTL", "put uncacheable", "expire", "resubscribe wildcard",
			}).Draw(t, "step")
			switch step {
			case "freeze":
				if !frozen.Frozen() {
					before = map[string]string{}
				}
				frozen.Freeze()
			case "thaw":
				frozen.checkThaw()
			default:
				both(func(o *origin, c *client) {
					if step == "resubscribe wildcard" {
						c.all = o.resubscribeAll(c.watch, c.all, acme)
						return
					}
					o.randomStep(step, kind, name, version, c.watch, c.wants)
				})
			}
			switch step {
			case "unsubscribe":
				delete(before, "named "+name)
				delete(before, "error of named "+name)
			case "resubscribe wildcard":
				maps.DeleteFunc(before, func(key, _ string) bool { return strings.Contains(key, "member ") })
			}
			frozen.checkEntries()
			if !frozen.Frozen() {
				continue
			}
			for key, want := range before {
				if got := visible(frozen.view.Generation())[key]; got != want && !exempt(frozen.view.Generation())[key] {
					t.Fatalf("after %s of %s, readers see %q of %s, want %q", step, name, got, key, want)
				}
			}
			maps.Copy(before, mustKeep(frozen.view.Generation())) // including first state that has passed since
			maps.DeleteFunc(before, func(key, _ string) bool { return exempt(frozen.view.Generation())[key] })
		}
		frozen.checkThaw()
		frozen.checkEntries()
		got, want := visible(frozen.view.Generation()), visible(plain.view.Generation())
		for key := range want {
			if got[key] != want[key] {
				t.Fatalf("thawed: readers see %q of %s, want %[3]q, as without a freeze", got[key], key, want[key])
			}
		}
		if got, want := frozen.typ().Wildcard.Sum(), plain.typ().Wildcard.Sum(); got != want {
			t.Fatalf("thawed: version %v, want %v, as without a freeze", got, want)
		}
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
			o.remove(Wildcard, name)
		default:
			o.put(Wildcard, name, fmt.Sprint(i), fmt.Sprint(i))
		}
	}
	close(done)
	<-stopped
}

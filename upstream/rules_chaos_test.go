package upstream_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/upstream"
)

// A chaos is an origin and clients with random failures, and the expected result.
type chaos struct {
	*rig
	rand    *rand.Rand
	held    map[string]string // version by name of the origin's resources
	version int               // last version
	up      bool              // the origin is running
	empty   bool              // the origin sends empty versions

	all   *cache.WildcardWatch     // nil without a subscription to the wildcard
	names map[string][]*cache.Name // subscribed names
}

// anchor is a resource that never changes. It shows whether an origin uses reported versions, and serves as a control
// query.
const anchor = "anchor@0"

// name returns a random name.
func (c *chaos) name() string { return fmt.Sprint("n", c.rand.IntN(8)) }

// step performs one random action.
func (c *chaos) step() {
	switch c.rand.IntN(12) {
	case 0, 1, 2:
		c.version++
		name := c.name()
		c.held[name] = fmt.Sprint(c.version)
		c.put(clusters, name+"@"+c.held[name])
	case 3:
		name := c.name()
		delete(c.held, name)
		c.Remove(clusters, name)
	case 4:
		if c.up {
			c.Stop()
		} else {
			c.Restart()
		}
		c.up = !c.up
	case 5:
		c.GoAway()
	case 6:
		if c.all == nil {
			c.all = c.watch.SubscribeAll(clusters)
		} else {
			c.watch.UnsubscribeAll(c.all)
			c.all = nil
		}
	case 7, 8:
		name := c.name()
		if n, ok := c.names[name]; ok {
			c.watch.Unsubscribe(clusters, n)
			delete(c.names, name)
		} else {
			c.names[name] = c.watch.Subscribe(clusters, []string{name})
		}
	default:
		waits := []time.Duration{0, time.Millisecond, 6 * time.Millisecond, time.Second, 7 * time.Second, 16 * time.Second, 70 * time.Second}
		c.pass(waits[c.rand.IntN(len(waits))])
	}
}

// shown returns a resource as members and named show it.
func (c *chaos) shown(name, version string) string {
	if c.empty {
		version = ""
	}
	return name + "@" + version
}

// check compares the view with the origin, and the subscriptions of the origin with the demand.
func (c *chaos) check() {
	c.t.Helper()
	var want []string
	if c.all != nil {
		want = append(want, c.shown("anchor", "0"))
		for name, version := range c.held {
			want = append(want, c.shown(name, version))
		}
	}
	slices.Sort(want)
	c.expect("members", present(c.members(clusters)), strings.Join(want, " "))

	want = nil
	for name := range c.names {
		if version, ok := c.held[name]; ok {
			want = append(want, c.shown(name, version))
		}
	}
	slices.Sort(want)
	c.expect("named", present(c.named(clusters)), strings.Join(want, " "))

	want = slices.Sorted(maps.Keys(c.names))
	if c.all != nil {
		want = slices.Insert(want, 0, "*")
	}
	c.expect("subscribed", strings.Join(c.State().Names(clusters), " "), strings.Join(want, " "))
	for _, st := range c.State().Open() {
		if t := st.Type(clusters); t.Unanswered() != 0 || t.Strays != 0 {
			c.t.Errorf("%d responses without an ACK or NACK, %d strays, want 0 and 0 on %v", t.Unanswered(), t.Strays, st)
		}
		if t := st.Type(clusters); t.Wildcard && len(t.Names) > 0 {
			c.t.Errorf("wildcard and names of one type on the same stream: %v", st)
		}
	}
}

// TestD4_RandomFailuresConverge: after any failures, the view converges to the origin, and the subscriptions at the
// origin are exactly those of the clients (D.4, 1 and 9).
func TestD4_RandomFailuresConverge(t *testing.T) {
	origins := []relaytest.Behaviour{
		{},
		{IgnoreIRV: true},
		{IgnoreIRV: true, EmptyVersions: true},
		{SilentOnMissing: true},
		{Delay: 30 * time.Millisecond},
		{SotW: true, EmptyVersions: true},
		{SotW: true, Wrap: true},
		{SotW: true, Wrap: true, Delay: 30 * time.Millisecond},
	}
	const steps = 60
	for seed := range uint64(check.Rounds(2 * len(origins))) {
		b := origins[seed%uint64(len(origins))]
		cfg := upstream.Config{Linger: 10 * time.Second, MaxLingering: 2, FullResync: seed%4 == 3 && !b.SilentOnMissing}
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inBubble(t, b, cfg, func(t *testing.T, r *rig) {
				c := &chaos{
					rig: r, rand: rand.New(rand.NewPCG(seed, 1)), up: true, empty: b.EmptyVersions,
					held: make(map[string]string), names: make(map[string][]*cache.Name),
				}
				r.put(clusters, anchor)
				for range steps {
					c.step()
				}
				if !c.up {
					c.Restart()
				}
				c.pass(5 * time.Minute)
				c.Restart() // starts a sweep for resources that the origin removed silently
				c.pass(30 * time.Minute)
				c.check()
			})
		})
	}
}

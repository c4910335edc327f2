package subscription

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/xdstender/tender/relay/relaytest/check"
)

// TestB11_RandomConflictsConverge: a client rejects each addition that something it has excludes, as an Envoy does. The origin is
// allowed to state such additions, but has removed what excludes them at the end. Then the client has what the origin has.
func TestB11_RandomConflictsConverge(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		events := rapid.SliceOfN(rapid.Custom(drawConflict), 5, 20).Draw(rt, "events")
		named, small := rapid.Bool().Draw(rt, "named"), rapid.Bool().Draw(rt, "small")
		var failure string
		synctest.Test(t, func(t *testing.T) {
			c := &excludingClient{player: newPlayer(t), named: named, has: make(map[string]string), origin: make(map[string]int)}
			failure = c.run(events, small)
		})
		if failure != "" {
			rt.Fatal(failure)
		}
	})
}

// A conflict is one event of a history.
type conflict struct {
	what string
	name int
	wait time.Duration
}

func drawConflict(t *rapid.T) conflict {
	return conflict{
		what: rapid.SampledFrom([]string{"change", "change", "remove", "answer", "answer", "reconnect"}).Draw(t, "what"),
		name: rapid.IntRange(0, 9).Draw(t, "name"),
		wait: rapid.SampledFrom([]time.Duration{0, time.Second, 6 * time.Second}).Draw(t, "wait"),
	}
}

// An excludingClient has at most one resource of each of three keys.
type excludingClient struct {
	*player
	named   bool
	has     map[string]string // revision by name
	origin  map[string]int    // revision by name
	rev     int
	answers []string // not sent yet
}

func conflictName(i int) string { return fmt.Sprint("n", i) }

// key returns the key of a resource.
func key(name string) int { return int(name[1]-'0') % 3 }

func (c *excludingClient) run(events []conflict, small bool) (failure string) {
	start := "client delta lds"
	if small {
		start += " small"
	}
	c.play(start)
	if c.named {
		c.play("others subscribe n0 n1 n2 n3 n4 n5 n6 n7 n8 n9")
	}
	c.set("n0")
	c.subscribe()
	for _, e := range events {
		switch e.what {
		case "change":
			c.set(conflictName(e.name))
		case "remove":
			c.remove(conflictName(e.name))
		case "answer":
			c.answer()
		case "reconnect":
			c.answers = nil
			c.play("reconnect")
			c.subscribe()
		}
		time.Sleep(e.wait)
		c.respond()
	}
	for _, name := range slices.Sorted(maps.Keys(c.origin)) {
		for other := range c.origin {
			if other != name && key(other) == key(name) {
				c.remove(name)
				break
			}
		}
	}
	for quiet := false; !quiet; {
		c.answer()
		time.Sleep(7 * time.Second)
		c.respond()
		quiet = len(c.answers) == 0
	}
	want := make(map[string]string)
	for name, rev := range c.origin {
		want[name] = fmt.Sprint(rev)
	}
	if !maps.Equal(c.has, want) {
		return fmt.Sprintf("the client has %v, want %v", c.has, want)
	}
	return ""
}

func (c *excludingClient) subscribe() {
	if !c.named {
		c.play("subscribe *")
		return
	}
	c.play("subscribe n0 n1 n2 n3 n4")
	c.play("subscribe n5 n6 n7 n8 n9")
}

func (c *excludingClient) set(name string) {
	c.rev++
	c.origin[name] = c.rev
	c.state(fmt.Sprint(name, "@", c.rev))
}

func (c *excludingClient) remove(name string) {
	if _, ok := c.origin[name]; ok {
		delete(c.origin, name)
		c.state("-" + name)
	}
}

func (c *excludingClient) state(change string) {
	if c.named {
		change = "by name " + change
	}
	c.play("origin " + change)
}

// play plays an event, and what the relay sends then.
func (c *excludingClient) play(event string) {
	c.Play(event)
	c.respond()
}

// answer sends the oldest answer that was not sent yet.
func (c *excludingClient) answer() {
	if len(c.answers) > 0 {
		next := c.answers[0]
		c.answers = c.answers[1:]
		c.play(next)
	}
}

// respond takes the responses that are due, and decides about their answers.
func (c *excludingClient) respond() {
	for _, response := range c.turn() {
		nonce, rest, _ := strings.Cut(response, ": ")
		verb := "ack"
		c.changes[nonce]()
		changes := strings.Fields(rest)[1:]
		for _, change := range changes {
			if name, removed := strings.CutPrefix(change, "-"); removed {
				delete(c.has, name)
			}
		}
		for _, change := range changes {
			if name, rev, ok := strings.Cut(change, "@"); ok && !c.accepts(name, rev) {
				verb = "nack"
			}
		}
		maps.DeleteFunc(c.held, func(name, _ string) bool { return c.has[name] == "" })
		c.answers = append(c.answers, verb+" "+nonce)
	}
}

// accepts reports whether the client can have a resource, and gives it to the client.
func (c *excludingClient) accepts(name, rev string) bool {
	for other := range c.has {
		if other != name && key(other) == key(name) {
			return false
		}
	}
	c.has[name] = rev
	return true
}

// withTurns runs a test with a function that plays events, each followed by a turn, and returns the responses.
func withTurns(t *testing.T, test func(p *player, play func(events ...string) (sent string))) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := newPlayer(t)
		test(p, func(events ...string) (sent string) {
			for _, event := range events {
				if d, ok := strings.CutPrefix(event, "wait "); ok {
					wait, err := time.ParseDuration(d)
					check.OK(t, err)
					time.Sleep(wait)
				} else {
					p.Play(event)
				}
				sent += strings.Join(p.turn(), "\n") + "\n"
			}
			return sent
		})
	})
}

// TestB11_RejectionsAreBounded by what the client subscribes to, and if it never answers, by what it was sent.
func TestB11_RejectionsAreBounded(t *testing.T) {
	withTurns(t, func(p *player, play func(...string) string) {
		play("client delta lds", "origin a@1", "subscribe *")
		for i := range 3 * maxEarlierResponses {
			play(fmt.Sprint("origin a@", 2+i), "wait 6s")
		}
		for _, u := range p.sub.earlier.list {
			if got := len(u.has.added) + len(u.has.removed); got != 1 {
				t.Errorf("an unanswered response has %d names, want 1", got)
			}
		}
	})
	withTurns(t, func(p *player, play func(...string) string) {
		play("client delta vhds", "subscribe r/kept")
		for i := range 5 {
			name := fmt.Sprint("r/h", i)
			play("subscribe "+name, "origin by name "+name+"@1", "nack", "unsubscribe "+name)
		}
		if got := len(p.sub.rejected); got > 0 {
			t.Errorf("%d rejected names are remembered, although the client unsubscribed from them", got)
		}
	})
}

// TestB11_WhatIsMissingFreesNothing: that a name does not exist is no removal.
func TestB11_WhatIsMissingFreesNothing(t *testing.T) {
	withTurns(t, func(p *player, play func(...string) string) {
		play("client delta vhds", "subscribe r/a r/b", "origin by name r/a@1 r/b@1", "nack")
		if sent := play("subscribe r/none", "origin by name -r/none", "ack"); strings.Contains(sent, "r/a") {
			t.Errorf("sent %q, want nothing of what was rejected", sent)
		}
	})
}

// TestB11_RemovalsOfTheWholeTypeCount: of another glob, of one whose NACK is late, and in the newest response if only that is answered.
func TestB11_RemovalsOfTheWholeTypeCount(t *testing.T) {
	const one, two = "xdstp://x/envoy.config.listener.v3.Listener/a/", "xdstp://x/envoy.config.listener.v3.Listener/b/"
	for what, events := range map[string][]string{
		"another glob": {
			"subscribe " + one + "* " + two + "*", "origin of " + one + "* " + one + "old@1", "ack", "origin of " + two + "* " + two + "new@1",
			"nack", "origin of " + one + "* -" + one + "old", "ack",
		},
		"the wildcard set": {
			"subscribe " + one + "* *", "origin of " + one + "* " + one + "old@1", "ack", "origin new@1", "nack",
			"origin of " + one + "* -" + one + "old", "ack",
		},
		"a late NACK": {
			"subscribe " + one + "*", "origin of " + one + "* " + one + "old@1", "ack", "origin of " + one + "* " + one + "new@1", "wait 6s",
			"origin of " + one + "* -" + one + "old", "nack 2", "ack 3",
		},
		"only the newest is answered": {
			"origin old@1", "subscribe *", "ack", "origin new@1", "wait 6s", "origin -old bad@1", "nack",
		},
	} {
		withTurns(t, func(p *player, play func(...string) string) {
			sent := play(append([]string{"client delta lds"}, events...)...) + play("wait 6s", "wait 6s")
			if got := strings.Count(sent, "new@1"); got != 2 {
				t.Errorf("%s: new was sent %d times, want twice\n%s", what, got, sent)
			}
		})
	}
}

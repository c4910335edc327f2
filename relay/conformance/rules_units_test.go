package conformance_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/transcript"
)

// TestB11_RandomRenamesAreWhole renames listeners on their addresses, scopes with their keys and virtual hosts with their domains,
// in random histories with restarts of the origin and clients that return. The origin has at most one resource of each key at a
// time. No response leaves a client with two: a unit reaches each client whole or not at all. At the end, each client has what the
// origin has.
//
// The origin stays for 20 seconds after a client returns: without it, the relay cannot know that what the client reports is gone.
// If the removal of that is large, it is held, and an operator passes it: the relay knows only the names that the client reports, so
// that it cannot keep back what they exclude.
func TestB11_RandomRenamesAreWhole(t *testing.T) {
	checkRandom(t, 20, func(rt *rapid.T) {
		h := &renames{
			short: rapid.SampledFrom([]string{"lds", "srds", "vhds"}).Draw(rt, "type"),
			behaviour: relaytest.Behaviour{
				IgnoreIRV: rapid.Bool().Draw(rt, "ignores versions"),
				SotW:      rapid.Bool().Draw(rt, "speaks SotW"),
			},
		}
		h.behaviour.SotW = h.behaviour.SotW && h.short != "vhds" // whose removals only Delta can state
		steps := rapid.SliceOfN(rapid.Custom(drawRenameStep), 5, 25).Draw(rt, "steps")
		runScene(t, rt, func(sc *scene) {
			h.scene = sc
			h.run(steps)
		})
	})
}

// A renameStep is one event of a history.
type renameStep struct {
	what string
	key  int
	wait time.Duration
}

func drawRenameStep(t *rapid.T) renameStep {
	return renameStep{
		what: rapid.SampledFrom([]string{
			"rename", "rename", "rename", "remove", "change", "new client", "return", "leave", "restart", "restart with renames",
		}).Draw(t, "what"),
		key:  rapid.IntRange(0, 2).Draw(t, "key"),
		wait: rapid.SampledFrom([]time.Duration{0, 100 * time.Millisecond, 3 * time.Second, 20 * time.Second, settled}).Draw(t, "wait"),
	}
}

// renames is an origin with at most one resource of each key, a relay, and clients.
type renames struct {
	*scene
	short     string
	behaviour relaytest.Behaviour
	n         *transcript.Notation
	has       [3]string // name by key; empty for none
	count     int
	clients   []*relaytest.Client
	away      map[*relaytest.Client]bool
}

func (h *renames) run(steps []renameStep) {
	h.n, h.away = transcript.NewNotation(h), make(map[*relaytest.Client]bool)
	h.origin = relaytest.NewOrigin(h, relaytest.OriginOptions{Memory: true, Behaviour: h.behaviour})
	h.relay = start(h, h.origin, operated)
	h.n.Apply(h.origin, h.short+" "+h.named("always", 9)+"@1") // by its repetition, the relay learns that versions are ignored
	for key := range h.has {
		h.rename(key)
	}
	h.join()
	sleep(time.Minute)
	for _, st := range steps {
		h.play(st)
		sleep(st.wait)
	}
	for c := range h.away {
		c.Reconnect(h.relay.Conn())
	}
	sleep(settled)
	for i, c := range h.clients {
		h.check(i, c)
	}
}

// named returns the name of a resource with a key.
func (h *renames) named(name string, key int) string {
	if h.short == "vhds" {
		name = "r/" + name
	}
	return fmt.Sprint(name, ":", 80+key)
}

// rename replaces the resource of a key by one with another name.
func (h *renames) rename(key int) {
	h.count++
	old := h.has[key]
	h.has[key] = h.named(fmt.Sprint("n", h.count%5), key)
	changes := []string{h.short + " " + h.has[key] + fmt.Sprint("@", h.count)}
	if old != "" && old != h.has[key] {
		changes = append(changes, h.short+" -"+old)
	}
	h.n.Apply(h.origin, changes...)
}

func (h *renames) join() {
	variants := []relaytest.Variant{relaytest.Delta}
	if h.short != "vhds" {
		variants = append(variants, relaytest.SotW)
	}
	for _, v := range variants {
		c := h.relay.Client(relaytest.ClientOptions{Variant: v, AutoAck: true})
		c.Subscribe(typeURLs[h.short], "*")
		h.clients = append(h.clients, c)
	}
}

func (h *renames) play(st renameStep) {
	client := h.clients[st.key%len(h.clients)]
	switch st.what {
	case "rename":
		h.rename(st.key)
	case "remove":
		if h.has[st.key] != "" {
			h.n.Apply(h.origin, h.short+" -"+h.has[st.key])
			h.has[st.key] = ""
		}
	case "change":
		if h.has[st.key] != "" {
			h.count++
			h.n.Apply(h.origin, fmt.Sprint(h.short, " ", h.has[st.key], "@", h.count))
		}
	case "new client":
		h.join()
	case "leave":
		client.Close()
		h.away[client] = true
	case "return":
		client.Reconnect(h.relay.Conn())
		delete(h.away, client)
		sleep(20 * time.Second)
		operate[admin.PendingScope, admin.PendingDecision](h, h.relay, "pass", admin.PendingScope{All: true})
	default:
		h.origin.Stop()
		if st.what != "restart" {
			h.rename(st.key)
		}
		h.origin.Restart()
		sleep(5 * time.Second) // until the relay is connected again
	}
}

// check checks each response to a client, and what it has at the end.
func (h *renames) check(number int, c *relaytest.Client) {
	typeURL := typeURLs[h.short]
	byKey := make(map[string]string)
	for _, r := range c.Responses() {
		if r.SotW() {
			clear(byKey)
		}
		for _, name := range r.Removed {
			if _, key, _ := strings.Cut(name, ":"); byKey[key] == name {
				delete(byKey, key)
			}
		}
		for _, name := range r.Names() {
			_, key, _ := strings.Cut(name, ":")
			if other := byKey[key]; other != "" && other != name {
				h.Errorf("client %d, %v: it has %s, which excludes %s", number, r, other, name)
			}
			byKey[key] = name
		}
	}
	want := slices.Sorted(maps.Keys(h.origin.Resources()[typeURL]))
	if got := slices.Sorted(maps.Values(byKey)); !slices.Equal(got, want) {
		h.Errorf("client %d has %q at the end, want %q", number, got, want)
	}
}

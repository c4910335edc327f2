package conformance_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/xdstender/tender/relay/relaytest"
)

// gRPC deletes clusters and listeners that a SotW response lacks. After random changes, subscriptions, ACKs, NACKs
// and reconnects, each response therefore contains every resource that the client was subscribed to and the origin
// had, before and after the event that caused the response.
func TestC09_RandomFullSetsAreComplete(t *testing.T) {
	types := []string{relaytest.ClusterType, relaytest.ListenerType, relaytest.ScopedRouteType}
	checkRandom(t, 20, func(rt *rapid.T) {
		typeURL := rapid.SampledFrom(types).Draw(rt, "type")
		silent := rapid.Bool().Draw(rt, "silent on missing")
		steps := rapid.SliceOfN(rapid.Custom(drawFullStep), 5, 30).Draw(rt, "steps")
		runScene(t, rt, func(sc *scene) {
			h := &fullHistory{scene: sc, typeURL: typeURL}
			h.run(silent, steps)
		})
	})
}

// A fullStep is one event of a history.
type fullStep struct {
	what string
	name string
	wait time.Duration // pause after the event
}

func drawFullStep(t *rapid.T) fullStep {
	return fullStep{
		what: rapid.SampledFrom([]string{
			"put", "put", "remove", "subscribe", "subscribe", "unsubscribe", "wildcard", "unwildcard", "ack", "ack", "nack",
			"reconnect", "away",
		}).Draw(t, "what"),
		name: name(rapid.IntRange(0, 4).Draw(t, "name")),
		wait: rapid.SampledFrom([]time.Duration{0, 0, time.Second, 6 * time.Second, settled}).Draw(t, "wait"),
	}
}

// A fullHistory is an origin, a relay and a SotW client that subscribes to one type.
type fullHistory struct {
	*scene
	typeURL    string
	client     *relaytest.Client
	subscribed map[string]bool
	since      map[string]time.Time // start of the subscription
	last       *relaytest.Response
	count      int
}

// run plays steps, and checks each response.
func (h *fullHistory) run(silent bool, steps []fullStep) {
	h.origin = relaytest.NewOrigin(h,
		relaytest.OriginOptions{Memory: true, Behaviour: relaytest.Behaviour{SilentOnMissing: silent}})
	h.relay = start(h, h.origin)
	h.client, h.subscribed, h.since = h.relay.Client(relaytest.ClientOptions{Variant: relaytest.SotW}), map[string]bool{},
		map[string]time.Time{}
	for range 3 {
		h.put(name(h.count))
	}
	h.subscribe("*", true)
	sleep(time.Minute)
	for i, st := range steps {
		must := h.due()
		h.play(st)
		sleep(st.wait)
		for name := range must {
			if !h.due()[name] {
				delete(must, name)
			}
		}
		for r := h.client.TryRecv(); r != nil; r = h.client.TryRecv() {
			h.last = r
			for _, name := range slices.Sorted(maps.Keys(must)) {
				if !slices.Contains(r.Names(), name) {
					h.Errorf("step %d, %v: %v lacks %s, which the client subscribes to and the origin has", i, st, r, name)
				}
			}
		}
	}
}

// due returns the origin's resources that the client subscribes to, without subscriptions of the last second,
// which the origin may not have answered.
func (h *fullHistory) due() map[string]bool {
	due := make(map[string]bool)
	settled := func(name string) bool { return h.subscribed[name] && time.Since(h.since[name]) >= time.Second }
	for _, name := range h.origin.Resources().Names(h.typeURL) {
		if settled("*") || settled(name) {
			due[name] = true
		}
	}
	return due
}

func (h *fullHistory) put(name string) {
	h.count++
	h.origin.Put(relaytest.Opaque(h.typeURL, name, fmt.Append(nil, h.count)))
}

// subscribe starts or ends a subscription.
func (h *fullHistory) subscribe(name string, on bool) {
	if on && !h.subscribed[name] {
		h.since[name] = time.Now()
	}
	if h.subscribed[name] = on; on {
		h.client.Subscribe(h.typeURL, name)
	} else {
		h.client.Unsubscribe(h.typeURL, name)
	}
}

// play plays one step.
func (h *fullHistory) play(st fullStep) {
	switch st.what {
	case "put":
		h.put(st.name)
	case "remove":
		h.origin.Remove(h.typeURL, st.name)
	case "subscribe", "unsubscribe":
		h.subscribe(st.name, st.what == "subscribe")
	case "wildcard", "unwildcard":
		h.subscribe("*", st.what == "wildcard")
	case "reconnect":
		h.client.Reconnect(h.relay.Conn())
		h.last = nil
	case "away":
		h.origin.Stop()
		sleep(time.Second)
		h.put(st.name)
		h.origin.Restart()
		sleep(time.Minute)
	case "ack", "nack":
		if h.last == nil {
			return
		}
		if st.what == "ack" {
			h.client.Ack(h.last)
		} else {
			h.client.Nack(h.last, "no")
		}
	}
}

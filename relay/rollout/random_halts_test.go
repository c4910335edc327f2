package rollout

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	listenerpb "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// An upper is a relay above both relays of a tier, which tells halts of its own.
type upper struct {
	process int
	halted  []Decision
}

// heardWords are what a relay was told, and what follows from it: a halt is in force while a process that has told it has not
// told all halts without it.
type heardWords struct {
	mu        sync.Mutex
	frozen    bool
	last      map[string]words                // by address
	force     map[time.Time]map[string]string // the process that told it, by time of the halt and address
	content   map[time.Time]string            // of halts of relays above, such as "a@1"
	overruled map[time.Time]bool              // by an operator of the relay, or by one of a peer
}

// words are the last words of a process.
type words struct {
	process string
	Decisions
}

// listen makes both relays hear of each other and of relays above, and records what they hear.
func (w *randomTier) listen() {
	w.heard, w.above = make(map[*testRelay]*heardWords), map[string]*upper{"above0": {}, "above1": {}}
	for i, r := range w.relays {
		w.heard[r] = &heardWords{
			last: make(map[string]words), force: make(map[time.Time]map[string]string), content: make(map[time.Time]string),
			overruled: make(map[time.Time]bool),
		}
		other := w.relays[1-i]
		w.told[i] = func() { w.hear(other, fmt.Sprint("relay", i), fmt.Sprint("process", i), r.Decisions()) }
	}
}

// hear tells a relay what another one has decided.
func (w *randomTier) hear(r *testRelay, address, process string, d Decisions) {
	h := w.heard[r]
	h.mu.Lock()
	h.last[address] = words{process, d}
	h.apply(address)
	h.mu.Unlock()
	r.Hear(address, process, d)
}

// apply applies the last words of a relay. A frozen relay does not listen.
func (h *heardWords) apply(address string) {
	of, said := h.last[address]
	if h.frozen || !said {
		return
	}
	told := make(map[time.Time]bool)
	for _, d := range of.Halted {
		told[d.At] = true
		if h.force[d.At] == nil {
			h.force[d.At] = make(map[string]string)
		}
		h.force[d.At][address] = of.process
	}
	for at, processes := range h.force {
		if !told[at] && processes[address] == of.process && !of.Incomplete {
			delete(processes, address)
		}
	}
}

// freeze records that the relay is frozen, or thawed.
func (h *heardWords) freeze(frozen bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.frozen = frozen
	for address := range h.last {
		h.apply(address)
	}
}

// overrule records that an operator of the relay has decided otherwise about some listeners.
func (h *heardWords) overrule(names map[string]bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for at, content := range h.content {
		if name, _, _ := strings.Cut(content, "@"); names[name] {
			h.overruled[at] = true
		}
	}
}

// namesOf returns the listeners that a command about a part, or about all, may concern.
func (w *randomTier) namesOf(r *testRelay, part string) map[string]bool {
	names := make(map[string]bool)
	if part == "" {
		for name := range w.latest {
			names[name] = true
		}
		return names
	}
	for _, d := range check.Must(r.Diff(w.t.Context())) {
		if d.Part == part {
			names[d.Name] = true
		}
	}
	return names
}

// tellAbove makes a relay above tell relays what it has halted.
func (w *randomTier) tellAbove(address string, d Decisions, to ...*testRelay) error {
	for _, r := range to {
		w.hear(r, address, fmt.Sprint(address, "-", w.above[address].process), d)
	}
	return nil
}

// pickAbove returns a relay above.
func (w *randomTier) pickAbove() (address string, of *upper) {
	address = pick(w, slices.Sorted(maps.Keys(w.above))...)
	return address, w.above[address]
}

// haltAbove halts the content of a listener at a relay above, or at two of which one is above the other.
func (w *randomTier) haltAbove(*testRelay, string) error {
	name, version := pick(w, "a", "b", "c", "d", "e"), pick(w, "1", "2", "3", "cluster-x", "cluster-y")
	if latest := w.latest[name]; latest != "" && latest != "bad" && pick(w, true, true, false) {
		version = latest
	}
	content := check.Must(proto.Marshal(&listenerpb.Listener{Name: name, StatPrefix: version}))
	resource := check.Must(wire.NewResource(listeners, name, version, content))
	d := Decision{
		Part: "lds/" + name, At: time.Now().Add(time.Duration(1 + w.rnd.IntN(1e6))), Reason: "halted above",
		Changes: Changes{{Group: "group"}: {listeners: {name: resource.Digest}}},
	}
	for _, r := range w.relays {
		w.heard[r].mu.Lock()
		w.heard[r].content[d.At] = name + "@" + version
		w.heard[r].mu.Unlock()
	}
	address, of := w.pickAbove()
	of.halted = append(slices.Clone(of.halted), d)
	if other := w.above["above1"]; other != of && pick(w, true, false) {
		other.halted = append(slices.Clone(other.halted), d)
		_ = w.tellAbove("above1", Decisions{Halted: other.halted}, w.relays...)
	}
	return w.tellAbove(address, Decisions{Halted: of.halted}, w.relays...)
}

// endAbove ends a halt at a relay above.
func (w *randomTier) endAbove(*testRelay, string) error {
	address, of := w.pickAbove()
	if len(of.halted) > 0 {
		i := w.rnd.IntN(len(of.halted))
		of.halted = slices.Delete(slices.Clone(of.halted), i, i+1)
	}
	return w.tellAbove(address, Decisions{Halted: of.halted}, w.relays...)
}

// incompleteAbove makes a relay above tell some of what it has halted.
func (w *randomTier) incompleteAbove(r *testRelay, _ string) error {
	address, of := w.pickAbove()
	return w.tellAbove(address, Decisions{Halted: of.halted[w.rnd.IntN(len(of.halted)+1):], Incomplete: true}, r)
}

// restartAbove makes another process of the relay above of what it has halted, which knows of some halts.
func (w *randomTier) restartAbove(*testRelay, string) error {
	address, of := w.pickAbove()
	of.process++
	of.halted = of.halted[w.rnd.IntN(len(of.halted)+1):]
	return w.tellAbove(address, Decisions{Halted: of.halted}, w.relays...)
}

// forgetAbove makes a relay forget what it has heard from one above.
func (w *randomTier) forgetAbove(r *testRelay, _ string) error {
	address, _ := w.pickAbove()
	h := w.heard[r]
	h.mu.Lock()
	delete(h.last, address)
	h.mu.Unlock()
	r.Forget(address)
	return nil
}

// checkHalts fails the test if a relay that is not frozen follows a halt that is not in force, or serves a stage what relays above
// tell as halted.
func (w *randomTier) checkHalts() {
	for i, r := range w.relays {
		if w.frozen[r] {
			continue
		}
		h := w.heard[r]
		h.mu.Lock()
		for _, d := range r.Decisions().Followed {
			if len(h.force[d.At]) == 0 {
				w.t.Errorf("relay%d follows a halt of %s that has ended: %+v", i, d.Part, d)
			}
		}
		rest := r.served(len(r.stages))
		for address, of := range h.last {
			for _, d := range of.Halted {
				content, isAbove := h.content[d.At]
				for cohort := range len(r.stages) {
					if isAbove && !h.overruled[d.At] && slices.Contains(r.served(cohort), content) && !slices.Contains(rest, content) {
						w.t.Errorf("relay%d: cohort %d is served %s, which %s has halted (of %s)", i, cohort, content, address, strings.Join(rest, " "))
					}
				}
			}
		}
		h.mu.Unlock()
	}
}

package conformance_test

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/xdstender/tender/relay/admin"
)

// pause has time pass, and looks at what clients have.
func (h *rolloutHistory) pause(d time.Duration) {
	h.w.sleep(d)
	h.notTooSoon()
	h.takenBack()
	if d >= time.Minute { // all is answered
		h.whole()
		h.alike()
	}
}

// notTooSoon holds I1: a client has nothing that could not have reached its stage yet, and behind the canaries nothing that they refuse.
func (h *rolloutHistory) notTooSoon() {
	for _, c := range h.clients {
		state := c.State()
		for _, short := range waitingTypes {
			for _, name := range state.Names(typeURLs[short]) {
				digest := state.Digest(typeURLs[short], name)
				text := short + " " + name + "@" + h.w.revs[digest]
				if h.bad[digest] && !h.tainted && c.stage > 0 {
					h.Fatalf("%s has %s, which canaries refuse", c.node, text)
				}
				reached := h.began[text].Add(time.Duration(c.stage) * randomStage)
				if !h.began[text].Before(h.promoted) && c.stage > 0 && time.Now().Before(reached) {
					h.Fatalf("%s has %s after %v, before the stages ahead of its own have lasted", c.node, text, time.Since(h.began[text]))
				}
			}
		}
	}
}

// takenBack holds that a canary which accepts what is bad has it for as long only as the answer of one that refuses it takes.
func (h *rolloutHistory) takenBack() {
	before := h.haveBad()
	if len(before) == 0 || h.tainted {
		return
	}
	h.w.sleep(time.Second)
	for _, text := range h.haveBad() {
		if slices.Contains(before, text) {
			h.Fatalf("%s, which another canary has refused", text)
		}
	}
}

// haveBad returns which clients of replicas that are not frozen have what, of what canaries refuse.
func (h *rolloutHistory) haveBad() (all []string) {
	for _, c := range h.clients {
		state := c.State()
		for _, short := range waitingTypes {
			for _, name := range state.Names(typeURLs[short]) {
				if digest := state.Digest(typeURLs[short], name); h.bad[digest] && !h.replicas[c.at].frozen {
					all = append(all, fmt.Sprintf("%s has %s %s@%s", c.node, short, name, h.w.revs[digest]))
				}
			}
		}
	}
	return all
}

// longestBackoff is within what a relay has connected to an origin that is back, and has subscribed.
const longestBackoff = 40 * time.Second

var clusterC = regexp.MustCompile(`cds c@\d+, `)

// accepting returns the clients but for canaries that may refuse the last good, as an operator promoted it all the same.
func (h *rolloutHistory) accepting() []*randomClient {
	return slices.DeleteFunc(slices.Clone(h.clients), func(c *randomClient) bool { return h.tainted && c.stage == 0 })
}

// whole holds I2 and I5: a client has of types that wait what the origin had at one time, beside a cluster whose removal may have been
// held back, and the endpoints of its clusters.
func (h *rolloutHistory) whole() {
	for _, c := range h.accepting() {
		if h.replicas[c.at].frozen { // a SotW client that came since keeps sets that it has (B.7)
			continue
		}
		got := h.sees(c, waitingTypes...)
		had := slices.Contains(h.cuts, got) || h.held && slices.Contains(h.cuts, clusterC.ReplaceAllString(got, ""))
		if !had {
			h.Fatalf("%s has %s, which the origin never had at one time: it had\n%s", c.node, got, h.cuts)
		}
		state := c.State()
		for _, name := range state.Names(typeURLs["cds"]) {
			if !slices.Contains(state.Names(typeURLs["eds"]), name) {
				h.Fatalf("%s has the cluster %s without its endpoints", c.node, name)
			}
		}
	}
}

// alike holds I8: at the same replica, clients of a stage have the same, but at a frozen one, which takes nothing away from who comes.
func (h *rolloutHistory) alike() {
	type place struct{ at, stage int }
	first := make(map[place]*randomClient)
	for _, c := range h.accepting() {
		of := first[place{c.at, c.stage}]
		switch {
		case h.replicas[c.at].frozen:
		case of == nil:
			first[place{c.at, c.stage}] = c
		case h.sees(of, waitingTypes...) != h.sees(c, waitingTypes...):
			h.Fatalf("at replica %d, %s has %s, and %s has %s", c.at, of.node, h.sees(of, waitingTypes...), c.node, h.sees(c, waitingTypes...))
		}
	}
}

// endpoints holds I4: those of a cluster that the origin has just changed have reached all clients of replicas that are not frozen. A
// replica may not have connected to the origin again yet.
func (h *rolloutHistory) endpoints(cluster string) {
	if time.Since(h.connected) < longestBackoff {
		return
	}
	for _, c := range h.clients {
		state := c.State()
		if got, want := h.w.revs[state.Digest(typeURLs["eds"], cluster)], h.has["eds"][cluster]; !h.replicas[c.at].frozen && got != strconv.Itoa(want) {
			h.Fatalf("%s has the endpoints %s@%s, want those that the origin has just given, @%d", c.node, cluster, got, want)
		}
	}
}

// end holds I9: once nothing keeps them back any more, changes of all names are everywhere in time.
func (h *rolloutHistory) end() {
	for i := range h.replicas {
		h.command("thaw", i)
	}
	h.w.sleep(time.Minute)
	var all []string
	for _, short := range append(waitingTypes, "eds") {
		for _, name := range slices.Sorted(maps.Keys(h.has[short])) {
			all = append(all, h.next(short+" "+name))
		}
	}
	h.change(all...)
	for _, r := range h.replicas {
		post(&h.scene, r.running, "rollout/resume", admin.RolloutScope{})
	}
	h.pause(3*2*randomStage + 35*time.Second)
	for _, c := range h.clients {
		if got, want := h.sees(c, waitingTypes...), h.had(waitingTypes...); got != want {
			h.Fatalf("in the end %s has %s, want %s", c.node, got, want)
		}
	}
	for cluster := range h.has["eds"] {
		h.endpoints(cluster)
	}
}

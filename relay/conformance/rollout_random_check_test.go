package conformance_test

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/xdstender/tender/relay/admin"
)

// pause lets virtual time pass, and checks the clients' resources.
func (h *rolloutHistory) pause(d time.Duration) {
	h.w.sleep(d)
	h.checkStages()
	h.checkRolledBack()
	if d >= time.Minute { // all responses are answered
		h.checkComplete()
		h.checkEqual()
	}
}

// checkStages checks I1: a client has only changes that may have reached its stage, and only canaries have
// rejected content.
func (h *rolloutHistory) checkStages() {
	for _, c := range h.clients {
		state := c.State()
		for _, short := range waitingTypes {
			for _, name := range state.Names(typeURLs[short]) {
				digest := state.Digest(typeURLs[short], name)
				text := short + " " + name + "@" + h.w.n.Revision(digest)
				if h.bad[digest] && !h.tainted && c.stage > 0 {
					h.Fatalf("%s has %s, which canaries reject", c.node, text)
				}
				reached := h.firstSeen[text].Add(time.Duration(c.stage) * randomStage)
				if !h.firstSeen[text].Before(h.promotedAt) && c.stage > 0 && time.Now().Before(reached) {
					h.Fatalf("%s has %s after %v, before the end of the earlier stages", c.node, text, time.Since(h.firstSeen[text]))
				}
			}
		}
	}
}

// checkRolledBack checks that a canary loses rejected content as soon as another canary has sent the NACK.
func (h *rolloutHistory) checkRolledBack() {
	before := h.clientsWithBad()
	if len(before) == 0 || h.tainted {
		return
	}
	h.w.sleep(time.Second)
	for _, text := range h.clientsWithBad() {
		if slices.Contains(before, text) {
			h.Fatalf("%s, which another canary has rejected", text)
		}
	}
}

// clientsWithBad returns clients with rejected content, at relays that are not frozen.
func (h *rolloutHistory) clientsWithBad() (all []string) {
	for _, c := range h.clients {
		state := c.State()
		for _, short := range waitingTypes {
			for _, name := range state.Names(typeURLs[short]) {
				if digest := state.Digest(typeURLs[short], name); h.bad[digest] && !h.replicas[c.at].frozen {
					all = append(all, fmt.Sprintf("%s has %s %s@%s", c.node, short, name, h.w.n.Revision(digest)))
				}
			}
		}
	}
	return all
}

// longestBackoff is the longest time until a relay has reconnected to a restarted origin and subscribed.
const longestBackoff = 40 * time.Second

// accepting returns all clients, without canaries if an operator may have promoted content that they reject.
func (h *rolloutHistory) accepting() []*randomClient {
	return slices.DeleteFunc(slices.Clone(h.clients), func(c *randomClient) bool { return h.tainted && c.stage == 0 })
}

// checkComplete checks I2 and I5. Each resource of a client's waiting types, which all are parts of their own (B.53), has
// content that the origin had at one time, and it lacks only what the origin lacked at one time. Its clusters have endpoints.
func (h *rolloutHistory) checkComplete() {
	for _, c := range h.accepting() {
		got := h.clientState(c, waitingTypes...)
		if what := h.neverStated(got); what != "" {
			h.Fatalf("%s has %s, but the origin never stated %s:\n%s", c.node, got, what, h.states)
		}
		state := c.State()
		for _, name := range state.Names(typeURLs["cds"]) {
			if !slices.Contains(state.Names(typeURLs["eds"]), name) {
				h.Fatalf("%s has the cluster %s without its endpoints", c.node, name)
			}
		}
	}
}

// neverStated returns a resource in which a state differs from all states of the origin; empty if there is none.
func (h *rolloutHistory) neverStated(state string) string {
	has, everywhere := strings.Split(state, ", "), strings.Split(h.states[0], ", ")
	stated := make(map[string]bool)
	for _, of := range h.states {
		items := strings.Split(of, ", ")
		for _, item := range items {
			stated[item] = true
		}
		everywhere = slices.DeleteFunc(everywhere, func(item string) bool {
			name, _, _ := strings.Cut(item, "@")
			return !slices.ContainsFunc(items, func(other string) bool { return strings.HasPrefix(other, name+"@") })
		})
	}
	for _, item := range has {
		if !stated[item] {
			return item
		}
	}
	for _, item := range everywhere {
		name, _, _ := strings.Cut(item, "@")
		if !slices.ContainsFunc(has, func(other string) bool { return strings.HasPrefix(other, name+"@") }) {
			return "the removal of " + name
		}
	}
	return ""
}

// checkEqual checks I8: clients of one stage and replica have the same resources, also while it is frozen (B.7).
func (h *rolloutHistory) checkEqual() {
	type place struct{ at, stage int }
	first := make(map[place]*randomClient)
	for _, c := range h.accepting() {
		of := first[place{c.at, c.stage}]
		switch {
		case of == nil:
			first[place{c.at, c.stage}] = c
		case h.clientState(of, waitingTypes...) != h.clientState(c, waitingTypes...):
			h.Fatalf("at replica %d, %s has %s, and %s has %s", c.at, of.node, h.clientState(of, waitingTypes...), c.node,
				h.clientState(c, waitingTypes...))
		}
	}
}

// checkEndpoints checks I4: a change of a cluster's endpoints has reached all clients of replicas that are not
// frozen. It does nothing while a replica may not have reconnected to the origin.
func (h *rolloutHistory) checkEndpoints(cluster string) {
	if time.Since(h.connectedAt) < longestBackoff {
		return
	}
	for _, c := range h.clients {
		state := c.State()
		if got, want := h.w.n.Revision(state.Digest(typeURLs["eds"], cluster)),
			h.originRevs["eds"][cluster]; !h.replicas[c.at].frozen && got != strconv.Itoa(want) {
			h.Fatalf("%s has the endpoints %s@%s, want @%d as at the origin", c.node, cluster, got, want)
		}
	}
}

// finish checks I9: when no operator's command holds them back, changes of all names reach all clients in time.
func (h *rolloutHistory) finish() {
	for i := range h.replicas {
		h.command("thaw", i)
	}
	h.w.sleep(time.Minute)
	var all []string
	for _, short := range append(waitingTypes, "eds") {
		for _, name := range slices.Sorted(maps.Keys(h.originRevs[short])) {
			all = append(all, h.next(short+" "+name))
		}
	}
	h.change(all...)
	for _, r := range h.replicas {
		post(h.scene, r.running, "rollout/resume", admin.RolloutScope{})
	}
	h.pause(3*2*randomStage + 35*time.Second)
	for _, c := range h.clients {
		if got, want := h.clientState(c, waitingTypes...), h.originState(waitingTypes...); got != want {
			h.Fatalf("at the end %s has %s, want %s", c.node, got, want)
		}
	}
	for cluster := range h.originRevs["eds"] {
		h.checkEndpoints(cluster)
	}
}

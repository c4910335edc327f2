package conformance_test

import (
	"slices"
	"strings"
	"time"

	"github.com/xdstender/tender/relay/relaytest"
)

// settled is the longest time until the relay has confirmed all its sets: two sweeps with a held-back removal
// between them.
const settled = 20 * time.Minute

// check waits until the relay has settled, and checks all rules. After NACKs it checks convergence to new content.
func (sc *scene) check() {
	nacked := false
	for _, a := range sc.clients {
		a.resume()
	}
	sleep(settled)
	for _, a := range sc.clients {
		a.mu.Lock()
		a.nackNext = false
		skip := a.nacked
		a.nacked = false
		a.mu.Unlock()
		if nacked = nacked || skip; !skip {
			sc.checkConverged(a)
		}
	}
	if nacked {
		// NACKed content is not sent again, so set new content.
		for g, c := range sc.contents {
			for typeURL, names := range c.Resources() {
				for n := range names {
					if !strings.HasPrefix(n, "swap") && (!strings.HasPrefix(n, "warm") || typeURL == relaytest.EndpointType) {
						sc.put(g, typeURL, n)
					}
				}
			}
			for n := range 3 {
				sc.swap(g, n)
			}
		}
		for n := range 3 {
			sc.warm(0, n)
		}
		sleep(settled)
		for _, a := range sc.clients {
			sc.checkConverged(a)
		}
	}
	sc.checkQuiet()
	sc.checkHistory()
	sc.checkUpstream()
}

// checkConverged compares a client's state with the origin's (rules 1, 8, 10).
func (sc *scene) checkConverged(a *actor) {
	got := a.State()
	for _, typeURL := range sceneTypes {
		full := a.variant == relaytest.Delta && !sc.sotwOrigin || fullState(typeURL)
		origin := sc.originResources(a, typeURL)
		for n, want := range origin {
			subscribed := a.subscribed[typeURL][n] || a.subscribed[typeURL][wildcardOf(n)]
			if have, ok := got[typeURL][n]; subscribed && (!ok || have.Digest != want.Digest) {
				sc.Errorf("%v: %s %s is %v, want %v as at the origin", a, typeURL, n, have, want)
			}
		}
		for n := range got[typeURL] {
			_, there := origin[n]
			named := a.subscribed[typeURL][n]
			// A glob's response that lacks a name does not imply a removal.
			if never := sc.noRemovals && named || (sc.noRemovals || sc.sotwOrigin) && isShared(n); !there && full && !never {
				sc.Errorf("%v: has %s %s, which does not exist at the origin", a, typeURL, n)
			}
			if !named && !a.subscribed[typeURL][wildcardOf(n)] {
				sc.Errorf("%v: has %s %s without a subscription", a, typeURL, n)
			}
		}
	}
}

// originResources returns the origin's resources of a type for a client's group, including shared ones.
func (sc *scene) originResources(a *actor, typeURL string) map[string]relaytest.Entry {
	all := map[string]relaytest.Entry{}
	for group, content := range sc.contents {
		for n, e := range content.Resources()[typeURL] {
			if group == contentGroup(a.group, n) {
				all[n] = e
			}
		}
	}
	return all
}

// checkQuiet checks that nothing is sent without changes (rule 3).
func (sc *scene) checkQuiet() {
	before := make([]int, len(sc.clients))
	for i, a := range sc.clients {
		before[i] = len(a.Responses())
	}
	sleep(settled)
	for i, a := range sc.clients {
		if sent := a.Responses()[before[i]:]; len(sent) > 0 {
			sc.Errorf("%v: got unexpected responses: %v", a, sent)
		}
	}
}

// checkHistory checks all responses (rules 2, 5, 7, 8, 10).
func (sc *scene) checkHistory() {
	v := versions{contents: map[string]string{}, versions: map[string]string{}}
	for _, a := range sc.clients {
		last := map[string][]string{} // by type: the last complete set
		seen := map[string]bool{}     // type URL and name
		for _, r := range a.Responses() {
			for _, n := range r.Removed {
				if seen[r.TypeURL+"/"+n] { // otherwise it reports a name that does not exist
					sc.checkLost(a, r.TypeURL, n)
				}
			}
			if r.SotW() && fullState(r.TypeURL) {
				sc.sameVersion(v, r)
				for _, n := range last[r.TypeURL] {
					if !slices.Contains(r.Names(), n) && !a.unsubscribed[r.TypeURL+"/"+n] &&
						!a.unsubscribed[r.TypeURL+"/"+wildcardOf(n)] {
						sc.checkLost(a, r.TypeURL, n)
					}
				}
				last[r.TypeURL] = r.Names()
			}
			for _, res := range r.Resources {
				seen[r.TypeURL+"/"+res.Name] = true
				if group, put := sc.owner[res.Digest]; !put || group != a.group && !sc.shared[res.Digest] {
					sc.Errorf("%v: got %s %s, which its origin never had: %v", a, r.TypeURL, res.Name, res.Digest)
				}
			}
		}
		if a.ordered {
			sc.checkOrder(a)
		}
	}
}

// checkOrder checks the order between types at an ordered client (rule 7).
func (sc *scene) checkOrder(a *actor) {
	clusters := map[string]relaytest.Digest{}
	warming := map[string]bool{}
	revisions := map[string]int{} // by name, of the endpoints sent so far
	for _, r := range a.Responses() {
		for _, res := range r.Resources {
			switch r.TypeURL {
			case relaytest.ClusterType:
				changed := clusters[res.Name] != res.Digest
				clusters[res.Name] = res.Digest
				if changed && strings.HasPrefix(res.Name, "warm") {
					warming[res.Name] = true
				}
			case relaytest.EndpointType:
				delete(warming, res.Name)
				revisions[res.Name] = sc.scaled[res.Digest].n
			case relaytest.RouteType:
				needs, scaled := sc.scaled[res.Digest]
				if sent := revisions[needs.name]; scaled && sent > 0 && sent < needs.n {
					sc.Errorf("%v: route %s needs revision %d of endpoints %s, got %d before it", a, res.Name, needs.n, needs.name,
						sent)
				}
			}
			if to := sc.routed[res.Digest]; to != "" && clusters[to] == (relaytest.Digest{}) {
				sc.Errorf("%v: route %s arrived before its cluster %s", a, res.Name, to)
			}
		}
	}
	for n := range warming {
		sc.Errorf("%v: cluster %s changed, and its endpoints were not sent after it", a, n)
	}
}

// checkLost checks that the origin removed a resource that a client lost.
func (sc *scene) checkLost(a *actor, typeURL, n string) {
	key, group := typeURL+"/"+n, contentGroup(a.group, n)
	if sc.existed[group][key] && !sc.removed[group][key] {
		sc.Errorf("%v: lost %s %s, which the origin never removed", a, typeURL, n)
	}
}

// versions maps sets to their version_info and back.
type versions struct {
	contents map[string]string // by version
	versions map[string]string // by content
}

// sameVersion checks that equal sets have equal versions and different sets different ones, across all clients.
func (sc *scene) sameVersion(v versions, r *relaytest.Response) {
	_, version, marked := strings.Cut(r.Version, "~")
	if !marked {
		version = r.Version
	}
	is := content(r)
	if was, known := v.contents[version]; known && was != is {
		sc.Errorf("version %s stands for two sets: %q and %q", version, was, is)
	}
	if was, known := v.versions[is]; known && was != version {
		sc.Errorf("versions %s and %s stand for one set: %q", was, version, is)
	}
	v.contents[version], v.versions[is] = is, version
}

// fullState reports whether a SotW response of a type holds the complete set, so that absence means removal.
func fullState(typeURL string) bool {
	return typeURL == relaytest.ClusterType || typeURL == relaytest.ListenerType
}

// content formats a response's names and digests.
func content(r *relaytest.Response) string {
	var parts []string
	for _, res := range r.Resources {
		parts = append(parts, res.Name+"="+res.Digest.String())
	}
	slices.Sort(parts)
	return strings.Join(parts, " ")
}

// checkUpstream checks the relay as a client of the origin (rule 9).
func (sc *scene) checkUpstream() {
	state := sc.origin.State()
	for _, typeURL := range sceneTypes {
		for _, st := range state.Open() {
			if n := st.Type(typeURL).Unanswered(); n != 0 {
				sc.Errorf("%d responses of %s got no ACK or NACK", n, typeURL)
			}
		}
		subscribed := map[string]bool{}
		for _, a := range sc.clients {
			for n := range a.subscribed[typeURL] {
				subscribed[n] = true
			}
		}
		for n := range subscribed {
			if !slices.Contains(state.Names(typeURL), n) {
				sc.Errorf("%s %s is not subscribed at the origin, which has %v", typeURL, n, state.Names(typeURL))
			}
		}
		for _, n := range state.Names(typeURL) {
			if !subscribed[n] {
				sc.Errorf("%s %s is subscribed at the origin an hour after its last client unsubscribed", typeURL, n)
			}
		}
	}
}

// closeClients closes all clients, and checks that all subscriptions end after the linger.
func (sc *scene) closeClients() {
	for _, a := range sc.clients {
		a.Close()
		a.subscribed = nil
	}
	sleep(40 * time.Minute) // a quarter of an hour per relay
	for _, typeURL := range sceneTypes {
		if names := sc.origin.State().Names(typeURL); len(names) > 0 {
			sc.Errorf("%s: %v are still subscribed at the origin", typeURL, names)
		}
	}
}

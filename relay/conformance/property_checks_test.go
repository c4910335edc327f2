package conformance_test

import (
	"slices"
	"strings"
	"testing/synctest"
	"time"

	"github.com/xdstender/tender/relay/relaytest"
)

// settled is how long it may take until the relay is sure of everything: two
// sweeps and the hold of a deletion between them.
const settled = 20 * time.Minute

func (sc *scene) check() {
	refused := false
	for _, a := range sc.clients {
		a.resume()
	}
	time.Sleep(settled)
	synctest.Wait()
	for _, a := range sc.clients {
		a.mu.Lock()
		a.refuse = false
		skip := a.refused
		a.refused = false
		a.mu.Unlock()
		if refused = refused || skip; !skip {
			sc.converged(a)
		}
	}
	if refused {
		// What was refused is not sent again: something new is.
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
		time.Sleep(settled)
		synctest.Wait()
		for _, a := range sc.clients {
			sc.converged(a)
		}
	}
	sc.quiet()
	sc.history()
	sc.upstream()
}

// converged holds a client's state to the origin's (1, 8, 10).
func (sc *scene) converged(a *actor) {
	got := a.State()
	for _, typeURL := range sceneTypes {
		full := a.variant == relaytest.Delta && !sc.partial || fullState(typeURL)
		origin := sc.visible(a, typeURL)
		for n, want := range origin {
			wanted := a.wants[typeURL][n] || a.wants[typeURL][globOf(n)]
			if have, ok := got[typeURL][n]; wanted && (!ok || have.Digest != want.Digest) {
				sc.Errorf("%v: %s %s is %v, the origin has %v", a, typeURL, n, have, want)
			}
		}
		for n := range got[typeURL] {
			_, there := origin[n]
			named := a.wants[typeURL][n]
			// Of globs nothing is inferred from what is missing.
			if never := sc.silent && named || (sc.silent || sc.partial) && isShared(n); !there && full && !never {
				sc.Errorf("%v: has %s %s, which the origin has not", a, typeURL, n)
			}
			if !named && !a.wants[typeURL][globOf(n)] {
				sc.Errorf("%v: has %s %s, which it does not want", a, typeURL, n)
			}
		}
	}
}

// visible returns what there is of a type for a client: of its group, and what groups
// share.
func (sc *scene) visible(a *actor, typeURL string) map[string]relaytest.Entry {
	all := map[string]relaytest.Entry{}
	for group, content := range sc.contents {
		for n, e := range content.Resources()[typeURL] {
			if group == home(a.group, n) {
				all[n] = e
			}
		}
	}
	return all
}

// quiet shows that nothing is sent while nothing happens (3).
func (sc *scene) quiet() {
	before := make([]int, len(sc.clients))
	for i, a := range sc.clients {
		before[i] = len(a.Responses())
	}
	time.Sleep(settled)
	synctest.Wait()
	for i, a := range sc.clients {
		if sent := a.Responses()[before[i]:]; len(sent) > 0 {
			sc.Errorf("%v: sent without need: %v", a, sent)
		}
	}
}

// history looks at all that was ever sent (2, 5, 7, 8, 10).
func (sc *scene) history() {
	v := versions{contents: map[string]string{}, versions: map[string]string{}}
	for _, a := range sc.clients {
		had := map[string][]string{} // by type: the last full set
		seen := map[string]bool{}    // type URL and name
		for _, r := range a.Responses() {
			for _, n := range r.Removed {
				if seen[r.TypeURL+"/"+n] { // else it was told that there is none
					sc.lost(a, r.TypeURL, n)
				}
			}
			if r.SotW() && fullState(r.TypeURL) {
				sc.sameVersion(v, r)
				for _, n := range had[r.TypeURL] {
					if !slices.Contains(r.Names(), n) && !a.left[r.TypeURL+"/"+n] && !a.left[r.TypeURL+"/"+globOf(n)] {
						sc.lost(a, r.TypeURL, n)
					}
				}
				had[r.TypeURL] = r.Names()
			}
			for _, res := range r.Resources {
				seen[r.TypeURL+"/"+res.Name] = true
				if group, put := sc.owner[res.Digest]; !put || group != a.group && !sc.shared[res.Digest] {
					sc.Errorf("%v: was sent %s %s, which its origin never had: %v", a, r.TypeURL, res.Name, res.Digest)
				}
			}
		}
		if a.guard {
			sc.order(a)
		}
	}
}

// order holds what a guard was sent to the order between types (7).
func (sc *scene) order(a *actor) {
	clusters := map[string]relaytest.Digest{}
	warming := map[string]bool{}
	revisions := map[string]int{} // of assignments that were sent
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
				if has := revisions[needs.name]; scaled && has > 0 && has < needs.n {
					sc.Errorf("%v: route %s needs revision %d of endpoints %s, it was sent %d", a, res.Name, needs.n, needs.name, has)
				}
			}
			if to := sc.routed[res.Digest]; to != "" && clusters[to] == (relaytest.Digest{}) {
				sc.Errorf("%v: route %s names cluster %s, which it was not sent", a, res.Name, to)
			}
		}
	}
	for n := range warming {
		sc.Errorf("%v: cluster %s changed, and no endpoints followed", a, n)
	}
}

// lost is told of each resource that a client lost.
func (sc *scene) lost(a *actor, typeURL, n string) {
	key, group := typeURL+"/"+n, home(a.group, n)
	if sc.existed[group][key] && !sc.removed[group][key] {
		sc.Errorf("%v: lost %s %s, which the origin never removed", a, typeURL, n)
	}
}

// versions is which sets had which version_info, both ways.
type versions struct {
	contents map[string]string // by version
	versions map[string]string // by content
}

// sameVersion checks that of two equal sets the versions are equal, and of two
// different ones different, whoever was sent them.
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

func fullState(typeURL string) bool {
	return typeURL == relaytest.ClusterType || typeURL == relaytest.ListenerType
}

func content(r *relaytest.Response) string {
	var parts []string
	for _, res := range r.Resources {
		parts = append(parts, res.Name+"="+res.Digest.String())
	}
	slices.Sort(parts)
	return strings.Join(parts, " ")
}

// upstream holds the relay to its duties as a client of the origin (9).
func (sc *scene) upstream() {
	state := sc.origin.State()
	for _, typeURL := range sceneTypes {
		for _, st := range state.Open() {
			if n := st.Type(typeURL).Unanswered(); n != 0 {
				sc.Errorf("%d responses of %s were not answered", n, typeURL)
			}
		}
		wanted := map[string]bool{}
		for _, a := range sc.clients {
			for n := range a.wants[typeURL] {
				wanted[n] = true
			}
		}
		for n := range wanted {
			if !slices.Contains(state.Names(typeURL), n) {
				sc.Errorf("%s %s is wanted and not subscribed at the origin: %v", typeURL, n, state.Names(typeURL))
			}
		}
		for _, n := range state.Names(typeURL) {
			if !wanted[n] {
				sc.Errorf("%s %s is subscribed at the origin, and nobody wanted it for an hour", typeURL, n)
			}
		}
	}
}

// leave ends all clients; after the longest linger nothing is subscribed any more.
func (sc *scene) leave() {
	for _, a := range sc.clients {
		a.Close()
		a.wants = nil
	}
	time.Sleep(time.Hour) // of each relay a quarter
	synctest.Wait()
	for _, typeURL := range sceneTypes {
		if names := sc.origin.State().Names(typeURL); len(names) > 0 {
			sc.Errorf("%s: %v are still subscribed at the origin", typeURL, names)
		}
	}
}

package pending

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/xdstender/tender/cache"
)

// checkRestoredList fails the test unless the list of an origin that was restored from a snapshot of another one has what
// waited there, for names of which the snapshot has what readers see.
func checkRestoredList(t tester, was, is *origin) {
	t.Helper()
	if got, want := describeRows(is, false), describeRows(was, true); got != want {
		t.Fatalf("restored: the list has\n%s\nwant\n%s", got, want)
	}
	is.checkEntries()
}

// describeRows describes the rows of a list; if stored is true, as a snapshot stores them.
func describeRows(o *origin, stored bool) string {
	var lines []string
	for set, rows := range o.sets {
		for name, r := range rows {
			if stored && !isStored(o, set, name, r) {
				continue
			}
			content := "-"
			if r.Resource != nil && !r.Resource.DoNotCache {
				content = string(r.Resource.Value())
			} else if r.Resource != nil {
				content = ""
			}
			lines = append(lines, fmt.Sprintf("%q %d %s=%s", set.key, set.kind, name, content))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// isStored reports whether a snapshot stores a row.
func isStored(o *origin, set setKey, name string, r row) bool {
	if !r.HasContent || !o.stopsRow(set, r) || r.Resource != nil && !r.Resource.HasBody() {
		return false
	}
	served := o.Writer().Shown(o.rest(), set.kind, set.key, name)
	served.Err, r.Err = nil, nil // errors are not stored
	if newest := overlay(served, r.Statement); newest.Same(&served) {
		return false
	}
	typ := o.view.Generation().Type(set.key)
	if set.kind == cache.Wildcard {
		return typ.HasLastGood(cache.Wildcard)
	}
	n := o.view.FindName(set.key, name)
	if n == nil {
		return false
	}
	e := typ.ByName.Get(n)
	if e.Present() {
		return e.Resource.HasBody()
	}
	seen, _ := typ.Lookup(n)
	failure := typ.Errors(cache.ByName).Get(n)
	return e != nil && seen == e && !e.Expired && (failure == nil || failure.Err.NotFound())
}

// A restartedWorld is an origin whose relay is restarted from time to time, while the origin may be gone and change.
type restartedWorld struct {
	*origin
	truth   map[setKey]map[string]string // what the origin has, as versions by name; no version is no resource
	names   []string
	online  bool
	edition *Edition
}

func newRestartedWorld(t tester, cohorts int) *restartedWorld {
	w := &restartedWorld{
		origin: newOrigin(t, cache.Config{Cohorts: cohorts, Waits: func(typeURL string) bool { return typeURL == acme }}),
		names:  []string{"a", "b", "c"}, truth: make(map[setKey]map[string]string),
	}
	for _, kind := range []cache.Kind{cache.Wildcard, cache.ByName} {
		w.truth[setKey{acme, kind}] = map[string]string{"a": "1"}
	}
	w.follow()
	w.connect()
	return w
}

// follow subscribes a client.
func (w *restartedWorld) follow() {
	watch := w.view.Watch()
	watch.SubscribeAll(acme)
	w.subscribe(watch, w.names...)
}

// newestVersion returns the version of a name in what the relay knows as the newest state of the origin.
func (w *restartedWorld) newestVersion(set setKey, name string) string {
	if r, listed := w.Get(set.kind, set.key, name); listed && r != nil {
		return r.OriginVersion
	} else if listed {
		return ""
	}
	return w.servedVersion(set, name)
}

// servedVersion returns the version of a name that clients are served.
func (w *restartedWorld) servedVersion(set setKey, name string) string {
	if e := w.entry(set, name); e.Present() {
		return e.Resource.OriginVersion
	}
	return ""
}

// versions returns versions by set and name.
func (w *restartedWorld) versions(of func(setKey, string) string) map[string]string {
	all := make(map[string]string)
	for set := range w.truth {
		for _, name := range w.names {
			all[fmt.Sprint(set.kind, " ", name)] = of(set, name)
		}
	}
	return all
}

// state states the state of a name.
func (w *restartedWorld) state(set setKey, name string) {
	if version := w.truth[set][name]; version != "" {
		w.put(set.kind, name, version, name+version)
	} else {
		w.remove(set.kind, name)
	}
}

// connect connects the relay, which reports the versions of what it knows. The origin states what differs, and the names that
// do not exist.
func (w *restartedWorld) connect() {
	w.online = true
	w.SetConnected(true)
	for _, set := range slices.SortedFunc(maps.Keys(w.truth), setKey.compare) {
		for _, name := range w.names {
			if version := w.truth[set][name]; version != w.newestVersion(set, name) || version == "" && set.kind == cache.ByName {
				w.state(set, name)
			}
		}
	}
	w.SetPhase(acme, cache.Confirmed)
}

// restart replaces the relay by one that is restored from its snapshot.
func (w *restartedWorld) restart(t tester) {
	served := w.versions(w.servedVersion)
	newest := w.versions(func(set setKey, name string) string {
		if r, listed := w.row(set, name); listed && !isStored(w.origin, set, name, r) {
			return w.servedVersion(set, name) // the origin states it again
		}
		return w.newestVersion(set, name)
	})
	w.origin, w.online, w.edition = restart(t, w.origin), false, nil
	w.follow()
	if got := w.versions(w.newestVersion); !maps.Equal(got, newest) {
		t.Fatalf("restored: the newest state is %v, want %v", got, newest)
	}
	if got := w.versions(w.servedVersion); !maps.Equal(got, served) {
		t.Fatalf("restored: clients are served %v, want %v", got, served)
	}
}

// step does a random step.
func (w *restartedWorld) step(t *rapid.T) {
	set := setKey{acme, rapid.SampledFrom([]cache.Kind{cache.Wildcard, cache.ByName}).Draw(t, "kind")}
	name := rapid.SampledFrom(w.names).Draw(t, "name")
	switch rapid.SampledFrom([]string{
		"put", "put", "put", "remove", "remove", "offline", "online", "restart", "restart", "freeze", "thaw", "pin", "show",
	}).Draw(t, "step") {
	case "put":
		w.truth[set][name] = rapid.SampledFrom([]string{"1", "2", "3"}).Draw(t, "version")
		if w.online {
			w.state(set, name)
		}
	case "remove":
		delete(w.truth[set], name)
		if w.online {
			w.state(set, name)
		}
	case "offline":
		w.online = false
		w.SetConnected(false)
	case "online":
		w.connect()
	case "restart":
		w.restart(t)
	case "freeze":
		w.Freeze()
	case "thaw":
		w.Thaw()
	case "pin":
		w.edition = w.Pin()
	case "show":
		if w.edition != nil {
			w.Show(w.rest(), w.edition)
		}
	}
}

// TestB56_RandomRestarts: what clients are served, overlaid by the list, is what the origin has stated last, also after a
// restart. Once the origin is back, it is what the origin has, whatever that has withdrawn meanwhile.
func TestB56_RandomRestarts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newRestartedWorld(t, rapid.IntRange(0, 1).Draw(t, "cohorts"))
		want := func(when string, of func(setKey, string) string) {
			has := w.versions(func(set setKey, name string) string { return w.truth[set][name] })
			if got := w.versions(of); !maps.Equal(got, has) {
				t.Fatalf("%s: %v, want what the origin has, %v", when, got, has)
			}
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			if w.step(t); w.online {
				want("newest state", w.newestVersion)
			}
			w.checkEntries()
		}
		w.connect()
		w.Thaw()
		w.Show(w.rest(), w.Pin())
		want("at the end, clients are served", w.servedVersion)
		if !w.Empty() {
			t.Fatalf("at the end, the list has %v", describeRows(w.origin, false))
		}
	})
}

package pending

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// rolloutTypes are the types of a rolloutHistory. Changes of acme and of a collection of it wait, only removals of
// endpoints wait, and all changes of other types pass.
var rolloutTypes = []string{acme, shopKey, wire.EndpointType, other}

// A rolloutHistory applies random steps to an origin with two cohorts, with operator commands in between, and to an
// origin without cohorts.
type rolloutHistory struct {
	staged, plain *origin
	watches       []*cache.Watch
	all           []map[string]*cache.WildcardWatch
	subscribed    []map[string]map[string][]*cache.Name // by type and name

	editions []*Edition
	seen     []map[string]string // by cohort: visible state of waiting types, which must not change
}

func newRolloutHistory(t tester) *rolloutHistory {
	h := &rolloutHistory{plain: newOrigin(t, cache.Config{})}
	h.staged = newOrigin(t, cache.Config{
		Cohorts: 2, Waits: func(typeURL string) bool { return typeURL == acme },
	})
	for _, o := range []*origin{h.staged, h.plain} {
		w, all := o.view.Watch(), make(map[string]*cache.WildcardWatch)
		for _, key := range rolloutTypes {
			all[key] = w.SubscribeAll(key)
		}
		o.Writer().TakeDemand()
		h.watches, h.all = append(h.watches, w), append(h.all, all)
		wants := make(map[string]map[string][]*cache.Name)
		for _, key := range rolloutTypes {
			wants[key] = make(map[string][]*cache.Name)
		}
		h.subscribed = append(h.subscribed, wants)
	}
	h.editions = []*Edition{h.staged.Pin(), {Changes: map[string]map[string]wire.Digest{acme: {"a": {1}}}}}
	h.seen = make([]map[string]string, 3)
	return h
}

// namedSteps are the random steps that do not apply to collections.
var namedSteps = []string{"put alias", "subscribe", "unsubscribe", "put uncacheable", "put TTL"}

// A rolloutStep is a step of an origin.
type rolloutStep struct {
	key, step, name, version string
	kind                     cache.Kind
}

// originStep applies a random step to both origins.
func (h *rolloutHistory) originStep(t *rapid.T) rolloutStep {
	d := rolloutStep{
		key:     rapid.SampledFrom(rolloutTypes).Draw(t, "key"),
		name:    rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name"),
		kind:    rapid.SampledFrom([]cache.Kind{cache.Wildcard, cache.ByName}).Draw(t, "kind"),
		version: rapid.SampledFrom([]string{"1", "2"}).Draw(t, "version"),
		step: rapid.SampledFrom([]string{
			"put", "put", "put", "put", "put alias", "remove", "remove", "fail", "not found", "fail set", "subscribe", "subscribe",
			"unsubscribe", "confirm", "confirm", "reconnect", "disconnect", "trim", "put TTL", "put uncacheable",
			"expire", "resubscribe wildcard",
		}).Draw(t, "step"),
	}
	if d.key == shopKey {
		d.name, d.kind = shop+d.name, cache.Wildcard
	}
	for i, o := range []*origin{h.staged, h.plain} {
		o.typeURL = d.key
		switch {
		case d.step == "resubscribe wildcard":
			h.all[i][d.key] = o.resubscribeAll(h.watches[i], h.all[i][d.key], d.key)
		case d.step == "disconnect":
			o.SetConnected(false)
		case d.key == shopKey && slices.Contains(namedSteps, d.step):
		case d.key != acme && d.step == "put uncacheable":
		default:
			o.randomStep(d.step, d.kind, d.name, d.version, h.watches[i], h.subscribed[i][d.key])
		}
	}
	if d.step == "expire" {
		h.checkExpired(t)
	}
	return d
}

// checkExpired fails the test if a row waits although its TTL has ended, after a step that ends all.
func (h *rolloutHistory) checkExpired(t *rapid.T) {
	for set, rows := range h.staged.sets {
		for name, r := range rows {
			if !r.Deadline.IsZero() {
				t.Fatalf("%q of %+v waits although its TTL has ended", name, set)
			}
		}
	}
}

// drops reports whether readers lose the state under a key of visibleTo in a step.
func (d rolloutStep) drops(key string) bool {
	of, what, _ := strings.Cut(key, "|")
	return of == d.key &&
		(d.step == "unsubscribe" && strings.HasSuffix(what, "named "+d.name) ||
			d.step == "resubscribe wildcard" && strings.Contains(what, "member "))
}

// operatorStep applies a random command, and returns the cohort that was shown a generation; -1 if none was.
func (h *rolloutHistory) operatorStep(t *rapid.T) (shown int) {
	o := h.staged
	cohort, edition := rapid.IntRange(0, 2).Draw(t, "cohort"), rapid.SampledFrom(h.editions).Draw(t, "edition")
	commands := []string{"pin", "pin", "served", "show", "show", "as", "compare", "compare none", "snapshot", "parts", "parts"}
	switch rapid.SampledFrom(commands).Draw(t, "command") {
	case "pin":
		e := o.Pin()
		o.Compare(e)
		if edited, behind := countCompared(&h.staged.counts); edited+behind != 0 {
			t.Fatalf("latest differs from an edition that was just made of it: %+v", h.staged.counts)
		}
		h.editions = append(h.editions, e)
	case "served":
		h.editions = append(h.editions, o.PinServed(edition))
	case "show":
		o.Show(cohort, edition)
		at := o.view.Cohort(cohort).Generation().Revision
		if o.Show(cohort, edition); o.view.Cohort(cohort).Generation().Revision != at {
			t.Fatal("showing the same edition again caused changes")
		}
		return cohort
	case "as":
		if cohort == o.rest() {
			return -1
		}
		o.ShowAsRest(cohort)
		return cohort
	case "compare":
		o.Compare(rapid.SampledFrom(h.editions).Draw(t, "compared"))
	case "compare none":
		o.Compare()
	case "parts":
		h.showParts(t, cohort)
		return cohort
	case "snapshot":
		h.checkRestore(t)
	}
	return -1
}

// showParts shows a cohort what waits as two editions of different names, which is the same as one edition of all, and
// withdraws and shows one of them again. The list compares both.
func (h *rolloutHistory) showParts(t *rapid.T, cohort int) {
	o, parts := h.staged, [2]Names{make(Names), make(Names)}
	for id := range o.stagedNames() {
		parts[rapid.IntRange(0, 1).Draw(t, "part")].Add(id.key, id.name)
	}
	all, first, second := o.Pin(), o.PinNames(parts[0]), o.PinNames(parts[1])
	changes := first.Changes
	for key, names := range second.Changes {
		if changes[key] == nil {
			changes[key] = make(map[string]wire.Digest)
		}
		maps.Copy(changes[key], names)
	}
	if !maps.EqualFunc(changes, all.Changes, maps.Equal[map[string]wire.Digest, map[string]wire.Digest]) {
		t.Fatalf("two parts have the changes %v, want %v", changes, all.Changes)
	}
	first = o.PinNames(parts[0]) // without the changes of the second one
	o.Compare(first, second)
	if edited, behind := countCompared(&o.counts); edited+behind != 0 {
		t.Fatalf("latest differs from its parts: %+v", o.counts)
	}
	o.Show(cohort, first, second)
	at := func() uint64 { return o.view.Cohort(cohort).Generation().Revision }
	shown := at()
	if o.Show(cohort, all); at() != shown {
		t.Fatal("an edition of all that waits differs from two editions of its parts")
	}
	if cohort == o.rest() {
		return
	}
	o.ShowAsRest(cohort, second)
	o.Show(cohort, second, first)
	shown = at()
	if o.Show(cohort, all); at() != shown {
		t.Fatal("an edition that was withdrawn and shown again differs")
	}
}

// visibleTo returns the state that readers of a cohort see of waiting types, and the keys that may change.
func (h *rolloutHistory) visibleTo(cohort int) (seen map[string]string, passing map[string]bool) {
	seen, passing = map[string]string{}, map[string]bool{}
	g := h.staged.view.Cohort(cohort).Generation()
	for _, key := range []string{acme, shopKey} {
		t := g.Type(key)
		for what, content := range visibleIn(t) {
			seen[key+"|"+what] = content
			passing[key+"|"+what] = t.Phase < cache.Confirmed && strings.Contains(what, "member ")
		}
		for what := range exemptOf(t) { // includes errors that have passed and are no longer visible
			passing[key+"|"+what] = true
		}
	}
	return seen, passing
}

// checkVisible fails the test unless the visible state of waiting types changed only for the cohort that was shown a
// generation, and for those that follow the rest. The end of an error of a whole set does not wait.
func (h *rolloutHistory) checkVisible(t *rapid.T, shown int, d rolloutStep) {
	restSees, _ := h.visibleTo(h.staged.rest())
	for cohort := range h.seen {
		seen, passing := h.visibleTo(cohort)
		for key, want := range h.seen[cohort] {
			follows := shown == h.staged.rest() && seen[key] == restSees[key]
			if got := seen[key]; shown != cohort && got != want && !passing[key] && !d.drops(key) && !follows &&
				!isWholeError(key) {
				t.Fatalf("after %+v: cohort %d sees %q of %s, want %q", d, cohort, got, key, want)
			}
		}
		maps.DeleteFunc(seen, func(key, _ string) bool { return passing[key] })
		h.seen[cohort] = seen
	}
}

// checkWaiting fails the test unless Waiting has the number of names that wait.
func (h *rolloutHistory) checkWaiting(t *rapid.T) {
	o, names := h.staged, 0
	for id := range o.stagedNames() {
		if served, newest := o.shown(o.rest(), id), o.newest(id); !served.same(&newest) {
			names++
		}
	}
	if h.staged.counts.Names != names || len(o.comparison.editions) == 0 && h.staged.counts.Free.Names != names {
		t.Fatalf("Waiting is %+v, but %d names wait", h.staged.counts, names)
	}
	sum := o.counts.Free.Names
	for _, of := range o.counts.Of {
		sum += of.Names
	}
	if sum != names {
		t.Fatalf("%d names wait, but %+v has %d", names, o.counts, sum)
	}
}

// allVisible returns the state that readers see in a generation, of all types.
func allVisible(g *cache.Generation) map[string]string {
	out := map[string]string{}
	for _, key := range rolloutTypes {
		for what, content := range visibleIn(g.Type(key)) {
			out[key+"|"+what] = content
		}
	}
	return out
}

// TestI1_RandomRolloutsOfAView applies random steps and commands. Readers see the state of waiting types that they were
// shown, except first and uncacheable state, and Waiting is correct. Showing an edition again changes nothing. After
// latest was shown, all views equal one without cohorts.
func TestI1_RandomRolloutsOfAView(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := newRolloutHistory(t)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			shown, d := -1, rolloutStep{}
			if rapid.IntRange(0, 2).Draw(t, "operator") == 0 {
				shown = h.operatorStep(t)
			} else {
				d = h.originStep(t)
			}
			h.staged.checkEntries()
			h.checkWaiting(t)
			h.checkVisible(t, shown, d)
		}
		for cohort := range h.staged.views() {
			h.staged.Show(cohort, h.staged.Pin())
		}
		if h.staged.counts.Names != 0 {
			t.Fatalf("shown latest: %+v", h.staged.counts)
		}
		for _, o := range []*origin{h.staged, h.plain} {
			o.expire(time.Now().Add(2 * uncached)) // drops uncacheable content of editions
		}
		h.staged.checkEntries()
		for cohort, v := range h.staged.views() {
			if got, want := allVisible(v.Generation()), allVisible(h.plain.view.Generation()); !maps.Equal(got, want) {
				t.Fatalf("shown latest: cohort %d sees\n%v, want, as without cohorts,\n%v", cohort, got, want)
			}
			for _, key := range rolloutTypes {
				want := h.plain.view.Generation().Type(key).Wildcard.Sum()
				if got := v.Generation().Type(key).Wildcard.Sum(); got != want {
					t.Fatalf("shown latest: version of %s in cohort %d is %v, want %v, as without cohorts", key, cohort, got, want)
				}
			}
		}
	})
}

// checkRestore fails the test unless another process restores the stored part of the rest's state from a snapshot, for
// all cohorts.
func (h *rolloutHistory) checkRestore(t *rapid.T) {
	again := restart(t, h.staged)
	want := describeResources(h.staged.view.Generation(), true)
	for cohort, v := range again.views() {
		if got := describeResources(v.Generation(), false); got != want {
			t.Fatalf("restored: cohort %d sees\n%s\nwant\n%s", cohort, got, want)
		}
	}
	checkRestoredList(t, h.staged, again)
}

// describeResources describes the resources of a generation; if stored is true, as a snapshot stores them.
func describeResources(g *cache.Generation, stored bool) string {
	var lines []string
	for _, key := range rolloutTypes {
		t := g.Type(key)
		for kind, set := range []*cache.Set{&t.Wildcard, &t.ByName} {
			if stored && kind == int(cache.Wildcard) && t.Phase < cache.Settled {
				continue
			}
			for e := range set.Since(0) {
				if !e.Present() || !e.Resource.HasBody() && !e.Resource.ContentDropped() || e.Expires() {
					continue
				}
				content := contentOf(e)
				if stored && e.Resource.DoNotCache {
					content = ""
				}
				lines = append(lines, fmt.Sprintf("%q %d %s=%s", key, kind, e.Name, content))
			}
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// isWholeError reports whether a key of visibleTo is the error of a whole set, whose end does not wait.
func isWholeError(key string) bool {
	return strings.Contains(key, "|error of member ") && strings.HasSuffix(key, "*")
}

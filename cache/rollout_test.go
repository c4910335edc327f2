package cache

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/xdstender/tender/cache/wire"
)

// rolled are the types of a rolloutHistory: acme waits, and so does a collection of it; of endpoints, only removals wait; others pass.
var rolled = []string{acme, shopKey, wire.EndpointType, other}

// A rolloutHistory is an origin with two cohorts, with commands of operators between its changes, beside the same origin without
// cohorts.
type rolloutHistory struct {
	waits, plain *origin
	watches      []*Watch
	all          []map[string]*WildcardWatch
	wants        []map[string]map[string][]*Name // by type and name

	told     Waiting
	editions []*Edition
	seen     []map[string]string // by cohort: what its readers see of what waits, and must not change
}

func newRolloutHistory(t tester) *rolloutHistory {
	h := &rolloutHistory{plain: newOrigin(t, Config{})}
	h.waits = newOrigin(t, Config{
		Cohorts: 2, Waits: func(typeURL string) bool { return typeURL == acme },
		Waiting: func(_ int, w Waiting) { h.told = w },
	})
	for _, o := range []*origin{h.waits, h.plain} {
		w, all := o.view.Watch(), make(map[string]*WildcardWatch)
		for _, key := range rolled {
			all[key] = w.SubscribeAll(key)
		}
		o.TakeDemand()
		h.watches, h.all = append(h.watches, w), append(h.all, all)
		wants := make(map[string]map[string][]*Name)
		for _, key := range rolled {
			wants[key] = make(map[string][]*Name)
		}
		h.wants = append(h.wants, wants)
	}
	h.editions = []*Edition{h.waits.Pin(), {Changes: map[string]map[string]wire.Digest{acme: {"a": {1}}}}}
	h.seen = make([]map[string]string, 3)
	return h
}

// drawn is what an origin does.
type drawn struct {
	key, step, name, version string
	kind                     Kind
}

// happens has both origins do the same.
func (h *rolloutHistory) happens(t *rapid.T) drawn {
	d := drawn{
		key:     rapid.SampledFrom(rolled).Draw(t, "key"),
		name:    rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name"),
		kind:    rapid.SampledFrom([]Kind{Wildcard, ByName}).Draw(t, "kind"),
		version: rapid.SampledFrom([]string{"1", "2"}).Draw(t, "version"),
		step: rapid.SampledFrom([]string{"put", "put", "put", "put", "alias", "remove", "remove", "fail", "want", "want", "forget", "confirm", "confirm",
			"reconnect", "lost", "trim", "lives", "uncached", "expire", "members"}).Draw(t, "step"),
	}
	if d.key == shopKey {
		d.name, d.kind = shop+d.name, Wildcard
	}
	for i, o := range []*origin{h.waits, h.plain} {
		o.typeURL = d.key
		switch {
		case d.step == "members": // those who follow them leave, and return
			h.watches[i].UnsubscribeAll(h.all[i][d.key])
			o.TakeDemand()
			o.ForgetWildcard(d.key)
			h.all[i][d.key] = h.watches[i].SubscribeAll(d.key)
			o.TakeDemand()
		case d.step == "lost":
			o.SetConnected(false)
		case d.key == shopKey && slices.Contains([]string{"alias", "want", "forget", "uncached", "lives"}, d.step):
		case d.key != acme && d.step == "uncached":
		default:
			o.random(d.step, d.kind, d.name, d.version, h.watches[i], h.wants[i][d.key])
		}
	}
	return d
}

// forgets reports whether what happened has readers forget what they see under a key of seenOf.
func (d drawn) forgets(key string) bool {
	of, what, _ := strings.Cut(key, "|")
	return of == d.key && (d.step == "forget" && strings.HasSuffix(what, "named "+d.name) || d.step == "members" && strings.Contains(what, "member "))
}

// operates has an operator do something, and returns the cohort to which something was shown; -1 if to none.
func (h *rolloutHistory) operates(t *rapid.T) (shown int) {
	o := h.waits
	cohort, edition := rapid.IntRange(0, 2).Draw(t, "cohort"), rapid.SampledFrom(h.editions).Draw(t, "edition")
	switch rapid.SampledFrom([]string{"pin", "pin", "served", "show", "show", "as", "compare", "freeze", "thaw", "snapshot"}).Draw(t, "command") {
	case "pin":
		e := o.Pin()
		o.Compare(e)
		if h.told.Edited+h.told.Behind != 0 {
			t.Fatalf("latest stands to what was just cut of it as %+v", h.told)
		}
		h.editions = append(h.editions, e)
	case "served":
		h.editions = append(h.editions, o.PinServed())
	case "show":
		o.Show(cohort, edition)
		at := o.view.Cohort(cohort).Generation().Seq
		if o.Show(cohort, edition); o.view.Cohort(cohort).Generation().Seq != at {
			t.Fatal("readers who see an edition are shown changes by the same edition")
		}
		return cohort
	case "as":
		of := rapid.IntRange(0, 2).Draw(t, "of")
		o.ShowAs(cohort, of)
		return cohort
	case "compare":
		o.Compare(rapid.SampledFrom(append(h.editions, nil)).Draw(t, "compared"))
	case "freeze":
		o.Freeze()
	case "thaw":
		o.thaws()
	case "snapshot":
		h.restores(t)
	}
	return -1
}

// seenOf is what readers of a cohort see of types of which something waits.
func (h *rolloutHistory) seenOf(cohort int) (seen map[string]string, passing map[string]bool) {
	seen, passing = map[string]string{}, map[string]bool{}
	g := h.waits.view.Cohort(cohort).Generation()
	for _, key := range []string{acme, shopKey} {
		t := g.Type(key)
		for what, content := range sightOf(t) {
			seen[key+"|"+what] = content
			passing[key+"|"+what] = t.Phase < Confirmed && strings.Contains(what, "member ")
		}
		for what := range passingOf(t) { // also an error that has passed, which is not seen any more
			passing[key+"|"+what] = true
		}
	}
	return seen, passing
}

// holds fails the test unless readers see no change of what waits but the one that they were shown.
func (h *rolloutHistory) holds(t *rapid.T, shown int, d drawn) {
	for cohort := range h.seen {
		seen, passing := h.seenOf(cohort)
		for key, want := range h.seen[cohort] {
			if got := seen[key]; shown != cohort && got != want && !passing[key] && !d.forgets(key) {
				t.Fatalf("after %+v, cohort %d sees %q of %s, want %q", d, cohort, got, key, want)
			}
		}
		maps.DeleteFunc(seen, func(key, _ string) bool { return passing[key] })
		h.seen[cohort] = seen
	}
}

// counts fails the test unless Waiting says how many names wait.
func (h *rolloutHistory) counts(t *rapid.T) {
	o, names := h.waits, 0
	served, latest := o.view.Generation(), o.Generation()
	for key, index := range o.view.index.types {
		for _, n := range index.names {
			if o.differenceWaits(served.Type(key), latest.Type(key), n) {
				names++
			}
		}
	}
	if h.told.Names != names || o.edition == nil && h.told.Behind != names {
		t.Fatalf("%+v is told, and %d names wait", h.told, names)
	}
}

// allSeen returns what readers see in a generation: members, named and errors of all types.
func allSeen(g *Generation) map[string]string {
	out := map[string]string{}
	for _, key := range rolled {
		for what, content := range sightOf(g.Type(key)) {
			out[key+"|"+what] = content
		}
	}
	return out
}

// TestI1_RolloutsAtAnyTime: whatever an origin says, clients want and operators do, readers see of a waiting type what they were
// shown, but for first and uncacheable state; Waiting counts right; to show an edition again changes nothing. Shown
// latest, all see what those of an origin without cohorts do.
func TestI1_RolloutsAtAnyTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := newRolloutHistory(t)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			shown, d := -1, drawn{}
			if rapid.IntRange(0, 2).Draw(t, "operator") == 0 {
				shown = h.operates(t)
			} else {
				d = h.happens(t)
			}
			h.waits.check()
			h.counts(t)
			h.holds(t, shown, d)
		}
		h.waits.Thaw()
		for cohort := range h.waits.view.views {
			h.waits.Show(cohort, h.waits.Pin())
		}
		if h.told.Names != 0 {
			t.Fatalf("shown latest, %+v", h.told)
		}
		for _, o := range []*origin{h.waits, h.plain} {
			o.Expire(time.Now().Add(2 * uncachedTTL)) // what an edition had that may not be kept
		}
		h.waits.check()
		for cohort, v := range h.waits.view.views {
			if got, want := allSeen(v.Generation()), allSeen(h.plain.view.Generation()); !maps.Equal(got, want) {
				t.Fatalf("shown latest, cohort %d sees\n%v, without cohorts that is\n%v", cohort, got, want)
			}
			for _, key := range rolled {
				if got, want := v.Generation().Type(key).Wildcard.Sum(), h.plain.view.Generation().Type(key).Wildcard.Sum(); got != want {
					t.Fatalf("shown latest, the version of %s of cohort %d is %v, without cohorts it is %v", key, cohort, got, want)
				}
			}
		}
	})
}

// restores fails the test unless a snapshot gives another process what the rest sees, as far as snapshots hold it, and that to all
// cohorts and to latest.
func (h *rolloutHistory) restores(t *rapid.T) {
	again, _ := restarted(t, h.waits)
	want := presence(h.waits.view.Generation(), true)
	for cohort, v := range again.view.views {
		if got := presence(v.Generation(), false); got != want {
			t.Fatalf("restored, cohort %d sees\n%s\nwant\n%s", cohort, got, want)
		}
	}
	if got := presence(again.Generation(), false); got != want {
		t.Fatalf("restored, latest has\n%s\nwant\n%s", got, want)
	}
}

// presence describes the resources of a generation; if it is stored, as a snapshot keeps them.
func presence(g *Generation, stored bool) string {
	var lines []string
	for _, key := range rolled {
		t := g.Type(key)
		for kind, set := range []*Set{&t.Wildcard, &t.ByName} {
			if stored && kind == int(Wildcard) && t.Phase < Settled {
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

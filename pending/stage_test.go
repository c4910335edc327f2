package pending

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// newCohort returns an origin whose view has one cohort in addition to the rest. Changes of one type wait.
func newCohort(t tester, waits string) *origin {
	return newOrigin(t, cache.Config{Cohorts: 1, Waits: func(typeURL string) bool { return typeURL == waits }})
}

// wantMembers fails the test unless the readers of a cohort see exactly these contents in a wildcard set.
func (o *origin) wantMembers(cohort int, typeURL string, want ...string) {
	o.Helper()
	got := []string{}
	for e := range o.view.Cohort(cohort).Generation().Type(typeURL).Wildcard.Since(0) {
		if e.Present() {
			got = append(got, contentOf(e))
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		o.Fatalf("cohort %d sees %q of %s, want %q", cohort, got, typeURL, want)
	}
}

const canaries, rest = 0, 1

// TestI1_WaitingChangesAreShownToOneCohort: Show shows the waiting changes to one cohort, a promotion to the rest, and
// a rollback shows the last good state again.
func TestI1_WaitingChangesAreShownToOneCohort(t *testing.T) {
	o := newCohort(t, acme)
	o.put(cache.Wildcard, "a", "1", "a1")
	o.put(cache.Wildcard, "b", "1", "b1")
	o.wantMembers(canaries, acme, "a1", "b1") // first state passes until the set is confirmed
	o.wantMembers(rest, acme, "a1", "b1")
	o.SetPhase(acme, cache.Confirmed)
	o.put(cache.Wildcard, "a", "2", "a2")
	o.put(cache.Wildcard, "c", "1", "c1")
	o.remove(cache.Wildcard, "b")
	o.wantMembers(canaries, acme, "a1", "b1")
	o.wantMembers(rest, acme, "a1", "b1")
	edition := o.Pin()
	o.put(cache.Wildcard, "a", "3", "a3") // after the edition was made
	o.Show(canaries, edition)
	o.wantMembers(canaries, acme, "a2", "c1")
	o.wantMembers(rest, acme, "a1", "b1")
	o.ShowAsRest(canaries) // a rollback
	o.wantMembers(canaries, acme, "a1", "b1")
	o.Show(canaries, edition)
	before := o.PinServed(edition)
	o.Show(rest, edition) // a promotion
	o.wantMembers(rest, acme, "a2", "c1")
	a := o.view.Generation().Type(acme).Wildcard.Sum()
	if b := o.view.Cohort(canaries).Generation().Type(acme).Wildcard.Sum(); a != b {
		t.Errorf("cohorts that are shown one edition have the versions %v and %v", a, b) // I8
	}
	o.Show(rest, before) // an undo
	o.wantMembers(rest, acme, "a1", "b1")
	o.checkEntries()
}

// TestEditionsAreCompared: Waiting counts the differences between latest, the rest and an edition.
func TestEditionsAreCompared(t *testing.T) {
	o := newOrigin(t, cache.Config{Cohorts: 1, Waits: func(typeURL string) bool { return typeURL != acme }})
	now := &o.counts
	o.typeURL = wire.ClusterType
	waiting := func(when string, names, edited, behind int) {
		t.Helper()
		if gotEdited, gotBehind := countCompared(now); now.Names != names || gotEdited != edited || gotBehind != behind {
			t.Errorf("%s: %+v, want %d names, %d edited, %d behind", when, now, names, edited, behind)
		}
	}
	for _, name := range []string{"a", "b", "c"} {
		o.put(cache.Wildcard, name, "1", name+"1")
	}
	o.SetPhase(wire.ClusterType, cache.Confirmed)
	waiting("at first", 0, 0, 0)
	o.put(cache.Wildcard, "a", "2", "a2")
	first := now.Free.Changed
	o.remove(cache.Wildcard, "b")
	o.put(cache.Wildcard, "d", "1", "d1")
	waiting("changed", 3, 0, 3)
	if first.IsZero() || now.Free.Changed.Before(first) {
		t.Errorf("Changed moved from %v to %v", first, now.Free.Changed)
	}
	e := o.Pin()
	o.Compare(e)
	waiting("pinned", 3, 0, 0)
	if changes := e.Changes[wire.ClusterType]; len(e.Changes) != 1 || len(changes) != 3 ||
		changes["a"] == (wire.Digest{}) || changes["b"] != (wire.Digest{}) || changes["d"] == (wire.Digest{}) {
		t.Errorf("edition changes %v", e.Changes)
	}
	o.put(cache.Wildcard, "c", "2", "c2")
	waiting("another changes", 4, 0, 1)
	o.put(cache.Wildcard, "a", "3", "a3")
	waiting("one of the edition changes", 4, 1, 2)
	o.put(cache.Wildcard, "a", "2", "a2")
	o.put(cache.Wildcard, "c", "1", "c1")
	waiting("both are as they were", 3, 0, 0)
	o.Compare(&Edition{Changes: e.Changes}) // of an earlier process
	waiting("restored", 3, 0, 0)
	o.put(cache.Wildcard, "b", "2", "b2")
	waiting("one of the restored changes", 3, 1, 0)
	o.Compare(e)
	o.Show(rest, e)
	waiting("promoted", 1, 1, 1)
	o.Show(rest, o.Pin())
	o.Compare()
	waiting("all is promoted", 0, 0, 0)
	o.typeURL = acme
	o.put(cache.Wildcard, "x", "1", "x1")
	waiting("what passes does not wait", 0, 0, 0)
}

// TestLargeEditions: an edition is large if its removals from one set are large.
func TestLargeEditions(t *testing.T) {
	for removed, large := range []bool{false, false, false, true, true} {
		o := newCohort(t, wire.ClusterType)
		o.typeURL = wire.ClusterType
		for _, name := range []string{"a", "b", "c", "d"} {
			o.put(cache.Wildcard, name, "1", name+"1")
		}
		o.SetPhase(wire.ClusterType, cache.Confirmed)
		o.remove(cache.Wildcard, []string{"a", "b", "c", "d"}[:removed]...)
		o.put(cache.Wildcard, "e", "1", "e1")
		if got := o.Pin().Large; got != large {
			t.Errorf("%d of 4 clusters removed: large is %v", removed, got)
		}
	}
}

// TestI4_PassingTypesDoNotWait: changes of other types pass, and so does the first response for a name of any type.
func TestI4_PassingTypesDoNotWait(t *testing.T) {
	o := newCohort(t, wire.ClusterType)
	o.put(cache.Wildcard, "a", "1", "a1")
	o.SetPhase(acme, cache.Confirmed)
	o.put(cache.Wildcard, "a", "2", "a2")
	o.wantMembers(canaries, acme, "a2")
	o.wantMembers(rest, acme, "a2")
	o.remove(cache.Wildcard, "a")
	o.wantMembers(canaries, acme)
	o.wantMembers(rest, acme)

	o = newCohort(t, acme)
	o.SetPhase(acme, cache.Confirmed)
	watch := o.view.Cohort(rest).Watch()
	o.subscribe(watch, "n")
	o.put(cache.ByName, "n", "1", "n1")
	o.put(cache.ByName, "n", "2", "n2")
	for cohort, v := range o.views() {
		if e, _ := v.Generation().Type(acme).Lookup(o.name("n")); contentOf(e) != "n1" {
			t.Errorf("cohort %d sees %q of n, want the first response", cohort, contentOf(e))
		}
	}
}

// TestI5_AssignmentsOfServedClustersStay: removals of endpoints wait and other changes pass. Endpoints that were added
// again stay.
func TestI5_AssignmentsOfServedClustersStay(t *testing.T) {
	o := newCohort(t, wire.ClusterType)
	o.typeURL = wire.EndpointType
	for _, name := range []string{"a", "b"} {
		o.put(cache.Wildcard, name, "1", name+"1")
	}
	o.SetPhase(wire.EndpointType, cache.Confirmed)
	o.remove(cache.Wildcard, "a", "b")
	o.put(cache.Wildcard, "c", "1", "c1")
	o.wantMembers(rest, wire.EndpointType, "a1", "b1", "c1")
	edition := o.Pin()
	o.put(cache.Wildcard, "b", "2", "b2") // b is added again
	o.Show(canaries, edition)
	o.wantMembers(canaries, wire.EndpointType, "b2", "c1")
	o.wantMembers(rest, wire.EndpointType, "a1", "b2", "c1")
	o.ShowAsRest(canaries) // a1 is the last content before the removal
	o.wantMembers(canaries, wire.EndpointType, "a1", "b2", "c1")
	o.Show(rest, edition)
	o.wantMembers(rest, wire.EndpointType, "b2", "c1")
}

// TestI3_AdditionsAreShownBeforeRemovals, in the order in which types are sent, in both directions of a rollout.
func TestI3_AdditionsAreShownBeforeRemovals(t *testing.T) {
	o := newOrigin(t, cache.Config{Cohorts: 1, Waits: func(string) bool { return true }})
	types := []string{wire.ListenerType, wire.ClusterType} // in the reverse of the order in which they are sent
	for _, o.typeURL = range types {
		o.put(cache.Wildcard, "old", "1", "old")
		o.SetPhase(o.typeURL, cache.Confirmed)
	}
	for _, o.typeURL = range types {
		o.remove(cache.Wildcard, "old")
		o.put(cache.Wildcard, "new", "1", "new")
	}
	shown := func(step string, show func(), comes, goes string) {
		t.Helper()
		v := o.view.Cohort(canaries)
		at := v.Generation().Seq
		show()
		seqs := []cache.Seq{}
		for _, of := range []struct{ typeURL, name string }{
			{wire.ClusterType, comes}, {wire.ListenerType, comes}, {wire.ListenerType, goes}, {wire.ClusterType, goes},
		} {
			o.typeURL = of.typeURL
			seqs = append(seqs, v.Generation().Type(of.typeURL).Wildcard.Get(o.name(of.name)).Seq)
		}
		if !slices.IsSorted(seqs) || seqs[0] <= at {
			t.Errorf("%s: positions of the changes: %v after %v", step, seqs, at)
		}
	}
	shown("edition", func() { o.Show(canaries, o.Pin()) }, "new", "old")
	shown("rollback", func() { o.ShowAsRest(canaries) }, "old", "new")
}

// TestCohortsWakeTheirOwnReaders: Show wakes the readers of its cohort only.
func TestCohortsWakeTheirOwnReaders(t *testing.T) {
	o := newCohort(t, acme)
	o.put(cache.Wildcard, "a", "1", "a1")
	o.SetPhase(acme, cache.Confirmed)
	watches := []*cache.Watch{o.view.Cohort(canaries).Watch(), o.view.Cohort(rest).Watch()}
	for _, w := range watches {
		w.SubscribeAll(acme)
		o.subscribe(w, "a")
		woken(w)
	}
	o.put(cache.Wildcard, "a", "2", "a2")
	o.Show(canaries, o.Pin())
	if !woken(watches[canaries]) || woken(watches[rest]) {
		t.Error("want a wake-up of the canary's reader only")
	}
	o.Show(rest, o.Pin())
	if woken(watches[canaries]) || !woken(watches[rest]) {
		t.Error("want a wake-up of the rest's reader only")
	}
}

// TestCohortsSeeTheTargetOfVersions: readers see no target while any change waits.
func TestCohortsSeeTheTargetOfVersions(t *testing.T) {
	o := newCohort(t, acme)
	o.put(cache.Wildcard, "a", "1", "a1")
	o.SetPhase(acme, cache.Confirmed)
	want := func(when string, targets ...string) {
		t.Helper()
		for cohort, v := range o.views() {
			if got := v.Generation().First().Target; got != targets[cohort] {
				t.Errorf("%s: cohort %d sees the target %q, want %q", when, cohort, got, targets[cohort])
			}
		}
	}
	o.SetTarget("first")
	want("nothing waits", "first", "first")
	o.put(cache.Wildcard, "a", "2", "a2")
	o.SetTarget("second")
	want("a change waits", "", "")
	o.Show(canaries, o.Pin())
	o.SetTarget("third")
	want("the canaries have it", "", "")
	o.Show(rest, o.Pin())
	o.SetTarget("fourth")
	want("all have it", "fourth", "fourth")
}

// TestI1_RandomEditions: of a type that waits, only Show changes what readers see, except first and uncacheable
// state, and the end of an error of the whole set. Cohorts follow the rest. After latest was shown, a view equals one without cohorts.
func TestI1_RandomEditions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		staged, plain := newOrigin(t, cache.Config{Cohorts: 1, Waits: func(string) bool { return true }}), newOrigin(t, cache.Config{})
		h := newCohortHistory(staged, plain)
		editions := []*Edition{staged.Pin()}
		before := make([]map[string]string, len(staged.views()))
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			var shown = -1
			switch rapid.IntRange(0, 7).Draw(t, "operator") {
			case 0:
				editions = append(editions, staged.Pin())
			case 1:
				shown = rapid.IntRange(canaries, rest).Draw(t, "cohort")
				staged.Show(shown, rapid.SampledFrom(editions).Draw(t, "edition"))
			default:
				drops := h.step(t)
				for _, seen := range before {
					maps.DeleteFunc(seen, func(key, _ string) bool { return drops(key) })
				}
			}
			staged.checkEntries()
			for cohort, v := range staged.views() {
				for key, want := range before[cohort] {
					got := visible(v.Generation())[key]
					follows := shown == rest && got == visible(staged.view.Generation())[key]
					if shown != cohort && got != want && !follows && !exempt(v.Generation())[key] && key != "error of member *" {
						t.Fatalf("cohort %d sees %q of %s, want %q", cohort, got, key, want)
					}
				}
				before[cohort] = mustKeep(v.Generation())
				maps.DeleteFunc(before[cohort], func(key, _ string) bool {
					first := v.Generation().Type(acme).Phase < cache.Confirmed && strings.Contains(key, "member ")
					return first || exempt(v.Generation())[key]
				})
			}
		}
		for cohort := range staged.views() {
			staged.Show(cohort, staged.Pin())
		}
		for _, o := range h.origins {
			o.expire(time.Now().Add(2 * uncached)) // drops uncacheable content of editions
		}
		for cohort, v := range staged.views() {
			if got, want := visible(v.Generation()), visible(plain.view.Generation()); !maps.Equal(got, want) {
				t.Fatalf("shown latest, cohort %d sees\n%v, want, as without cohorts,\n%v", cohort, got, want)
			}
			if got, want := v.Generation().Type(acme).Wildcard.Sum(), plain.typ().Wildcard.Sum(); got != want {
				t.Fatalf("shown latest, cohort %d has version %v, want %v, as without cohorts", cohort, got, want)
			}
		}
	})
}

// A cohortHistory applies the same random steps to several origins.
type cohortHistory struct {
	origins    []*origin
	watches    []*cache.Watch
	all        []*cache.WildcardWatch
	subscribed []map[string][]*cache.Name
}

func newCohortHistory(origins ...*origin) *cohortHistory {
	h := &cohortHistory{origins: origins}
	for _, o := range origins {
		w := o.view.Watch()
		h.watches, h.all = append(h.watches, w), append(h.all, w.SubscribeAll(acme))
		h.subscribed = append(h.subscribed, map[string][]*cache.Name{})
		o.Writer().TakeDemand()
	}
	return h
}

// step applies a random step. It returns which keys of visible are dropped by it, because readers unsubscribed.
func (h *cohortHistory) step(t *rapid.T) (drops func(key string) bool) {
	name := rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "name")
	kind := rapid.SampledFrom([]cache.Kind{cache.Wildcard, cache.ByName}).Draw(t, "kind")
	version := rapid.SampledFrom([]string{"1", "2"}).Draw(t, "version")
	step := rapid.SampledFrom([]string{
		"put", "put", "put", "put alias", "remove", "fail", "not found", "fail set", "subscribe", "unsubscribe", "confirm", "reconnect",
		"trim", "put TTL", "put uncacheable", "expire", "resubscribe wildcard",
	}).Draw(t, "step")
	for i, o := range h.origins {
		if step == "resubscribe wildcard" {
			h.all[i] = o.resubscribeAll(h.watches[i], h.all[i], acme)
			continue
		}
		o.randomStep(step, kind, name, version, h.watches[i], h.subscribed[i])
	}
	return func(key string) bool {
		return step == "unsubscribe" && strings.HasSuffix(key, "named "+name) ||
			step == "resubscribe wildcard" && strings.Contains(key, "member ")
	}
}

package cache

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/xdstender/tender/cache/wire"
)

// newCohort returns an origin whose view has one cohort in addition to the rest. Changes of one type wait.
func newCohort(t tester, waits string) *origin {
	o := newOrigin(t, Config{Cohorts: 1, Waits: func(typeURL string) bool { return typeURL == waits }})
	o.SetConnected(true)
	return o
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
	o.put(Wildcard, "a", "1", "a1")
	o.put(Wildcard, "b", "1", "b1")
	o.wantMembers(canaries, acme, "a1", "b1") // first state passes until the set is confirmed
	o.wantMembers(rest, acme, "a1", "b1")
	o.SetPhase(acme, Confirmed)
	o.put(Wildcard, "a", "2", "a2")
	o.put(Wildcard, "c", "1", "c1")
	o.remove(Wildcard, "b")
	o.wantMembers(canaries, acme, "a1", "b1")
	o.wantMembers(rest, acme, "a1", "b1")
	edition := o.Pin()
	o.put(Wildcard, "a", "3", "a3") // after the edition was made
	o.Show(canaries, edition)
	o.wantMembers(canaries, acme, "a2", "c1")
	o.wantMembers(rest, acme, "a1", "b1")
	o.ShowAs(canaries, rest) // a rollback
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
	var now Waiting
	o := newOrigin(t, Config{
		Cohorts: 1,
		Waits:   func(typeURL string) bool { return typeURL != acme },
		Waiting: func(_ int, w Waiting) { now = w },
	})
	o.typeURL = wire.ClusterType
	waiting := func(when string, names, edited, behind int) {
		t.Helper()
		if now.Names != names || now.Edited != edited || now.Behind != behind {
			t.Errorf("%s: %+v, want %d names, %d edited, %d behind", when, now, names, edited, behind)
		}
	}
	for _, name := range []string{"a", "b", "c"} {
		o.put(Wildcard, name, "1", name+"1")
	}
	o.SetPhase(wire.ClusterType, Confirmed)
	waiting("at first", 0, 0, 0)
	o.put(Wildcard, "a", "2", "a2")
	first := now.Changed
	o.remove(Wildcard, "b")
	o.put(Wildcard, "d", "1", "d1")
	waiting("changed", 3, 0, 3)
	if first.IsZero() || now.Changed.Before(first) {
		t.Errorf("Changed moved from %v to %v", first, now.Changed)
	}
	e := o.Pin()
	o.Compare(e)
	waiting("pinned", 3, 0, 0)
	if changes := e.Changes[wire.ClusterType]; len(e.Changes) != 1 || len(changes) != 3 ||
		changes["a"] == (wire.Digest{}) || changes["b"] != (wire.Digest{}) || changes["d"] == (wire.Digest{}) {
		t.Errorf("edition changes %v", e.Changes)
	}
	o.put(Wildcard, "c", "2", "c2")
	waiting("another changes", 4, 0, 1)
	o.put(Wildcard, "a", "3", "a3")
	waiting("one of the edition changes", 4, 1, 2)
	o.put(Wildcard, "a", "2", "a2")
	o.put(Wildcard, "c", "1", "c1")
	waiting("both are as they were", 3, 0, 0)
	o.Compare(&Edition{Changes: e.Changes}) // of an earlier process
	waiting("restored", 3, 0, 0)
	o.put(Wildcard, "b", "2", "b2")
	waiting("one of the restored changes", 3, 1, 0)
	o.Compare(e)
	o.Show(rest, e)
	waiting("promoted", 1, 1, 1)
	o.Show(rest, o.Pin())
	o.Compare(nil)
	waiting("all is promoted", 0, 0, 0)
	o.typeURL = acme
	o.put(Wildcard, "x", "1", "x1")
	waiting("what passes does not wait", 0, 0, 0)
}

// TestLargeEditions: an edition is large if its removals from one set are large.
func TestLargeEditions(t *testing.T) {
	for removed, large := range []bool{false, false, false, true, true} {
		o := newCohort(t, wire.ClusterType)
		o.typeURL = wire.ClusterType
		for _, name := range []string{"a", "b", "c", "d"} {
			o.put(Wildcard, name, "1", name+"1")
		}
		o.SetPhase(wire.ClusterType, Confirmed)
		o.remove(Wildcard, []string{"a", "b", "c", "d"}[:removed]...)
		o.put(Wildcard, "e", "1", "e1")
		if got := o.Pin().Large; got != large {
			t.Errorf("%d of 4 clusters removed: large is %v", removed, got)
		}
	}
}

// TestI4_PassingTypesDoNotWait: changes of other types pass, and so does the first response for a name of any type.
func TestI4_PassingTypesDoNotWait(t *testing.T) {
	o := newCohort(t, wire.ClusterType)
	o.put(Wildcard, "a", "1", "a1")
	o.SetPhase(acme, Confirmed)
	o.put(Wildcard, "a", "2", "a2")
	o.wantMembers(canaries, acme, "a2")
	o.wantMembers(rest, acme, "a2")
	o.remove(Wildcard, "a")
	o.wantMembers(canaries, acme)
	o.wantMembers(rest, acme)

	o = newCohort(t, acme)
	o.SetPhase(acme, Confirmed)
	watch := o.view.Cohort(rest).Watch()
	o.subscribe(watch, "n")
	o.put(ByName, "n", "1", "n1")
	o.put(ByName, "n", "2", "n2")
	for cohort, v := range o.view.views {
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
		o.put(Wildcard, name, "1", name+"1")
	}
	o.SetPhase(wire.EndpointType, Confirmed)
	o.remove(Wildcard, "a", "b")
	o.put(Wildcard, "c", "1", "c1")
	o.wantMembers(rest, wire.EndpointType, "a1", "b1", "c1")
	edition := o.Pin()
	o.put(Wildcard, "b", "2", "b2") // b is added again
	o.Show(canaries, edition)
	o.wantMembers(canaries, wire.EndpointType, "b2", "c1")
	o.wantMembers(rest, wire.EndpointType, "a1", "b2", "c1")
	o.ShowAs(canaries, rest) // a1 is the last content before the removal
	o.wantMembers(canaries, wire.EndpointType, "a1", "b2", "c1")
	o.Show(rest, edition)
	o.wantMembers(rest, wire.EndpointType, "b2", "c1")
}

// TestI3_AdditionsAreShownBeforeRemovals, in the order in which types are sent, in both directions of a rollout.
func TestI3_AdditionsAreShownBeforeRemovals(t *testing.T) {
	o := newOrigin(t, Config{Cohorts: 1, Waits: func(string) bool { return true }})
	types := []string{wire.ListenerType, wire.ClusterType} // in the reverse of the order in which they are sent
	for _, o.typeURL = range types {
		o.put(Wildcard, "old", "1", "old")
		o.SetPhase(o.typeURL, Confirmed)
	}
	for _, o.typeURL = range types {
		o.remove(Wildcard, "old")
		o.put(Wildcard, "new", "1", "new")
	}
	shown := func(step string, show func(), comes, goes string) {
		t.Helper()
		v := o.view.Cohort(canaries)
		at := v.Generation().Seq
		show()
		seqs := []Seq{}
		for _, of := range []struct{ typeURL, name string }{
			{wire.ClusterType, comes}, {wire.ListenerType, comes}, {wire.ListenerType, goes}, {wire.ClusterType, goes},
		} {
			o.typeURL = of.typeURL
			seqs = append(seqs, v.Generation().Type(of.typeURL).Wildcard.Get(o.name(of.name)).seq())
		}
		if !slices.IsSorted(seqs) || seqs[0] <= at {
			t.Errorf("%s: positions of the changes: %v after %v", step, seqs, at)
		}
	}
	shown("edition", func() { o.Show(canaries, o.Pin()) }, "new", "old")
	shown("rollback", func() { o.ShowAs(canaries, rest) }, "old", "new")
}

// TestCohortsWakeTheirOwnReaders: Show wakes the readers of its cohort only.
func TestCohortsWakeTheirOwnReaders(t *testing.T) {
	o := newCohort(t, acme)
	o.put(Wildcard, "a", "1", "a1")
	o.SetPhase(acme, Confirmed)
	watches := []*Watch{o.view.Cohort(canaries).Watch(), o.view.Cohort(rest).Watch()}
	for _, w := range watches {
		w.SubscribeAll(acme)
		o.subscribe(w, "a")
		woken(w)
	}
	o.put(Wildcard, "a", "2", "a2")
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
	o.put(Wildcard, "a", "1", "a1")
	o.SetPhase(acme, Confirmed)
	want := func(when string, targets ...string) {
		t.Helper()
		for cohort, v := range o.view.views {
			if got := v.Generation().First().Target; got != targets[cohort] {
				t.Errorf("%s: cohort %d sees the target %q, want %q", when, cohort, got, targets[cohort])
			}
		}
	}
	o.SetTarget("first")
	want("nothing waits", "first", "first")
	o.put(Wildcard, "a", "2", "a2")
	o.SetTarget("second")
	want("a change waits", "", "")
	o.Show(canaries, o.Pin())
	o.SetTarget("third")
	want("the canaries have it", "third", "")
	o.Show(rest, o.Pin())
	o.SetTarget("fourth")
	want("all have it", "fourth", "fourth")
}

// TestI4_RandomPassingTypes: after any sequence of steps, the views of cohorts have the same passing state as a view
// without cohorts.
func TestI4_RandomPassingTypes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		staged, plain := newOrigin(t, Config{Cohorts: 1, Waits: func(string) bool { return false }}), newOrigin(t, Config{})
		h := newCohortHistory(staged, plain)
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			h.step(t)
			for cohort, v := range staged.view.views {
				if got, want := visible(v.Generation()), visible(plain.view.Generation()); !maps.Equal(got, want) {
					t.Fatalf("cohort %d sees\n%v, want, as without cohorts,\n%v", cohort, got, want)
				}
			}
		}
	})
}

// TestI1_RandomEditions: of a type that waits, only Show changes what readers see, except first and uncacheable
// state. After latest was shown, a view equals one without cohorts.
func TestI1_RandomEditions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		staged, plain := newOrigin(t, Config{Cohorts: 1, Waits: func(string) bool { return true }}), newOrigin(t, Config{})
		h := newCohortHistory(staged, plain)
		editions := []*Edition{staged.Pin()}
		before := make([]map[string]string, len(staged.view.views))
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
			for cohort, v := range staged.view.views {
				if shown != cohort {
					for key, want := range before[cohort] {
						if got := visible(v.Generation())[key]; got != want && !exempt(v.Generation())[key] {
							t.Fatalf("cohort %d sees %q of %s, want %q", cohort, got, key, want)
						}
					}
				}
				before[cohort] = mustKeep(v.Generation())
				maps.DeleteFunc(before[cohort], func(key, _ string) bool {
					first := v.Generation().Type(acme).Phase < Confirmed && strings.Contains(key, "member ")
					return first || exempt(v.Generation())[key]
				})
			}
		}
		for cohort := range staged.view.views {
			staged.Show(cohort, staged.Pin())
		}
		for _, o := range h.origins {
			o.Expire(time.Now().Add(2 * uncachedTTL)) // drops uncacheable content of editions
		}
		for cohort, v := range staged.view.views {
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
	watches    []*Watch
	all        []*WildcardWatch
	subscribed []map[string][]*Name
}

func newCohortHistory(origins ...*origin) *cohortHistory {
	h := &cohortHistory{origins: origins}
	for _, o := range origins {
		w := o.view.Watch()
		h.watches, h.all = append(h.watches, w), append(h.all, w.SubscribeAll(acme))
		h.subscribed = append(h.subscribed, map[string][]*Name{})
		o.TakeDemand()
	}
	return h
}

// step applies a random step. It returns which keys of visible are dropped by it, because readers unsubscribed.
func (h *cohortHistory) step(t *rapid.T) (drops func(key string) bool) {
	name := rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "name")
	kind := rapid.SampledFrom([]Kind{Wildcard, ByName}).Draw(t, "kind")
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

// TestCohortsForgetRemovals: tombstones of a view are dropped after its readers were sent the removals, independent of
// other views.
func TestCohortsForgetRemovals(t *testing.T) {
	o := newCohort(t, wire.ClusterType)
	o.put(Wildcard, "a", "1", "a1")
	var read []*WildcardWatch
	for _, v := range o.view.views {
		read = append(read, v.Watch().SubscribeAll(acme))
	}
	o.remove(Wildcard, "a")
	read[rest].Passed(o.view.Generation().Seq)
	o.Trim(time.Now())
	for cohort, want := range []int{1, 0} {
		if got := len(o.served[cohort].tombstones[acme]); got != want {
			t.Errorf("cohort %d has %d tombstones, want %d", cohort, got, want)
		}
	}
}

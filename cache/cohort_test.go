package cache

import (
	"maps"
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

const canaries, rest = 0, 1

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
		if got := len(o.branches[cohort].tombstones[acme]); got != want {
			t.Errorf("cohort %d has %d tombstones, want %d", cohort, got, want)
		}
	}
}

// TestI13_NoCostWithoutCohorts: without cohorts, a node group has one view, whose writer has one branch, and a change
// allocates at most 16 times, as before cohorts were added.
func TestI13_NoCostWithoutCohorts(t *testing.T) {
	o := newOrigin(t, Config{})
	w := o.view.Watch()
	o.subscribe(w, "a")
	w.SubscribeAll(acme)
	if len(o.view.views) != 1 || len(o.branches) != 1 {
		t.Errorf("without cohorts: %d views, %d branches", len(o.view.views), len(o.branches))
	}
	for _, kind := range kinds {
		var updates [2]wire.Update
		for i, content := range []string{"x", "y"} {
			updates[i] = updateOf(acme, o.resource("a", content, content))
		}
		turn := 0
		if got := testing.AllocsPerRun(200, func() { turn++; o.Apply(kind, updates[turn%2]) }); got > 16 {
			t.Errorf("a change allocates %v times, want at most 16", got)
		}
	}
}

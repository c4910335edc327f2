package upstream

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// TestAgenda_RunsEachDueTaskOnceInOrder: a step does what is due in the order of ranks. A task that another one wakes follows in
// the same step if its rank is still to come, and otherwise in the next one. A cancelled task does not run.
func TestAgenda_RunsEachDueTaskOnceInOrder(t *testing.T) {
	var a agenda
	var ran []string
	add := func(name string, r rank, typeURL string, then func()) *task {
		of := a.newTask(r, typeURL, func(time.Time) time.Time {
			ran = append(ran, name)
			then()
			return time.Time{}
		})
		return &of
	}
	nothing := func() {}
	step := func(now time.Time, want string, next time.Time) {
		t.Helper()
		ran = nil
		got := a.run(now)
		check.Equal(t, "tasks", strings.Join(ran, " "), want)
		check.Equal(t, "time of the next step", got, next)
	}
	list, trim := add("list", rankList, "", nothing), add("trim", rankTrim, "", nothing)
	clusters := add("clusters", rankCheck, wire.ClusterType, nothing)
	streams := add("streams", rankStreams, "", nothing)
	listeners := add("listeners", rankCheck, wire.ListenerType, func() {
		streams.cancel()
		wake(list, clusters, trim, trim)
	})
	trim.schedule(epoch.Add(time.Hour))
	for _, of := range []*task{streams, listeners, clusters, clusters} {
		of.schedule(epoch)
	}
	step(epoch.Add(-1), "", epoch)
	step(epoch, "clusters listeners trim", atOnce)
	step(epoch, "list clusters", time.Time{})
	list.schedule(epoch.Add(time.Second))
	list.schedule(epoch.Add(time.Minute)) // not earlier
	step(epoch, "", epoch.Add(time.Second))
	list.cancel()
	step(epoch.Add(time.Hour), "", time.Time{})
}

// TestAgenda_AgreesWithAModel compares an agenda with a list that is sorted each time.
func TestAgenda_AgreesWithAModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var a agenda
		all, model := make([]*task, 12), make(map[*task]time.Time)
		var ran []*task
		for i := range all {
			of := a.newTask(rank(i/2), "", nil)
			all[i] = &of
			of.do = func(time.Time) time.Time {
				ran = append(ran, &of)
				return time.Time{}
			}
		}
		now := epoch
		for range rapid.IntRange(0, 60).Draw(rt, "steps") {
			of, at := all[rapid.IntRange(0, len(all)-1).Draw(rt, "task")], now.Add(time.Duration(rapid.IntRange(0, 20).Draw(rt, "in")))
			switch rapid.IntRange(0, 3).Draw(rt, "what") {
			case 0:
				of.cancel()
				delete(model, of)
			case 1:
				now, ran = at, nil
				a.run(now)
				var want int
				for of, at := range model {
					if !now.Before(at) {
						want++
						delete(model, of)
						if !slices.Contains(ran, of) {
							rt.Fatalf("a task of rank %d did not run", of.rank)
						}
					}
				}
				if len(ran) != want || !slices.IsSortedFunc(ran, (*task).compare) {
					rt.Fatalf("%d tasks ran, want %d in the order of ranks", len(ran), want)
				}
			default:
				of.schedule(at)
				if before, known := model[of]; !known || at.Before(before) {
					model[of] = at
				}
			}
		}
	})
}

// idle returns a view whose origin has sent nothing for an hour. Its clients subscribe to n types by wildcard, and to collections of
// n others.
func idle(t testing.TB, n int) (v *viewSync, now time.Time) {
	t.Helper()
	view, w := cache.New(cache.Config{})
	watch := view.Watch()
	w.SetConnected(true)
	v = benchMirror(t, w)
	now = v.trunk.byRole[main].openedAt
	for i := range n {
		watch.SubscribeAll(fmt.Sprint("acme.Type", i))
		watch.SubscribeAll(cache.Collection(fmt.Sprint(acme, i), globName(i)))
	}
	v.demand(now)
	v.trunk.byRole[main].warnSilentAt = time.Time{}
	for end := now.Add(time.Hour); now.Before(end); {
		for len(v.trunk.byRole[main].out) > 0 {
			<-v.trunk.byRole[main].out
		}
		now = later(now, v.step(now))
	}
	return v, now
}

// later returns the later of two times.
func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// TestAgenda_IdleStepsDoNothingElse: a step of an idle view does only what is due, whatever the view subscribes to.
func TestAgenda_IdleStepsDoNothingElse(t *testing.T) {
	v, now := idle(t, 100)
	var ran []rank
	count := func(of *task) {
		do := of.do
		of.do = func(now time.Time) time.Time {
			ran = append(ran, of.rank)
			return do(now)
		}
	}
	for _, of := range v.agenda.all() {
		count(of)
	}
	for _, s := range v.trunk.subs {
		count(&s.check)
		for _, c := range s.collections {
			count(&c.check)
		}
	}
	check.Equal(t, "subscriptions", len(v.trunk.subs), 200)
	for range 3 {
		ran = nil
		now = v.step(now)
		check.Equal(t, "tasks of a step", fmt.Sprint(ran), fmt.Sprint([]rank{rankTrim}))
	}
}

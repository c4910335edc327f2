package pending

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/fanout"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/cache/wire/schema"
	"github.com/xdstender/tender/relay/relaytest/check"
)

const acme = "type.googleapis.com/acme.Thing"

// A rig is the list of one origin, in front of a view.
type rig struct {
	*List
	t    testing.TB
	view *cache.View
}

// newRig returns a list whose types have these intervals. It must be called in a synctest bubble.
func newRig(t testing.TB, intervals map[string]time.Duration) *rig {
	t.Helper()
	view, w := cache.New(cache.Config{})
	r := &rig{New(w, clockOf(intervals)), t, view}
	r.SetConnected(true)
	return r
}

// newPair returns the lists of two origins of a view: clusters of the first one have an interval, and listeners belong to the other.
func newPair(t testing.TB) (a, b *rig) {
	t.Helper()
	view, writers := cache.NewRouted(cache.Config{Sources: 2, Route: func(typeURL, _ string) int {
		return map[string]int{wire.ListenerType: 1}[typeURL]
	}})
	clock := clockOf(map[string]time.Duration{wire.ClusterType: time.Second})
	return &rig{New(writers[0], clock), t, view}, &rig{New(writers[1], clock), t, view}
}

func clockOf(intervals map[string]time.Duration) *Clock {
	return NewClock(func(typeURL string) time.Duration { return intervals[typeURL] })
}

// resource returns a resource with a content and the version of it.
func (r *rig) resource(typeURL, name, content string) *wire.Resource {
	r.t.Helper()
	return check.Must(wire.NewResource(typeURL, name, content, []byte(content)))
}

// state states resources of a wildcard set: "a=1" adds or changes one, and "-a" removes it.
func (r *rig) state(typeURL string, changes ...string) cache.Change {
	r.t.Helper()
	return r.stateOf(cache.Wildcard, typeURL, changes...)
}

// stateOf is state for one of the sets of a type.
func (r *rig) stateOf(kind cache.Kind, typeURL string, changes ...string) cache.Change {
	r.t.Helper()
	u := wire.Update{TypeURL: typeURL}
	for _, c := range changes {
		if name, content, adds := strings.Cut(c, "="); adds {
			u.Resources = append(u.Resources, r.resource(typeURL, name, content))
		} else {
			u.Removed = append(u.Removed, strings.TrimPrefix(name, "-"))
		}
	}
	return r.Apply(kind, u)
}

// confirm states the first resources of a wildcard set, and a change that passes at once: the interval begins.
func (r *rig) confirm(typeURL string, changes ...string) {
	r.t.Helper()
	r.state(typeURL, changes...)
	r.SetPhase(typeURL, cache.Confirmed)
}

// served returns the wildcard set that clients see, as state takes it.
func (r *rig) served(typeURL string) string {
	return contentsOf(&r.view.Generation().Type(typeURL).Wildcard)
}

func contentsOf(set *cache.Set) string {
	var all []string
	for e := range set.Since(0) {
		if e.Present() {
			all = append(all, e.Name.String()+"="+e.Resource.OriginVersion)
		}
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// shortName returns the abbreviation of a type.
func shortName(typeURL string) string {
	return map[string]string{wire.ClusterType: "cds", wire.ListenerType: "lds", wire.RouteType: "rds"}[typeURL]
}

func (r *rig) expectServed(typeURL, want string) {
	r.t.Helper()
	if got := r.served(typeURL); got != want {
		r.t.Errorf("clients see %s %q, want %q", typeURL, got, want)
	}
}

// pass advances the time, and calls Step as the owner of the list would.
func (r *rig) pass(d time.Duration) { r.passWith(d, func() {}) }

// passWith is pass, and calls a function after each Step.
func (r *rig) passWith(d time.Duration, stepped func()) {
	end := time.Now().Add(d)
	step := func() time.Time {
		defer stepped()
		return r.Step(time.Now())
	}
	for {
		next := step()
		if next.IsZero() || next.After(end) {
			time.Sleep(time.Until(end))
			step()
			return
		}
		time.Sleep(time.Until(next))
	}
}

// TestB45_ChangesOfAnIntervalAreOneChange: changes wait until the interval of their type has passed, and then are one change.
// Later ones pass at once.
func TestB45_ChangesOfAnIntervalAreOneChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, map[string]time.Duration{acme: time.Second})
		r.confirm(acme, "a=1", "b=1")
		r.pass(time.Minute)
		r.state(acme, "a=2")
		r.expectServed(acme, "a=2 b=1")
		w := r.view.Watch()
		w.SubscribeAll(acme)
		for _, change := range []string{"a=3", "a=4", "-b", "c=1", "c=2", "a=5"} {
			r.pass(100 * time.Millisecond)
			r.state(acme, change)
			r.expectServed(acme, "a=2 b=1")
		}
		r.pass(399 * time.Millisecond)
		r.expectServed(acme, "a=2 b=1")
		select {
		case <-w.C:
			t.Error("a client was woken within the interval")
		default:
		}
		revision := r.view.Generation().Revision
		r.pass(time.Millisecond)
		r.expectServed(acme, "a=5 c=2")
		if n := r.view.Generation().Revision - revision; n != 2 {
			t.Errorf("the changes of an interval made %d generations, want 2: changes, then removals", n)
		}
		r.pass(time.Second)
		r.state(acme, "a=6")
		r.expectServed(acme, "a=6 c=2")
	})
}

// TestB45_ChangesThatCannotWait: first state, resources that expire, and a new connection end the wait of a type at once.
func TestB45_ChangesThatCannotWait(t *testing.T) {
	for what, happens := range map[string]func(r *rig){
		"a phase":         func(r *rig) { r.SetPhase(acme, cache.Settled) },
		"a first answer":  func(r *rig) { r.stateOf(cache.ByName, acme, "named=1") },
		"a first absence": func(r *rig) { r.stateOf(cache.ByName, acme, "-named") },
		"a time to live": func(r *rig) {
			expires := *r.resource(acme, "b", "1")
			expires.TTL = time.Minute
			r.Apply(cache.Wildcard, wire.Update{TypeURL: acme, Resources: []*wire.Resource{&expires}})
		},
		"a lost connection": func(r *rig) { r.SetConnected(false) },
		"a source":          func(r *rig) { r.SetSource(cache.Source{}) },
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, map[string]time.Duration{acme: time.Second})
				r.confirm(acme, "a=1")
				w := r.view.Watch()
				w.Subscribe(acme, []string{"named"})
				r.Writer().TakeDemand()
				r.pass(time.Minute)
				r.state(acme, "a=2")
				r.state(acme, "a=3")
				r.expectServed(acme, "a=2")
				happens(r)
				if got := r.served(acme); !strings.HasPrefix(got, "a=3") {
					t.Errorf("clients see %q, want a=3", got)
				}
				if next := r.Step(time.Now()); !next.IsZero() {
					t.Errorf("something waits until %v, want nothing", next)
				}
			})
		})
	}
}

// TestB45_WaitsFollowReferences: types that refer to clusters wait while clusters wait. Removals wait while a type waits that may
// refer to the removed resources. Other changes do not wait.
func TestB45_WaitsFollowReferences(t *testing.T) {
	const l, s, r, v, c, e = wire.ListenerType, wire.ScopedRouteType, wire.RouteType, wire.VirtualHostType, wire.ClusterType, wire.EndpointType
	for _, test := range []struct {
		name, waiting string
		change        []string
		want          map[string]bool
	}{
		{"clusters", c, []string{"a=2"}, map[string]bool{l: true, s: true, r: true, v: true, e: false, wire.SecretType: false, acme: false}},
		{"endpoints", e, []string{"a=2"}, map[string]bool{l: true, r: true, c: false}},
		{"listeners", l, []string{"a=2"}, map[string]bool{c: false, r: false, e: false}},
		{"listeners, removal", l, []string{"-b"}, map[string]bool{c: true, r: true, s: true, e: false}},
		{"routes, removal", r, []string{"-b"}, map[string]bool{c: true, l: false, v: true}},
		{"clusters, removal", c, []string{"-b"}, map[string]bool{e: true, l: true, acme: false}},
	} {
		for typeURL, want := range test.want {
			t.Run(test.name+"/"+typeURL, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					rig := newRig(t, map[string]time.Duration{test.waiting: time.Second})
					for _, of := range []string{test.waiting, typeURL} {
						rig.confirm(of, "a=1", "b=1")
					}
					rig.pass(time.Minute)
					rig.state(test.waiting, "a=9")
					rig.state(test.waiting, "a=10")
					before := rig.served(typeURL)
					rig.state(typeURL, test.change...)
					if got := rig.served(typeURL) == before; got != want {
						t.Errorf("waits: %t, want %t", got, want)
					}
					rig.pass(time.Second)
					if rig.served(typeURL) == before {
						t.Error("still waits after the interval")
					}
				})
			})
		}
	}
}

// TestB45_AWaitOfAnotherOrigin: the listeners of one origin wait for the clusters of another one, also if the loop of the first
// is earlier.
func TestB45_AWaitOfAnotherOrigin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, writers := cache.NewRouted(cache.Config{Sources: 2, Route: func(typeURL, _ string) int {
			if typeURL == wire.ListenerType {
				return 1
			}
			return 0
		}})
		clock := clockOf(map[string]time.Duration{wire.ClusterType: time.Second})
		clusters := &rig{New(writers[0], clock), t, writers[0].View()}
		listeners := &rig{New(writers[1], clock), t, writers[0].View()}
		clusters.confirm(wire.ClusterType, "a=1")
		listeners.confirm(wire.ListenerType, "l=1")
		time.Sleep(time.Minute)
		clusters.state(wire.ClusterType, "a=2")
		clusters.state(wire.ClusterType, "a=3")
		listeners.state(wire.ListenerType, "l=2")
		time.Sleep(time.Minute)
		if next := listeners.Step(time.Now()); !next.IsZero() {
			t.Errorf("the listeners are due at %v, want when they are woken", next)
		}
		listeners.expectServed(wire.ListenerType, "l=1")
		clusters.Step(time.Now())
		select {
		case <-listeners.Wake():
		default:
			t.Error("the list of the listeners was not woken")
		}
		listeners.Step(time.Now())
		clusters.expectServed(wire.ClusterType, "a=3")
		listeners.expectServed(wire.ListenerType, "l=2")

		clusters.state(wire.ClusterType, "a=4")
		listeners.state(wire.ListenerType, "l=3", "new=1")
		expires := *listeners.resource(wire.ListenerType, "l", "4")
		expires.TTL = time.Hour
		listeners.Apply(cache.Wildcard, wire.Update{ // cannot wait, and replaces what waits for another list
			TypeURL: wire.ListenerType, Resources: []*wire.Resource{&expires}, Removed: []string{"new"},
		})
		if listeners.expectServed(wire.ListenerType, "l=4"); listeners.view.Generation().Type(wire.ListenerType).Wildcard.AwaitsAny() {
			t.Error("the view awaits a listener that the origin has removed")
		}
		listeners.state(wire.ListenerType, "l=3")
		clusters.state(wire.ClusterType, "a=5")
		listeners.state(wire.ListenerType, "l=5")
		clusters.Close() // its view has ended
		if listeners.Step(time.Now()); listeners.served(wire.ListenerType) != "l=5" {
			t.Error("the listeners wait for a list that was closed")
		}
	})
}

// TestB45_TypesThatAlwaysWait: clusters and endpoints change in each interval, so that one of them always waits. Listeners are
// sent nevertheless, and at most once in each interval is any of them.
func TestB45_TypesThatAlwaysWait(t *testing.T) {
	const step = 100 * time.Millisecond
	for _, endpoints := range []time.Duration{300 * time.Millisecond, time.Second, 1700 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			intervals := map[string]time.Duration{wire.ClusterType: time.Second, wire.EndpointType: endpoints}
			r := newRig(t, intervals)
			for _, typeURL := range []string{wire.ClusterType, wire.EndpointType, wire.ListenerType} {
				r.confirm(typeURL, "a=1")
			}
			r.pass(time.Minute)
			longest, waits := time.Duration(0), time.Now()
			served := map[string]string{wire.ClusterType: "a=1", wire.EndpointType: "a=1", wire.ListenerType: "a=1"}
			at := make(map[string]time.Time)
			for i := range 600 {
				r.state(wire.ClusterType, fmt.Sprintf("a=%d", i+2))
				if i > 5 { // their intervals begin at another time
					r.state(wire.EndpointType, fmt.Sprintf("a=%d", i+2))
				}
				if i > 10 && i%7 == 0 {
					r.state(wire.ListenerType, fmt.Sprintf("a=%d", i+2))
				}
				r.pass(step)
				for typeURL, before := range served {
					now := r.served(typeURL)
					if now == before {
						continue
					}
					if since := time.Since(at[typeURL]); since < intervals[typeURL]-step {
						t.Errorf("%s changed %v after the last change", typeURL, since)
					}
					if served[typeURL], at[typeURL] = now, time.Now(); typeURL == wire.ListenerType {
						longest, waits = max(longest, time.Since(waits)), time.Now()
					}
				}
			}
			if longest = max(longest, time.Since(waits)); longest > 5*time.Second {
				t.Errorf("endpoints each %v: listeners waited for up to %v", endpoints, longest)
			}
		})
	}
}

// TestB45_AnOriginThatNeverRests: the clusters of one origin change again before the loop of another origin runs, whose listener
// waited for the previous change.
func TestB45_AnOriginThatNeverRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newPair(t)
		a.confirm(wire.ClusterType, "a=1")
		b.confirm(wire.ListenerType, "l=1")
		a.state(wire.ClusterType, "a=2")
		b.state(wire.ListenerType, "l=2")
		b.expectServed(wire.ListenerType, "l=1")
		a.pass(time.Second)
		a.expectServed(wire.ClusterType, "a=2")
		a.state(wire.ClusterType, "a=3")
		select {
		case <-b.Wake():
			b.Step(time.Now())
		default:
			t.Error("the list with the listener was not woken")
		}
		b.expectServed(wire.ListenerType, "l=2")
		b.state(wire.ListenerType, "l=3")
		b.Step(time.Now())
		b.expectServed(wire.ListenerType, "l=2") // it may refer to the newest clusters
		a.pass(time.Second)
		b.Step(time.Now())
		b.expectServed(wire.ListenerType, "l=3")
	})
}

// TestB45_ARefusedStateEndsNoWait: a resource over the size limit does not take the place of the last good one, which waits for
// another origin.
func TestB45_ARefusedStateEndsNoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newPair(t)
		a.confirm(wire.ClusterType, "a=1")
		b.confirm(wire.ListenerType, "l=1")
		a.state(wire.ClusterType, "a=2")
		b.state(wire.ListenerType, "l=2")
		b.Apply(cache.Wildcard, wire.Update{TypeURL: wire.ListenerType, Resources: []*wire.Resource{
			{TypeURL: wire.ListenerType, Name: "l", Refusal: wire.NewResourceError("l", codes.ResourceExhausted, "too large")},
		}})
		b.expectServed(wire.ListenerType, "l=1")
		a.pass(time.Second)
		b.Step(time.Now())
		b.expectServed(wire.ListenerType, "l=2")
	})
}

// TestB45_ARemovalWithAnError: a removal that comes with an error does not wait. What waits is applied first, since clients may be
// sent there that they need the removed resource no longer.
func TestB45_ARemovalWithAnError(t *testing.T) {
	for _, removed := range []string{wire.RouteType, wire.EndpointType} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, map[string]time.Duration{wire.ClusterType: time.Second, wire.ListenerType: time.Second})
			for _, typeURL := range []string{wire.ClusterType, wire.EndpointType, wire.ListenerType, wire.RouteType} {
				r.confirm(typeURL, "a=1")
			}
			r.pass(time.Minute)
			r.state(wire.ListenerType, "a=2")
			r.state(wire.ListenerType, "a=3")
			r.state(wire.ClusterType, "-a")
			var seen []string
			w := r.view.WatchFunc(func() {
				seen = append(seen, fmt.Sprintf("%q %q %q", r.served(removed), r.served(wire.ListenerType), r.served(wire.ClusterType)))
			})
			w.SubscribeAll(removed)
			seen = nil
			r.Apply(cache.Wildcard, wire.Update{
				TypeURL: removed, Removed: []string{"a"},
				Errors: []*wire.ResourceError{wire.NewResourceError("a", codes.NotFound, "gone")},
			})
			if want := []string{`"" "a=3" ""`}; !slices.Equal(seen, want) {
				t.Errorf("%s: clients saw it, listeners and clusters as %q, want %q", removed, seen, want)
			}
		})
	}
}

// TestB45_ACopiedRemovalWithAnError: the removal of endpoints that another view has with an error does not overtake the removal of
// their cluster.
func TestB45_ACopiedRemovalWithAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared := newRig(t, nil)
		r := newRig(t, map[string]time.Duration{wire.ClusterType: time.Second})
		theirs := shared.view.Watch().Subscribe(wire.EndpointType, []string{"a"})
		r.view.Watch().Subscribe(wire.EndpointType, []string{"a"})
		shared.Writer().TakeDemand()
		r.Writer().TakeDemand()
		shared.stateOf(cache.ByName, wire.EndpointType, "a=1")
		r.Copy(cache.ByName, shared.view, shared.view.Generation(), wire.EndpointType, theirs)
		r.confirm(wire.ClusterType, "a=1", "b=1")
		r.pass(time.Minute)
		r.state(wire.ClusterType, "b=2")
		r.state(wire.ClusterType, "-a")
		r.expectServed(wire.ClusterType, "a=1 b=2")
		shared.Apply(cache.ByName, wire.Update{
			TypeURL: wire.EndpointType, Removed: []string{"a"},
			Errors: []*wire.ResourceError{wire.NewResourceError("a", codes.NotFound, "gone")},
		})
		r.Copy(cache.ByName, shared.view, shared.view.Generation(), wire.EndpointType, theirs)
		r.expectServed(wire.ClusterType, "b=2")
		if r.view.Generation().Type(wire.EndpointType).ByName.Count() > 0 {
			t.Error("the endpoints are served although clients were to be sent an error")
		}
	})
}

// TestB45_ARemovalBesideFirstState: endpoints are removed in the response that answers another name. They do not overtake the removal of
// their cluster.
func TestB45_ARemovalBesideFirstState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, map[string]time.Duration{wire.ClusterType: time.Second})
		r.view.Watch().Subscribe(wire.EndpointType, []string{"a", "new"})
		r.Writer().TakeDemand()
		r.stateOf(cache.ByName, wire.EndpointType, "a=1")
		r.confirm(wire.ClusterType, "a=1", "b=1")
		r.pass(time.Minute)
		r.state(wire.ClusterType, "b=2")
		r.state(wire.ClusterType, "-a")
		r.expectServed(wire.ClusterType, "a=1 b=2")
		r.stateOf(cache.ByName, wire.EndpointType, "new=1", "-a")
		r.expectServed(wire.ClusterType, "b=2")
		if got := contentsOf(&r.view.Generation().Type(wire.EndpointType).ByName); got != "new=1" {
			t.Errorf("clients see endpoints %q, want new alone", got)
		}
	})
}

// TestB45_FirstStateAloneEndsFewWaits: the answer for a listener ends the wait of listeners, and not that of another type.
func TestB45_FirstStateAloneEndsFewWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, map[string]time.Duration{wire.ListenerType: time.Second, acme: time.Second})
		r.confirm(wire.ListenerType, "a=1")
		r.confirm(acme, "a=1")
		r.pass(time.Minute)
		for _, change := range []string{"a=2", "a=3"} {
			r.state(wire.ListenerType, change)
			r.state(acme, change)
		}
		r.view.Watch().Subscribe(wire.ListenerType, []string{"new"})
		r.Writer().TakeDemand()
		r.stateOf(cache.ByName, wire.ListenerType, "new=1")
		r.expectServed(wire.ListenerType, "a=3")
		r.expectServed(acme, "a=2")
	})
}

// TestB45_RemovalsAreLast: of what waits together, clusters are added first and removed last. A listener takes the address of
// another one in one change (B.11).
func TestB45_RemovalsAreLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		order := []string{wire.ClusterType, wire.ListenerType, wire.RouteType}
		intervals := make(map[string]time.Duration)
		for _, typeURL := range order {
			intervals[typeURL] = time.Second
		}
		r := newRig(t, intervals)
		for _, typeURL := range order {
			r.confirm(typeURL, "old=1")
		}
		r.pass(time.Minute)
		for _, typeURL := range slices.Backward(order) {
			r.state(typeURL, "x=1")
			r.state(typeURL, "new=1", "-old", "-x")
		}
		var seen []string
		w := r.view.WatchFunc(func() {
			for _, typeURL := range order {
				now := shortName(typeURL) + ": " + r.served(typeURL)
				if !slices.Contains(seen, now) {
					seen = append(seen, now)
				}
			}
		})
		for _, typeURL := range order {
			w.SubscribeAll(typeURL)
		}
		for _, typeURL := range order {
			seen = append(seen, shortName(typeURL)+": "+r.served(typeURL))
		}
		seen = nil
		r.pass(time.Second)
		want := []string{
			"cds: new=1 old=1 x=1", "lds: old=1 x=1", "rds: old=1 x=1", // additions of clusters
			"lds: new=1", "rds: new=1 old=1 x=1", "rds: new=1", "cds: new=1",
		}
		if !slices.Equal(seen, want) {
			t.Errorf("clients saw %q, want %q", seen, want)
		}
	})
}

// TestB45_WhatTheOriginTakesBack: rows end with a state that clients have, and with their subscription.
func TestB45_WhatTheOriginTakesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, map[string]time.Duration{acme: time.Second})
		r.confirm(acme, "a=1", "b=1")
		w := r.view.Watch()
		name := w.Subscribe(acme, []string{"named"})
		r.Writer().TakeDemand()
		r.stateOf(cache.ByName, acme, "named=1")
		r.pass(time.Minute)
		r.state(acme, "a=2")
		r.state(acme, "a=3", "-b", "c=1")
		r.stateOf(cache.ByName, acme, "named=2")
		members := &r.view.Generation().Type(acme).Wildcard
		if !members.Awaits("c") || members.Awaits("a") || members.Awaits("b") {
			t.Error("want the view to await the addition of c alone")
		}
		r.state(acme, "a=2", "b=1", "-c")
		if members = &r.view.Generation().Type(acme).Wildcard; members.AwaitsAny() {
			t.Error("the view awaits a resource that the origin has removed")
		}
		w.Unsubscribe(acme, name)
		r.Forget(acme, name)
		if n := len(r.sets); n > 0 {
			t.Errorf("%d sets have rows, want none", n)
		}
		if next := r.Step(time.Now()); !next.IsZero() {
			t.Errorf("something waits until %v, want nothing", next)
		}
	})
}

// TestB45_AnAdditionEndsARemoval: a cluster whose removal waits for listeners is added again, and stays.
func TestB45_AnAdditionEndsARemoval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, map[string]time.Duration{wire.ListenerType: time.Second})
		r.confirm(wire.ClusterType, "a=1", "b=1")
		r.confirm(wire.ListenerType, "l=1")
		r.pass(time.Minute)
		r.state(wire.ListenerType, "l=2")
		r.state(wire.ListenerType, "l=3")
		r.state(wire.ClusterType, "-a", "-b")
		r.state(wire.ClusterType, "a=1")
		r.pass(time.Second)
		r.expectServed(wire.ListenerType, "l=3")
		r.expectServed(wire.ClusterType, "a=1")
	})
}

// TestB45_NothingWaitsWithoutRows: once the origin has taken back the only change that waits, other types do not wait for it.
func TestB45_NothingWaitsWithoutRows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, map[string]time.Duration{wire.ClusterType: time.Second})
		r.confirm(wire.ClusterType, "a=1")
		r.confirm(wire.ListenerType, "l=1")
		r.pass(time.Minute)
		r.state(wire.ClusterType, "a=2")
		r.state(wire.ClusterType, "a=3")
		r.state(wire.ClusterType, "a=2")
		r.state(wire.ListenerType, "l=2")
		r.expectServed(wire.ListenerType, "l=2")
	})
}

// TestB45_CauseOfAWait: a change that waited has the cause of the first of the changes that it has, and the newest version of the
// origin.
func TestB45_CauseOfAWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, map[string]time.Duration{acme: time.Second})
		r.confirm(acme, "a=1", "b=1")
		r.pass(time.Minute)
		r.state(acme, "a=2")
		before := r.view.Generation().Seq
		first, traces := time.Now(), []*trace{{}, {}}
		for i, content := range []string{"3", "4"} {
			r.SetCause(cache.Cause{Received: time.Now(), Trace: traces[i]})
			r.Apply(cache.Wildcard, wire.Update{
				TypeURL: acme, SystemVersion: fmt.Sprint(i), Resources: []*wire.Resource{r.resource(acme, "a", content)},
			})
			r.pass(100 * time.Millisecond)
		}
		r.SetCause(cache.Cause{})
		r.pass(time.Second)
		r.expectServed(acme, "a=4 b=1")
		if got := r.view.Cause(before + 1).Received; !got.Equal(first) {
			t.Errorf("the change was received %v after the first, want at the same time", got.Sub(first))
		}
		if got := r.view.Generation().Type(acme).Wildcard.System(); got != "1" {
			t.Errorf("the version of the origin is %q, want that of its newest response", got)
		}
		if want := []string{"interval 1s"}; !slices.Equal(traces[0].waited, want) || len(traces[1].waited) > 0 {
			t.Errorf("the traces have the waits %q and %q, want %q in the first", traces[0].waited, traces[1].waited, want)
		}
	})
}

// TestB43_DelaysBeforeTheList: a change that has waited before the list belongs to the trace of its response, also if it waits
// again, and counts as received when it is applied. The next change does not.
func TestB43_DelaysBeforeTheList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, map[string]time.Duration{acme: time.Second})
		r.confirm(acme, "a=1", "b=1", "c=1")
		r.pass(time.Minute)
		before, began := r.view.Generation().Seq, time.Now()
		stated, present := new(trace), new(trace)
		r.SetCause(cache.Cause{Trace: present})
		held := Delay{Cause: cache.Cause{Received: began.Add(-time.Hour), Trace: stated}, Since: began.Add(-time.Hour), Reason: "held"}
		newer := Delay{Cause: cache.Cause{Received: began, Trace: present}, Since: began, Reason: "held"}
		for _, name := range []string{"a", "b"} {
			u := wire.Update{TypeURL: acme, Removed: []string{name}}
			r.ApplyDelayed(cache.Wildcard, u, newer.Oldest(held).Oldest(newer).Oldest(Delay{}))
			check.Equal(t, "served after "+name, r.view.Generation().Type(acme).Wildcard.Count(), 2)
		}
		check.Equal(t, "received", r.view.Cause(before+1).Received, began)
		r.pass(time.Second)
		check.Equal(t, "served after the interval", r.view.Generation().Type(acme).Wildcard.Count(), 1)
		check.Equal(t, "waits", strings.Join(stated.waited, ", "), "held 1h0m0s, held 1h0m0s, interval 1s")
		check.Equal(t, "applied", fmt.Sprint(stated.applied, present.applied), "2 0")
		r.pass(time.Minute)
		r.Apply(cache.Wildcard, wire.Update{TypeURL: acme, Removed: []string{"c"}})
		check.Equal(t, "applied, then", fmt.Sprint(stated.applied, present.applied), "2 1")
	})
}

// TestB43_AFreezeContinuesADelay: what waits for an interval when a freeze begins has waited since then.
func TestB43_AFreezeContinuesADelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, map[string]time.Duration{acme: time.Minute})
		r.confirm(acme, "a=1", "b=1")
		r.pass(time.Hour)
		r.state(acme, "b=2")
		stated := new(trace)
		r.SetCause(cache.Cause{Trace: stated})
		r.state(acme, "a=2")
		r.SetCause(cache.Cause{})
		r.pass(time.Second)
		r.Freeze()
		r.pass(time.Hour)
		r.Thaw()
		check.Equal(t, "waits", strings.Join(stated.waited, ", "), "frozen 1h0m1s")
		check.Equal(t, "applied", stated.applied, 1)
	})
}

// A trace records the waits of a change, and counts how often a view changed by it.
type trace struct {
	waited  []string
	applied int
}

func (x *trace) Applied(a cache.Application) fanout.Span {
	if a.Change.Changed+a.Change.Removed > 0 {
		x.applied++
	}
	return nil
}
func (*trace) Waits(time.Time) {}

func (x *trace) Waited(reason string, since, until time.Time) {
	x.waited = append(x.waited, fmt.Sprint(reason, " ", until.Sub(since)))
}

// TestB45_CountsWhatWaits: the change of an update that waits is counted against the newest state, not against what clients have.
func TestB45_CountsWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, map[string]time.Duration{acme: time.Second})
		r.confirm(acme, "a=1", "b=1")
		r.pass(time.Minute)
		r.state(acme, "a=2")
		for _, step := range []struct {
			change []string
			want   cache.Change
		}{
			{[]string{"a=3", "c=1"}, cache.Change{Seen: 2, Changed: 2, New: 1}},
			{[]string{"a=3", "c=1"}, cache.Change{Seen: 2, Same: 2}},
			{[]string{"-b", "-c"}, cache.Change{Removed: 2}},
			{[]string{"-b", "-c"}, cache.Change{}},
			{[]string{"b=2"}, cache.Change{Seen: 1, Changed: 1, New: 1}},
			{[]string{"a=2"}, cache.Change{Seen: 1, Changed: 1}},
		} {
			got := r.state(acme, step.change...)
			if fmt.Sprint(got) != fmt.Sprint(step.want) {
				t.Errorf("change of %q: %+v, want %+v", step.change, got, step.want)
			}
		}
	})
}

// TestB45_CopiesWait: what is copied from a shared view waits like any other change, and is then the newest.
func TestB45_CopiesWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared := newRig(t, nil)
		r := newRig(t, map[string]time.Duration{acme: time.Second})
		theirs := shared.view.Watch().Subscribe(acme, []string{"a", "b"})
		mine := r.view.Watch()
		mine.Subscribe(acme, []string{"a", "b"})
		shared.Writer().TakeDemand()
		r.Writer().TakeDemand()
		copyAll := func(changes ...string) {
			shared.stateOf(cache.ByName, acme, changes...)
			r.Copy(cache.ByName, shared.view, shared.view.Generation(), acme, theirs)
		}
		expect := func(want string) {
			t.Helper()
			if got := contentsOf(&r.view.Generation().Type(acme).ByName); got != want {
				t.Errorf("clients see %q, want %q", got, want)
			}
		}
		copyAll("a=1", "-b")
		expect("a=1")
		r.pass(time.Minute)
		copyAll("a=2")
		expect("a=2")
		copyAll("a=3", "b=1")
		expect("a=2")
		shared.stateOf(cache.ByName, acme, "a=4")
		r.pass(time.Second)
		expect("a=4 b=1")
		copyAll("-a")
		expect("a=4 b=1")
		if r.pass(time.Second); r.view.Generation().Type(acme).ByName.Count() != 1 {
			t.Error("the removal did not pass after the interval")
		}
		copyAll("a=5")
		copyAll("-a")
		if r.view.Generation().Type(acme).ByName.AwaitsAny() {
			t.Error("the view awaits a resource that the other view has removed")
		}
		copyAll("b=2")
		expect("b=1")
		expires := *shared.resource(acme, "a", "6")
		expires.TTL = time.Hour
		shared.Apply(cache.ByName, wire.Update{TypeURL: acme, Resources: []*wire.Resource{&expires}})
		copyAll()
		expect("a=6 b=2")
	})
}

// TestB45_VariantsDoNotEndAWait: a variant for some clients does not take the place of what waits for all others (R121). One for
// clients without parameters does.
func TestB45_VariantsDoNotEndAWait(t *testing.T) {
	variant := func(r *rig, name, content string, without bool) *wire.Resource {
		constraint := &discoverypb.DynamicParameterConstraints{Type: &discoverypb.DynamicParameterConstraints_Constraint{
			Constraint: &discoverypb.DynamicParameterConstraints_SingleConstraint{
				Key:            "env",
				ConstraintType: &discoverypb.DynamicParameterConstraints_SingleConstraint_Exists_{},
			},
		}}
		if without {
			constraint = &discoverypb.DynamicParameterConstraints{
				Type: &discoverypb.DynamicParameterConstraints_NotConstraints{NotConstraints: constraint},
			}
		}
		v := *r.resource(acme, name, content)
		v.Constraints = check.Must(proto.Marshal(constraint))
		return &v
	}
	for _, tt := range []struct {
		name         string
		without      bool
		first, after string
	}{
		{"with parameters", false, "a=2 b=1", "a=3 b=3"},
		{"without parameters", true, "a=x b=1", "a=x b=3"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, map[string]time.Duration{acme: time.Second})
				r.confirm(acme, "a=1", "b=1")
				r.pass(time.Minute)
				r.state(acme, "a=2")
				r.state(acme, "a=3", "b=3")
				r.Apply(cache.Wildcard, wire.Update{TypeURL: acme, Resources: []*wire.Resource{variant(r, "a", "x", tt.without)}})
				r.expectServed(acme, tt.first)
				r.pass(time.Second)
				r.expectServed(acme, tt.after)
				r.state(acme, "a=4")
				expires := *variant(r, "a", "x", tt.without)
				expires.TTL = time.Hour // it cannot wait
				r.Apply(cache.Wildcard, wire.Update{TypeURL: acme, Resources: []*wire.Resource{&expires}})
				r.pass(time.Second)
				r.expectServed(acme, map[bool]string{false: "a=4 b=3", true: "a=x b=3"}[tt.without])
			})
		})
	}
}

// A pacing checks that each part of the changes of some types passes at most once in the interval of the type, and after the parts
// that it follows.
type pacing struct {
	*rig
	intervals map[string]time.Duration
	served    map[string]map[string]string // at the last check, by type URL
	passed    map[part]time.Time
	failure   string
}

// newPacing returns a pacing of the types that have an interval, which may be zero.
func newPacing(r *rig, intervals map[string]time.Duration) *pacing {
	p := &pacing{rig: r, intervals: intervals, served: make(map[string]map[string]string), passed: make(map[part]time.Time)}
	p.note(false)
	return p
}

// note records what has passed since the last check, and checks it unless nothing had to wait.
func (p *pacing) note(check bool) {
	now := time.Now()
	for typeURL, interval := range p.intervals {
		was, is := p.served[typeURL], p.contents(typeURL)
		p.served[typeURL] = is
		for _, of := range p.partsThatPassed(typeURL, was, is) {
			if last, before := p.passed[of]; check && before && now.Sub(last) < interval {
				p.failure = fmt.Sprintf("%+v passed %v after it had passed, want at least %v", of, now.Sub(last), interval)
			}
			if p.passed[of] = now; check {
				p.checkOrder(of)
			}
		}
	}
}

// partsThatPassed returns the parts of a type that have passed between two states of it.
func (p *pacing) partsThatPassed(typeURL string, was, is map[string]string) (all []part) {
	if maps.Equal(was, is) {
		return nil
	}
	added, removed := false, false
	for name, content := range is {
		added = added || was[name] != content
	}
	for name := range was {
		_, stays := is[name]
		removed = removed || !stays
	}
	if changes := (part{typeURL: typeURL}); added || removed && removalsOf(typeURL) == changes {
		all = append(all, changes)
	}
	if removals := removalsOf(typeURL); removed && removals.removals {
		all = append(all, removals)
	}
	return all
}

// checkOrder checks that nothing waits that had to pass before a part.
func (p *pacing) checkOrder(passed part) {
	for other, n := range p.countParts() {
		switch {
		case n == 0:
		case !passed.removals && wire.OrderOf(passed.typeURL) == schema.AfterClusters && !other.removals &&
			(other.typeURL == wire.ClusterType || other.typeURL == wire.EndpointType),
			passed.removals && other == part{typeURL: passed.typeURL},
			passed.removals && passed.typeURL == wire.EndpointType && other.typeURL == wire.ClusterType,
			passed.removals && passed.typeURL == wire.ClusterType && wire.OrderOf(other.typeURL) == schema.AfterClusters:
			p.failure = fmt.Sprintf("%+v passed before %+v", passed, other)
		}
	}
}

// TestB45_RandomHistories: at every moment the served state overlaid by the list is what the origin stated last (P1). Changes pass
// in order, and no sooner than their interval (B.11). Once the origin is quiet, nothing waits (P5).
func TestB45_RandomHistories(t *testing.T) {
	type step struct {
		do, typeURL, name string
		wait              time.Duration
	}
	types := []string{wire.ClusterType, wire.EndpointType, wire.ListenerType, wire.RouteType, acme}
	steps := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) step {
		return step{
			do:      rapid.SampledFrom([]string{"put", "put", "put", "remove", "remove", "wait", "reconnect"}).Draw(rt, "do"),
			typeURL: rapid.SampledFrom(types).Draw(rt, "type"),
			name:    rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(rt, "name"),
			wait:    time.Duration(rapid.IntRange(1, 2000).Draw(rt, "ms")) * time.Millisecond,
		}
	}), 1, 40)
	rapid.Check(t, func(rt *rapid.T) {
		intervals := make(map[string]time.Duration)
		for _, typeURL := range types {
			intervals[typeURL] = rapid.SampledFrom([]time.Duration{0, time.Second, 3 * time.Second}).Draw(rt, "interval")
		}
		history, failure := steps.Draw(rt, "history"), ""
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, intervals)
			stated := make(map[string]map[string]string)
			for _, typeURL := range types {
				r.confirm(typeURL, "a=0", "b=0")
				stated[typeURL] = map[string]string{"a": "0", "b": "0"}
			}
			pace := newPacing(r, intervals)
			for i, s := range history {
				switch content := fmt.Sprint(i % 3); s.do {
				case "put":
					r.state(s.typeURL, s.name+"="+content)
					stated[s.typeURL][s.name] = content
				case "remove":
					r.state(s.typeURL, "-"+s.name)
					delete(stated[s.typeURL], s.name)
				case "wait":
					r.passWith(s.wait, func() { pace.note(true) })
				case "reconnect":
					r.SetConnected(false)
					r.SetConnected(true)
				}
				pace.note(s.do != "reconnect") // which ends all waits
				if failure = pace.failure; failure != "" {
					failure = fmt.Sprintf("step %d: %s", i, failure)
					return
				}
				for _, of := range types {
					if got := r.newest(of); !maps.Equal(got, stated[of]) {
						failure = fmt.Sprintf("step %d: the newest %s are %v, want %v", i, of, got, stated[of])
						return
					}
				}
				if got := r.countParts(); !maps.Equal(r.parts, got) {
					failure = fmt.Sprintf("step %d: the list counts rows %v, want %v", i, r.parts, got)
					return
				}
			}
			r.passWith(time.Minute, func() { pace.note(true) })
			if failure = pace.failure; len(r.sets) > 0 {
				failure = fmt.Sprintf("after a minute, %v waits", r.sets)
			}
			for _, of := range types {
				if set := &r.view.Generation().Type(of).Wildcard; set.AwaitsAny() {
					failure = "after a minute, the view awaits " + of
				}
			}
		})
		if failure != "" {
			rt.Fatal(failure)
		}
	})
}

// countParts counts the rows of each part.
func (r *rig) countParts() map[part]int {
	counts := make(map[part]int)
	for set, rows := range r.sets {
		for _, of := range rows {
			counts[partOf(set.typeURL(), of)]++
		}
	}
	return counts
}

// contents returns the contents of a wildcard set that clients see, by name.
func (r *rig) contents(typeURL string) map[string]string {
	all := make(map[string]string)
	for e := range r.view.Generation().Type(typeURL).Wildcard.Since(0) {
		if e.Present() {
			all[e.Name.String()] = e.Resource.OriginVersion
		}
	}
	return all
}

// newest returns the newest contents of a wildcard set by name: the served ones, overlaid by the list.
func (r *rig) newest(typeURL string) map[string]string {
	all := r.contents(typeURL)
	for key, of := range r.sets[setKey{typeURL, cache.Wildcard}] {
		if delete(all, key); of.Resource != nil {
			all[key] = of.Resource.OriginVersion
		}
	}
	return all
}

// TestB45_WaitingRows: operators see each change that waits, with the time until which it, and what it follows, waits. A pass ends
// the wait of a type.
func TestB45_WaitingRows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, map[string]time.Duration{wire.ListenerType: 5 * time.Second, acme: time.Second})
		began := time.Now()
		for _, typeURL := range []string{wire.ClusterType, wire.ListenerType, acme} {
			r.confirm(typeURL, "a=1", "b=1")
		}
		r.state(wire.ListenerType, "a=2", "new=1")
		r.pass(100 * time.Millisecond)
		r.state(acme, "a=3", "a=4", "c=1")
		r.state(wire.ClusterType, "-b")
		at := func(d time.Duration) string { return d.String() }
		var got []string
		for _, w := range r.Waiting() {
			kind := [...]string{"add", "change", "remove"}[w.Kind]
			got = append(got, fmt.Sprint(w.TypeURL, " ", kind, " ", w.Names, " since ", at(w.Since.Sub(began)), " until ", at(w.Until.Sub(began))))
		}
		want := []string{
			wire.ClusterType + " remove [b] since 100ms until 5s",
			wire.ListenerType + " add [new] since 0s until 5s",
			wire.ListenerType + " change [a] since 0s until 5s",
			acme + " add [c] since 100ms until 1s",
			acme + " change [a] since 100ms until 1s",
		}
		if !slices.Equal(got, want) {
			t.Errorf("rows:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		if n := r.Len(); n != 5 {
			t.Errorf("%d rows, want 5", n)
		}
		r.Pass(wire.ListenerType)
		r.expectServed(wire.ListenerType, "a=2 b=1 new=1")
		r.expectServed(wire.ClusterType, "a=1")
		r.expectServed(acme, "a=1 b=1")
	})
}

package cache

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xdstender/tender/cache/wire"
)

// intervalOrigin returns an origin whose wildcard set is confirmed and whose first change has just been sent. It must
// be called in a synctest bubble.
func intervalOrigin(t *testing.T, typeURL string, intervals map[string]time.Duration) *origin {
	t.Helper()
	o := newOrigin(t, Config{PushInterval: func(typeURL string) time.Duration { return intervals[typeURL] }})
	o.typeURL = typeURL
	o.put(Wildcard, "a", "1", "1")
	o.SetPhase(typeURL, Confirmed)
	o.put(Wildcard, "a", "2", "2")
	return o
}

// sendable returns the version of a resource that would be sent to clients now.
func (o *origin) sendable(name string) string {
	o.Helper()
	if e := o.view.Generation().Sendable(o.typeURL).Type(o.typeURL).Wildcard.Get(o.name(name)); e.Present() {
		return e.Resource.OriginVersion
	}
	return "none"
}

func (o *origin) expectSendable(name, want string) {
	o.Helper()
	if got := o.sendable(name); got != want {
		o.Errorf("clients are sent %s of version %s, want %s", name, got, want)
	}
}

// sleep advances the time of the bubble, and waits until all goroutines are idle.
func sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// TestB45_ChangesOfAnIntervalAreOneWakeUp: further changes wait until the interval of their type has passed, and then
// wake each watch once. Later changes are sent at once.
func TestB45_ChangesOfAnIntervalAreOneWakeUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := intervalOrigin(t, acme, map[string]time.Duration{acme: time.Second})
		var wakes atomic.Int64
		w := o.view.WatchFunc(func() { wakes.Add(1) })
		w.SubscribeAll(acme)
		for _, version := range []string{"3", "4", "5"} {
			sleep(200 * time.Millisecond)
			o.put(Wildcard, "a", version, version)
			o.expectSendable("a", "2")
		}
		if sleep(399 * time.Millisecond); wakes.Load() != 0 {
			t.Errorf("the watch was woken %d times within the interval, want 0", wakes.Load())
		}
		if sleep(time.Millisecond); wakes.Load() != 1 {
			t.Errorf("the watch was woken %d times at the end of the interval, want 1", wakes.Load())
		}
		o.expectSendable("a", "5")
		sleep(time.Second)
		o.put(Wildcard, "a", "6", "6")
		if o.expectSendable("a", "6"); wakes.Load() != 2 {
			t.Errorf("a change after the interval woke the watch %d times, want once", wakes.Load()-1)
		}
	})
}

// TestB45_ChangesThatCannotWait: first state, resources that expire, and a new connection end the wait of a type at
// once.
func TestB45_ChangesThatCannotWait(t *testing.T) {
	for what, happens := range map[string]func(o *origin){
		"a phase":         func(o *origin) { o.SetPhase(acme, Settled) },
		"a first answer":  func(o *origin) { o.put(ByName, "named", "1", "1") },
		"a first absence": func(o *origin) { o.remove(ByName, "named") },
		"a time to live": func(o *origin) {
			o.Apply(Wildcard, updateOf(acme, expiring(o, "b", "1", "1")))
		},
		"a new connection": func(o *origin) { o.SetConnected(false) },
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := intervalOrigin(t, acme, map[string]time.Duration{acme: time.Second})
				members, named := o.view.Watch(), o.view.Watch()
				members.SubscribeAll(acme)
				o.subscribe(named, "named")
				o.put(Wildcard, "a", "3", "3")
				if o.expectSendable("a", "2"); woken(members) {
					t.Error("a change woke the watch within the interval")
				}
				happens(o)
				if o.expectSendable("a", "3"); !woken(members) {
					t.Error("the end of the wait woke no watch")
				}
				sleep(time.Minute) // the timer fires without an effect
			})
		})
	}
}

// TestB45_SubscribersOfATypeThatWaits are woken when its wait ends, and then read the logs: they have no hints for
// changes from before their subscription.
func TestB45_SubscribersOfATypeThatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := intervalOrigin(t, acme, map[string]time.Duration{acme: time.Second})
		o.subscribe(o.view.Watch(), "named")
		o.put(ByName, "named", "1", "1")
		sleep(time.Minute)
		o.put(ByName, "named", "2", "2")
		o.put(ByName, "named", "3", "3")
		var wakes atomic.Int64
		late := o.view.WatchFunc(func() { wakes.Add(1) })
		o.subscribe(late, "named")
		read := o.view.Generation().Sendable(acme)
		if sleep(time.Second); wakes.Load() != 1 {
			t.Errorf("a watch that subscribed within the interval was woken %d times, want 1", wakes.Load())
		}
		if hinted, known := late.Hinted(acme, read.Seq, nil); known {
			t.Errorf("hints %v are reported as complete", hinted)
		}
	})
}

// TestB45_WaitsFollowReferences: types that refer to clusters wait while clusters wait. Removals wait while a type
// waits that may refer to the removed resources. Endpoints do not wait.
func TestB45_WaitsFollowReferences(t *testing.T) {
	at := func(g *Generation, typeURL string) bool { return g.Sendable(typeURL) != g }
	for _, c := range []struct {
		name     string
		interval string
		change   func(o *origin)
		want     map[string]bool
	}{
		{"clusters", wire.ClusterType, func(*origin) {}, map[string]bool{
			wire.ListenerType: true, wire.ScopedRouteType: true, wire.RouteType: true, wire.VirtualHostType: true,
			wire.EndpointType: false, wire.SecretType: false, acme: false,
		}},
		{"listeners", wire.ListenerType, func(*origin) {}, map[string]bool{wire.ClusterType: false, wire.RouteType: false}},
		{"listeners, removal", wire.ListenerType, func(o *origin) { o.remove(Wildcard, "b") }, map[string]bool{
			wire.ClusterType: true, wire.RouteType: true, wire.ScopedRouteType: true, wire.EndpointType: false,
		}},
		{"routes, removal", wire.RouteType, func(o *origin) { o.remove(Wildcard, "b") }, map[string]bool{
			wire.ClusterType: true, wire.ListenerType: false, wire.VirtualHostType: true,
		}},
	} {
		for typeURL, want := range c.want {
			t.Run(c.name+"/"+typeURL, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					o := intervalOrigin(t, c.interval, map[string]time.Duration{c.interval: time.Second})
					o.typeURL = typeURL
					o.put(Wildcard, "a", "1", "1")
					o.put(Wildcard, "b", "1", "1")
					o.SetPhase(typeURL, Confirmed)
					o.typeURL = c.interval
					o.put(Wildcard, "a", "3", "3")
					o.typeURL = typeURL
					o.put(Wildcard, "a", "2", "2")
					c.change(o)
					if got := at(o.view.Generation(), typeURL); got != want {
						t.Errorf("waits: %t, want %t", got, want)
					}
					if sleep(time.Second); at(o.view.Generation(), typeURL) {
						t.Error("still waits after the interval")
					}
				})
			})
		}
	}
}

// TestB45_AtTheEndOfAWait: the interval of clusters is over, but their wait has not ended yet. A route that changes
// then is not sent before them.
func TestB45_AtTheEndOfAWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := intervalOrigin(t, wire.ClusterType, map[string]time.Duration{wire.ClusterType: time.Second})
		o.put(Wildcard, "a", "3", "3")
		o.view.intervals.timer.Stop()
		o.view.intervals.timer = time.AfterFunc(time.Hour, func() {}) // no wait ends by itself
		sleep(time.Second)
		o.typeURL = wire.RouteType
		o.put(Wildcard, "r", "1", "1")
		o.SetPhase(wire.RouteType, Confirmed)
		o.typeURL = wire.ClusterType
		o.put(Wildcard, "a", "4", "4")
		sleep(time.Second)
		o.typeURL = wire.RouteType
		o.put(Wildcard, "r", "2", "2")
		if o.expectSendable("r", "1"); o.view.Generation().Sendable(wire.ClusterType) == o.view.Generation() {
			t.Error("test setup: clusters do not wait")
		}
		o.view.intervals.timer.Stop()
	})
}

// TestB45_WaitsEndTogether: a removal of clusters waits for listeners, and listeners that waited before change again.
// Neither is sent before the other, and all waits end with the longest interval.
func TestB45_WaitsEndTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := intervalOrigin(t, wire.ClusterType, map[string]time.Duration{
			wire.ClusterType: time.Second, wire.ListenerType: 2 * time.Second, wire.RouteType: 3 * time.Second,
		})
		for _, typeURL := range []string{wire.ListenerType, wire.RouteType} {
			o.typeURL = typeURL
			o.put(Wildcard, "a", "1", "1")
			o.SetPhase(typeURL, Confirmed)
		}
		for _, typeURL := range []string{wire.ListenerType, wire.RouteType} {
			o.typeURL = typeURL
			o.put(Wildcard, "a", "2", "2")
			o.put(Wildcard, "a", "3", "3")
		}
		o.typeURL = wire.ClusterType
		o.remove(Wildcard, "a")
		for range 29 {
			sleep(100 * time.Millisecond)
			for _, typeURL := range []string{wire.ClusterType, wire.ListenerType, wire.RouteType} {
				if g := o.view.Generation(); g.Sendable(typeURL) == g {
					t.Fatalf("%s does not wait", typeURL)
				}
			}
		}
		if sleep(100 * time.Millisecond); len(o.view.Generation().deferred) > 0 {
			t.Error("a type still waits after the longest interval")
		}
	})
}

// TestB45_GenerationsDoNotKeepEachOther: a generation from which deferred types are sent keeps no older generation in
// memory.
func TestB45_GenerationsDoNotKeepEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := intervalOrigin(t, acme, map[string]time.Duration{acme: time.Second, other: 1500 * time.Millisecond})
		for range 10 {
			for _, typeURL := range []string{acme, other} {
				sleep(100 * time.Millisecond)
				o.typeURL = typeURL
				o.put(Wildcard, "a", "x"+time.Now().String(), "x")
				for _, d := range o.view.Generation().deferred {
					if d.from.deferred != nil {
						t.Fatal("generation keeps an older one")
					}
				}
			}
		}
	})
}

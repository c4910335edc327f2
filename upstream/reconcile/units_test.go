package reconcile

import (
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// listenerResource returns a listener on a port. Listeners of different revisions have different content.
func listenerResource(name string, port, rev int) *wire.Resource {
	l := relaytest.ListenerAt(name, "routes", fmt.Sprint("127.0.0.1:", port))
	l.StatPrefix = fmt.Sprint(rev)
	return check.Must(wire.NewResource(wire.ListenerType, name, fmt.Sprint(rev), check.Must(proto.Marshal(l))))
}

// listenerOn returns a listener on several ports.
func listenerOn(name string, ports ...int) *wire.Resource {
	var addresses []string
	for _, port := range ports {
		addresses = append(addresses, fmt.Sprint("127.0.0.1:", port))
	}
	l := relaytest.ListenerAt(name, "routes", addresses...)
	return check.Must(wire.NewResource(wire.ListenerType, name, "1", check.Must(proto.Marshal(l))))
}

// run makes the decisions that are due in a time.
func (f *fakeSet) run(from time.Time, d time.Duration) {
	for at := time.Duration(0); at <= d; at += time.Second {
		f.group.Decide(from.Add(at))
	}
}

// take makes the origin state resources and removals.
func (f *fakeSet) take(now time.Time, resources []*wire.Resource, removed ...string) {
	f.Take(wire.Update{TypeURL: f.TypeURL, Resources: resources, Removed: removed}, now)
}

// newListeners returns a complete set of listeners, each written name:port.
func newListeners(listeners ...string) (*fakeSet, time.Time) {
	f := newFakeSet(wire.ListenerType, slog.DiscardHandler)
	f.confirmed = true
	for _, text := range listeners {
		name, port, _ := strings.Cut(text, ":")
		f.resources[name] = listenerResource(name, check.Must(strconv.Atoi(port)), 1)
	}
	return f, time.Unix(1000, 0)
}

// holdAll makes the removals of all resources held.
func (f *fakeSet) holdAll(now time.Time) {
	f.Infer(f.Names(), true, epoch)
	f.group.Decide(now)
}

// TestB11_WhatTheOriginStatesIsNotReplaced: it has both, so that clients decide, ten seconds later.
func TestB11_WhatTheOriginStatesIsNotReplaced(t *testing.T) {
	for what, prepare := range map[string]func(f *fakeSet, now time.Time){
		"held":   func(f *fakeSet, now time.Time) { f.holdAll(now) },
		"unsent": func(f *fakeSet, now time.Time) { f.Begin(nil, false, false, now.Add(-time.Minute)) },
		"sent":   func(*fakeSet, time.Time) {},
	} {
		f, now := newListeners("a:80", "c:81")
		prepare(f, now)
		all := []*wire.Resource{listenerResource("a", 80, 1), listenerResource("b", 80, 1), listenerResource("c", 81, 1)}
		f.take(now, all)
		f.group.Decide(now.Add(9 * time.Second))
		f.wantNames(t, what+", before the deadline", "a c")
		f.group.Decide(now.Add(10 * time.Second))
		f.wantNames(t, what, "a b c")
	}
}

// TestB11_VersionsThatSeemIgnored do not make silence a removal: the relay asks for the name first.
func TestB11_VersionsThatSeemIgnored(t *testing.T) {
	f, now := newListeners("a:80", "c:81")
	f.beginStream(now, "a", "c")
	f.take(now, []*wire.Resource{listenerResource("c", 81, 1)}) // one resource again
	f.take(now.Add(12*time.Second), []*wire.Resource{listenerResource("b", 80, 1)})
	f.group.Decide(now.Add(30 * time.Second))
	f.wantNames(t, "before the query", "a c")
	if due, _ := f.QueryDue(now.Add(30 * time.Second)); !due {
		t.Error("no query is due")
	}
}

// TestB11_NoUnitWaitsForEver, also if the origin is never silent, so that no query is due, or if the query never ends. A stated
// removal that was part of a unit needs no query.
func TestB11_NoUnitWaitsForEver(t *testing.T) {
	long, then := newListeners("a:80")
	long.group.cfg.ColdWait = time.Hour
	long.take(then, []*wire.Resource{listenerResource("b", 80, 1)})
	long.run(then, unitWaitMax)
	long.wantNames(t, "cold_wait is an hour", "a b")

	f, now := newListeners("a:80", "c:81")
	f.Begin(nil, false, false, now)
	f.take(now, []*wire.Resource{listenerResource("b", 80, 1), listenerResource("c", 81, 1)})
	for i := range 2 {
		now = now.Add(9 * time.Second)
		f.take(now, []*wire.Resource{listenerResource("c", 81, 2+i)})
	}
	if due, _ := f.QueryDue(now); !due {
		t.Error("no query is due: the origin changes something all the time")
	}
	f.StartQuery(nil, now)
	f.run(now, 20*time.Second)
	f.wantNames(t, "during the query", "a c")
	f.run(now, unitWaitMax)
	f.wantNames(t, "the query never ends", "a b c")

	f, now = newListeners("a:80", "b:81", "c:82")
	f.Begin(nil, false, false, now)
	f.take(now, []*wire.Resource{listenerResource("c", 82, 1), listenerOn("ab", 80, 81)}, "b")
	f.wantNames(t, "a is not mentioned", "a b c")
	f.StartQuery(nil, now)
	f.take(now, nil, "ab")
	f.group.Decide(now)
	f.wantNames(t, "the addition is removed", "a c")
}

// TestB11_WithoutAConnectionUnitsWait: the origin cannot state a removal.
func TestB11_WithoutAConnectionUnitsWait(t *testing.T) {
	f, now := newListeners("a:80")
	f.take(now, []*wire.Resource{listenerResource("b", 80, 1)})
	f.confirmed = false // no stream carries the set
	f.run(now, time.Minute)
	f.wantNames(t, "without a connection", "a")
}

// TestB11_IndexOfKeys: it has each served resource with all of its keys, and not many others.
func TestB11_IndexOfKeys(t *testing.T) {
	f, now := newListeners("b:80", "c:82", "d:83", "e:84")
	f.resources["a"] = listenerOn("a", 80, 80)
	f.take(now, []*wire.Resource{listenerResource("c", 82, 2)})
	f.take(now, nil, "a")
	f.holdAll(now)
	f.take(now.Add(time.Second), []*wire.Resource{listenerResource("n", 80, 1)})
	f.wantNames(t, "another resource had the key twice", "c d e n")

	for i := range 1000 {
		name := fmt.Sprint("l", i)
		f.take(now, []*wire.Resource{listenerResource(name, 100+i, 1)})
		delete(f.resources, name) // its TTL is over
	}
	if got := len(f.index.keys); got > 50 {
		t.Errorf("%d resources in the index, although 4 are served", got)
	}
}

// TestB15_WhatCountsAsAdded: resources that are new, and neither replace others nor move. Only those without keys may be renamed ones.
func TestB15_WhatCountsAsAdded(t *testing.T) {
	api := func(name string) *wire.Resource {
		return check.Must(wire.NewResource(wire.ListenerType, name, "1", check.Must(proto.Marshal(relaytest.APIListener(name, "1")))))
	}
	f, now := newListeners("a:80", "b:81", "c:82", "d:83")
	f.resources["api"] = api("api")
	f.take(now, []*wire.Resource{
		api("api"), api("new"), listenerResource("b", 80, 2), listenerResource("c", 79, 2), listenerResource("x", 90, 1),
		listenerResource("y", 83, 1),
	}, "a", "d")
	if got, want := f.added(), (additions{all: 2, unkeyed: 1}); got != want {
		t.Errorf("added %+v, want %+v", got, want)
	}
}

// TestB11_ARepeatedRequestProvesNothing at once: the origin may be about to send the rest.
func TestB11_ARepeatedRequestProvesNothing(t *testing.T) {
	f, now := newListeners("a:80", "c:81")
	f.Restart(nil, now)
	f.take(now.Add(time.Second), []*wire.Resource{listenerResource("b", 80, 1)})
	f.group.Decide(now.Add(2 * time.Second))
	f.wantNames(t, "before the rest", "a c")
}

// TestB11_HeartbeatsStateNothing: nothing is lost by them, and they free no keys.
func TestB11_HeartbeatsStateNothing(t *testing.T) {
	heartbeat := func(name string, ttl time.Duration) *wire.Resource {
		return &wire.Resource{Name: name, TypeURL: wire.ListenerType, TTL: ttl}
	}
	f, now := newListeners("a:80")
	f.take(now, []*wire.Resource{listenerResource("b", 80, 1)})
	f.take(now.Add(time.Second), []*wire.Resource{heartbeat("b", time.Minute)})
	delete(f.resources, "b") // the view ignores the heartbeat of an unknown resource
	f.take(now.Add(2*time.Second), nil, "a")
	f.wantNames(t, "the addition waits", "b")

	f, now = newListeners("a:80", "c:81")
	f.take(now, []*wire.Resource{heartbeat("a", time.Minute), listenerResource("b", 80, 1)})
	f.wantNames(t, "heartbeat of the excluding resource", "a c")

	f, now = newListeners("a:80", "b:81")
	f.take(now, []*wire.Resource{listenerResource("b", 80, 2)})
	f.take(now.Add(time.Second), []*wire.Resource{heartbeat("b", time.Minute)})
	if got := f.applied.Resources; len(got) != 1 || got[0].HasBody() {
		t.Errorf("applied %v, want the heartbeat of what is served", got)
	}
}

// TestB11_WhatWaitsMayExpire unless the origin renews its TTL.
func TestB11_WhatWaitsMayExpire(t *testing.T) {
	for _, renewed := range []bool{false, true} {
		f, now := newListeners("a:80")
		b := listenerResource("b", 80, 1)
		b.TTL = 6 * time.Second
		f.take(now, []*wire.Resource{b})
		for i := range 3 {
			now = now.Add(4 * time.Second)
			if renewed && i < 2 {
				f.take(now, []*wire.Resource{{Name: "b", TypeURL: wire.ListenerType, TTL: b.TTL}})
				delete(f.resources, "b") // the view ignores the heartbeat of an unknown resource
			}
			f.group.Decide(now)
		}
		if served := f.resources["b"] == b; served != renewed {
			t.Errorf("renewed %v: served %v", renewed, served)
		}
	}
}

// TestB11_WhatWaitsIsNoLongerSuspect: the origin has it, with another key.
func TestB11_WhatWaitsIsNoLongerSuspect(t *testing.T) {
	f, now := newListeners("a:80", "b:81", "c:82")
	f.beginStream(now, "a", "b", "c")
	f.confirmed = false
	f.take(now, nil, "b")
	f.wantHolds(t, "b is removed", now, "suspected b")
	f.take(now.Add(time.Second), []*wire.Resource{listenerResource("b", 80, 2)})
	f.confirmed = true
	f.group.Decide(now.Add(5 * time.Second))
	f.wantNames(t, "b is back", "a b c")
	f.wantHolds(t, "b is back", now, "waiting b")
}

// TestB11_ChainsAreUnits: what waits keeps the key that it is served with, which another addition may need.
func TestB11_ChainsAreUnits(t *testing.T) {
	f, now := newListeners("a:80", "c:81")
	f.take(now, []*wire.Resource{listenerResource("a", 81, 2), listenerResource("new", 80, 1)})
	f.wantNames(t, "both wait", "a c")
	f.take(now.Add(time.Second), nil, "c")
	f.wantNames(t, "c is removed", "a new")
}

// TestB11_AThirdChangeJoinsUnits: it needs a key of one, and frees one for the other.
func TestB11_AThirdChangeJoinsUnits(t *testing.T) {
	f, now := newListeners("l0:81", "l3:84", "l4:80")
	f.take(now, []*wire.Resource{listenerResource("l2", 80, 1), listenerResource("l3", 81, 2), listenerResource("l4", 84, 2)})
	f.wantNames(t, "all wait for l0", "l0 l3 l4")
	if got := len(f.waiting); got != 3 {
		t.Errorf("%d changes wait, want 3", got)
	}
	f.take(now.Add(time.Second), nil, "l0")
	f.wantNames(t, "l0 is removed", "l2 l3 l4")
	if got := len(f.applied.Resources) + len(f.applied.Removed); got != 4 {
		t.Errorf("the unit was applied with %d changes, want 4", got)
	}
}

// TestB11_SwapsAreUnits: two resources that exchange their keys exclude nothing.
func TestB11_SwapsAreUnits(t *testing.T) {
	f, now := newListeners("a:80", "b:81")
	f.take(now, []*wire.Resource{listenerResource("a", 81, 2), listenerResource("b", 80, 2)})
	if got := len(f.applied.Resources); got != 2 {
		t.Errorf("%d resources applied, want 2", got)
	}
}

// TestB11_ARepeatedRequestBeginsAnew: the origin states again what waits, unless it has removed that meanwhile.
func TestB11_ARepeatedRequestBeginsAnew(t *testing.T) {
	for _, stated := range []bool{true, false} {
		f, now := newListeners("a:80", "c:81")
		f.take(now, []*wire.Resource{listenerResource("b", 80, 1)})
		f.Restart(nil, now.Add(time.Second))
		f.run(now, 30*time.Second)
		f.wantNames(t, "the origin has not answered", "a c")
		want := "c"
		if now = now.Add(40 * time.Second); stated {
			f.take(now, []*wire.Resource{listenerResource("b", 80, 1)})
			want = "b c"
		}
		f.take(now, nil, "a")
		f.group.Decide(now)
		f.wantNames(t, fmt.Sprint("a is removed, b is stated: ", stated), want)
	}
}

// TestB11_B46_APassedChangeNeedNotWait for its unit: it would be held again.
func TestB11_B46_APassedChangeNeedNotWait(t *testing.T) {
	f, now := newListeners("a:80", "b:81")
	f.group.cfg.Check = func(r *wire.Resource) Facts {
		if r.OriginVersion == "666" {
			return Facts{Undecodable: "broken"}
		}
		return Facts{}
	}
	f.take(now, []*wire.Resource{listenerResource("b", 80, 666)})
	f.group.Operate(Command{Do: Pass}, now)
	f.run(now, time.Minute)
	if got := f.resources["b"].OriginVersion; got != "666" {
		t.Errorf("b has version %s after pass, want 666", got)
	}
}

// TestB11_WhatWaitsIsDenied: the denial is newer.
func TestB11_WhatWaitsIsDenied(t *testing.T) {
	f, now := newListeners("a:80")
	f.take(now, []*wire.Resource{listenerResource("b", 80, 1)})
	denied := wire.NewResourceError("b", 7, "denied")
	f.Take(wire.Update{TypeURL: f.TypeURL, Errors: []*wire.ResourceError{denied}}, now.Add(time.Second))
	f.take(now.Add(2*time.Second), nil, "a")
	f.run(now.Add(2*time.Second), time.Minute)
	f.wantNames(t, "denied", "")
}

// TestB11_AWaitingChangeStaysForeign: clients still have the content of the previous origin.
func TestB11_AWaitingChangeStaysForeign(t *testing.T) {
	f, now := newListeners("a:80", "b:81")
	f.NoteOriginChange()
	f.take(now, []*wire.Resource{listenerResource("b", 80, 2), listenerResource("a", 80, 1)})
	if foreign := f.Foreign(); !has(foreign, "b") || has(foreign, "a") {
		t.Errorf("foreign: %v, want b alone", foreign)
	}
}

// TestB11_B15_Collections are asked for what they do not mention, as wildcard sets are.
func TestB11_B15_Collections(t *testing.T) {
	f := newFakeSetIn(newTestGroup(slog.DiscardHandler), wire.ListenerType, "xdstp://x/envoy.config.listener.v3.Listener/*")
	f.confirmed = true
	now := time.Unix(1000, 0)
	f.resources["a"], f.resources["z"] = listenerOn("a", 80, 81), listenerResource("z", 99, 1)
	f.Begin(nil, false, false, now)
	f.take(now, []*wire.Resource{listenerResource("b", 80, 1)})
	f.run(now, 20*time.Second)
	f.wantNames(t, "before the query", "a z")
	now = now.Add(20 * time.Second)
	if due, _ := f.QueryDue(now); !due {
		t.Error("no query is due")
	}
	f.StartQuery(nil, now)
	f.RecordAnswers(wire.Update{TypeURL: f.TypeURL, Removed: []string{"a"}}, now)
	f.group.Decide(now)
	f.wantNames(t, "the origin does not have a", "b z")
}

// TestB11_AReplacementMayHaveFewerKeys: what the origin has instead of a resource replaces it, also if that is suspected or held.
func TestB11_AReplacementMayHaveFewerKeys(t *testing.T) {
	for what, remove := range map[string]func(f *fakeSet, now time.Time){
		"suspected": func(f *fakeSet, now time.Time) {
			f.confirmed = false
			f.Infer(seq("a"), false, epoch)
		},
		"held": func(f *fakeSet, now time.Time) { f.holdAll(now) },
	} {
		f, now := newListeners("c:83")
		f.resources["a"] = listenerOn("a", 80, 81)
		remove(f, now)
		f.take(now.Add(time.Second), []*wire.Resource{listenerResource("fallback", 80, 1)})
		f.wantNames(t, what, "c fallback")
	}
}

// TestB11_NamesOfDifferentClients exclude nothing.
func TestB11_NamesOfDifferentClients(t *testing.T) {
	f := newFakeSetIn(newTestGroup(slog.DiscardHandler), wire.ListenerType, "")
	f.confirmed = true
	f.resources["a"] = listenerResource("a", 80, 1)
	f.take(time.Unix(1000, 0), []*wire.Resource{listenerResource("b", 80, 1)})
	f.wantNames(t, "two names", "a b")
}

// TestB11_B46_HeldChangesAreNoReplacement: a change that would break clients is held, whether it has to wait or not, and what it
// would replace stays.
func TestB11_B46_HeldChangesAreNoReplacement(t *testing.T) {
	for _, suspect := range []bool{false, true} {
		f, now := newListeners("a:80", "b:81")
		f.group.cfg.Check = func(r *wire.Resource) Facts {
			if r.OriginVersion == "666" {
				return Facts{Undecodable: "broken"}
			}
			return Facts{}
		}
		if suspect {
			f.holdAll(now)
		}
		f.take(now, []*wire.Resource{listenerResource("b", 80, 666)})
		f.group.Decide(now.Add(11 * time.Second))
		f.wantNames(t, fmt.Sprint("suspect: ", suspect), "a b")
		if got := f.resources["b"].OriginVersion; got != "1" {
			t.Errorf("suspect %v: b has version %s, want 1", suspect, got)
		}
	}
}

// TestB11_B15_B46_AMentionRestartsTheHold of the others, also if the mention is a change that would break clients.
func TestB11_B15_B46_AMentionRestartsTheHold(t *testing.T) {
	f, now := newListeners("a:80", "b:81", "c:82")
	f.holdAll(now)
	f.group.cfg.Check = func(r *wire.Resource) Facts {
		if r.OriginVersion == "666" {
			return Facts{Undecodable: "broken"}
		}
		return Facts{}
	}
	at := now.Add(30 * time.Minute)
	f.take(at, []*wire.Resource{listenerResource("b", 81, 666)})
	if want := at.Add(time.Hour); !f.heldUntil.Equal(want) {
		t.Errorf("held for %v after the mention, want an hour", f.heldUntil.Sub(at))
	}
}

// TestB11_UnitsOfWhatWasServedBefore: the set was dropped when nobody wanted it, and has another resource of the key when it is
// served again. The former one returns, and replaces that.
func TestB11_UnitsOfWhatWasServedBefore(t *testing.T) {
	f, now := newListeners("b:80")
	f.take(now, []*wire.Resource{listenerResource("a", 80, 1)}, "b") // builds the index
	f.wantNames(t, "before the set is dropped", "a")
	clear(f.resources)
	f.take(now, []*wire.Resource{listenerResource("b", 80, 1)})
	f.confirmed = false
	f.beginStream(now, "b")
	f.take(now, []*wire.Resource{listenerResource("a", 80, 1)}, "b")
	f.wantNames(t, "after the replacement", "a")
}

// TestB11_ManyUnits takes thousands of conflicting resources in a time that grows with their number.
func TestB11_ManyUnits(t *testing.T) {
	const count = 3000
	f, now := newListeners()
	var same, own []*wire.Resource
	for i := range count {
		f.resources[fmt.Sprint("o", i)] = listenerResource(fmt.Sprint("o", i), 1+i%(count/2), 1) // two on each port
		own = append(own, listenerResource(fmt.Sprint("n", i), 1+i, 1))
		same = append(same, listenerResource(fmt.Sprint("s", i), 1, 1))
	}
	f.take(now, own)
	f.take(now, same)
	if got, want := len(f.waiting), count+count/2; got != want {
		t.Errorf("%d additions wait, want %d", got, want)
	}
	f.group.Decide(now.Add(time.Minute))
	if got, want := len(f.resources), 3*count; got != want {
		t.Errorf("%d resources after the deadline, want %d", got, want)
	}

	f, now = newListeners(fmt.Sprint("last:", 1+count))
	var chain []*wire.Resource // each takes the port of the next one
	for i := range count {
		f.resources[fmt.Sprint("o", i)] = listenerResource(fmt.Sprint("o", i), 1+i, 1)
		chain = append(chain, listenerResource(fmt.Sprint("o", i), 2+i, 2))
	}
	f.take(now, chain)
	if got, want := len(f.waiting), count; got != want {
		t.Errorf("%d changes of the chain wait, want %d", got, want)
	}
}

// TestB11_UnitsOfSeveralResources: additions that one resource excludes, and an addition that several exclude, are one unit. It
// waits for the last removal, and the stated removals wait with it; these are no reason to hold the others.
func TestB11_UnitsOfSeveralResources(t *testing.T) {
	start := func() (*fakeSet, time.Time) {
		f, now := newListeners("a:80", "b:81", "c:82", "d:83", "e:84")
		f.take(now, []*wire.Resource{listenerOn("abc", 80, 81, 82), listenerResource("d2", 83, 1)}, "a", "d")
		f.take(now.Add(time.Second), nil, "b")
		f.wantNames(t, "two removals of three are stated", "a b c d2 e")
		f.wantHolds(t, "two removals of three are stated", now, "suspected a b", "waiting abc")
		return f, now
	}
	f, now := start()
	f.take(now.Add(2*time.Second), nil, "c")
	f.wantNames(t, "all are stated", "abc d2 e")
	f.wantHolds(t, "all are stated", now)

	f, now = start()
	f.take(now.Add(2*time.Second), nil, "abc")
	f.run(now.Add(2*time.Second), time.Second)
	f.wantNames(t, "the addition is removed", "c d2 e")

	f, now = start()
	f.run(now, 9*time.Second)
	f.wantNames(t, "before the deadline", "a b c d2 e")
	f.run(now, 10*time.Second)
	f.wantNames(t, "the origin has both", "abc c d2 e")
}

// TestB11_ErrorsWaitWithTheirRemovals: clients receive both together.
func TestB11_ErrorsWaitWithTheirRemovals(t *testing.T) {
	f, now := newListeners("a:80", "b:81", "c:82", "d:83", "e:84")
	notFound := wire.NewResourceError("a", 5, "gone")
	both := []*wire.Resource{listenerOn("ab", 80, 81)}
	f.Take(wire.Update{TypeURL: f.TypeURL, Resources: both, Errors: []*wire.ResourceError{notFound}}, now)
	f.take(now.Add(time.Second), nil, "b")
	f.wantNames(t, "both are removed", "ab c d e")
	if got := f.applied.Errors; len(got) != 1 || got[0] != notFound {
		t.Errorf("errors %v, want the one of a", got)
	}
}

// TestB11_OperatorsNeedNotWait: what an operator passes is removed at once, and what waits for it follows in the same update.
func TestB11_OperatorsNeedNotWait(t *testing.T) {
	f, now := newListeners("a:80", "b:81", "c:82", "d:83", "e:84")
	f.take(now, []*wire.Resource{listenerOn("ab", 80, 81)}, "a")
	f.group.Operate(Command{Do: Pass}, now)
	f.wantNames(t, "passed", "b c d e")
	f.holdAll(now)
	f.wantNames(t, "b is held", "ab c d e")

	f, now = newListeners("a:80", "b:81")
	f.holdAll(now)
	f.group.Operate(Command{Do: Drop}, now)
	f.take(now.Add(time.Second), []*wire.Resource{listenerResource("n", 80, 1)})
	f.run(now.Add(time.Second), time.Minute)
	f.wantNames(t, "dropped", "a b")
	f.group.Operate(Command{Do: Pass, Reason: Dropped}, now.Add(2*time.Minute))
	f.wantNames(t, "passed", "n")
	if got := len(f.applied.Resources) + len(f.applied.Removed); got != 3 {
		t.Errorf("the last update has %d changes, want 3", got)
	}
}

// TestB11_WhatTheOriginMentionsIsNotDropped any more: it has both.
func TestB11_WhatTheOriginMentionsIsNotDropped(t *testing.T) {
	f, now := newListeners("a:80", "b:81", "c:82")
	f.holdAll(now)
	f.group.Operate(Command{Do: Drop}, now)
	f.take(now, []*wire.Resource{listenerResource("n", 80, 1)})
	f.run(now, time.Minute)
	f.wantNames(t, "dropped", "a b c")
	f.take(now.Add(2*time.Minute), []*wire.Resource{listenerResource("a", 80, 1)})
	f.run(now.Add(2*time.Minute), time.Second)
	f.wantNames(t, "mentioned", "a b c n")
}

// TestB11_WhatCannotBeServedReplacesNothing: clients keep what they have of a resource that is too large, and its keys.
func TestB11_WhatCannotBeServedReplacesNothing(t *testing.T) {
	tooLarge := func(name string, port int) *wire.Resource {
		r := listenerResource(name, port, 2)
		r.Refusal = wire.NewResourceError(name, 13, "too large")
		return r
	}
	f, now := newListeners("a:80", "c:82")
	f.holdAll(now)
	f.take(now.Add(time.Second), []*wire.Resource{tooLarge("unwanted", 80)})
	f.group.Decide(now.Add(time.Second))
	f.wantNames(t, "an addition", "a c")

	f, now = newListeners("a:80", "c:82")
	f.take(now, []*wire.Resource{tooLarge("a", 90), listenerResource("b", 80, 1)})
	f.wantNames(t, "a change", "a c")
}

// TestB11_WaitsEndWithTheirReason: an addition passes if what excluded it is gone for another reason, or has moved.
func TestB11_WaitsEndWithTheirReason(t *testing.T) {
	for what, end := range map[string]func(f *fakeSet, now time.Time){
		"gone":  func(f *fakeSet, _ time.Time) { delete(f.resources, "a") },
		"moved": func(f *fakeSet, now time.Time) { f.take(now, []*wire.Resource{listenerResource("a", 81, 2)}) },
	} {
		now := time.Unix(1000, 0)
		f := newFakeSet(wire.ListenerType, slog.DiscardHandler)
		f.confirmed = true
		f.resources["a"] = listenerResource("a", 80, 1)
		f.take(now, []*wire.Resource{listenerResource("b", 80, 1)})
		f.wantNames(t, what+": at first", "a")
		end(f, now.Add(time.Second))
		f.group.Decide(now.Add(time.Second))
		if f.resources["b"] == nil {
			t.Errorf("%s: b is not served", what)
		}
	}
}

// TestB11_AConflictThatIsServedIsNotJudgedAgain: clients have decided about it, so that changes of either resource pass at once.
func TestB11_AConflictThatIsServedIsNotJudgedAgain(t *testing.T) {
	now := time.Unix(1000, 0)
	f := newFakeSet(wire.ListenerType, slog.DiscardHandler)
	f.confirmed = true
	f.resources["a"], f.resources["b"] = listenerResource("a", 80, 1), listenerResource("b", 80, 1)
	f.take(now, []*wire.Resource{listenerResource("b", 80, 2)})
	if got := f.resources["b"].OriginVersion; got != "2" {
		t.Errorf("b has version %s, want 2", got)
	}
}

// BenchmarkTakeChangedListener takes a response with one changed listener of many: with addresses, and without any.
func BenchmarkTakeChangedListener(b *testing.B) {
	for _, count := range []int{100, 10_000} {
		for _, of := range []string{"addresses", "no addresses"} {
			b.Run(fmt.Sprint(count, " with ", of), func(b *testing.B) {
				resource := func(name string, port, rev int) *wire.Resource {
					if of == "addresses" {
						return listenerResource(name, port, rev)
					}
					value := check.Must(proto.Marshal(relaytest.APIListener(name, fmt.Sprint(rev))))
					return check.Must(wire.NewResource(wire.ListenerType, name, fmt.Sprint(rev), value))
				}
				f := newFakeSet(wire.ListenerType, slog.DiscardHandler)
				f.confirmed = true
				for i := range count {
					name := fmt.Sprint("l", i)
					f.resources[name] = resource(name, 1+i, 1)
				}
				changed := []*wire.Resource{resource("l7", 8, 2), resource("l7", 8, 3)}
				now := time.Unix(1000, 0)
				for i := 0; b.Loop(); i++ {
					f.take(now, changed[i%2:i%2+1])
				}
			})
		}
	}
}

// TestTheSizeOfASetIsRarelyCounted: counting the resources of an origin takes long, so it is not done for each update. An
// index with many more resources than the set is built anew.
func TestTheSizeOfASetIsRarelyCounted(t *testing.T) {
	i, counted, served := keyIndex{}, 0, 1000
	update := func() {
		i.update(wire.Update{}, nil, func() int {
			counted++
			return served
		})
	}
	update()
	check.Equal(t, "counts without an index", counted, 0)
	i.build(func(func(string) bool) {}, nil)
	for n := range 2 * served {
		i.keys[fmt.Sprint(n)] = []string{"key"}
		update()
	}
	check.Equal(t, "counts while the index grows", counted, 1)
	served = 0
	for n := range 17 {
		i.keys[fmt.Sprint("more ", n)] = []string{"key"}
		update()
	}
	if check.Equal(t, "counts with an index that is too large", counted, 2); i.names != nil {
		t.Error("an index with many resources that left the set is kept")
	}
}

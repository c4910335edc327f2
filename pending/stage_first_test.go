package pending

import (
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// wantSeen fails the test unless the readers of a cohort see this content of a name: "-" if it is absent, "" if nothing is
// known of it.
func (o *origin) wantSeen(cohort int, name, want string) {
	o.Helper()
	e, _ := o.view.Cohort(cohort).Generation().Type(o.typeURL).Lookup(o.name(name))
	if got := contentOf(e); got != want {
		o.Fatalf("cohort %d sees %q of %s, want %q", cohort, got, name, want)
	}
}

// wantError fails the test unless the readers of a cohort see this error of a name.
func (o *origin) wantError(cohort int, name, want string) {
	o.Helper()
	got := ""
	if e := o.view.Cohort(cohort).Generation().Type(o.typeURL).Errors(cache.ByName).Get(o.name(name)); e != nil {
		got = e.Err.Message
	}
	if got != want {
		o.Fatalf("cohort %d sees the error %q of %s, want %q", cohort, got, name, want)
	}
}

// TestI1_ResponsesByNamePassOnceSeen: a response by name waits while clients see another member. Once the wildcard set has its
// content, or is dropped, it waits no longer.
func TestI1_ResponsesByNamePassOnceSeen(t *testing.T) {
	for name, then := range map[string]func(*origin){
		"stated":  func(o *origin) { o.put(cache.Wildcard, "a", "1", "a1") },
		"dropped": func(o *origin) { o.ForgetWildcard(acme) },
	} {
		t.Run(name, func(t *testing.T) {
			o, now := newRollout(t)
			o.put(cache.Wildcard, "a", "2", "a2")
			o.subscribe(o.view.Watch(), "a")
			o.put(cache.ByName, "a", "1", "a1")
			wantWaiting(t, "another member", now, 1, 0, 1)
			then(o)
			wantWaiting(t, name, now, 0, 0, 0)
			for _, cohort := range []int{canaries, rest} {
				o.wantSeen(cohort, "a", "a1")
			}
		})
	}
}

// TestI1_FirstResponsesAreChangesWhereMembersWereShown: a cohort that was shown a member sees it until another edition, also if
// the rest gets a first response by name.
func TestI1_FirstResponsesAreChangesWhereMembersWereShown(t *testing.T) {
	o, _ := newRollout(t)
	o.confirm(acme)
	o.put(cache.Wildcard, "a", "1", "a1")
	o.Show(canaries, o.Pin())
	o.subscribe(o.view.Watch(), "a")
	o.put(cache.ByName, "a", "2", "a2")
	o.wantSeen(rest, "a", "a2")
	o.wantSeen(canaries, "a", "a1")
	o.ShowAsRest(canaries)
	o.wantSeen(canaries, "a", "a2")
}

// TestI1_FirstResponsesPassWhereMembersWereRemoved: if an edition removes a member, readers get the response by name that waited
// because of the member.
func TestI1_FirstResponsesPassWhereMembersWereRemoved(t *testing.T) {
	o, _ := newRollout(t)
	o.confirm(acme, "a")
	o.remove(cache.Wildcard, "a")
	e := o.Pin()
	o.subscribe(o.view.Watch(), "a")
	o.put(cache.ByName, "a", "2", "a2")
	o.wantSeen(canaries, "a", "a1")
	for _, cohort := range []int{canaries, rest} {
		o.Show(cohort, e)
		if n := o.view.Cohort(cohort).Generation().Type(acme).ByName.Get(o.name("a")); contentOf(n) != "a2" {
			t.Errorf("cohort %d sees %q by name, want a2", cohort, contentOf(n))
		}
	}
}

// TestR125_CohortsDropContentAsTheRest: uncacheable content is dropped at the same time in all views.
func TestR125_CohortsDropContentAsTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, _ := newRollout(t)
		o.putUncacheable(cache.Wildcard, "a", "1", "a1")
		time.Sleep(uncached)
		o.expire(time.Now())
		o.wantMembers(canaries, acme, "")
		o.wantMembers(rest, acme, "")
	})
}

// TestI1_FirstRemovalsPassWithTheirError: the first response for a name passes, also if it is an error besides a removal. If
// clients see a member, both wait.
func TestI1_FirstRemovalsPassWithTheirError(t *testing.T) {
	for _, typeURL := range []string{acme, wire.EndpointType} {
		o, now := newRollout(t)
		o.typeURL = typeURL
		failed := wire.Update{
			TypeURL: typeURL, Removed: []string{"a"}, Errors: []*wire.ResourceError{wire.NewResourceError("a", codes.Internal, "broken")},
		}
		o.subscribe(o.view.Watch(), "a")
		o.Apply(cache.ByName, failed)
		wantWaiting(t, "first", now, 0, 0, 0)
		for _, cohort := range []int{canaries, rest} {
			o.wantSeen(cohort, "a", "-")
			o.wantError(cohort, "a", "broken")
		}
		o.put(cache.ByName, "a", "1", "a1")
		o.Show(rest, o.Pin())
		o.Apply(cache.ByName, failed)
		wantWaiting(t, "removed", now, 1, 0, 1)
		o.wantSeen(rest, "a", "a1")
		o.wantError(rest, "a", "")
		o.Show(rest, o.Pin())
		o.wantSeen(rest, "a", "-")
		o.wantError(rest, "a", "broken")
	}
}

// TestI5_OnlyRemovalsOfExistingResourcesWait: of a type whose content passes, nothing waits that removes no resource.
func TestI5_OnlyRemovalsOfExistingResourcesWait(t *testing.T) {
	o, now := newRollout(t)
	o.typeURL = wire.EndpointType
	o.subscribe(o.view.Watch(), "a")
	o.fail(cache.ByName, "a", codes.Internal, "broken")
	o.remove(cache.ByName, "a")
	wantWaiting(t, "removed", now, 0, 0, 0)
	o.wantSeen(rest, "a", "-")
	o.wantError(rest, "a", "")
}

// TestI5_ErrorsOfRemovedResourcesPass: of a type whose content passes, an edition decides that a resource is removed. The error
// of a removed resource is that of the newest state, also when the edition is shown again, and it is not behind the origin.
func TestI5_ErrorsOfRemovedResourcesPass(t *testing.T) {
	o, now := newRollout(t)
	o.typeURL = wire.EndpointType
	o.subscribe(o.view.Watch(), "a")
	o.put(cache.ByName, "a", "1", "a1")
	o.fail(cache.ByName, "a", codes.NotFound, "no a")
	edition := o.Pin()
	o.Compare(edition)
	wantWaiting(t, "removed with an error", now, 1, 0, 0)
	o.remove(cache.ByName, "a")
	wantWaiting(t, "removed without it", now, 1, 0, 0)
	for range 2 {
		o.Show(canaries, edition)
		o.wantSeen(canaries, "a", "-")
		o.wantError(canaries, "a", "")
	}
	o.wantSeen(rest, "a", "a1")
	o.Show(rest, edition)
	o.wantSeen(rest, "a", "-")
	o.wantError(rest, "a", "")
	wantWaiting(t, "promoted", now, 0, 0, 0)
}

// TestB42_CohortsConfirmNoRestoredNames: the origin must respond for a restored name, also if cohorts follow the rest in a member
// of that name.
func TestB42_CohortsConfirmNoRestoredNames(t *testing.T) {
	o, _ := newRollout(t)
	o.typeURL = acme
	o.subscribe(o.view.Watch(), "a")
	o.remove(cache.ByName, "a")
	o = restart(t, o)
	o.SetConnected(true)
	o.put(cache.Wildcard, "a", "1", "a1")
	if o.view.Settled(0) {
		t.Error("settled, but the origin has not responded for a")
	}
	o.subscribe(o.view.Watch(), "a")
	o.remove(cache.ByName, "a")
	if !o.view.Settled(0) {
		t.Error("not settled, but the origin has responded for a")
	}
}

// TestR107_TTLsOfAFreezeAreShown: what is shown during a freeze has the TTL that the origin stated since.
func TestR107_TTLsOfAFreezeAreShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, _ := newRollout(t)
		o.confirm(acme)
		o.put(cache.Wildcard, "a", "1", "a1")
		e := o.Pin()
		o.Freeze()
		o.putTTL(cache.Wildcard, "a", "1", "a1", time.Minute)
		o.Show(rest, e)
		o.wantMembers(rest, acme, "a1")
		time.Sleep(time.Minute)
		o.expire(time.Now())
		o.wantMembers(rest, acme)
		o.wantMembers(canaries, acme)
	})
}

// TestR107_RowsExpireDuringAFreeze: what has expired waits for stages no longer, neither during a freeze nor after it.
func TestR107_RowsExpireDuringAFreeze(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, now := newRollout(t)
		o.confirm(acme)
		o.putTTL(cache.Wildcard, "a", "1", "a1", time.Minute)
		o.Freeze()
		o.putTTL(cache.Wildcard, "b", "1", "b1", time.Minute)
		wantWaiting(t, "frozen", now, 1, 0, 1)
		time.Sleep(time.Minute)
		o.expire(time.Now())
		wantWaiting(t, "expired", now, 0, 0, 0)
		if e := o.Pin(); len(e.Changes) > 0 {
			t.Errorf("edition has %v", e.Changes)
		}
		o.Thaw()
		wantWaiting(t, "thawed", now, 0, 0, 0)
	})
}

// TestI1_ForgottenNamesDoNotWaitDuringAFreeze: what waited when the freeze began is forgotten with its name.
func TestI1_ForgottenNamesDoNotWaitDuringAFreeze(t *testing.T) {
	o, now := newRollout(t)
	o.confirm(acme, "a")
	watch := o.view.Watch()
	all, names := watch.SubscribeAll(acme), o.subscribe(watch, "n")
	o.put(cache.ByName, "n", "1", "n1")
	o.put(cache.ByName, "n", "2", "n2")
	o.put(cache.Wildcard, "a", "2", "a2")
	o.Freeze()
	wantWaiting(t, "frozen", now, 2, 0, 2)
	watch.Unsubscribe(acme, names)
	o.Writer().TakeDemand()
	o.Forget(acme, names)
	wantWaiting(t, "forgotten", now, 1, 0, 1)
	o.resubscribeAll(watch, all, acme)
	wantWaiting(t, "dropped", now, 0, 0, 0)
	if e := o.Pin(); len(e.Changes) > 0 {
		t.Errorf("edition has %v", e.Changes)
	}
}

// TestR091_VersionWhileRemovalsWait: a set of endpoints has the version of a response only if it has its state.
func TestR091_VersionWhileRemovalsWait(t *testing.T) {
	o, _ := newRollout(t)
	o.confirm(wire.EndpointType, "a")
	state := func(version string, removed ...string) {
		t.Helper()
		u := updateOf(wire.EndpointType, o.resource("b", version, "b"+version))
		u.Removed, u.SystemVersion = removed, version
		o.Apply(cache.Wildcard, u)
	}
	want := func(when, want string) {
		t.Helper()
		for cohort, v := range o.views() {
			if got := v.Generation().Type(wire.EndpointType).Wildcard.System(); got != want {
				t.Errorf("%s: version %q in cohort %d, want %q", when, got, cohort, want)
			}
		}
	}
	state("1")
	want("the state of the origin", "1")
	state("2", "a")
	want("a removal waits", "1")
	state("3")
	want("the removal still waits", "1")
	o.Show(rest, o.Pin())
	want("shown", "3")
	state("4", "gone")
	want("nothing waits", "4")
}

// TestI1_CopiesWaitForStages: what a view copies from a shared one waits like what an origin states, for all cohorts.
func TestI1_CopiesWaitForStages(t *testing.T) {
	shared, _ := newSubscribed(t, "a", "b", "c", "d")
	o, _ := newRollout(t)
	o.typeURL = acme
	o.subscribe(o.view.Watch(), "a", "b", "c", "d")
	copyAll := func() {
		t.Helper()
		var names []*cache.Name
		for _, name := range []string{"a", "b", "c", "d"} {
			names = append(names, shared.name(name))
		}
		o.Writer().SetSource(shared.Writer().Source())
		o.Copy(cache.ByName, shared.view, shared.view.Generation(), acme, names)
		o.checkEntries()
	}
	for _, name := range []string{"a", "b", "c"} {
		shared.put(cache.ByName, name, "1", name+"1")
	}
	shared.Apply(cache.ByName, wire.Update{
		TypeURL: acme, Removed: []string{"d"}, Errors: []*wire.ResourceError{wire.NewResourceError("d", codes.Internal, "no d")},
	})
	copyAll()
	see := func(when string, cohort int, want ...string) {
		t.Helper()
		for i, name := range []string{"a", "b", "c", "d"} {
			g := o.view.Cohort(cohort).Generation().Type(acme)
			if got := contentOf(g.ByName.Get(o.name(name))); got != want[i] {
				t.Errorf("%s: cohort %d sees %q of %s, want %q", when, cohort, got, name, want[i])
			}
		}
	}
	for cohort := range 2 {
		see("first state", cohort, "a1", "b1", "c1", "-")
	}
	if got := o.errorText(cache.ByName, "d"); got != "Internal no d" || o.counts.Names != 0 {
		t.Errorf("readers see the error %q of d, and %d names wait; want that of the origin, and none", got, o.counts.Names)
	}
	shared.put(cache.ByName, "a", "2", "a2")
	shared.remove(cache.ByName, "b")
	shared.fail(cache.ByName, "c", codes.Internal, "no c")
	copyAll()
	for cohort := range 2 {
		see("changed", cohort, "a1", "b1", "c1", "-")
	}
	if got := o.errorText(cache.ByName, "c"); got != "" || o.counts.Names != 3 {
		t.Errorf("readers see the error %q of c, and %d names wait; want none, and 3", got, o.counts.Names)
	}
	o.Show(canaries, o.Pin())
	see("shown", canaries, "a2", "-", "c1", "-")
	see("shown", rest, "a1", "b1", "c1", "-")
	shared.put(cache.ByName, "a", "1", "a1") // as the rest is served it
	copyAll()
	see("withdrawn", canaries, "a2", "-", "c1", "-")
	o.Show(rest, o.Pin())
	see("promoted", rest, "a1", "-", "c1", "-")
	if got := o.errorText(cache.ByName, "c"); got != "Internal no c" || o.counts.Names != 0 {
		t.Errorf("readers see the error %q of c, and %d names wait; want that of the origin, and none", got, o.counts.Names)
	}
}

// TestR125_WhatAnEditionReplacesIsNotKept: an edition replaces content that may not be cached. What waits then has none.
func TestR125_WhatAnEditionReplacesIsNotKept(t *testing.T) {
	o, _ := newRollout(t)
	o.typeURL = acme
	o.subscribe(o.view.Watch(), "n")
	o.putUncacheable(cache.ByName, "n", "2", "n2")
	former := cache.Former{Key: acme, Kind: cache.ByName, Name: "n", Resource: o.resource("n", "1", "n1")}
	o.Show(rest, o.PinFormer([]cache.Former{former}))
	o.wantNamed(rest, "n", "n1")
	if r, listed := o.Get(cache.ByName, acme, "n"); !listed || r == nil || !r.ContentDropped() {
		t.Errorf("the list has %v of n, listed %v; want it without its content", r, listed)
	}
}

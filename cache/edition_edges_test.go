package cache

import (
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/xdstender/tender/cache/wire"
)

// wantNamed fails the test unless readers of a cohort see this content in the set of names.
func (o *origin) wantNamed(cohort int, name, want string) {
	o.Helper()
	t := o.view.Cohort(cohort).Generation().Type(o.typeURL)
	if got := contentOf(t.ByName.Get(o.name(name))); got != want {
		o.Fatalf("cohort %d sees %q of %s by name, want %q", cohort, got, name, want)
	}
}

// TestI1_EditionHasNoMembersOfTheFirstState: an edition from before the wildcard set was confirmed changes a resource by
// name, but not the member of that name, which passed as first state.
func TestI1_EditionHasNoMembersOfTheFirstState(t *testing.T) {
	o, _ := newRollout(t)
	o.typeURL = acme
	o.subscribe(o.view.Watch(), "a")
	o.put(Wildcard, "a", "1", "a1")
	o.put(ByName, "a", "1", "a1")
	o.put(ByName, "a", "2", "a2")
	edition := o.Pin()
	before := o.PinServed(edition)
	o.confirm(acme)
	members := func(want string) {
		t.Helper()
		o.wantMembers(canaries, acme, want)
		o.wantMembers(rest, acme, want)
	}
	o.put(Wildcard, "a", "3", "a3")
	o.Show(rest, o.Pin())
	o.ShowAs(canaries, rest)
	members("a3")
	o.Show(canaries, edition)
	o.wantNamed(canaries, "a", "a2")
	members("a3")
	o.Show(canaries, before)
	o.wantNamed(canaries, "a", "a1")
	members("a3")
	o.checkEntries()
}

// TestB7_EditionRemovesByNameAfterReconnect: an edition is shown completely, also if the origin sent a removal of it on an
// earlier connection.
func TestB7_EditionRemovesByNameAfterReconnect(t *testing.T) {
	o, _ := newRollout(t)
	o.typeURL = acme
	o.subscribe(o.view.Watch(), "n")
	o.put(ByName, "n", "1", "n1")
	o.remove(ByName, "n")
	edition := o.Pin()
	o.SetConnected(false)
	o.SetConnected(true)
	for range 2 {
		o.Show(canaries, edition)
		g := o.view.Cohort(canaries).Generation()
		if !g.Absent(g.Type(acme).ByName.Get(o.name("n"))) {
			t.Error("the canaries are not sent the removal of n")
		}
	}
}

// TestI1_EditionsKeepTheErrorOfTheSet: the origin fails a wildcard set as a whole. An edition from before does not hide that.
func TestI1_EditionsKeepTheErrorOfTheSet(t *testing.T) {
	o, _ := newRollout(t)
	o.typeURL = acme
	o.subscribe(o.view.Watch(), "n")
	o.put(ByName, "n", "1", "n1")
	o.put(ByName, "n", "2", "n2")
	edition := o.Pin()
	o.fail(Wildcard, wire.Wildcard, codes.Internal, "no set")
	o.Show(rest, edition)
	o.wantNamed(rest, "n", "n2")
	if got := o.errorText(Wildcard, wire.Wildcard); got != "Internal no set" {
		t.Errorf("readers see the error %q of the set, want that of the origin", got)
	}
}

// TestI1_ErrorsOfConfirmedSetsWait, also the error that there is no such set.
func TestI1_ErrorsOfConfirmedSetsWait(t *testing.T) {
	for _, code := range []codes.Code{codes.Internal, codes.NotFound} {
		o, waiting := newRollout(t)
		o.confirm(acme, "a")
		o.fail(Wildcard, wire.Wildcard, code, "no set")
		if got := o.errorText(Wildcard, wire.Wildcard); got != "" || waiting.Names != 1 {
			t.Errorf("readers see the error %q of the set, and %d names wait; want no error, and 1 name", got, waiting.Names)
		}
		o.Show(rest, o.Pin())
		if got, want := o.errorText(Wildcard, wire.Wildcard), code.String()+" no set"; got != want {
			t.Errorf("shown: readers see the error %q of the set, want %q", got, want)
		}
	}
}

// TestR125_EditionsDoNotShowReleasedContent: a resource whose content may not be cached was added and removed. Showing its
// edition changes nothing.
func TestR125_EditionsDoNotShowReleasedContent(t *testing.T) {
	o, _ := newRollout(t)
	o.confirm(acme, "a")
	o.putUncacheable(Wildcard, "b", "1", "b1")
	edition := o.Pin()
	o.remove(Wildcard, "b")
	if o.hasName("b") {
		t.Fatal("name was not released")
	}
	at := o.view.Cohort(canaries).Generation().Revision
	o.Show(canaries, edition)
	o.wantMembers(canaries, acme, "a1")
	if o.view.Cohort(canaries).Generation().Revision != at {
		t.Error("edition made a generation, which had the content")
	}
}

// TestB11_ExpiredResourcesAreShownAsRemovals: the TTL of a cluster ended in its edition. Listeners of the edition change
// before the cluster is removed.
func TestB11_ExpiredResourcesAreShownAsRemovals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, _ := newRollout(t)
		o.confirm(wire.ListenerType, "l")
		o.put(Wildcard, "l", "2", "l2")
		o.confirm(wire.ClusterType, "c")
		o.randomStep("put TTL", Wildcard, "c", "2", nil, nil)
		edition := o.Pin()
		o.put(Wildcard, "c", "3", "c3")
		o.remove(Wildcard, "c")
		time.Sleep(2 * time.Minute)
		o.Expire(time.Now())
		o.wantMembers(canaries, wire.ClusterType, "c1")
		o.Show(canaries, edition)
		o.wantMembers(canaries, wire.ClusterType)
		o.wantMembers(canaries, wire.ListenerType, "l2")
		g := o.view.Cohort(canaries).Generation()
		if c, l := g.Type(wire.ClusterType).Last(), g.Type(wire.ListenerType).Last(); c < l {
			t.Errorf("the cluster was removed at %d, before the listener changed at %d", c, l)
		}
	})
}

// TestI1_EditionsOfReleasedNamesShowTheRest: a name was released and created again since the edition was made. Readers who
// are shown the edition see the name as the rest sees it.
func TestI1_EditionsOfReleasedNamesShowTheRest(t *testing.T) {
	o, _ := newRollout(t)
	o.typeURL = acme
	watch := o.view.Watch()
	names := o.subscribe(watch, "n")
	o.put(ByName, "n", "1", "n1")
	o.put(ByName, "n", "2", "n2")
	edition := o.Pin()
	watch.Unsubscribe(acme, names)
	o.TakeDemand()
	o.Forget(acme, names)
	o.subscribe(watch, "n")
	o.put(ByName, "n", "3", "n3")
	o.put(ByName, "n", "4", "n4")
	o.Show(canaries, o.Pin())
	o.wantNamed(canaries, "n", "n4")
	o.Show(canaries, edition)
	o.wantNamed(canaries, "n", "n3")
}

// TestR091_VersionOfWithdrawnChanges: a change waits, and the origin withdraws it in a newer version. That is the version of
// what readers see.
func TestR091_VersionOfWithdrawnChanges(t *testing.T) {
	o, _ := newRollout(t)
	o.confirm(acme, "a")
	apply := func(u wire.Update, want string) {
		t.Helper()
		o.Apply(Wildcard, u)
		if got := o.typ().System(); got != want {
			t.Errorf("readers see version %q, want %q", got, want)
		}
	}
	a, b := o.resource("a", "1", "a1"), o.resource("b", "1", "b1")
	apply(wire.Update{TypeURL: acme, Resources: []*wire.Resource{a}, SystemVersion: "first"}, "first")
	apply(wire.Update{TypeURL: acme, Resources: []*wire.Resource{b}, SystemVersion: "second"}, "first")
	apply(wire.Update{TypeURL: acme, Removed: []string{"b"}, SystemVersion: "third"}, "third")
}

package pending

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// newRollout returns an origin with one cohort, in which all changes of clusters, listeners and acme wait, and the last
// counts of what waits.
func newRollout(t tester) (*origin, *Staged) {
	waits := []string{acme, wire.ClusterType, wire.ListenerType}
	o := newOrigin(t, cache.Config{Cohorts: 1, Waits: func(typeURL string) bool { return slices.Contains(waits, typeURL) }})
	return o, &o.counts
}

// countCompared returns the number of resources whose newest content differs from editions, and of names that would still wait after
// these were shown to the rest.
func countCompared(s *Staged) (edited, behind int) {
	behind = s.Free.Names
	for _, of := range s.Of {
		edited, behind = edited+of.Edited, behind+of.Behind
	}
	return edited, behind
}

// wantWaiting fails the test unless Waiting has these counts.
func wantWaiting(t *testing.T, when string, now *Staged, names, edited, behind int) {
	t.Helper()
	if gotEdited, gotBehind := countCompared(now); now.Names != names || gotEdited != edited || gotBehind != behind {
		t.Errorf("%s: %+v, want %d names, %d edited, %d behind", when, *now, names, edited, behind)
	}
}

// TestEditionDiff: Diff yields changes in the order in which types are sent, then by name.
func TestEditionDiff(t *testing.T) {
	o, _ := newRollout(t)
	o.confirm(acme, "l")
	o.confirm(wire.ClusterType, "b", "same", "gone")
	o.typeURL = acme
	o.put(cache.Wildcard, "l", "2", "l2")
	o.typeURL = wire.ClusterType
	o.put(cache.Wildcard, "c", "1", "c1")
	o.put(cache.Wildcard, "b", "2", "b2")
	o.remove(cache.Wildcard, "gone")
	e := o.Pin()
	o.put(cache.Wildcard, "b", "3", "b3") // not in the edition
	o.Show(rest, e)
	text := func(r *wire.Resource) string {
		if r == nil {
			return ""
		}
		return string(r.Value())
	}
	var got []string
	for d := range e.Diff() {
		got = append(got, fmt.Sprint(wire.Rank(d.Key)-wire.Rank(wire.ClusterType), d.Name, text(d.Was), ">", text(d.Is)))
	}
	for range e.Diff() {
		break // stopping early must be possible
	}
	last := wire.Rank(acme) - wire.Rank(wire.ClusterType)
	want := []string{fmt.Sprint(0, "b", "b1", ">", "b2"), fmt.Sprint(0, "c", "", ">", "c1"),
		fmt.Sprint(0, "gone", "gone1", ">", ""), fmt.Sprint(last, "l", "l1", ">", "l2")}
	if !slices.Equal(got, want) {
		t.Errorf("diff:\n%q, want\n%q", got, want)
	}
	for d := range (&Edition{Changes: e.Changes}).Diff() {
		t.Errorf("edition of an earlier process has the difference %+v", d)
	}
}

// TestEditionDiffUsesTheSetThatDiffers, even if subscribers to the name see the other set.
func TestEditionDiffUsesTheSetThatDiffers(t *testing.T) {
	o, _ := newRollout(t)
	o.confirm(acme, "a")
	o.subscribe(o.view.Watch(), "a")
	o.put(cache.ByName, "a", "1", "a1")
	o.put(cache.Wildcard, "a", "2", "a2")
	for d := range o.Pin().Diff() {
		if string(d.Was.Value()) != "a1" || string(d.Is.Value()) != "a2" {
			t.Errorf("diff of %s: from %q to %q, want a1 and a2", d.Name, d.Was.Value(), d.Is.Value())
		}
	}
}

// TestServedStateCanBeShownAgain, which is an undo.
func TestServedStateCanBeShownAgain(t *testing.T) {
	o, now := newRollout(t)
	o.confirm(acme, "a", "b")
	o.put(cache.Wildcard, "a", "2", "a2")
	o.remove(cache.Wildcard, "b")
	edition := o.Pin()
	before := o.PinServed(edition)
	o.Show(rest, edition)
	o.wantMembers(rest, acme, "a2")
	o.Show(rest, before)
	o.wantMembers(rest, acme, "a1", "b1")
	wantWaiting(t, "undone", now, 2, 0, 2)
	if len(before.Changes) > 0 || before.Large {
		t.Errorf("edition of the served state changes %v, large %v", before.Changes, before.Large)
	}
	for d := range before.Diff() {
		t.Errorf("edition of the served state has the difference %+v", d)
	}
	o.checkEntries()
}

// TestForgottenResourcesAreNotEdited: a name or a wildcard set without subscribers does not count as edited, nor does
// its state after clients subscribe to it again.
func TestForgottenResourcesAreNotEdited(t *testing.T) {
	for _, cohort := range []int{canaries, rest} {
		o, now := newRollout(t)
		o.confirm(wire.ClusterType, "c")
		everything := o.view.Watch()
		members := everything.SubscribeAll(wire.ClusterType)
		o.Writer().TakeDemand()
		o.typeURL = acme
		watch := o.view.Watch()
		names := o.subscribe(watch, "n")
		o.put(cache.ByName, "n", "1", "n1")
		o.put(cache.ByName, "n", "2", "n2")
		o.typeURL = wire.ClusterType
		o.put(cache.Wildcard, "c", "2", "c2")
		o.put(cache.Wildcard, "d", "1", "d1")
		e := o.Pin()
		o.Compare(e)
		wantWaiting(t, "cut", now, 3, 0, 0)
		watch.Unsubscribe(acme, names)
		everything.UnsubscribeAll(members)
		o.Writer().TakeDemand()
		o.Forget(acme, names)
		o.ForgetWildcard(wire.ClusterType)
		wantWaiting(t, "forgotten", now, 0, 0, 0)
		o.checkEntries()
		everything.SubscribeAll(wire.ClusterType)
		o.typeURL = acme
		o.subscribe(watch, "n")
		o.put(cache.ByName, "n", "3", "n3")
		o.confirm(wire.ClusterType, "c", "f")
		wantWaiting(t, "again", now, 0, 0, 0)
		o.Show(cohort, e)
		o.wantMembers(cohort, wire.ClusterType, "c1", "f1")
		wantWaiting(t, "shown", now, 0, 0, 0)
		n := o.view.FindName(acme, "n")
		if got, _ := o.view.Cohort(cohort).Generation().Type(acme).Lookup(n); contentOf(got) != "n3" {
			t.Errorf("cohort %d sees %q of a name that was released and created again, want n3", cohort, contentOf(got))
		}
		o.checkEntries()
	}
}

// TestI11_EditionOfRemovedEndpointsIsEdited by an origin that adds the endpoints again, although other changes of
// endpoints do not wait.
func TestI11_EditionOfRemovedEndpointsIsEdited(t *testing.T) {
	for _, version := range []string{"1", "2"} {
		o, now := newRollout(t)
		o.confirm(wire.EndpointType, "e", "f", "g")
		o.remove(cache.Wildcard, "e", "f")
		wantWaiting(t, "removed", now, 2, 0, 2)
		o.Compare(o.Pin())
		wantWaiting(t, "cut", now, 2, 0, 0)
		o.put(cache.Wildcard, "g", "2", "g2")
		wantWaiting(t, "another one changed", now, 2, 0, 0)
		o.put(cache.Wildcard, "e", version, "e"+version)
		wantWaiting(t, "one is back", now, 1, 1, 1)
		o.remove(cache.Wildcard, "e")
		wantWaiting(t, "removed again", now, 2, 0, 0)
		o.checkEntries()
	}
}

// TestEditionKeepsReleasedResources: a resource that was added and removed is in its edition, even after its name was
// released.
func TestEditionKeepsReleasedResources(t *testing.T) {
	o, now := newRollout(t)
	o.confirm(wire.ClusterType, "a")
	o.put(cache.Wildcard, "b", "1", "b1")
	o.put(cache.Wildcard, "c", "1", "c1")
	e := o.Pin()
	o.Compare(e)
	o.remove(cache.Wildcard, "b", "c")
	wantWaiting(t, "removed", now, 0, 2, 2)
	if o.hasName("b") || o.hasName("c") {
		t.Fatal("unused names are still in the index")
	}
	o.Compare(e)
	wantWaiting(t, "compared again", now, 0, 2, 2)
	o.put(cache.Wildcard, "d", "1", "d1") // reuses the id of one of them
	o.Show(canaries, e)
	o.wantMembers(canaries, wire.ClusterType, "a1", "b1", "c1")
	at := o.view.Cohort(canaries).Generation().Seq
	if o.Show(canaries, e); o.view.Cohort(canaries).Generation().Seq != at {
		t.Error("showing the edition again changed the generation")
	}
	o.put(cache.Wildcard, "b", "1", "b1")
	wantWaiting(t, "one is back", now, 2, 1, 2)
	o.checkEntries()
	o.ShowAsRest(canaries)
	o.wantMembers(canaries, wire.ClusterType, "a1")
	o.remove(cache.Wildcard, "b")
	o.checkEntries()
}

// TestR107_EditionsDoNotExtendTTLs: a resource that has expired when its edition is shown is absent. A resource that
// the origin has renewed is present.
func TestR107_EditionsDoNotExtendTTLs(t *testing.T) {
	for _, kind := range []cache.Kind{cache.Wildcard, cache.ByName} {
		synctest.Test(t, func(t *testing.T) {
			r, _ := newRollout(t)
			o := r
			o.subscribe(o.view.Watch(), "a", "b")
			o.put(kind, "a", "1", "a1")
			o.put(kind, "b", "1", "b1")
			o.SetPhase(acme, cache.Confirmed)
			o.putTTL(kind, "a", "2", "a2", time.Minute)
			o.putTTL(kind, "b", "2", "b2", time.Minute)
			e := o.Pin()
			time.Sleep(50 * time.Second)
			o.expire(time.Now())
			o.putTTL(kind, "b", "2", "b2", time.Minute)
			time.Sleep(20 * time.Second)
			o.expire(time.Now())
			for range 2 {
				o.Show(rest, e)
				typ := o.typ()
				if got := contentOf(typ.Set(kind).Get(o.name("a"))); got != "-" {
					t.Errorf("kind %v: readers see %q of an expired resource", kind, got)
				}
				b := typ.Set(kind).Get(o.name("b"))
				if left := time.Until(b.Deadline()); contentOf(b) != "b2" || left != 40*time.Second {
					t.Errorf("kind %v: readers see %q of a renewed resource, for %v; want b2 for 40s", kind, contentOf(b), left)
				}
			}
			o.checkEntries()
			time.Sleep(time.Minute)
			o.expire(time.Now())
			if got := contentOf(o.typ().Set(kind).Get(o.name("b"))); got != "-" {
				t.Errorf("kind %v: readers see %q of an expired resource", kind, got)
			}
		})
	}
}

// TestVisibleFirstResponsesDoNotWait: the first response for a name passes if its content equals the entry of the
// wildcard set that clients see, or if the resource does not exist. Other first responses wait.
func TestVisibleFirstResponsesDoNotWait(t *testing.T) {
	o, now := newRollout(t)
	o.confirm(acme, "a", "b", "c")
	o.subscribe(o.view.Watch(), "a", "b", "c")
	o.put(cache.ByName, "a", "1", "a1")
	o.remove(cache.ByName, "b")
	wantWaiting(t, "the same", now, 0, 0, 0)
	o.put(cache.ByName, "c", "2", "c2")
	wantWaiting(t, "another", now, 1, 0, 1)
	for _, name := range []string{"a", "b", "c"} {
		if e, _ := o.typ().Lookup(o.name(name)); contentOf(e) != name+"1" {
			t.Errorf("readers see %q of %s, want %s1", contentOf(e), name, name)
		}
	}
	o.checkEntries()
	o, now = newRollout(t)
	o.confirm(acme, "a")
	o.put(cache.Wildcard, "a", "2", "a2")
	e := o.Pin()
	o.subscribe(o.view.Watch(), "a")
	o.put(cache.ByName, "a", "2", "a2") // after the edition was made
	o.Show(rest, e)
	wantWaiting(t, "shown", now, 0, 0, 0)
}

// TestEditionFromBeforeTheSetWasConfirmed does not change the members of the set, which passed as first state.
func TestEditionFromBeforeTheSetWasConfirmed(t *testing.T) {
	o, now := newRollout(t)
	o.typeURL = acme
	o.put(cache.Wildcard, "a", "1", "a1")
	e := o.Pin()
	o.Compare(e)
	o.put(cache.Wildcard, "b", "1", "b1")
	o.SetPhase(acme, cache.Confirmed)
	o.put(cache.Wildcard, "a", "2", "a2")
	wantWaiting(t, "confirmed", now, 1, 0, 1)
	o.Show(canaries, e)
	o.wantMembers(canaries, acme, "a1", "b1")
	o.Show(rest, e)
	o.wantMembers(rest, acme, "a1", "b1")
	wantWaiting(t, "shown", now, 1, 0, 1)
}

// TestEditionsSurviveReconnects: an edition can be shown after the origin has reconnected.
func TestEditionsSurviveReconnects(t *testing.T) {
	o, now := newRollout(t)
	o.subscribe(o.view.Watch(), "n", "m")
	o.put(cache.ByName, "n", "1", "n1")
	o.put(cache.ByName, "m", "1", "m1")
	o.confirm(acme, "a")
	o.put(cache.Wildcard, "a", "2", "a2")
	o.put(cache.ByName, "n", "2", "n2")
	o.remove(cache.ByName, "m")
	e := o.Pin()
	o.Compare(e)
	o.SetConnected(false)
	wantWaiting(t, "lost", now, 3, 0, 0)
	o.Show(canaries, o.Pin())
	o.wantMembers(canaries, acme, "a2")
	for name, want := range map[string]string{"n": "n2", "m": "-"} {
		if got := contentOf(o.view.Cohort(canaries).Generation().Type(acme).ByName.Get(o.name(name))); got != want {
			t.Errorf("disconnected: the canaries see %q of %s, want %q", got, name, want)
		}
	}
	o.SetConnected(true)
	o.fail(cache.Wildcard, "a", codes.Internal, "no")
	o.put(cache.Wildcard, "a", "2", "a2") // unchanged
	o.put(cache.ByName, "n", "2", "n2")
	o.remove(cache.ByName, "m")
	wantWaiting(t, "back", now, 3, 0, 0)
	o.Show(rest, e)
	wantWaiting(t, "shown", now, 0, 0, 0)
	o.checkEntries()
}

// TestI1_ErrorsShownAgainWait: an edition has an error of a resource that was released since. After it is shown, the
// state of the origin waits.
func TestI1_ErrorsShownAgainWait(t *testing.T) {
	o, waiting := newRollout(t)
	o.confirm(acme, "a")
	o.fail(cache.Wildcard, "b", codes.Internal, "no b")
	edition := o.Pin()
	o.remove(cache.Wildcard, "b")
	if o.hasName("b") {
		t.Fatal("name was not released")
	}
	o.Show(rest, edition)
	if got := o.errorText(cache.Wildcard, "b"); got != "Internal no b" {
		t.Errorf("rest sees the error %q of b, want the error of the edition", got)
	}
	if waiting.Names != 1 {
		t.Errorf("%d names wait, want b", waiting.Names)
	}
}

// TestI1_EditionShownAgainChangesNothing: a member that was added after the edition was made, and that passed as first
// state, does not cause a named resource of that edition to be shown again.
func TestI1_EditionShownAgainChangesNothing(t *testing.T) {
	o, _ := newRollout(t)
	o.typeURL = acme
	watch := o.view.Watch()
	o.subscribe(watch, "a")
	o.put(cache.ByName, "a", "1", "a1")
	edition := o.Pin()
	o.randomStep("put TTL", cache.ByName, "a", "1", watch, nil)
	o.put(cache.Wildcard, "a", "1", "a1")
	o.Show(canaries, edition)
	at := o.view.Cohort(canaries).Generation().Revision
	if o.Show(canaries, edition); o.view.Cohort(canaries).Generation().Revision != at {
		t.Error("showing the same edition again caused changes")
	}
}

// TestI1_NotFoundOfARemovalIsShownAtOnce: the origin states NOT_FOUND of a resource after an edition that removes it was made. It
// passes to readers without the resource, so the edition is shown with it, and showing it again changes nothing.
func TestI1_NotFoundOfARemovalIsShownAtOnce(t *testing.T) {
	o, now := newRollout(t)
	o.confirm(acme, "a", "b")
	o.remove(cache.Wildcard, "b")
	edition := o.Pin()
	o.Compare(edition)
	o.fail(cache.Wildcard, "b", codes.NotFound, "no b")
	at := o.view.Cohort(canaries).Generation().Revision
	for range 2 {
		o.Show(canaries, edition)
		o.wantMembers(canaries, acme, "a1")
		if got := o.view.Cohort(canaries).Generation().Revision; got != at+1 {
			t.Errorf("%d changes, want 1", got-at)
		}
	}
	o.Show(rest, edition)
	wantWaiting(t, "promoted", now, 0, 0, 0)
	o.checkEntries()
}

// TestI1_ErrorsOfUncacheableContentStay: in each edition, content that may not be cached has the state of latest, and
// so has its error. Showing an edition from before the error changes nothing.
func TestI1_ErrorsOfUncacheableContentStay(t *testing.T) {
	o, _ := newRollout(t)
	o.typeURL = acme
	o.subscribe(o.view.Watch(), "b")
	o.putUncacheable(cache.ByName, "b", "1", "b1")
	edition := o.Pin()
	o.fail(cache.ByName, "b", codes.Internal, "no b")
	at := o.view.Cohort(canaries).Generation().Revision
	o.Show(canaries, edition)
	g := o.view.Cohort(canaries).Generation()
	if g.Revision != at {
		t.Error("edition changed the state of readers who see the newest state")
	}
	if got := visibleIn(g.Type(acme)); !maps.Equal(got, visibleIn(o.view.Generation().Type(acme))) {
		t.Errorf("readers see %v, want the newest state %v", got, visibleIn(o.view.Generation().Type(acme)))
	}
}

// TestI1_MembersDoNotShowNamedResources: the content of a member may not be cached. Changes of the named resource still
// wait, so that showing an edition again changes nothing.
func TestI1_MembersDoNotShowNamedResources(t *testing.T) {
	o, _ := newRollout(t)
	o.typeURL = acme
	o.subscribe(o.view.Watch(), "c")
	o.putUncacheable(cache.Wildcard, "c", "1", "c1")
	o.put(cache.ByName, "c", "1", "c1")
	edition := o.Pin()
	o.put(cache.ByName, "c", "2", "c2")
	for range 2 {
		o.Show(canaries, edition)
		if g := o.view.Cohort(canaries).Generation(); g.Type(acme).ByName.Get(o.name("c")).Resource.Version != "1" {
			t.Errorf("readers see %v, want c of version 1 by name", visibleIn(g.Type(acme)))
		}
	}
}

// TestI1_ExpiredResourcesHaveTheNewestState: an edition in which a resource had expired shows the newest state of the
// resource, which has passed already. Showing it again changes nothing.
func TestI1_ExpiredResourcesHaveTheNewestState(t *testing.T) {
	o, _ := newRollout(t)
	o.typeURL = acme
	watch := o.view.Watch()
	o.subscribe(watch, "b")
	o.randomStep("put TTL", cache.ByName, "b", "1", watch, nil)
	o.randomStep("expire", cache.ByName, "b", "1", watch, nil)
	edition := o.Pin()
	o.put(cache.ByName, "b", "1", "b1")
	at := o.view.Cohort(canaries).Generation().Revision
	if o.Show(canaries, edition); o.view.Cohort(canaries).Generation().Revision != at {
		t.Error("edition changed the state of readers who see the newest state")
	}
}

// TestI1_ErrorsEndWithATTL: a resource whose name had an error waits for stages until its TTL ends. The error ends with it.
func TestI1_ErrorsEndWithATTL(t *testing.T) {
	o, _ := newRollout(t)
	o.typeURL = acme
	watch := o.view.Watch()
	o.subscribe(watch, "b")
	o.fail(cache.ByName, "b", codes.Internal, "1")
	o.randomStep("put TTL", cache.ByName, "b", "1", watch, nil)
	o.randomStep("expire", cache.ByName, "b", "1", watch, nil)
	for cohort, v := range o.views() {
		typ := v.Generation().Type(acme)
		if e := typ.ByName.Get(o.name("b")); e == nil || !e.Expired || typ.Errors(cache.ByName).Get(o.name("b")) != nil {
			t.Errorf("cohort %d sees %+v, want an expired resource without an error", cohort, e)
		}
	}
}

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
	o.put(cache.Wildcard, "a", "1", "a1")
	o.put(cache.ByName, "a", "1", "a1")
	o.put(cache.ByName, "a", "2", "a2")
	edition := o.Pin()
	before := o.PinServed(edition)
	o.confirm(acme)
	members := func(want string) {
		t.Helper()
		o.wantMembers(canaries, acme, want)
		o.wantMembers(rest, acme, want)
	}
	o.put(cache.Wildcard, "a", "3", "a3")
	o.Show(rest, o.Pin())
	o.ShowAsRest(canaries)
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
	o.put(cache.ByName, "n", "1", "n1")
	o.remove(cache.ByName, "n")
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
	o.put(cache.ByName, "n", "1", "n1")
	o.put(cache.ByName, "n", "2", "n2")
	edition := o.Pin()
	o.fail(cache.Wildcard, wire.Wildcard, codes.Internal, "no set")
	o.Show(rest, edition)
	o.wantNamed(rest, "n", "n2")
	if got := o.errorText(cache.Wildcard, wire.Wildcard); got != "Internal no set" {
		t.Errorf("readers see the error %q of the set, want that of the origin", got)
	}
}

// TestI1_ErrorsOfConfirmedSetsWait, also the error that there is no such set.
func TestI1_ErrorsOfConfirmedSetsWait(t *testing.T) {
	for _, code := range []codes.Code{codes.Internal, codes.NotFound} {
		o, waiting := newRollout(t)
		o.confirm(acme, "a")
		o.fail(cache.Wildcard, wire.Wildcard, code, "no set")
		if got := o.errorText(cache.Wildcard, wire.Wildcard); got != "" || waiting.Names != 1 {
			t.Errorf("readers see the error %q of the set, and %d names wait; want no error, and 1 name", got, waiting.Names)
		}
		o.Show(rest, o.Pin())
		if got, want := o.errorText(cache.Wildcard, wire.Wildcard), code.String()+" no set"; got != want {
			t.Errorf("shown: readers see the error %q of the set, want %q", got, want)
		}
	}
}

// TestR125_EditionsDoNotShowReleasedContent: a resource whose content may not be cached was added and removed. Showing its
// edition changes nothing.
func TestR125_EditionsDoNotShowReleasedContent(t *testing.T) {
	o, _ := newRollout(t)
	o.confirm(acme, "a")
	o.putUncacheable(cache.Wildcard, "b", "1", "b1")
	edition := o.Pin()
	o.remove(cache.Wildcard, "b")
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
		o.put(cache.Wildcard, "l", "2", "l2")
		o.confirm(wire.ClusterType, "c")
		o.randomStep("put TTL", cache.Wildcard, "c", "2", nil, nil)
		edition := o.Pin()
		o.put(cache.Wildcard, "c", "3", "c3")
		o.remove(cache.Wildcard, "c")
		time.Sleep(2 * time.Minute)
		o.expire(time.Now())
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
	o.put(cache.ByName, "n", "1", "n1")
	o.put(cache.ByName, "n", "2", "n2")
	edition := o.Pin()
	watch.Unsubscribe(acme, names)
	o.Writer().TakeDemand()
	o.Forget(acme, names)
	o.subscribe(watch, "n")
	o.put(cache.ByName, "n", "3", "n3")
	o.put(cache.ByName, "n", "4", "n4")
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
		o.Apply(cache.Wildcard, u)
		if got := o.typ().System(); got != want {
			t.Errorf("readers see version %q, want %q", got, want)
		}
	}
	a, b := o.resource("a", "1", "a1"), o.resource("b", "1", "b1")
	apply(wire.Update{TypeURL: acme, Resources: []*wire.Resource{a}, SystemVersion: "first"}, "first")
	apply(wire.Update{TypeURL: acme, Resources: []*wire.Resource{b}, SystemVersion: "second"}, "first")
	apply(wire.Update{TypeURL: acme, Removed: []string{"b"}, SystemVersion: "third"}, "third")
}

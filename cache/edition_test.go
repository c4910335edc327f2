package cache

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/xdstender/tender/cache/wire"
)

// newRollout returns an origin with one cohort, in which all changes of clusters, listeners and acme wait, and the last
// value of Waiting.
func newRollout(t tester) (*origin, *Waiting) {
	now := new(Waiting)
	waits := []string{acme, wire.ClusterType, wire.ListenerType}
	o := newOrigin(t, Config{
		Cohorts: 1,
		Waits:   func(typeURL string) bool { return slices.Contains(waits, typeURL) },
		Waiting: func(_ int, w Waiting) { *now = w },
	})
	return o, now
}

// wantWaiting fails the test unless Waiting has these counts.
func wantWaiting(t *testing.T, when string, now *Waiting, names, edited, behind int) {
	t.Helper()
	if now.Names != names || now.Edited != edited || now.Behind != behind {
		t.Errorf("%s: %+v, want %d names, %d edited, %d behind", when, *now, names, edited, behind)
	}
}

// confirm has the origin send a wildcard set and confirm that it is complete.
func (o *origin) confirm(typeURL string, names ...string) {
	o.typeURL = typeURL
	for _, name := range names {
		o.put(Wildcard, name, "1", name+"1")
	}
	o.SetPhase(typeURL, Confirmed)
}

// TestEditionDiff: Diff yields changes in the order in which types are sent, then by name.
func TestEditionDiff(t *testing.T) {
	o, _ := newRollout(t)
	o.confirm(acme, "l")
	o.confirm(wire.ClusterType, "b", "same", "gone")
	o.typeURL = acme
	o.put(Wildcard, "l", "2", "l2")
	o.typeURL = wire.ClusterType
	o.put(Wildcard, "c", "1", "c1")
	o.put(Wildcard, "b", "2", "b2")
	o.remove(Wildcard, "gone")
	e := o.Pin()
	o.put(Wildcard, "b", "3", "b3") // not in the edition
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
	o.put(ByName, "a", "1", "a1")
	o.put(Wildcard, "a", "2", "a2")
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
	o.put(Wildcard, "a", "2", "a2")
	o.remove(Wildcard, "b")
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
		members := o.view.Watch().SubscribeAll(wire.ClusterType)
		o.TakeDemand()
		o.typeURL = acme
		watch := o.view.Watch()
		names := o.subscribe(watch, "n")
		o.put(ByName, "n", "1", "n1")
		o.put(ByName, "n", "2", "n2")
		o.typeURL = wire.ClusterType
		o.put(Wildcard, "c", "2", "c2")
		o.put(Wildcard, "d", "1", "d1")
		e := o.Pin()
		o.Compare(e)
		wantWaiting(t, "cut", now, 3, 0, 0)
		watch.Unsubscribe(acme, names)
		members.watch.UnsubscribeAll(members)
		o.TakeDemand()
		o.Forget(acme, names)
		o.ForgetWildcard(wire.ClusterType)
		wantWaiting(t, "forgotten", now, 0, 0, 0)
		o.checkEntries()
		members.watch.SubscribeAll(wire.ClusterType)
		o.typeURL = acme
		o.subscribe(watch, "n")
		o.put(ByName, "n", "3", "n3")
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
		o.remove(Wildcard, "e", "f")
		wantWaiting(t, "removed", now, 2, 0, 2)
		o.Compare(o.Pin())
		wantWaiting(t, "cut", now, 2, 0, 0)
		o.put(Wildcard, "g", "2", "g2")
		wantWaiting(t, "another one changed", now, 2, 0, 0)
		o.put(Wildcard, "e", version, "e"+version)
		wantWaiting(t, "one is back", now, 1, 1, 1)
		o.remove(Wildcard, "e")
		wantWaiting(t, "removed again", now, 2, 0, 0)
		o.checkEntries()
	}
}

// TestEditionKeepsReleasedResources: a resource that was added and removed is in its edition, even after its name was
// released.
func TestEditionKeepsReleasedResources(t *testing.T) {
	o, now := newRollout(t)
	o.confirm(wire.ClusterType, "a")
	o.put(Wildcard, "b", "1", "b1")
	o.put(Wildcard, "c", "1", "c1")
	e := o.Pin()
	o.Compare(e)
	o.remove(Wildcard, "b", "c")
	wantWaiting(t, "removed", now, 0, 2, 2)
	if o.hasName("b") || o.hasName("c") {
		t.Fatal("unused names are still in the index")
	}
	o.Compare(e)
	wantWaiting(t, "compared again", now, 0, 2, 2)
	o.put(Wildcard, "d", "1", "d1") // reuses the id of one of them
	o.Show(canaries, e)
	o.wantMembers(canaries, wire.ClusterType, "a1", "b1", "c1")
	at := o.view.Cohort(canaries).Generation().Seq
	if o.Show(canaries, e); o.view.Cohort(canaries).Generation().Seq != at {
		t.Error("showing the edition again changed the generation")
	}
	o.put(Wildcard, "b", "1", "b1")
	wantWaiting(t, "one is back", now, 2, 1, 2)
	o.checkEntries()
	o.ShowAs(canaries, rest)
	o.wantMembers(canaries, wire.ClusterType, "a1")
	o.remove(Wildcard, "b")
	o.checkEntries()
}

// TestR107_EditionsDoNotExtendTTLs: a resource that has expired when its edition is shown is absent. A resource that
// the origin has renewed is present.
func TestR107_EditionsDoNotExtendTTLs(t *testing.T) {
	for _, kind := range []Kind{Wildcard, ByName} {
		synctest.Test(t, func(t *testing.T) {
			r, _ := newRollout(t)
			o := &timedOrigin{origin: r}
			o.subscribe(o.view.Watch(), "a", "b")
			o.put(kind, "a", "1", "a1")
			o.put(kind, "b", "1", "b1")
			o.SetPhase(acme, Confirmed)
			o.putTTL(kind, "a", "2", "a2", time.Minute)
			o.putTTL(kind, "b", "2", "b2", time.Minute)
			e := o.Pin()
			time.Sleep(50 * time.Second)
			o.Expire(time.Now())
			o.putTTL(kind, "b", "2", "b2", time.Minute)
			time.Sleep(20 * time.Second)
			o.Expire(time.Now())
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
			o.Expire(time.Now())
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
	o.put(ByName, "a", "1", "a1")
	o.remove(ByName, "b")
	wantWaiting(t, "the same", now, 0, 0, 0)
	o.put(ByName, "c", "2", "c2")
	wantWaiting(t, "another", now, 1, 0, 1)
	for _, name := range []string{"a", "b", "c"} {
		if e, _ := o.typ().Lookup(o.name(name)); contentOf(e) != name+"1" {
			t.Errorf("readers see %q of %s, want %s1", contentOf(e), name, name)
		}
	}
	o.checkEntries()
	o, now = newRollout(t)
	o.confirm(acme, "a")
	o.put(Wildcard, "a", "2", "a2")
	e := o.Pin()
	o.subscribe(o.view.Watch(), "a")
	o.put(ByName, "a", "2", "a2") // after the edition was made
	o.Show(rest, e)
	wantWaiting(t, "shown", now, 0, 0, 0)
}

// TestEditionFromBeforeTheSetWasConfirmed does not change the members of the set, which passed as first state.
func TestEditionFromBeforeTheSetWasConfirmed(t *testing.T) {
	o, now := newRollout(t)
	o.typeURL = acme
	o.put(Wildcard, "a", "1", "a1")
	e := o.Pin()
	o.Compare(e)
	o.put(Wildcard, "b", "1", "b1")
	o.SetPhase(acme, Confirmed)
	o.put(Wildcard, "a", "2", "a2")
	wantWaiting(t, "confirmed", now, 1, 0, 1)
	o.Show(canaries, e)
	o.wantMembers(canaries, acme, "a1", "b1")
	o.ShowAs(rest, canaries)
	o.wantMembers(rest, acme, "a1", "b1")
	wantWaiting(t, "shown", now, 1, 0, 1)
}

// TestEditionsSurviveReconnects: an edition can be shown after the origin has reconnected.
func TestEditionsSurviveReconnects(t *testing.T) {
	o, now := newRollout(t)
	o.subscribe(o.view.Watch(), "n", "m")
	o.put(ByName, "n", "1", "n1")
	o.put(ByName, "m", "1", "m1")
	o.confirm(acme, "a")
	o.put(Wildcard, "a", "2", "a2")
	o.put(ByName, "n", "2", "n2")
	o.remove(ByName, "m")
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
	o.fail(Wildcard, "a", codes.Internal, "no")
	o.put(Wildcard, "a", "2", "a2") // unchanged
	o.put(ByName, "n", "2", "n2")
	o.remove(ByName, "m")
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
	o.fail(Wildcard, "b", codes.Internal, "no b")
	edition := o.Pin()
	o.remove(Wildcard, "b")
	if o.hasName("b") {
		t.Fatal("name was not released")
	}
	o.Show(rest, edition)
	if got := o.errorText(Wildcard, "b"); got != "Internal no b" {
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
	o.put(ByName, "a", "1", "a1")
	edition := o.Pin()
	o.randomStep("put TTL", ByName, "a", "1", watch, nil)
	o.put(Wildcard, "a", "1", "a1")
	o.Show(canaries, edition)
	at := o.view.Cohort(canaries).Generation().Revision
	if o.Show(canaries, edition); o.view.Cohort(canaries).Generation().Revision != at {
		t.Error("showing the same edition again caused changes")
	}
}

// TestI1_ErrorsOfUncacheableContentStay: in each edition, content that may not be cached has the state of latest, and
// so has its error. Showing an edition from before the error changes nothing.
func TestI1_ErrorsOfUncacheableContentStay(t *testing.T) {
	o, _ := newRollout(t)
	o.typeURL = acme
	o.subscribe(o.view.Watch(), "b")
	o.putUncacheable(ByName, "b", "1", "b1")
	edition := o.Pin()
	o.fail(ByName, "b", codes.Internal, "no b")
	at := o.view.Cohort(canaries).Generation().Revision
	o.Show(canaries, edition)
	g := o.view.Cohort(canaries).Generation()
	if g.Revision != at {
		t.Error("edition changed the state of readers who see the newest state")
	}
	if got := visibleIn(g.Type(acme)); !maps.Equal(got, visibleIn(o.Generation().Type(acme))) {
		t.Errorf("readers see %v, want the newest state %v", got, visibleIn(o.Generation().Type(acme)))
	}
}

// TestI1_MembersDoNotShowNamedResources: the content of a member may not be cached. Changes of the named resource still
// wait, so that showing an edition again changes nothing.
func TestI1_MembersDoNotShowNamedResources(t *testing.T) {
	o, _ := newRollout(t)
	o.typeURL = acme
	o.subscribe(o.view.Watch(), "c")
	o.putUncacheable(Wildcard, "c", "1", "c1")
	o.put(ByName, "c", "1", "c1")
	edition := o.Pin()
	o.put(ByName, "c", "2", "c2")
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
	o.randomStep("put TTL", ByName, "b", "1", watch, nil)
	o.randomStep("expire", ByName, "b", "1", watch, nil)
	edition := o.Pin()
	o.put(ByName, "b", "1", "b1")
	at := o.view.Cohort(canaries).Generation().Revision
	if o.Show(canaries, edition); o.view.Cohort(canaries).Generation().Revision != at {
		t.Error("edition changed the state of readers who see the newest state")
	}
}

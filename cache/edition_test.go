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

// rolling is an origin with one cohort, in which all changes of clusters, listeners and acme wait, and what was told last of that.
func rolling(t tester) (*origin, *Waiting) {
	now := new(Waiting)
	waits := []string{acme, wire.ClusterType, wire.ListenerType}
	o := newOrigin(t, Config{
		Cohorts: 1, Waits: func(typeURL string) bool { return slices.Contains(waits, typeURL) }, Waiting: func(_ int, w Waiting) { *now = w },
	})
	return o, now
}

// waiting fails the test unless so many names wait.
func waiting(t *testing.T, when string, now *Waiting, names, edited, behind int) {
	t.Helper()
	if now.Names != names || now.Edited != edited || now.Behind != behind {
		t.Errorf("%s: %+v, want %d names, %d edited, %d behind", when, *now, names, edited, behind)
	}
}

// confirmed has the origin send members and confirm that these are all.
func (o *origin) confirmed(typeURL string, names ...string) {
	o.typeURL = typeURL
	for _, name := range names {
		o.put(Wildcard, name, "1", name+"1")
	}
	o.SetPhase(typeURL, Confirmed)
}

// TestAnEditionSaysWhatItChanges in the order in which types are sent, then by name.
func TestAnEditionSaysWhatItChanges(t *testing.T) {
	o, _ := rolling(t)
	o.confirmed(acme, "l")
	o.confirmed(wire.ClusterType, "b", "same", "gone")
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
		break // may be left
	}
	last := wire.Rank(acme) - wire.Rank(wire.ClusterType)
	want := []string{fmt.Sprint(0, "b", "b1", ">", "b2"), fmt.Sprint(0, "c", "", ">", "c1"), fmt.Sprint(0, "gone", "gone1", ">", ""), fmt.Sprint(last, "l", "l1", ">", "l2")}
	if !slices.Equal(got, want) {
		t.Errorf("the edition says\n%q, want\n%q", got, want)
	}
	for d := range (&Edition{Changes: e.Changes}).Diff() {
		t.Errorf("the edition of an earlier process says %+v", d)
	}
}

// TestAnEditionSaysInWhichSetAResourceDiffers if another set goes before it for those who ask for the name.
func TestAnEditionSaysInWhichSetAResourceDiffers(t *testing.T) {
	o, _ := rolling(t)
	o.confirmed(acme, "a")
	o.want(o.view.Watch(), "a")
	o.put(ByName, "a", "1", "a1")
	o.put(Wildcard, "a", "2", "a2")
	for d := range o.Pin().Diff() {
		if string(d.Was.Value()) != "a1" || string(d.Is.Value()) != "a2" {
			t.Errorf("the edition says that %s turns from %q to %q, want a1 and a2", d.Name, d.Was.Value(), d.Is.Value())
		}
	}
}

// TestWhatIsServedCanBeShownAgain: an undo.
func TestWhatIsServedCanBeShownAgain(t *testing.T) {
	o, now := rolling(t)
	o.confirmed(acme, "a", "b")
	o.put(Wildcard, "a", "2", "a2")
	before := o.PinServed()
	o.remove(Wildcard, "b")
	o.Show(rest, o.Pin())
	o.sees(rest, acme, "a2")
	o.Show(rest, before)
	o.sees(rest, acme, "a1", "b1")
	waiting(t, "undone", now, 2, 0, 2)
	if len(before.Changes) > 0 || before.Large {
		t.Errorf("what is served changes %v, large %v", before.Changes, before.Large)
	}
	for d := range before.Diff() {
		t.Errorf("what is served changes %+v", d)
	}
	o.check()
}

// TestI13_CommandsActOnAFrozenOrigin: on what waits, on endpoints that clusters which are shown need, and on nothing else.
func TestI13_CommandsActOnAFrozenOrigin(t *testing.T) {
	o, now := rolling(t)
	o.confirmed(wire.ClusterType, "c")
	o.confirmed(wire.EndpointType, "e", "kept")
	o.confirmed(other, "x")
	good := o.PinServed()
	o.Freeze()
	for _, o.typeURL = range []string{wire.ClusterType, wire.EndpointType, other} {
		for e := range o.typ().Wildcard.Since(0) {
			o.put(Wildcard, e.Name.String(), "2", e.Name.String()+"2")
		}
		o.put(Wildcard, "new", "1", "new1")
	}
	o.remove(Wildcard, "x")
	waiting(t, "frozen", now, 2, 0, 2)
	e := o.Pin()
	if len(e.Changes) != 2 || len(e.Changes[wire.ClusterType]) != 2 || len(e.Changes[wire.EndpointType]) != 1 {
		t.Errorf("the edition of a frozen origin changes %v, want two clusters, and the endpoints of the new one", e.Changes)
	}
	o.typeURL = wire.EndpointType
	o.remove(Wildcard, "e")
	for _, cohort := range []int{canaries, rest} {
		o.Show(cohort, e)
		o.sees(cohort, wire.ClusterType, "c2", "new1")
		o.sees(cohort, wire.EndpointType, "e1", "kept1", "new1")
		o.sees(cohort, other, "x1")
	}
	o.ShowAs(canaries, rest)
	o.Show(rest, good)
	o.sees(rest, wire.ClusterType, "c1")
	o.sees(rest, wire.EndpointType, "e1", "kept1")
	o.Show(rest, o.Pin()) // which removes e
	o.sees(rest, wire.EndpointType, "kept1", "new1")
	o.Show(rest, good)
	o.sees(rest, wire.EndpointType, "e1", "kept1") // the last that is known of it
	o.sees(rest, other, "x1")
	o.Thaw()
	o.sees(rest, wire.ClusterType, "c1")
	o.sees(rest, wire.EndpointType, "e1", "kept2", "new1")
	o.sees(rest, other, "new1")
	waiting(t, "thawed", now, 3, 0, 3)
	o.check()
}

// TestWhatIsForgottenIsNoEdit: a name that no client wants any more, and a set that none follows, say nothing about the edition, nor
// does what the origin says of them when they are wanted again.
func TestWhatIsForgottenIsNoEdit(t *testing.T) {
	for _, cohort := range []int{canaries, rest} {
		o, now := rolling(t)
		o.confirmed(wire.ClusterType, "c")
		members := o.view.Watch().SubscribeAll(wire.ClusterType)
		o.TakeDemand()
		o.typeURL = acme
		watch := o.view.Watch()
		names := o.want(watch, "n")
		o.put(ByName, "n", "1", "n1")
		o.put(ByName, "n", "2", "n2")
		o.typeURL = wire.ClusterType
		o.put(Wildcard, "c", "2", "c2")
		o.put(Wildcard, "d", "1", "d1")
		e := o.Pin()
		o.Compare(e)
		waiting(t, "cut", now, 3, 0, 0)
		watch.Unsubscribe(acme, names)
		members.watch.UnsubscribeAll(members)
		o.TakeDemand()
		o.Forget(acme, names)
		o.ForgetWildcard(wire.ClusterType)
		waiting(t, "forgotten", now, 0, 0, 0)
		o.check()
		members.watch.SubscribeAll(wire.ClusterType)
		o.typeURL = acme
		o.want(watch, "n")
		o.put(ByName, "n", "3", "n3")
		o.confirmed(wire.ClusterType, "c", "f")
		waiting(t, "again", now, 0, 0, 0)
		o.Show(cohort, e)
		o.sees(cohort, wire.ClusterType, "c1", "f1")
		waiting(t, "shown", now, 0, 0, 0)
		if got, _ := o.view.Cohort(cohort).Generation().Type(acme).Lookup(o.view.Find(acme, []string{"n"})[0]); contentOf(got) != "n3" {
			t.Errorf("cohort %d sees %q of a name that was forgotten, want n3", cohort, contentOf(got))
		}
		o.check()
	}
}

// TestI11_AnEditionOfRemovedAssignmentsIsEdited by an origin that has them again, though changes of assignments wait for no edition.
func TestI11_AnEditionOfRemovedAssignmentsIsEdited(t *testing.T) {
	for _, version := range []string{"1", "2"} {
		o, now := rolling(t)
		o.confirmed(wire.EndpointType, "e", "f", "g")
		o.remove(Wildcard, "e", "f")
		waiting(t, "removed", now, 2, 0, 2)
		o.Compare(o.Pin())
		waiting(t, "cut", now, 2, 0, 0)
		o.put(Wildcard, "g", "2", "g2")
		waiting(t, "another one changed", now, 2, 0, 0)
		o.put(Wildcard, "e", version, "e"+version)
		waiting(t, "one is back", now, 1, 1, 1)
		o.remove(Wildcard, "e")
		waiting(t, "removed again", now, 2, 0, 0)
		o.check()
	}
}

// TestAResourceThatCameAndWentIsInItsEdition: though its name was forgotten meanwhile.
func TestAResourceThatCameAndWentIsInItsEdition(t *testing.T) {
	o, now := rolling(t)
	o.confirmed(wire.ClusterType, "a")
	o.put(Wildcard, "b", "1", "b1")
	o.put(Wildcard, "c", "1", "c1")
	e := o.Pin()
	o.Compare(e)
	o.remove(Wildcard, "b", "c")
	waiting(t, "removed", now, 0, 2, 2)
	if o.knows("b") || o.knows("c") {
		t.Fatal("names are known that nobody holds")
	}
	o.Compare(e)
	waiting(t, "compared again", now, 0, 2, 2)
	o.put(Wildcard, "d", "1", "d1") // which takes the place of one of them
	o.Show(canaries, e)
	o.sees(canaries, wire.ClusterType, "a1", "b1", "c1")
	at := o.view.Cohort(canaries).Generation().Seq
	if o.Show(canaries, e); o.view.Cohort(canaries).Generation().Seq != at {
		t.Error("shown again, the edition changes something")
	}
	o.put(Wildcard, "b", "1", "b1")
	waiting(t, "one is back", now, 2, 1, 2)
	o.check()
	o.ShowAs(canaries, rest)
	o.sees(canaries, wire.ClusterType, "a1")
	o.remove(Wildcard, "b")
	o.check()
}

// TestR107_AnEditionDoesNotProlongLives: what has expired when it is shown is gone; what the origin has renewed lives.
func TestR107_AnEditionDoesNotProlongLives(t *testing.T) {
	for _, kind := range []Kind{Wildcard, ByName} {
		synctest.Test(t, func(t *testing.T) {
			r, _ := rolling(t)
			o := &timed{origin: r}
			o.want(o.view.Watch(), "a", "b")
			o.put(kind, "a", "1", "a1")
			o.put(kind, "b", "1", "b1")
			o.SetPhase(acme, Confirmed)
			o.give(kind, "a", "2", "a2", time.Minute)
			o.give(kind, "b", "2", "b2", time.Minute)
			e := o.Pin()
			time.Sleep(50 * time.Second)
			o.Expire(time.Now())
			o.give(kind, "b", "2", "b2", time.Minute)
			time.Sleep(20 * time.Second)
			o.Expire(time.Now())
			for range 2 {
				o.Show(rest, e)
				typ := o.typ()
				if got := contentOf(typ.set(kind).Get(o.name("a"))); got != "-" {
					t.Errorf("kind %v: readers see %q of what has expired", kind, got)
				}
				b := typ.set(kind).Get(o.name("b"))
				if left := time.Until(b.Deadline()); contentOf(b) != "b2" || left != 40*time.Second {
					t.Errorf("kind %v: readers see %q of what was renewed, for %v; want b2 for 40s", kind, contentOf(b), left)
				}
			}
			o.check()
			time.Sleep(time.Minute)
			o.Expire(time.Now())
			if got := contentOf(o.typ().set(kind).Get(o.name("b"))); got != "-" {
				t.Errorf("kind %v: readers see %q of what has expired", kind, got)
			}
		})
	}
}

// TestFirstAnswersThatAreSeenDoNotWait: one that has the content of the member that clients see by the name, and that there is no
// resource of the name alone. Others wait.
func TestFirstAnswersThatAreSeenDoNotWait(t *testing.T) {
	o, now := rolling(t)
	o.confirmed(acme, "a", "b", "c")
	o.want(o.view.Watch(), "a", "b", "c")
	o.put(ByName, "a", "1", "a1")
	o.remove(ByName, "b")
	waiting(t, "the same", now, 0, 0, 0)
	o.put(ByName, "c", "2", "c2")
	waiting(t, "another", now, 1, 0, 1)
	for _, name := range []string{"a", "b", "c"} {
		if e, _ := o.typ().Lookup(o.name(name)); contentOf(e) != name+"1" {
			t.Errorf("readers see %q of %s, want %s1", contentOf(e), name, name)
		}
	}
	o.check()
	o, now = rolling(t)
	o.confirmed(acme, "a")
	o.put(Wildcard, "a", "2", "a2")
	e := o.Pin()
	o.want(o.view.Watch(), "a")
	o.put(ByName, "a", "2", "a2") // after the edition was cut
	o.Show(rest, e)
	waiting(t, "shown", now, 0, 0, 0)
}

// TestAnEditionFromBeforeTheSetWasConfirmed says nothing of its members: they came as first state.
func TestAnEditionFromBeforeTheSetWasConfirmed(t *testing.T) {
	o, now := rolling(t)
	o.typeURL = acme
	o.put(Wildcard, "a", "1", "a1")
	e := o.Pin()
	o.Compare(e)
	o.put(Wildcard, "b", "1", "b1")
	o.SetPhase(acme, Confirmed)
	o.put(Wildcard, "a", "2", "a2")
	waiting(t, "confirmed", now, 1, 0, 1)
	o.Show(canaries, e)
	o.sees(canaries, acme, "a1", "b1")
	o.ShowAs(rest, canaries)
	o.sees(rest, acme, "a1", "b1")
	waiting(t, "shown", now, 1, 0, 1)
}

// TestEditionsSurviveReconnects: what was cut is shown, whatever became of the origin.
func TestEditionsSurviveReconnects(t *testing.T) {
	o, now := rolling(t)
	o.want(o.view.Watch(), "n", "m")
	o.put(ByName, "n", "1", "n1")
	o.put(ByName, "m", "1", "m1")
	o.confirmed(acme, "a")
	o.put(Wildcard, "a", "2", "a2")
	o.put(ByName, "n", "2", "n2")
	o.remove(ByName, "m")
	e := o.Pin()
	o.Compare(e)
	o.SetConnected(false)
	waiting(t, "lost", now, 3, 0, 0)
	o.Show(canaries, o.Pin())
	o.sees(canaries, acme, "a2")
	for name, want := range map[string]string{"n": "n2", "m": "-"} {
		if got := contentOf(o.view.Cohort(canaries).Generation().Type(acme).ByName.Get(o.name(name))); got != want {
			t.Errorf("lost: the canaries see %q of %s, want %q", got, name, want)
		}
	}
	o.SetConnected(true)
	o.fail(Wildcard, "a", codes.Internal, "no")
	o.put(Wildcard, "a", "2", "a2") // the same once more
	o.put(ByName, "n", "2", "n2")
	o.remove(ByName, "m")
	waiting(t, "back", now, 3, 0, 0)
	o.Show(rest, e)
	waiting(t, "shown", now, 0, 0, 0)
	o.check()
}

// TestI1_AnErrorThatIsShownAgainWaits: an edition has an error of a resource that was forgotten since. Once that is shown, the
// state of the origin waits.
func TestI1_AnErrorThatIsShownAgainWaits(t *testing.T) {
	o, told := rolling(t)
	o.confirmed(acme, "a")
	o.fail(Wildcard, "b", codes.Internal, "no b")
	edition := o.Pin()
	o.remove(Wildcard, "b")
	if o.knows("b") {
		t.Fatal("the name is not forgotten")
	}
	o.Show(rest, edition)
	if got := o.failure(Wildcard, "b"); got != "Internal no b" {
		t.Errorf("the rest is shown error %q of b, want that of the edition", got)
	}
	if told.Names != 1 {
		t.Errorf("%d names wait, want b", told.Names)
	}
}

// TestI1_AnEditionShownAgainChangesNothing: a member that came after the edition was cut, and that passes as first state, is
// no reason to show a named resource of that edition again.
func TestI1_AnEditionShownAgainChangesNothing(t *testing.T) {
	o, _ := rolling(t)
	o.typeURL = acme
	watch := o.view.Watch()
	o.want(watch, "a")
	o.put(ByName, "a", "1", "a1")
	edition := o.Pin()
	o.random("lives", ByName, "a", "1", watch, nil)
	o.put(Wildcard, "a", "1", "a1")
	o.Show(canaries, edition)
	at := o.view.Cohort(canaries).Generation().Revision
	if o.Show(canaries, edition); o.view.Cohort(canaries).Generation().Revision != at {
		t.Error("readers who see the edition are shown changes by it")
	}
}

// TestI1_TheDiffOfAThawHasFirstState: a member that passes at a thaw is in its diff, though an error of the same name waits.
func TestI1_TheDiffOfAThawHasFirstState(t *testing.T) {
	o, _ := rolling(t)
	o.typeURL = acme
	o.put(Wildcard, "a", "1", "a1")
	o.Freeze()
	o.remove(Wildcard, "a")
	o.want(o.view.Watch(), "a")
	o.fail(ByName, "a", codes.Internal, "no a")
	o.thaws()
}

// TestI1_TheDiffOfNoThawIsEmpty: without a freeze, the diff of a thaw has nothing, although a removal of endpoints waits that
// another resource has replaced.
func TestI1_TheDiffOfNoThawIsEmpty(t *testing.T) {
	o, _ := rolling(t)
	o.typeURL = wire.EndpointType
	o.SetPhase(o.typeURL, Confirmed)
	o.put(Wildcard, "b", "1", "b1")
	o.want(o.view.Watch(), "b")
	o.put(ByName, "real", "1", "real1", "b")
	o.remove(Wildcard, "b")
	o.thaws()
	if e := o.PinThawed(); len(e.Changes) != 0 {
		t.Errorf("the diff has %v, want nothing", e.Changes)
	}
}

// TestI1_AnErrorOfUncacheableContentStays: content that may not be kept has the state of latest in every edition, and so has its
// error: a show of an edition from before the error changes nothing.
func TestI1_AnErrorOfUncacheableContentStays(t *testing.T) {
	o, _ := rolling(t)
	o.typeURL = acme
	o.want(o.view.Watch(), "b")
	o.putUncached(ByName, "b", "1", "b1")
	edition := o.Pin()
	o.fail(ByName, "b", codes.Internal, "no b")
	at := o.view.Cohort(canaries).Generation().Revision
	o.Show(canaries, edition)
	g := o.view.Cohort(canaries).Generation()
	if g.Revision != at {
		t.Error("readers who see the newest state are shown changes by an edition")
	}
	if got := sightOf(g.Type(acme)); !maps.Equal(got, sightOf(o.Generation().Type(acme))) {
		t.Errorf("readers see %v, want the newest state %v", got, sightOf(o.Generation().Type(acme)))
	}
}

// TestI1_TheDiffOfAThawHasMembersAlone: of a member that passes at a thaw, the diff does not have the state by name, which waits.
func TestI1_TheDiffOfAThawHasMembersAlone(t *testing.T) {
	o, _ := rolling(t)
	o.typeURL = acme
	o.put(Wildcard, "c", "1", "c1")
	o.want(o.view.Watch(), "c")
	o.put(ByName, "real", "1", "real1", "c")
	o.Freeze()
	o.put(Wildcard, "c", "2", "c2")
	o.thaws()
}

// TestI1_AMemberIsNoReasonToShowANamedResource: of a name with a member whose content may not be kept, changes of the resource by
// name wait as those of others do, so that an edition that is shown again changes nothing.
func TestI1_AMemberIsNoReasonToShowANamedResource(t *testing.T) {
	o, _ := rolling(t)
	o.typeURL = acme
	o.want(o.view.Watch(), "c")
	o.putUncached(Wildcard, "c", "1", "c1")
	o.put(ByName, "c", "1", "c1")
	edition := o.Pin()
	o.put(ByName, "c", "2", "c2")
	for range 2 {
		o.Show(canaries, edition)
		if g := o.view.Cohort(canaries).Generation(); g.Type(acme).ByName.Get(o.name("c")).Resource.Version != "1" {
			t.Errorf("readers see %v, want c of version 1 by name", sightOf(g.Type(acme)))
		}
	}
}

// TestI1_AnExpiredResourceHasTheNewestState: an edition from the time when a resource had expired shows its newest state, since
// that has passed, and changes nothing when it is shown again.
func TestI1_AnExpiredResourceHasTheNewestState(t *testing.T) {
	o, _ := rolling(t)
	o.typeURL = acme
	watch := o.view.Watch()
	o.want(watch, "b")
	o.random("lives", ByName, "b", "1", watch, nil)
	o.random("expire", ByName, "b", "1", watch, nil)
	edition := o.Pin()
	o.put(ByName, "b", "1", "b1")
	at := o.view.Cohort(canaries).Generation().Revision
	if o.Show(canaries, edition); o.view.Cohort(canaries).Generation().Revision != at {
		t.Error("readers who see the newest state are shown changes by an edition")
	}
}

// TestI1_TheDiffOfAThawHasRemovedEndpoints: it has the removal of a member of a set that is not confirmed, although the removal by name
// waits.
func TestI1_TheDiffOfAThawHasRemovedEndpoints(t *testing.T) {
	o, _ := rolling(t)
	o.typeURL = wire.EndpointType
	o.put(Wildcard, "b", "1", "b1")
	o.want(o.view.Watch(), "b")
	o.Freeze()
	o.remove(Wildcard, "b")
	o.remove(ByName, "b")
	o.thaws()
}

package reconcile

import (
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	endpointpb "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache/wire"
)

var epoch = time.Unix(1000, 0)

// heldFake has the removals of all names of a set held, since they were inferred without a control.
func newHeldSet(names ...string) *fakeSet {
	f := newFakeSet(wire.ClusterType, slog.DiscardHandler, names...)
	f.confirmed = true
	f.Infer(seq(names...), true)
	f.group.Decide(epoch)
	return f
}

// TestB15_TheSecondLookDecidesEachName: a removal that the origin stated is carried out unless the origin mentions the
// resource, one that was inferred only if it is inferred again.
func TestB15_TheSecondLookDecidesEachName(t *testing.T) {
	f := newFakeSet(wire.ClusterType, slog.DiscardHandler, "again", "answered", "new", "once", "stated", "stated again")
	f.beginStream(epoch)
	f.respond(epoch, "-stated")
	f.Infer(seq("again", "once", "stated again"), false)
	f.respond(epoch, "-stated again", "new")
	f.StartQuery(nil, epoch)
	f.RecordAnswers(wire.Update{Removed: []string{"answered"}}, epoch)
	f.ClearUnmentioned()
	f.confirmed = true
	f.group.Decide(epoch)
	f.group.Decide(epoch)
	f.wantHolds(t, "large", epoch, "held again answered once stated stated again")
	if now := epoch.Add(time.Hour - 1); f.group.StartSecondLooks(now) {
		t.Error("a second look before the hold is over")
	}
	now := epoch.Add(time.Hour)
	if !f.group.StartSecondLooks(now) || f.group.StartSecondLooks(now) {
		t.Error("want one second look")
	}
	for _, h := range f.group.Operate(Command{}, now) {
		if !h.Until.IsZero() || h.Since != epoch {
			t.Errorf("hold %+v while the second look is under way, want Since and no Until", h)
		}
	}
	f.beginStream(now)
	f.Infer(seq("stated", "again"), false)
	f.suspect("new", removal{explicit: true}, true)
	f.group.Decide(now)
	f.wantNames(t, "after the second look", "new once")
	f.wantHolds(t, "after the second look", now, "held new once")
}

// TestB15_NothingIsDueWhileTheSecondLookIsUnderWay: the loop of the view would not rest.
func TestB15_NothingIsDueWhileTheSecondLookIsUnderWay(t *testing.T) {
	f := newHeldSet("a")
	now := epoch.Add(2 * time.Hour)
	f.group.StartSecondLooks(now)
	if next := f.group.Decide(now); !next.After(now) {
		t.Errorf("to decide again at %v, want after %v", next, now)
	}
}

// TestB15_WhenToLookAgain: when the hold is over, or the next alarm is due.
func TestB15_WhenToLookAgain(t *testing.T) {
	f := newFakeSet(wire.ClusterType, slog.DiscardHandler, "a", "b")
	f.group.cfg.HoldTime, f.confirmed = 7*time.Minute, true
	f.Infer(seq("a", "b"), true)
	for _, tt := range []struct{ at, next time.Duration }{{0, alarmInterval}, {alarmInterval, 7 * time.Minute}} {
		if next := f.group.Decide(epoch.Add(tt.at)); next != epoch.Add(tt.next) {
			t.Errorf("after %v: again %v after the hold began, want %v", tt.at, next.Sub(epoch), tt.next)
		}
	}
	now := epoch.Add(7 * time.Minute)
	f.group.StartSecondLooks(now)
	f.Infer(seq("a"), false)
	f.group.Decide(now)
	f.wantNames(t, "after the second look", "b")
	f.Infer(seq("b"), false)
	f.group.Decide(now)
	f.wantNames(t, "after the second look", "")
	f.resources["c"] = &wire.Resource{Name: "c"}
	f.Infer(seq("c"), true)
	f.group.Decide(now)
	if h := f.group.Operate(Command{}, now); len(h) != 1 || h[0].Since != now || h[0].Until != now.Add(7*time.Minute) {
		t.Errorf("holds %+v, want one that begins", h)
	}
}

// TestB15_ANewStreamIsNoSecondLook before the hold is over, whatever the origin is told.
func TestB15_ANewStreamIsNoSecondLook(t *testing.T) {
	f := newHeldSet("a")
	f.beginStream(epoch)
	f.Infer(seq("a"), false)
	f.group.Decide(epoch)
	f.wantHolds(t, "a new stream", epoch, "held a")
}

// TestB15_AnInterruptedLookProvesNothing: what it inferred has to be inferred once more.
func TestB15_AnInterruptedLookProvesNothing(t *testing.T) {
	f := newHeldSet("a", "b")
	now := epoch.Add(time.Hour)
	f.group.StartSecondLooks(now)
	f.Infer(seq("a"), false)
	f.beginStream(now, "a", "b")
	f.group.StartSecondLooks(now)
	f.group.Decide(now)
	f.wantNames(t, "after the next look", "a b")
}

// TestB15_AMentionBeginsTheHoldAnew for the others: the origin may be about to load. Since when they are held stays.
func TestB15_AMentionBeginsTheHoldAnew(t *testing.T) {
	f := newHeldSet("a", "b", "c")
	wantHold := func(since, until time.Time) {
		t.Helper()
		f.group.Decide(until.Add(-time.Hour))
		if h := f.group.Operate(Command{}, epoch); len(h) != 1 || h[0].Since != since || h[0].Until != until {
			t.Errorf("holds %+v, want one from %v to %v", h, since, until)
		}
	}
	now := epoch.Add(30 * time.Minute)
	f.respond(now, "a@2")
	wantHold(epoch, now.Add(time.Hour))
	now = now.Add(time.Hour)
	f.group.StartSecondLooks(now)
	f.respond(now, "b@2")
	wantHold(epoch, now.Add(time.Hour))
	if !f.group.StartSecondLooks(now.Add(time.Hour)) {
		t.Error("no second look after the hold that began anew")
	}
	f.respond(now, "c@2")
	f.group.Decide(now)
	if f.group.StartSecondLooks(now.Add(2 * time.Hour)) {
		t.Error("a second look at nothing")
	}
	f.Infer(seq("a"), true)
	f.group.Decide(now)
	wantHold(now, now.Add(time.Hour))
}

// TestB15_WithoutAControlSilenceProvesNothing: not one removal is carried out at once, nor is it forgotten that there
// was no control if more is inferred. A later loss is judged by itself.
func TestB15_WithoutAControlSilenceProvesNothing(t *testing.T) {
	f := newFakeSet(wire.ClusterType, slog.DiscardHandler, numbers("n", 100)...)
	f.confirmed = true
	f.Infer(seq(), true)
	f.Infer(seq("n0"), false)
	f.group.Decide(epoch)
	f.wantHolds(t, "nothing was inferred without a control", epoch)
	f.Infer(seq("n1"), true)
	f.Infer(seq("n2"), false)
	f.group.Decide(epoch)
	f.wantHolds(t, "one of two without a control", epoch, "held n1 n2")
	f.respond(epoch, "n1@2", "n2@2")
	f.Infer(seq("n3"), false)
	f.group.Decide(epoch)
	f.wantHolds(t, "later", epoch)
	f.RestoreDiscarded("n4")
	f.Infer(seq("n4"), true)
	f.Infer(seq("n5"), false)
	f.group.Decide(epoch)
	f.wantHolds(t, "what was kept", epoch, "kept n4")
}

// TestB7_ANewStreamStatesTheSetAnew: what came on the one before completes nothing.
func TestB7_ANewStreamStatesTheSetAnew(t *testing.T) {
	f := newFakeSet(wire.ClusterType, slog.DiscardHandler)
	f.beginStream(epoch)
	f.respond(epoch, "a")
	f.RecordList(nil, false)
	f.beginStream(epoch)
	if at := f.Progress.CompleteAt(epoch, time.Second); f.Progress.Settled(epoch.Add(time.Hour)) || at != epoch.Add(ConfirmMax) {
		t.Errorf("the set is settled, or complete at %v", at)
	}
}

// TestB15_NothingIsDecidedWhileNamesAreAsked: a large loss that is answered in parts would seem small.
func TestB15_NothingIsDecidedWhileNamesAreAsked(t *testing.T) {
	f := newFakeSet(wire.ClusterType, slog.DiscardHandler, numbers("n", 100)...)
	named := newFakeSetIn(f.group, wire.ClusterType, "")
	named.QueriesFor = f.Set
	f.beginStream(epoch)
	f.confirmed = true
	f.respond(epoch, append(numbers("n", 88), "-n0")...) // n88 to n99 are not mentioned
	now := epoch.Add(mentionTimeout)
	if due, _ := f.QueryDue(now); !due {
		t.Fatal("nothing is to be asked for")
	}
	names := f.StartQuery(nil, now)
	f.RecordAnswers(wire.Update{Removed: names[:6]}, now)
	f.group.Decide(now)
	f.wantHolds(t, "half of the answers", now, "suspected "+strings.Join(names[:6], " "))
	f.RecordAnswers(wire.Update{Removed: names[6:12]}, now)
	if over, _ := f.FinishQuery(func() map[string]struct{} { return nil }, now); !over {
		t.Fatal("not over when all was answered")
	}
	f.ClearUnmentioned()
	f.group.Decide(now)
	f.wantHolds(t, "all answers", now, "held "+strings.Join(names[:12], " "))
}

// TestH02_TheReasonOfARemovalWaitsWithIt: clients are told both or none.
func TestH02_TheReasonOfARemovalWaitsWithIt(t *testing.T) {
	f := newFakeSet(wire.ClusterType, slog.DiscardHandler, numbers("n", 9)...)
	f.beginStream(epoch)
	removal := func(name string) wire.Update {
		return wire.Update{TypeURL: wire.ClusterType, Removed: []string{name}, Errors: []*wire.ResourceError{wire.NewResourceError(name, codes.NotFound, "gone")}}
	}
	take := func(u wire.Update, want int) {
		t.Helper()
		f.Take(u, epoch)
		if len(f.applied.Removed) != want || len(f.applied.Errors) != want {
			t.Errorf("%v and %v are applied, want %d", f.applied.Removed, f.applied.Errors, want)
		}
	}
	take(removal("n0"), 0)
	take(wire.Update{TypeURL: wire.ClusterType, Errors: removal("n0").Errors}, 0)
	take(removal("unknown"), 1)
	f.confirmed = true
	f.group.Decide(epoch)
	f.wantNames(t, "confirmed", "n1 n2 n3 n4 n5 n6 n7 n8")
	if reasons := f.applied.Errors; len(reasons) != 1 || reasons[0].Name != "n0" {
		t.Errorf("reasons %v, want that of n0", reasons)
	}
	f.RestoreDiscarded("n1")
	take(wire.Update{TypeURL: wire.ClusterType, Errors: removal("n1").Errors, Removed: []string{"unknown"}}, 1)
	f.beginStream(epoch)
	f.confirmed = false
	f.Restart(nil, epoch)
	put(&f.withoutVersion, "n1", struct{}{})
	take(removal("n1"), 0)
}

// TestH02_ASecondRemovalWaitsToo until the set is confirmed, though the first one has mentioned the resource.
func TestH02_ASecondRemovalWaitsToo(t *testing.T) {
	f := newFakeSet(wire.ClusterType, slog.DiscardHandler, "a", "b", "c")
	f.beginStream(epoch, "a", "b", "c")
	f.respond(epoch, "-a")
	f.respond(epoch, "-a")
	f.wantHolds(t, "said twice", epoch, "suspected a")
	f.wantNames(t, "said twice", "a b c")
}

// TestH02_AStatedRemovalOfWhatWasKept is a new one on an established stream, and repeats what the operator decided on
// otherwise.
func TestH02_AStatedRemovalOfWhatWasKept(t *testing.T) {
	f := newHeldSet("a", "b", "c")
	f.group.cfg.HoldExplicit = true
	f.group.Operate(Command{Do: Discard}, epoch)
	f.wantHolds(t, "discarded", epoch, "kept a b c")
	f.beginStream(epoch)
	f.confirmed = false
	f.respond(epoch, "-a")
	f.wantHolds(t, "on a new stream", epoch, "kept a b c")
	f.confirmed = true
	f.respond(epoch, "-b")
	f.group.Decide(epoch)
	f.wantHolds(t, "on an established stream", epoch, "kept a c")
	f.wantNames(t, "on an established stream", "a c")
	f.group.Operate(Command{Do: Release, Discarded: true}, epoch)
	f.wantNames(t, "released", "")
	f.wantHolds(t, "released", epoch)
}

// TestH02_RemovalsOfDataAreNotHeld on an established stream, whatever TENDER_HOLD_EXPLICIT_REMOVALS says.
func TestH02_RemovalsOfDataAreNotHeld(t *testing.T) {
	for typeURL, want := range map[string]string{wire.EndpointType: "", wire.RouteType: "a"} {
		f := newFakeSet(typeURL, slog.DiscardHandler, "a")
		f.group.cfg.HoldExplicit, f.confirmed = true, true
		f.respond(epoch, "-a")
		f.wantNames(t, typeURL, want)
	}
}

// TestH02_AnAnswerAboutWhatWasKept comes after the operator has decided, and repeats what that was about.
func TestH02_AnAnswerAboutWhatWasKept(t *testing.T) {
	f := newFakeSet(wire.ClusterType, slog.DiscardHandler, "a", "b")
	f.beginStream(epoch)
	f.confirmed = true
	f.respond(epoch, "b")
	now := epoch.Add(mentionTimeout)
	f.StartQuery(nil, now)
	f.Infer(seq("a"), true)
	f.group.Operate(Command{Do: Discard}, now)
	if over, _ := f.FinishQuery(func() map[string]struct{} { return nil }, now); !over {
		t.Error("the origin is asked for what was discarded")
	}
	f.RecordAnswers(wire.Update{Removed: []string{"a"}}, now)
	f.respond(now, "-a")
	f.wantHolds(t, "answered", now, "kept a")
}

// TestH02_WhatIsSaidAgainOfWhatIsHeld: that it was stated stays, and the content that takes its place is the last.
func TestH02_WhatIsSaidAgainOfWhatIsHeld(t *testing.T) {
	f := newFakeSet(wire.ClusterType, slog.DiscardHandler, "a", "b", "c")
	f.beginStream(epoch)
	f.respond(epoch, "-a")
	f.Infer(seq("b", "c"), true)
	f.recordError(wire.NewResourceError("a", codes.NotFound, "gone"))
	f.confirmed = true
	f.group.Decide(epoch)
	f.Infer(seq("a"), false)
	f.suspect("b", removal{explicit: true}, true)
	now := epoch.Add(time.Hour)
	f.group.StartSecondLooks(now)
	f.Infer(seq("c"), false)
	f.suspect("c", removal{}, true)
	f.group.Decide(now)
	f.wantNames(t, "after the second look", "")
	if reasons := f.applied.Errors; len(reasons) != 1 {
		t.Errorf("reasons %v, want that of a", reasons)
	}
}

// TestH02_TheSameEmptyAssignmentAgain repeats what the operator decided on, another one does not.
func TestH02_TheSameEmptyAssignmentAgain(t *testing.T) {
	f := newFakeSet(wire.EndpointType, slog.DiscardHandler, "a")
	empty, other := assignment(t, "a", 0), assignment(t, "a", 0)
	other.Digest[0]++
	f.suspect("a", removal{replacement: empty}, false)
	f.discard()
	for _, tt := range []struct {
		as   removal
		want string
	}{{removal{replacement: empty}, "kept a"}, {removal{replacement: other}, "suspected a"}} {
		f.suspect("a", tt.as, false)
		f.wantHolds(t, "said again", epoch, tt.want)
	}
	f.group.Operate(Command{Do: Release}, epoch)
	if f.wantHolds(t, "released", epoch); f.resources["a"] != other {
		t.Error("the empty assignment is not served")
	}
	f.RestoreDiscarded("a")
	f.suspect("a", removal{replacement: empty}, false)
	f.wantHolds(t, "kept without content", epoch, "suspected a")
	f.discard()
	f.suspect("a", removal{}, false)
	f.wantHolds(t, "and removed", epoch, "suspected a")
}

// TestH09_WhatWasKeptIsShownAtOnce, and is not in doubt on the next stream.
func TestH09_WhatWasKeptIsShownAtOnce(t *testing.T) {
	f := newFakeSet(wire.ClusterType, slog.DiscardHandler, "a", "b")
	f.RestoreDiscarded("a")
	f.wantHolds(t, "kept", epoch, "kept a")
	f.beginStream(epoch)
	f.respond(epoch, "b")
	if !f.Covered() {
		t.Error("a is unmentioned")
	}
	f.beginStream(epoch, "a", "b")
	if f.Covered() {
		t.Error("b is mentioned on a new stream")
	}
	f.respond(epoch, "b@2")
	if !f.Covered() {
		t.Error("b is unmentioned")
	}
}

// assignment returns an assignment with endpoints, or without.
func assignment(t *testing.T, name string, endpoints int) *wire.Resource {
	t.Helper()
	value, err := proto.Marshal(&endpointpb.ClusterLoadAssignment{
		ClusterName: name, Endpoints: slices.Repeat([]*endpointpb.LocalityLbEndpoints{{LbEndpoints: []*endpointpb.LbEndpoint{{}}}}, endpoints),
	})
	if err != nil {
		t.Fatal(err)
	}
	r, err := wire.NewResource(wire.EndpointType, name, "", value)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestH02_AnEmptiedAssignmentIsObeyedOnceMentioned: the origin has stated its endpoints on the same stream, or it lives
// for a while, or there were none.
func TestH02_AnEmptiedAssignmentIsObeyedOnceMentioned(t *testing.T) {
	for _, tt := range []struct {
		name      string
		mentioned bool
		endpoints int
		ttl       time.Duration
		dropped   bool
		want      []string
	}{
		{"not mentioned", false, 1, 0, false, []string{"suspected a"}},
		{"mentioned", true, 1, 0, false, []string{}},
		{"there were none", false, 0, 0, false, []string{}},
		{"that lives for a while", false, 1, time.Minute, false, []string{}},
		{"of which no content is held", false, 1, 0, true, []string{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFakeSet(wire.EndpointType, slog.DiscardHandler, "a")
			f.resources["a"] = assignment(t, "a", tt.endpoints)
			if tt.dropped {
				f.resources["a"] = f.resources["a"].DropContent()
			}
			f.beginStream(epoch, "a")
			take := func(r *wire.Resource) {
				f.Take(wire.Update{TypeURL: wire.EndpointType, Resources: []*wire.Resource{r}}, epoch)
			}
			if tt.mentioned {
				take(assignment(t, "a", 2))
			}
			empty := assignment(t, "a", 0)
			empty.TTL = tt.ttl
			take(empty)
			f.wantHolds(t, "emptied", epoch, tt.want...)
			if suspected := len(tt.want) > 0; (f.resources["a"] == empty) == suspected {
				t.Errorf("suspected: %t, and the empty one is served: %t", suspected, !suspected)
			}
			f.confirmed = true
			f.group.Decide(epoch)
			if f.resources["a"] != empty {
				t.Error("once the set is confirmed, the empty one is not served")
			}
		})
	}
}

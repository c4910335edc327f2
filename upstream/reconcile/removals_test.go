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

// newHeldSet returns a set whose removals are all held, because they were inferred without a control.
func newHeldSet(names ...string) *fakeSet {
	f := newFakeSet(wire.ClusterType, slog.DiscardHandler, names...)
	f.confirmed = true
	f.Infer(seq(names...), true, epoch)
	f.group.Decide(epoch)
	return f
}

// TestB15_SecondLookDecidesEachName checks that the second look applies an explicit removal unless the origin mentions
// the resource. It applies an inferred removal only if it is inferred again.
func TestB15_SecondLookDecidesEachName(t *testing.T) {
	f := newFakeSet(wire.ClusterType, slog.DiscardHandler, "again", "answered", "new", "once", "stated", "stated again")
	f.beginStream(epoch)
	f.respond(epoch, "-stated")
	f.Infer(seq("again", "once", "stated again"), false, epoch)
	f.respond(epoch, "-stated again", "new")
	f.StartQuery(nil, epoch)
	f.RecordAnswers(wire.Update{Removed: []string{"answered"}}, epoch)
	f.ClearUnmentioned()
	f.confirmed = true
	f.group.Decide(epoch)
	f.group.Decide(epoch)
	f.wantHolds(t, "large removal", epoch, "held again answered once stated stated again")
	if now := epoch.Add(time.Hour - 1); f.group.StartSecondLooks(now) {
		t.Error("second look before the end of the hold time")
	}
	now := epoch.Add(time.Hour)
	if !f.group.StartSecondLooks(now) || f.group.StartSecondLooks(now) {
		t.Error("want exactly one second look")
	}
	for _, h := range f.group.Operate(Command{}, now) {
		if !h.Until.IsZero() || h.Since != epoch {
			t.Errorf("hold %+v during the second look, want Since and no Until", h)
		}
	}
	f.beginStream(now)
	f.Infer(seq("stated", "again"), false, epoch)
	f.suspect("new", removal{explicit: true}, true, epoch)
	f.group.Decide(now)
	f.wantNames(t, "after the second look", "new once")
	f.wantHolds(t, "after the second look", now, "held new once")
}

// TestB15_NoDecisionDueDuringSecondLook checks that Decide returns no time in the past during a second look: the loop
// of the view would spin.
func TestB15_NoDecisionDueDuringSecondLook(t *testing.T) {
	f := newHeldSet("a")
	now := epoch.Add(2 * time.Hour)
	f.group.StartSecondLooks(now)
	if next := f.group.Decide(now); !next.After(now) {
		t.Errorf("next decision at %v, want after %v", next, now)
	}
}

// TestB15_NextDecision checks that the next decision is due at the end of the hold time, or at the next log message.
func TestB15_NextDecision(t *testing.T) {
	f := newFakeSet(wire.ClusterType, slog.DiscardHandler, "a", "b", "also b")
	f.group.cfg.HoldTime, f.confirmed = 7*time.Minute, true
	f.Infer(seq("a", "b", "also b"), true, epoch)
	for _, tt := range []struct{ at, next time.Duration }{{0, alarmInterval}, {alarmInterval, 7 * time.Minute}} {
		if next := f.group.Decide(epoch.Add(tt.at)); next != epoch.Add(tt.next) {
			t.Errorf("decided after %v: next decision %v after the start of the hold, want %v", tt.at, next.Sub(epoch), tt.next)
		}
	}
	now := epoch.Add(7 * time.Minute)
	f.group.StartSecondLooks(now)
	f.Infer(seq("a"), false, epoch)
	f.group.Decide(now)
	f.wantNames(t, "after the second look", "also b b")
	f.Infer(seq("b", "also b"), false, epoch)
	f.group.Decide(now)
	f.wantNames(t, "after the second look", "")
	for _, name := range numbers("c", 3) {
		f.resources[name] = &wire.Resource{Name: name}
	}
	f.Infer(f.Names(), true, epoch)
	f.group.Decide(now)
	if h := f.group.Operate(Command{}, now); len(h) != 1 || h[0].Since != now || h[0].Until != now.Add(7*time.Minute) {
		t.Errorf("holds %+v, want one that starts now", h)
	}
}

// TestB15_NewStreamIsNoSecondLook checks that a new stream before the end of the hold time decides nothing.
func TestB15_NewStreamIsNoSecondLook(t *testing.T) {
	f := newHeldSet("a")
	f.beginStream(epoch)
	f.Infer(seq("a"), false, epoch)
	f.group.Decide(epoch)
	f.wantHolds(t, "new stream", epoch, "held a")
}

// TestB15_InterruptedSecondLook checks that the next second look must infer again the removals that an interrupted one
// inferred.
func TestB15_InterruptedSecondLook(t *testing.T) {
	f := newHeldSet("a", "b")
	now := epoch.Add(time.Hour)
	f.group.StartSecondLooks(now)
	f.Infer(seq("a"), false, epoch)
	f.beginStream(now, "a", "b")
	f.group.StartSecondLooks(now)
	f.group.Decide(now)
	f.wantNames(t, "after the next second look", "a b")
}

// TestB15_MentionRestartsHoldTime checks that the mention of a held name restarts the hold time of the others, because
// the origin may still be loading. It does not change the start of the hold.
func TestB15_MentionRestartsHoldTime(t *testing.T) {
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
		t.Error("no second look after the restarted hold time")
	}
	f.respond(now, "c@2")
	f.group.Decide(now)
	if f.group.StartSecondLooks(now.Add(2 * time.Hour)) {
		t.Error("second look without held removals")
	}
	f.Infer(seq("a", "b", "c"), true, epoch)
	f.group.Decide(now)
	wantHold(now, now.Add(time.Hour))
}

// TestB15_InferredWithoutControl checks that even a single removal that was inferred without a control is held, also if
// others are inferred with a control. It does not affect later removals.
func TestB15_InferredWithoutControl(t *testing.T) {
	f := newFakeSet(wire.ClusterType, slog.DiscardHandler, numbers("n", 100)...)
	f.confirmed = true
	f.Infer(seq(), true, epoch)
	f.Infer(seq("n0"), false, epoch)
	f.group.Decide(epoch)
	f.wantHolds(t, "none inferred without a control", epoch)
	f.Infer(seq("n1"), true, epoch)
	f.Infer(seq("n2"), false, epoch)
	f.group.Decide(epoch)
	f.wantHolds(t, "one of two inferred without a control", epoch, "held n1 n2")
	f.respond(epoch, "n1@2", "n2@2")
	f.Infer(seq("n3"), false, epoch)
	f.group.Decide(epoch)
	f.wantHolds(t, "later removal", epoch)
	f.RestoreDropped("n4", &Hold{})
	f.Infer(seq("n4"), true, epoch)
	f.Infer(seq("n5"), false, epoch)
	f.group.Decide(epoch)
	f.wantHolds(t, "dropped name inferred without a control", epoch, "dropped n4")
}

// TestB7_NewStreamResetsProgress checks that the responses of an earlier stream do not complete a set.
func TestB7_NewStreamResetsProgress(t *testing.T) {
	f := newFakeSet(wire.ClusterType, slog.DiscardHandler)
	f.beginStream(epoch)
	f.respond(epoch, "a")
	f.RecordList(names{"x": {}}, nil, epoch)
	f.beginStream(epoch)
	if f.Progress.Settled(epoch.Add(time.Hour)) {
		t.Error("set settled without a response on the new stream")
	}
	if at := f.Progress.CompleteAt(epoch, time.Second); at != epoch.Add(ConfirmMax) {
		t.Errorf("set complete at %v, want %v", at, epoch.Add(ConfirmMax))
	}
}

// TestB15_NoDecisionDuringQuery checks that nothing is decided before the end of a query: a large removal that the
// origin answers in parts would otherwise seem small.
func TestB15_NoDecisionDuringQuery(t *testing.T) {
	f := newFakeSet(wire.ClusterType, slog.DiscardHandler, numbers("n", 100)...)
	named := newFakeSetIn(f.group, wire.ClusterType, "")
	named.QueriesFor = f.Set
	f.beginStream(epoch)
	f.confirmed = true
	f.respond(epoch, append(numbers("n", 88), "-n0")...) // n88 to n99 are not mentioned
	now := epoch.Add(mentionTimeout)
	if due, _ := f.QueryDue(now); !due {
		t.Fatal("no query is due")
	}
	queried := f.StartQuery(nil, now)
	f.RecordAnswers(wire.Update{Removed: queried[:6]}, now)
	f.group.Decide(now)
	f.wantHolds(t, "half of the answers", now, "suspected "+strings.Join(queried[:6], " "))
	f.RecordAnswers(wire.Update{Removed: queried[6:12]}, now)
	if finished, _ := f.FinishQuery(func() map[string]struct{} { return nil }, now); !finished {
		t.Fatal("query not finished after all answers")
	}
	f.ClearUnmentioned()
	f.group.Decide(now)
	f.wantHolds(t, "all answers", now, "held "+strings.Join(queried[:12], " "))
}

// TestH02_ErrorWaitsWithRemoval checks that the error with which the origin states a removal is applied together with
// the removal.
func TestH02_ErrorWaitsWithRemoval(t *testing.T) {
	f := newFakeSet(wire.ClusterType, slog.DiscardHandler, numbers("n", 9)...)
	f.beginStream(epoch)
	removal := func(name string) wire.Update {
		notFound := wire.NewResourceError(name, codes.NotFound, "removed")
		return wire.Update{
			TypeURL: wire.ClusterType, Removed: []string{name}, Errors: []*wire.ResourceError{notFound},
		}
	}
	take := func(u wire.Update, want int) {
		t.Helper()
		f.Take(u, epoch)
		if len(f.applied.Removed) != want || len(f.applied.Errors) != want {
			t.Errorf("applied removals %v and errors %v, want %d of each", f.applied.Removed, f.applied.Errors, want)
		}
	}
	take(removal("n0"), 0)
	take(wire.Update{TypeURL: wire.ClusterType, Errors: removal("n0").Errors}, 0)
	take(removal("unknown"), 1)
	f.confirmed = true
	f.group.Decide(epoch)
	f.wantNames(t, "confirmed", "n1 n2 n3 n4 n5 n6 n7 n8")
	if errs := f.applied.Errors; len(errs) != 1 || errs[0].Name != "n0" {
		t.Errorf("errors %v, want that of n0", errs)
	}
	f.RestoreDropped("n1", &Hold{})
	take(wire.Update{
		TypeURL: wire.ClusterType, Errors: removal("n1").Errors, Removed: []string{"unknown"},
	}, 1)
	f.beginStream(epoch)
	f.confirmed = false
	f.Restart(nil, epoch)
	put(&f.withoutVersion, "n1", struct{}{})
	take(removal("n1"), 0)
}

// TestH02_RepeatedRemovalWaits checks that a repeated removal waits until the set is confirmed, although the first one
// has mentioned the resource.
func TestH02_RepeatedRemovalWaits(t *testing.T) {
	f := newFakeSet(wire.ClusterType, slog.DiscardHandler, "a", "b", "c")
	f.beginStream(epoch, "a", "b", "c")
	f.respond(epoch, "-a")
	f.respond(epoch, "-a")
	f.wantHolds(t, "removal repeated", epoch, "suspected a")
	f.wantNames(t, "removal repeated", "a b c")
}

// TestH02_ExplicitRemovalOfDropped checks that an explicit removal is a new one on an established stream. On a new
// stream it repeats the removal that the operator dropped.
func TestH02_ExplicitRemovalOfDropped(t *testing.T) {
	f := newHeldSet("a", "b", "c")
	f.group.cfg.HoldExplicit = true
	f.group.Operate(Command{Do: Drop}, epoch)
	f.wantHolds(t, "dropped", epoch, "dropped a b c")
	f.beginStream(epoch)
	f.confirmed = false
	f.respond(epoch, "-a")
	f.wantHolds(t, "new stream", epoch, "dropped a b c")
	f.confirmed = true
	f.respond(epoch, "-b")
	f.group.Decide(epoch)
	f.wantHolds(t, "established stream", epoch, "dropped a c")
	f.wantNames(t, "established stream", "a c")
	f.group.Operate(Command{Do: Pass, Reason: Dropped}, epoch)
	f.wantNames(t, "passed", "")
	f.wantHolds(t, "passed", epoch)
}

// TestH02_RemovalsOfDataAreNotHeld checks that TENDER_HOLD_EXPLICIT_REMOVALS does not hold removals of endpoints.
func TestH02_RemovalsOfDataAreNotHeld(t *testing.T) {
	for typeURL, want := range map[string]string{wire.EndpointType: "", wire.RouteType: "a"} {
		f := newFakeSet(typeURL, slog.DiscardHandler, "a")
		f.group.cfg.HoldExplicit, f.confirmed = true, true
		f.respond(epoch, "-a")
		f.wantNames(t, typeURL, want)
	}
}

// TestH02_AnswerAboutDropped checks that an answer to a query, after the operator has dropped the removal, repeats
// that removal.
func TestH02_AnswerAboutDropped(t *testing.T) {
	f := newFakeSet(wire.ClusterType, slog.DiscardHandler, "a", "b")
	f.beginStream(epoch)
	f.confirmed = true
	f.respond(epoch, "b")
	now := epoch.Add(mentionTimeout)
	f.StartQuery(nil, now)
	f.Infer(seq("a"), true, epoch)
	f.group.Operate(Command{Do: Drop}, now)
	if finished, _ := f.FinishQuery(func() map[string]struct{} { return nil }, now); !finished {
		t.Error("the query of a dropped name is not finished")
	}
	f.RecordAnswers(wire.Update{Removed: []string{"a"}}, now)
	f.respond(now, "-a")
	f.wantHolds(t, "after the answer", now, "dropped a")
}

// TestH02_RepeatedHeldRemoval checks that a held removal that is repeated stays explicit, and keeps its error.
func TestH02_RepeatedHeldRemoval(t *testing.T) {
	f := newFakeSet(wire.ClusterType, slog.DiscardHandler, "a", "b", "c")
	f.beginStream(epoch)
	f.respond(epoch, "-a")
	f.Infer(seq("b", "c"), true, epoch)
	f.recordError(wire.NewResourceError("a", codes.NotFound, "removed"))
	f.confirmed = true
	f.group.Decide(epoch)
	f.Infer(seq("a"), false, epoch)
	f.suspect("b", removal{explicit: true}, true, epoch)
	now := epoch.Add(time.Hour)
	f.group.StartSecondLooks(now)
	f.Infer(seq("c"), false, epoch)
	f.suspect("c", removal{}, true, epoch)
	f.group.Decide(now)
	f.wantNames(t, "after the second look", "")
	if errs := f.applied.Errors; len(errs) != 1 {
		t.Errorf("errors %v, want that of a", errs)
	}
}

// TestH02_RepeatedEmptyAssignment checks that the empty assignment that an operator dropped stays dropped, and that
// another one becomes suspected.
func TestH02_RepeatedEmptyAssignment(t *testing.T) {
	f := newFakeSet(wire.EndpointType, slog.DiscardHandler, "a")
	empty, other := assignment(t, "a", 0), assignment(t, "a", 0)
	other.Digest[0]++
	f.suspect("a", removal{replacement: empty}, false, epoch)
	f.drop(names{"a": {}}, "", epoch)
	for _, tt := range []struct {
		change removal
		want   string
	}{{removal{replacement: empty}, "dropped a"}, {removal{replacement: other}, "suspected a"}} {
		f.suspect("a", tt.change, false, epoch)
		f.wantHolds(t, "assignment repeated", epoch, tt.want)
	}
	f.group.Operate(Command{Do: Pass}, epoch)
	if f.wantHolds(t, "passed", epoch); f.resources["a"] != other {
		t.Error("the other empty assignment is not served")
	}
	f.RestoreDropped("a", &Hold{})
	f.suspect("a", removal{replacement: empty}, false, epoch)
	f.wantHolds(t, "dropped without a replacement", epoch, "suspected a")
	f.drop(names{"a": {}}, "", epoch)
	f.suspect("a", removal{}, false, epoch)
	f.wantHolds(t, "removed", epoch, "suspected a")
}

// TestH09_RestoredDropped checks that a restored decision is listed at once, and that its resource is not unmentioned
// on the next stream.
func TestH09_RestoredDropped(t *testing.T) {
	f := newFakeSet(wire.ClusterType, slog.DiscardHandler, "a", "b")
	f.RestoreDropped("a", &Hold{})
	f.wantHolds(t, "restored", epoch, "dropped a")
	f.beginStream(epoch)
	f.respond(epoch, "b")
	if !f.Covered() {
		t.Error("a is unmentioned, want mentioned")
	}
	f.beginStream(epoch, "a", "b")
	if f.Covered() {
		t.Error("b is mentioned on a new stream, want unmentioned")
	}
	f.respond(epoch, "b@2")
	if !f.Covered() {
		t.Error("b is unmentioned, want mentioned")
	}
}

// assignment returns a ClusterLoadAssignment with a number of endpoints.
func assignment(t *testing.T, name string, endpoints int) *wire.Resource {
	t.Helper()
	locality := []*endpointpb.LocalityLbEndpoints{{LbEndpoints: []*endpointpb.LbEndpoint{{}}}}
	value, err := proto.Marshal(&endpointpb.ClusterLoadAssignment{
		ClusterName: name, Endpoints: slices.Repeat(locality, endpoints),
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

// TestH02_EmptiedAssignment checks that an assignment that loses its endpoints is suspected. It is applied at once if
// the origin has stated the endpoints on the same stream, if it has a TTL, or if there were no endpoints.
func TestH02_EmptiedAssignment(t *testing.T) {
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
		{"no endpoints before", false, 0, 0, false, []string{}},
		{"with a TTL", false, 1, time.Minute, false, []string{}},
		{"content dropped", false, 1, 0, true, []string{}},
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
				t.Errorf("suspected: %t, but the empty assignment is served: %t", suspected, !suspected)
			}
			f.confirmed = true
			f.group.Decide(epoch)
			if f.resources["a"] != empty {
				t.Error("set confirmed, but the empty assignment is not served")
			}
		})
	}
}

// TestB15_AnswerInPieces checks that removals are suspect while the origin sends one response after another, however long.
// Once it has been quiet, they are changes.
func TestB15_AnswerInPieces(t *testing.T) {
	f := &completesLate{newFakeSet(wire.ClusterType, slog.DiscardHandler, numbers("n", 20)...)}
	f.Set = f.group.NewSet(wire.ClusterType, wire.Wildcard, f)
	f.beginStream(epoch, numbers("n", 20)...)
	now := epoch
	for range 30 {
		now = now.Add(SettleQuiet - 1)
		f.respond(now, "new")
	}
	f.respond(now.Add(SettleQuiet-1), "-n0")
	f.wantHolds(t, "before the origin is quiet", now, "suspected n0")
	f.respond(now.Add(2*SettleQuiet-1), "-n1")
	f.wantHolds(t, "after that", now, "suspected n0")
	// Consecutive streams have lacked n0 for ColdWait before the origin is quiet on the second one.
	now = now.Add(2 * SettleQuiet)
	f.End(now)
	f.beginStream(now, numbers("n", 20)...)
	now = now.Add(9 * time.Second)
	f.respond(now, "-n0")
	for range 30 {
		f.group.Decide(now)
		f.wantHolds(t, "second stream, before the origin is quiet", now, "suspected n0")
		now = now.Add(SettleQuiet - 1)
		f.respond(now, "new")
	}
	f.group.Decide(now.Add(SettleQuiet))
	f.wantHolds(t, "second stream, after that", now)
}

// A completesLate is a fakeSet on a stream that is complete after a minute.
type completesLate struct{ *fakeSet }

func (f *completesLate) CompleteAt() (time.Time, bool) { return epoch.Add(time.Minute), true }

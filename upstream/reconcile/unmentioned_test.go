package reconcile

import (
	"log/slog"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/xdstender/tender/cache/wire"
)

// TestB15_ResendShowsIgnoredVersions checks that a resend of an unchanged resource within a minute shows that the
// origin ignores versions. Later, a resend has another reason, and so has one after a removal on the same stream, and one
// of a name that the relay requests again. A set of names proves nothing, because an origin answers each subscription.
func TestB15_ResendShowsIgnoredVersions(t *testing.T) {
	for _, tt := range []struct {
		name     string
		pattern  string
		versions bool     // the relay sends the versions
		before   []string // an earlier response
		after    time.Duration
		item     string
		want     bool
	}{
		{"requested again", wire.Wildcard, true, nil, 0, "again", false},
		{"at once", wire.Wildcard, true, nil, 0, "a", true},
		{"within a minute", wire.Wildcard, true, nil, ConfirmMax, "a", true},
		{"later", wire.Wildcard, true, nil, ConfirmMax + 1, "a", false},
		{"versions not sent", wire.Wildcard, false, nil, 0, "a", false},
		{"by name", "", true, nil, 0, "a", false},
		{"changed", wire.Wildcard, true, nil, 0, "a@2", false},
		{"after its removal", wire.Wildcard, true, []string{"-a"}, 0, "a", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFakeSetIn(newTestGroup(slog.DiscardHandler), wire.ClusterType, tt.pattern, "a", "b", "again")
			versions := []string{"a", "b", "again"}
			if !tt.versions {
				versions = nil
			}
			f.beginStream(epoch, versions...)
			f.RequestAgain("again")
			if tt.before != nil {
				f.respond(epoch, tt.before...)
			}
			if got := f.respond(epoch.Add(tt.after), tt.item); got != tt.want {
				t.Errorf("origin ignores versions: %t, want %t", got, tt.want)
			}
			now := epoch.Add(time.Hour)
			want := tt.want || !tt.versions && tt.pattern != ""
			if due, _ := f.QueryDue(now); due != want {
				t.Errorf("query of b due: %t, want %t", due, want)
			}
		})
	}
}

// TestB15_VersionsIgnoredInFirstMinute checks that NoteVersionsIgnored has no effect later than a minute after the
// start of the stream.
func TestB15_VersionsIgnoredInFirstMinute(t *testing.T) {
	for _, after := range []time.Duration{ConfirmMax, ConfirmMax + 1} {
		f := newFakeSet(wire.ClusterType, slog.DiscardHandler, "a", "b")
		f.beginStream(epoch, "a", "b")
		f.respond(epoch, "a@2")
		f.NoteVersionsIgnored(epoch.Add(after))
		want := after <= ConfirmMax
		if due, _ := f.QueryDue(epoch.Add(time.Hour)); due != want {
			t.Errorf("after %v: query of b due: %t, want %t", after, due, want)
		}
	}
}

// TestB15_QueryOfUnmentioned checks that a query for unmentioned resources is due 15s after the last first mention or
// change. An alias is a mention. An error for the whole set and a resend do not count.
func TestB15_QueryOfUnmentioned(t *testing.T) {
	f := newFakeSet(wire.ClusterType, slog.DiscardHandler, "a", "alias", "b", "c", "d")
	f.beginStream(epoch)
	wantDue := func(when string, now time.Time, due bool, next time.Time) {
		t.Helper()
		if d, n := f.QueryDue(now); d != due || n != next {
			t.Errorf("%s: query due %t, next %v; want %t and %v", when, d, n, due, next)
		}
	}
	failed := wire.NewResourceError(wire.Wildcard, codes.Internal, "failed")
	f.Take(wire.Update{TypeURL: wire.ClusterType, Errors: []*wire.ResourceError{failed}}, epoch)
	wantDue("error for the whole set", epoch, false, epoch.Add(ConfirmMax))
	if !f.Progress.firstResponse.IsZero() {
		t.Error("an error for the whole set counts as a response")
	}
	now := epoch.Add(time.Second)
	f.respond(now)
	wantDue("empty response", now, false, now.Add(SettleQuiet))
	now = now.Add(time.Second)
	aliased := &wire.Resource{Name: "a", Aliases: []string{"alias"}}
	f.Take(wire.Update{TypeURL: wire.ClusterType, Resources: []*wire.Resource{aliased}}, now)
	wantDue("a mentioned", now, false, now.Add(SettleQuiet))
	now = now.Add(time.Second)
	f.respond(now, "a")
	wantDue("a resent", now.Add(SettleQuiet), false, now.Add(mentionTimeout-time.Second))
	f.respond(now, "a@2")
	wantDue("a changed", now.Add(SettleQuiet), false, now.Add(mentionTimeout))
	now = now.Add(time.Second)
	f.respond(now, "d")
	f.respond(now.Add(-time.Second), "d")
	wantDue("d mentioned, unchanged", now, false, now.Add(mentionTimeout))
	now = now.Add(mentionTimeout)
	wantDue("after 15s", now, true, now)
	if queried := f.StartQuery(nil, now); !slices.Equal(queried, []string{"b", "c", queried[len(queried)-1]}) {
		t.Errorf("queried %q, want b, c and a control", queried)
	}
	wantDue("query started", now, false, time.Time{})
}

// TestB15_QueryAfterRestart checks that a new request for the wildcard on the same stream causes a query. The origin
// does not state removals that it made meanwhile.
func TestB15_QueryAfterRestart(t *testing.T) {
	f := newFakeSet(wire.ClusterType, slog.DiscardHandler, "a", "b")
	f.beginStream(epoch, "a", "b")
	f.Restart(nil, epoch)
	f.respond(epoch, "a@2")
	if due, _ := f.QueryDue(epoch.Add(mentionTimeout)); !due {
		t.Error("no query of b is due")
	}
}

// TestB15_SilenceOnQuery checks that a queried name without an answer is removed after 15s, if the origin answers for
// the control or states another removal. A name to which a client subscribes stays. Without a control, the removal is
// held.
func TestB15_SilenceOnQuery(t *testing.T) {
	for _, tt := range []struct {
		name       string
		subscribed names
		answers    wire.Update
		noControl  bool     // no resource can be the control
		held       []string // as for wantHolds
		served     string   // of a and b
	}{
		{name: "no answer", served: "a b"},
		{name: "control answered", answers: wire.Update{Resources: []*wire.Resource{{Name: "control"}}}},
		{
			name:    "control and a member answered",
			answers: wire.Update{Resources: []*wire.Resource{{Name: "control"}, {Name: "n0"}}},
		},
		{name: "removal of another stated", answers: wire.Update{Removed: []string{"a"}}},
		{name: "another answered", answers: wire.Update{Resources: []*wire.Resource{{Name: "a"}}}, served: "a b"},
		{
			name: "client subscribes to one", subscribed: names{"a": {}},
			answers: wire.Update{Resources: []*wire.Resource{{Name: "control"}}}, served: "a",
		},
		{
			name: "client subscribes to the control", subscribed: names{"control": {}},
			held: []string{"held a b"}, served: "a b",
		},
		{
			name: "client subscribes to the control, which is answered", subscribed: names{"control": {}},
			answers: wire.Update{Resources: []*wire.Resource{{Name: "control"}}},
		},
		{name: "no control", noControl: true, held: []string{"held a b"}, served: "a b"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFakeSet(wire.ClusterType, slog.DiscardHandler, append(numbers("n", 100), "a", "b", "control")...)
			f.beginStream(epoch)
			f.respond(epoch, append(numbers("n", 100), "control")...)
			if tt.noControl {
				f.resources = map[string]*wire.Resource{"a": f.resources["a"], "b": f.resources["b"]}
			} else { // so that only control can be the control
				f.Infer(seq(numbers("n", 100)...), false, epoch)
			}
			now := epoch.Add(mentionTimeout)
			f.StartQuery(tt.subscribed, now)
			for _, name := range numbers("n", 100) {
				f.cancelRemoval(name, now)
			}
			f.RecordAnswers(tt.answers, now)
			subscribed := func() names { return tt.subscribed }
			deadline := now.Add(mentionTimeout)
			if finished, next := f.FinishQuery(subscribed, deadline.Add(-1)); finished || next != deadline {
				t.Errorf("finished %t, next %v; want false and %v", finished, next, deadline)
			}
			if finished, _ := f.FinishQuery(subscribed, deadline); !finished {
				t.Error("query not finished after 15s")
			}
			f.ClearUnmentioned()
			f.confirmed = true
			f.group.Decide(now)
			f.wantHolds(t, "finished", now, tt.held...)
			for _, name := range append(numbers("n", 100), "control") {
				delete(f.resources, name)
			}
			f.wantNames(t, "finished", tt.served)
		})
	}
}

// TestB15_ControlIsNotSubscribed checks that the control is a resource without a subscription by name, if there is one:
// some origins answer only once for a name.
func TestB15_ControlIsNotSubscribed(t *testing.T) {
	for range 20 { // in a random order
		f := newFakeSet(wire.ClusterType, slog.DiscardHandler, "a", "subscribed", "control", "suspected")
		f.beginStream(epoch)
		f.respond(epoch, "subscribed", "control", "suspected")
		f.Infer(seq("suspected"), false, epoch)
		if queried := f.StartQuery(names{"subscribed": {}}, epoch); !slices.Equal(queried, []string{"a", "control"}) {
			t.Fatalf("queried %q, want a and the control", queried)
		}
	}
}

// TestB15_AnswersOfOtherNames checks that RecordAnswers ignores names that are not queried: they belong to another set.
func TestB15_AnswersOfOtherNames(t *testing.T) {
	f := newFakeSet(wire.ClusterType, slog.DiscardHandler, "a", "b", "c", "d")
	f.beginStream(epoch)
	f.respond(epoch, "b", "c")
	f.Infer(seq("c"), false, epoch)
	f.StartQuery(nil, epoch)
	f.RecordAnswers(wire.Update{Resources: []*wire.Resource{{Name: "c"}}, Removed: []string{"b"}}, epoch)
	f.wantHolds(t, "other names answered", epoch, "suspected c")
	f.Infer(seq("a"), false, epoch)
	f.RecordAnswers(wire.Update{Resources: []*wire.Resource{{Name: "a"}}}, epoch)
	f.wantHolds(t, "a answered", epoch, "suspected c")
	if finished, _ := f.FinishQuery(nil, epoch); finished {
		t.Error("query finished without an answer for d")
	}
}

// TestB15_QueryOnNewStream checks that a query on a new stream repeats the unanswered names.
func TestB15_QueryOnNewStream(t *testing.T) {
	f := newFakeSet(wire.ClusterType, slog.DiscardHandler, "a", "b", "control")
	f.beginStream(epoch)
	f.respond(epoch, "control")
	f.StartQuery(nil, epoch)
	f.RecordAnswers(wire.Update{Resources: []*wire.Resource{{Name: "a"}, {Name: "control"}}}, epoch)
	now := epoch.Add(mentionTimeout / 2)
	if queried := f.StartQuery(nil, now); !slices.Equal(queried, []string{"b", "control"}) {
		t.Errorf("queried %q on the new stream, want b and control", queried)
	}
	if finished, next := f.FinishQuery(nil, epoch.Add(mentionTimeout)); finished || next != now.Add(mentionTimeout) {
		t.Errorf("finished %t, next %v; want 15s on the new stream", finished, next)
	}
	f.FinishQuery(func() names { return nil }, now.Add(mentionTimeout))
	f.wantHolds(t, "control not answered on the new stream", now)
}

// TestB15_SilenceOnCollection checks that unmentioned members of a collection are queried, also without any response,
// and that silence does not remove them.
func TestB15_SilenceOnCollection(t *testing.T) {
	f := newFakeSetIn(newTestGroup(slog.DiscardHandler), wire.ClusterType, "xdstp://a/*", "a", "b", "c")
	f.beginStream(epoch)
	delete(f.withoutVersion, "c")
	now := epoch.Add(mentionTimeout)
	if due, next := f.QueryDue(now); !due || next != now {
		t.Errorf("query due %t, next %v; want true and %v", due, next, now)
	}
	f.respond(now, "c@2")
	if due, next := f.QueryDue(now); due || next != now.Add(mentionTimeout) {
		t.Errorf("another member mentioned: query due %t, next %v; want false and %v", due, next, now.Add(mentionTimeout))
	}
	now = now.Add(mentionTimeout)
	if queried := f.StartQuery(nil, now); !slices.Equal(queried, []string{"a", "b"}) {
		t.Errorf("queried %q, want a and b without a control", queried)
	}
	if finished, _ := f.FinishQuery(nil, now.Add(mentionTimeout)); !finished {
		t.Error("query not finished after 15s")
	}
	f.wantHolds(t, "no answer", now)
}

// TestB15_AnotherOrigin checks that names are foreign until the connected origin mentions them, also on a new stream.
// Those of a wildcard set are foreign until its query ends.
func TestB15_AnotherOrigin(t *testing.T) {
	for pattern, want := range map[string]int{wire.Wildcard: 0, "xdstp://a/*": 1} {
		f := newFakeSetIn(newTestGroup(slog.DiscardHandler), wire.ClusterType, pattern, "a", "b", "c")
		f.NoteOriginChange()
		f.beginStream(epoch)
		f.respond(epoch, "a", "-b")
		if n := len(f.Foreign()); n != 1 {
			t.Errorf("%s: %d foreign names, want c", pattern, n)
		}
		f.respond(epoch, "b@2")
		f.NoteOriginChange()
		f.ClearUnmentioned()
		f.respond(epoch, "a", "b")
		if n := len(f.Foreign()); n != want {
			t.Errorf("%s: %d foreign names after the query, want %d", pattern, n, want)
		}
	}
}

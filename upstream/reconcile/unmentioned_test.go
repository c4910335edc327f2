package reconcile

import (
	"log/slog"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/xdstender/tender/cache/wire"
)

// TestB15_AResendIgnoresWhatWasTold, if it is among the first answers and of a set that is stated as a whole: an origin
// answers for each name that it is asked for, and much later, a resend has another reason.
func TestB15_AResendIgnoresWhatWasTold(t *testing.T) {
	for _, tt := range []struct {
		name  string
		whole string
		told  bool
		after time.Duration
		item  string
		want  bool
	}{
		{"at once", wire.Wildcard, true, 0, "a", true},
		{"within a minute", wire.Wildcard, true, ConfirmMax, "a", true},
		{"later", wire.Wildcard, true, ConfirmMax + 1, "a", false},
		{"not told", wire.Wildcard, false, 0, "a", false},
		{"by name", "", true, 0, "a", false},
		{"changed", wire.Wildcard, true, 0, "a@2", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFakeSetIn(newFakeSet(wire.ClusterType, slog.DiscardHandler).group, wire.ClusterType, tt.whole, "a", "b")
			told := []string{"a", "b"}
			if !tt.told {
				told = nil
			}
			f.beginStream(epoch, told...)
			if got := f.respond(epoch.Add(tt.after), tt.item); got != tt.want {
				t.Errorf("the origin ignores what it was told: %t, want %t", got, tt.want)
			}
			now := epoch.Add(time.Hour)
			if due, _ := f.QueryDue(now); due != (tt.want || !tt.told && tt.whole != "") {
				t.Errorf("b is to be asked for: %t", due)
			}
		})
	}
}

// TestB15_DistrustIsOfFirstAnswers: much later it says nothing of what the origin was told.
func TestB15_DistrustIsOfFirstAnswers(t *testing.T) {
	for _, after := range []time.Duration{ConfirmMax, ConfirmMax + 1} {
		f := newFakeSet(wire.ClusterType, slog.DiscardHandler, "a", "b")
		f.beginStream(epoch, "a", "b")
		f.respond(epoch, "a@2")
		f.NoteVersionsIgnored(epoch.Add(after))
		if due, _ := f.QueryDue(epoch.Add(time.Hour)); due != (after <= ConfirmMax) {
			t.Errorf("after %v: b is to be asked for: %t", after, due)
		}
	}
}

// TestB15_WhatIsAskedFor: what an origin has not mentioned, under no name, 15s after it has last said something new.
// That the set as a whole failed, or that resources live on, is nothing new.
func TestB15_WhatIsAskedFor(t *testing.T) {
	f := newFakeSet(wire.ClusterType, slog.DiscardHandler, "a", "alias", "b", "c", "d")
	f.beginStream(epoch)
	wantDue := func(when string, now time.Time, due bool, next time.Time) {
		t.Helper()
		if d, n := f.QueryDue(now); d != due || n != next {
			t.Errorf("%s: due %t, next %v; want %t and %v", when, d, n, due, next)
		}
	}
	failed := wire.Update{TypeURL: wire.ClusterType, Errors: []*wire.ResourceError{wire.NewResourceError(wire.Wildcard, codes.Internal, "failed")}}
	f.Take(failed, epoch)
	wantDue("failed", epoch, false, epoch.Add(ConfirmMax))
	if !f.Progress.firstResponse.IsZero() {
		t.Error("the error of the set is taken for an answer")
	}
	now := epoch.Add(time.Second)
	f.respond(now)
	wantDue("an empty response", now, false, now.Add(mentionTimeout))
	now = now.Add(time.Second)
	f.Take(wire.Update{TypeURL: wire.ClusterType, Resources: []*wire.Resource{{Name: "a", Aliases: []string{"alias"}}}}, now)
	wantDue("a was mentioned", now, false, now.Add(mentionTimeout))
	now = now.Add(time.Second)
	f.respond(now, "a")
	wantDue("a again", now, false, now.Add(mentionTimeout-time.Second))
	f.respond(now, "a@2")
	wantDue("a has changed", now, false, now.Add(mentionTimeout))
	now = now.Add(time.Second)
	f.respond(now, "d")
	f.respond(now.Add(-time.Second), "d")
	wantDue("d was mentioned, as it is held", now, false, now.Add(mentionTimeout))
	now = now.Add(mentionTimeout)
	wantDue("after 15s", now, true, now)
	if names := f.StartQuery(nil, now); !slices.Equal(names, []string{"b", "c", names[len(names)-1]}) {
		t.Errorf("asked for %q, want b, c and a control", names)
	}
	wantDue("asked for", now, false, time.Time{})
}

// TestB15_AskedForOnceMore: a wildcard that is asked for anew may lack what went meanwhile, whatever the origin was
// told.
func TestB15_AskedForOnceMore(t *testing.T) {
	f := newFakeSet(wire.ClusterType, slog.DiscardHandler, "a", "b")
	f.beginStream(epoch, "a", "b")
	f.Restart(nil, epoch)
	f.respond(epoch, "a@2")
	if due, _ := f.QueryDue(epoch.Add(mentionTimeout)); !due {
		t.Error("b is not asked for")
	}
}

// TestB15_WhatSilenceProves: a name is gone if the origin is silent on it for 15s and answers for the control, or for
// another of them, but not if a client had asked for it before. Without a control, it may be gone.
func TestB15_WhatSilenceProves(t *testing.T) {
	for _, tt := range []struct {
		name    string
		wanted  map[string]struct{}
		answers wire.Update
		lacks   bool // a resource that could be the control
		held    string
		left    string
	}{
		{name: "silent on the control", left: "a b"},
		{name: "the control", answers: wire.Update{Resources: []*wire.Resource{{Name: "control"}}}},
		{name: "the control, and a member", answers: wire.Update{Resources: []*wire.Resource{{Name: "control"}, {Name: "n0"}}}},
		{name: "another one is gone", answers: wire.Update{Removed: []string{"a"}}},
		{name: "another one is there", answers: wire.Update{Resources: []*wire.Resource{{Name: "a"}}}, left: "a b"},
		{
			name: "a client asked for one", wanted: map[string]struct{}{"a": {}},
			answers: wire.Update{Resources: []*wire.Resource{{Name: "control"}}}, left: "a",
		},
		{name: "a client asked for the control", wanted: map[string]struct{}{"control": {}}, held: "held a b", left: "a b"},
		{
			name: "it is answered all the same", wanted: map[string]struct{}{"control": {}},
			answers: wire.Update{Resources: []*wire.Resource{{Name: "control"}}},
		},
		{name: "no control", lacks: true, held: "held a b", left: "a b"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFakeSet(wire.ClusterType, slog.DiscardHandler, append(numbers("n", 100), "a", "b", "control")...)
			f.beginStream(epoch)
			f.respond(epoch, append(numbers("n", 100), "control")...)
			if tt.lacks {
				f.resources = map[string]*wire.Resource{"a": f.resources["a"], "b": f.resources["b"]}
			} else { // so that it is the control
				f.Infer(seq(numbers("n", 100)...), false)
			}
			now := epoch.Add(mentionTimeout)
			f.StartQuery(tt.wanted, now)
			for _, name := range numbers("n", 100) {
				f.cancelRemoval(name, now)
			}
			f.RecordAnswers(tt.answers, now)
			wanted := func() map[string]struct{} { return tt.wanted }
			if over, next := f.FinishQuery(wanted, now.Add(mentionTimeout-1)); over || next != now.Add(mentionTimeout) {
				t.Errorf("over %t, next %v before 15s have passed", over, next)
			}
			if over, _ := f.FinishQuery(wanted, now.Add(mentionTimeout)); !over {
				t.Error("not over after 15s")
			}
			f.ClearUnmentioned()
			f.confirmed = true
			f.group.Decide(now)
			if tt.held == "" {
				f.wantHolds(t, "over", now)
			} else {
				f.wantHolds(t, "over", now, tt.held)
			}
			for _, name := range append(numbers("n", 100), "control") {
				delete(f.resources, name)
			}
			f.wantNames(t, "over", tt.left)
		})
	}
}

// TestB15_TheControl is a member that no client asked for by name, if there is one: some origins answer only once for a
// name.
func TestB15_TheControl(t *testing.T) {
	for range 20 { // in a random order
		f := newFakeSet(wire.ClusterType, slog.DiscardHandler, "a", "wanted", "control", "suspected")
		f.beginStream(epoch)
		f.respond(epoch, "wanted", "control", "suspected")
		f.Infer(seq("suspected"), false)
		if names := f.StartQuery(map[string]struct{}{"wanted": {}}, epoch); !slices.Equal(names, []string{"a", "control"}) {
			t.Fatalf("asked for %q, want a and the control", names)
		}
	}
}

// TestB15_OnlyWhatIsAskedForIsAnswered: what else comes on that stream is of another set.
func TestB15_OnlyWhatIsAskedForIsAnswered(t *testing.T) {
	f := newFakeSet(wire.ClusterType, slog.DiscardHandler, "a", "b", "c", "d")
	f.beginStream(epoch)
	f.respond(epoch, "b", "c")
	f.Infer(seq("c"), false)
	f.StartQuery(nil, epoch)
	f.RecordAnswers(wire.Update{Resources: []*wire.Resource{{Name: "c"}}, Removed: []string{"b"}}, epoch)
	f.wantHolds(t, "answers for others", epoch, "suspected c")
	f.Infer(seq("a"), false)
	f.RecordAnswers(wire.Update{Resources: []*wire.Resource{{Name: "a"}}}, epoch)
	f.wantHolds(t, "a is there", epoch, "suspected c")
	if over, _ := f.FinishQuery(nil, epoch); over {
		t.Error("over, but d is not answered for")
	}
}

// TestB15_ANewStreamIsAskedAgain for what the origin has not answered for.
func TestB15_ANewStreamIsAskedAgain(t *testing.T) {
	f := newFakeSet(wire.ClusterType, slog.DiscardHandler, "a", "b", "control")
	f.beginStream(epoch)
	f.respond(epoch, "control")
	f.StartQuery(nil, epoch)
	f.RecordAnswers(wire.Update{Resources: []*wire.Resource{{Name: "a"}, {Name: "control"}}}, epoch)
	now := epoch.Add(mentionTimeout / 2)
	if names := f.StartQuery(nil, now); !slices.Equal(names, []string{"b", "control"}) {
		t.Errorf("asked for %q on the new stream, want b and control", names)
	}
	if over, next := f.FinishQuery(nil, epoch.Add(mentionTimeout)); over || next != now.Add(mentionTimeout) {
		t.Errorf("over %t, next %v; want 15s on the new stream", over, next)
	}
	f.FinishQuery(func() map[string]struct{} { return nil }, now.Add(mentionTimeout))
	f.wantHolds(t, "the control did not answer again", now)
}

// TestB15_MembersOfACollectionAreNotGoneBySilence, but if the origin says nothing at all of it, they are asked for.
func TestB15_MembersOfACollectionAreNotGoneBySilence(t *testing.T) {
	f := newFakeSetIn(newFakeSet(wire.ClusterType, slog.DiscardHandler).group, wire.ClusterType, "xdstp://a/*", "a", "b", "c")
	f.beginStream(epoch)
	delete(f.withoutVersion, "c")
	now := epoch.Add(mentionTimeout)
	if due, next := f.QueryDue(now); !due || next != now {
		t.Errorf("due %t, next %v", due, next)
	}
	f.respond(now, "c@2")
	if due, next := f.QueryDue(now); due || next != now.Add(mentionTimeout) {
		t.Errorf("another member came: due %t, next %v", due, next)
	}
	now = now.Add(mentionTimeout)
	if names := f.StartQuery(nil, now); !slices.Equal(names, []string{"a", "b"}) {
		t.Errorf("asked for %q, want a and b without a control", names)
	}
	if over, _ := f.FinishQuery(nil, now.Add(mentionTimeout)); !over {
		t.Error("not over after 15s")
	}
	f.wantHolds(t, "silence", now)
}

// TestB15_AnotherOrigin: its versions mean nothing for what it has not mentioned, also after a new stream; of a
// wildcard, until all was asked for.
func TestB15_AnotherOrigin(t *testing.T) {
	for whole, want := range map[string]int{wire.Wildcard: 0, "xdstp://a/*": 1} {
		f := newFakeSetIn(newFakeSet(wire.ClusterType, slog.DiscardHandler).group, wire.ClusterType, whole, "a", "b", "c")
		f.NoteOriginChange()
		f.beginStream(epoch)
		f.respond(epoch, "a", "-b")
		if n := len(f.Foreign()); n != 1 {
			t.Errorf("%s: %d names are of another origin, want c", whole, n)
		}
		f.respond(epoch, "b@2")
		f.NoteOriginChange()
		f.ClearUnmentioned()
		f.respond(epoch, "a", "b")
		if n := len(f.Foreign()); n != want {
			t.Errorf("%s: %d names are of another origin in the end, want %d", whole, n, want)
		}
	}
}

package reconcile

import (
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/xdstender/tender/cache/wire"
)

// rows returns each hold as one text.
func rows(holds []Hold) (all []string) {
	for _, h := range holds {
		text := fmt.Sprintf("%s %s %s", h.Kind, h.Reason, strings.Join(h.Names, " "))
		if h.By != "" {
			text += " by " + h.By
		}
		all = append(all, text)
	}
	return all
}

// wantRows fails the test unless the group has these changes, as rows returns them.
func (f *fakeSet) wantRows(t *testing.T, when string, now time.Time, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, rows(f.group.Operate(Command{}, now))); diff != "" {
		t.Errorf("%s: changes (-want +got):\n%s", when, diff)
	}
	total := make(map[Reason]int)
	for _, h := range f.group.Operate(Command{}, now) {
		total[h.Reason] += len(h.Names)
	}
	if got := f.group.cfg.Counts.Pending(); !maps.Equal(got, total) {
		t.Errorf("%s: Pending %v, want %v", when, got, total)
	}
}

// TestB15_ReasonsOfRemovals verifies the reasons of removals while they wait, and since when.
func TestB15_ReasonsOfRemovals(t *testing.T) {
	f := newFakeSet(wire.ClusterType, slog.DiscardHandler, "a", "b", "c", "d", "e")
	now := time.Unix(1000, 0)
	f.Infer(seq("a", "b", "c"), false, now)
	f.Infer(seq("d"), false, now.Add(time.Second))
	f.group.Decide(now.Add(time.Second))
	f.wantRows(t, "undecided", now, "remove suspect a b c d")
	if h := f.group.Operate(Command{}, now); h[0].Since != now || !h[0].Undecided() {
		t.Errorf("suspected %+v, want since %v", h[0], now)
	}
	f.confirmed = true
	f.group.Decide(now.Add(2 * time.Second))
	f.wantRows(t, "decided", now, "remove large-removal a b c d")
	if h := f.group.Operate(Command{}, now)[0]; h.Since != now.Add(2*time.Second) || h.Until != h.Since.Add(time.Hour) || h.Undecided() {
		t.Errorf("held %+v, want an hour", h)
	}

	f = newFakeSet(wire.ClusterType, slog.DiscardHandler, "a", "b")
	f.Infer(seq("a", "b"), true, now)
	f.confirmed = true
	f.group.Decide(now)
	f.wantRows(t, "few", now, "remove second-look a b")
}

// TestCommandsChoose verifies that a command applies to what it selects by name, type and reason, and that a dry run changes
// nothing.
func TestCommandsChoose(t *testing.T) {
	now := time.Unix(1000, 0)
	start := func() *fakeSet {
		f := newFakeSet(wire.ClusterType, slog.DiscardHandler, "a", "b", "c", "d", "e")
		f.confirmed = true
		f.Infer(seq("a", "b", "c", "d"), true, now)
		f.group.Decide(now)
		f.group.Operate(Command{Do: Drop, Name: "d", By: "alice"}, now.Add(time.Minute))
		f.wantRows(t, "one dropped", now, "remove large-removal a b c", "remove dropped d by alice")
		if h := f.group.Operate(Command{Reason: Dropped}, now); len(h) != 1 || h[0].Since != now.Add(time.Minute) {
			t.Errorf("dropped %+v, want since a minute later", h)
		}
		return f
	}
	for _, tt := range []struct {
		command Command
		chosen  string // the changes of the command, as rows returns them
		names   string // afterwards
		left    []string
	}{
		{Command{Do: Pass, Name: "b"}, "remove large-removal b", "a c d e", []string{"remove large-removal a c", "remove dropped d by alice"}},
		{Command{Do: Pass}, "remove large-removal a b c", "d e", []string{"remove dropped d by alice"}},
		{Command{Do: Pass, Reason: LargeRemoval}, "remove large-removal a b c", "d e", []string{"remove dropped d by alice"}},
		{Command{Do: Pass, Reason: Dropped}, "remove dropped d by alice", "a b c e", []string{"remove large-removal a b c"}},
		{Command{Do: Pass, Name: "d"}, "", "a b c d e", []string{"remove large-removal a b c", "remove dropped d by alice"}},
		{Command{Do: Pass, Reason: Breaking}, "", "a b c d e", []string{"remove large-removal a b c", "remove dropped d by alice"}},
		{Command{Do: Pass, TypeURL: wire.ListenerType}, "", "a b c d e", []string{"remove large-removal a b c", "remove dropped d by alice"}},
		{Command{Do: Drop, By: "bob"}, "remove large-removal a b c", "a b c d e", []string{"remove dropped d by alice", "remove dropped a b c by bob"}},
		{Command{Do: Pass, DryRun: true}, "remove large-removal a b c", "a b c d e", []string{"remove large-removal a b c", "remove dropped d by alice"}},
		{Command{Do: Drop, Name: "a", DryRun: true}, "remove large-removal a", "a b c d e", []string{"remove large-removal a b c", "remove dropped d by alice"}},
	} {
		f, what := start(), fmt.Sprintf("%+v", tt.command)
		if got := strings.Join(rows(f.group.Operate(tt.command, now)), "; "); got != tt.chosen {
			t.Errorf("%s: applied to %q, want %q", what, got, tt.chosen)
		}
		f.wantNames(t, what, tt.names)
		f.wantRows(t, what, now, tt.left...)
	}
}

// TestB11_AdditionsThatWaitAreListed with the removal that they wait for. They pass alone only by their name or reason, and
// with a dropped removal that excludes them. They are never dropped.
func TestB11_AdditionsThatWaitAreListed(t *testing.T) {
	start := func() (*fakeSet, time.Time) {
		f, now := newListeners("a:80", "b:81", "c:82", "d:83")
		f.take(now, []*wire.Resource{listenerOn("ab", 80, 81)}, "a")
		f.group.Decide(now)
		f.wantRows(t, "one removal of two is stated", now, "remove replacement a", "add replacement ab")
		return f, now
	}
	f, now := start()
	if h := f.group.Operate(Command{Do: Drop}, now); len(h) != 1 || h[0].Kind != Removal {
		t.Errorf("dropped %q, want the removal", rows(h))
	}
	f.group.Decide(now)
	f.wantRows(t, "the removal is dropped", now, "remove dropped a", "add replacement ab")
	f.wantNames(t, "the removal is dropped", "a b c d")
	if h := f.group.Operate(Command{Do: Pass, Name: "ab"}, now); len(h) != 1 || h[0].Kind != Addition {
		t.Errorf("passed %q, want the addition", rows(h))
	}
	f.wantNames(t, "the addition passes with the dropped removal", "ab b c d")
	f.wantRows(t, "the addition passes with the dropped removal", now)

	f, now = start()
	f.group.Operate(Command{Do: Pass, Reason: Replacement}, now)
	f.wantNames(t, "both pass by their reason", "ab b c d")

	f, now = newListeners("a:80", "b:81")
	f.take(now, []*wire.Resource{listenerResource("a", 81, 2)})
	f.group.Decide(now)
	f.wantRows(t, "a move", now, "change replacement a")
}

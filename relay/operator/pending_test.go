package operator

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/pending"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/rollout"
	"github.com/xdstender/tender/upstream/reconcile"
)

// rowTexts returns each row as one text.
func rowTexts(rows []admin.PendingChange) (all []string) {
	for _, r := range rows {
		text := fmt.Sprintf("%s/%s %s %s %s %d %s ends=%s by=%s", r.Origin, r.Group, r.TypeURL[strings.LastIndexByte(r.TypeURL, '.')+1:],
			r.Change, r.Reason, r.Count, strings.Join(r.Names, ","), r.Ends, r.By)
		if r.Details != nil {
			text += " " + strings.Join(r.Details, ",")
		}
		if r.Reported {
			text += " reported"
		}
		all = append(all, text)
	}
	return all
}

// TestHeldRows verifies the rows of each reason for which changes wait upstream.
func TestHeldRows(t *testing.T) {
	since, until := time.Unix(100, 0), time.Unix(200, 0)
	rows := HeldRows("o", "g", []reconcile.Hold{
		{TypeURL: wire.ClusterType, Reason: reconcile.LargeRemoval, Kind: reconcile.Removal, Names: []string{"a", "b"}, Since: since, Until: until},
		{TypeURL: wire.ClusterType, Reason: reconcile.Suspect, Kind: reconcile.Removal, Names: []string{"c"}, Reported: true},
		{TypeURL: wire.ListenerType, Reason: reconcile.Replacement, Kind: reconcile.Addition, Names: []string{"l"}, Until: until},
		{TypeURL: wire.RouteType, Reason: reconcile.Breaking, Kind: reconcile.Update, Names: []string{"r", "s"}, Details: []string{"x", "y"}},
		{TypeURL: wire.RouteType, Reason: reconcile.Required, Kind: reconcile.Removal, Names: []string{"q"}, ByOperator: true},
		{TypeURL: wire.RouteType, Reason: reconcile.Growth, Kind: reconcile.Update, Names: []string{"g"}, Details: []string{"z"}, Until: until},
		{TypeURL: wire.RouteType, Reason: reconcile.Dropped, Kind: reconcile.Removal, Names: []string{"t"}, By: "alice"},
		{TypeURL: wire.RouteType, Reason: reconcile.Dropped, Kind: reconcile.Removal, Names: []string{"u"}},
	})
	want := []string{
		"o/g Cluster remove large-removal 2 a,b ends=deadline by=relay",
		"o/g Cluster remove suspect 1 c ends=origin by=relay reported",
		"o/g Listener add replacement 1 l ends=deadline by=relay",
		"o/g RouteConfiguration change breaking 2 r,s ends=origin by=relay x,y",
		"o/g RouteConfiguration remove required 1 q ends=operator by=relay",
		"o/g RouteConfiguration change growth 1 g ends=deadline by=relay z",
		"o/g RouteConfiguration remove dropped 1 t ends=origin by=alice",
		"o/g RouteConfiguration remove dropped 1 u ends=origin by=operator",
	}
	if diff := cmp.Diff(want, rowTexts(rows)); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
	if rows[0].Since != since || rows[0].Until != until {
		t.Errorf("the first row is since %v until %v", rows[0].Since, rows[0].Until)
	}
}

// TestRowsAreBounded verifies that a row has at most MaxPendingNames names and details, and counts all.
func TestRowsAreBounded(t *testing.T) {
	h := reconcile.Hold{TypeURL: wire.ClusterType, Reason: reconcile.Breaking, Kind: reconcile.Update}
	for i := range 3 * admin.MaxPendingNames {
		h.Names, h.Details = append(h.Names, fmt.Sprintf("c%03d", i)), append(h.Details, "detail")
	}
	r := HeldRows("o", "g", []reconcile.Hold{h})[0]
	if r.Count != 3*admin.MaxPendingNames || len(r.Names) != admin.MaxPendingNames || len(r.Details) != admin.MaxPendingNames {
		t.Errorf("%d names and %d details of %d", len(r.Names), len(r.Details), r.Count)
	}
}

// TestLimitNames verifies that a list of very many rows has few names in each, and all counts.
func TestLimitNames(t *testing.T) {
	names := make([]string, admin.MaxPendingNames)
	for _, tt := range []struct{ rows, want int }{{100, 100}, {200, 50}, {20_000, 3}} {
		rows := make([]admin.PendingChange, tt.rows)
		for i := range rows {
			rows[i] = admin.PendingChange{Count: 500, Names: names, Details: names}
		}
		rows[0].Details = nil
		LimitNames(rows)
		if r := rows[1]; len(r.Names) != tt.want || len(r.Details) != tt.want || r.Count != 500 || len(rows[0].Details) > 0 {
			t.Errorf("%d rows: %d names and %d details, count %d; want %d and 500", tt.rows, len(r.Names), len(r.Details), r.Count, tt.want)
		}
	}
}

// TestWithheldRows verifies the rows of changes in the cache: one for each group, type and change, with the wait of the
// origin. A name with several dynamic parameters is one change.
func TestWithheldRows(t *testing.T) {
	why := Wait{Reason: admin.PendingFrozen, Since: time.Unix(100, 0), Ends: admin.EndsByOperator, By: "alice", Note: "bad routes"}
	all := []string{
		"default/h Cluster change frozen 1 web ends=operator by=alice",
		"default/g Cluster change frozen 1 web ends=operator by=alice",
		"default/g Cluster add frozen 1 new ends=operator by=alice",
		"default/g Secret remove frozen 1 key ends=operator by=alice",
		"default/g Cluster remove frozen 1 " + member + " ends=operator by=alice",
	}
	scope := func(group, typeURL string) admin.PendingChoice {
		return admin.PendingChoice{Scope: admin.Scope{Group: group, Type: typeURL}}
	}
	for _, tt := range []struct {
		choice admin.PendingChoice
		want   []string
	}{
		{admin.PendingChoice{}, all},
		{scope("h", ""), all[:1]},
		{scope("", wire.SecretType), all[3:4]},
		{admin.PendingChoice{Name: "new"}, all[2:3]},
		{admin.PendingChoice{Name: "web"}, all[:2]},
		{scope("h", wire.SecretType), nil},
	} {
		rows := WithheldRows(someEdited(t), why, tt.choice)
		if diff := cmp.Diff(tt.want, rowTexts(rows)); diff != "" {
			t.Errorf("%+v: rows (-want +got):\n%s", tt.choice, diff)
		}
		for _, r := range rows {
			if r.Since != why.Since || !r.Until.IsZero() || r.Note != "bad routes" {
				t.Errorf("%+v: since %v until %v note %q", tt.choice, r.Since, r.Until, r.Note)
			}
		}
	}
	why.Until = time.Unix(200, 0)
	if r := WithheldRows(someEdited(t), why, scope("h", ""))[0]; r.Ends != admin.EndsByDeadline || r.Until != why.Until {
		t.Errorf("with a deadline, a row ends by %s at %v", r.Ends, r.Until)
	}
}

// TestSortPending verifies the order of rows: by origin, group, type, and reason.
func TestSortPending(t *testing.T) {
	var rows []admin.PendingChange
	for _, origin := range []string{"b", "a"} {
		for _, reason := range []string{"halted", "suspect"} {
			for _, typeURL := range []string{wire.RouteType, wire.ClusterType} {
				rows = append(rows, admin.PendingChange{Origin: origin, TypeURL: typeURL, Reason: reason})
			}
		}
	}
	SortPending(rows)
	var got []string
	for _, r := range rows {
		got = append(got, r.Origin+" "+r.TypeURL[strings.LastIndexByte(r.TypeURL, '.')+1:]+" "+r.Reason)
	}
	want := []string{
		"a Cluster suspect", "a Cluster halted", "a RouteConfiguration suspect", "a RouteConfiguration halted",
		"b Cluster suspect", "b Cluster halted", "b RouteConfiguration suspect", "b RouteConfiguration halted",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
}

// TestB53_PendingRowsByPart: what waits for a rollout has a row for each part, with the reason of that part.
func TestB53_PendingRowsByPart(t *testing.T) {
	var all []Edited
	for name, part := range map[string]string{"a": "cds/a", "b": "cds/b", "c": ""} {
		all = append(all, Edited{Origin: "default", Difference: rollout.Difference{
			Section: rollout.SectionKey{Group: "group"}, Part: part,
			Difference: pending.Difference{Key: wire.ClusterType, Name: name},
		}})
	}
	var got []string
	for _, why := range []Wait{
		{Reason: admin.PendingHalted, Part: "cds/a"}, {Reason: admin.PendingStage, Part: "cds/b"}, {Reason: admin.PendingStage},
	} {
		for _, row := range WithheldRows(all, why, admin.PendingChoice{}) {
			got = append(got, fmt.Sprint(row.Reason, " ", row.Part, " ", row.Names))
		}
	}
	if want := []string{"halted cds/a [a]", "stage cds/b [b]", "stage  [c]"}; !slices.Equal(got, want) {
		t.Errorf("the rows are %q, want %q", got, want)
	}
	frozen := WithheldRows(all, Wait{Reason: admin.PendingFrozen, AllParts: true}, admin.PendingChoice{})
	if len(frozen) != 1 || frozen[0].Count != 3 || frozen[0].Part != "" {
		t.Errorf("frozen: the rows are %+v, want one with all names", frozen)
	}
}

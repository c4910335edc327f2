package main

import (
	"strings"
	"testing"
	"time"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/admin"
)

// TestPrintPending verifies the table of tender pending: the columns, the notes, and that -o wide prints all names and
// details.
func TestPrintPending(t *testing.T) {
	now := time.Unix(10_000, 0)
	rows := []admin.PendingChange{
		{
			Origin: "default", TypeURL: wire.ClusterType, Change: "remove", Reason: "large-removal", Count: 5,
			Names: []string{"a", "b", "c", "d", "e"}, Since: now.Add(-time.Minute), Until: now.Add(9 * time.Minute), Ends: "deadline",
			By: "relay", Reported: true,
		},
		{
			Origin: "default", Group: "edge", TypeURL: wire.RouteType, Change: "change", Reason: "breaking", Count: 4,
			Names: []string{"r", "s", "t", "u"}, Details: []string{"1", "2", "3", "4"}, Since: now, Ends: "origin", By: "relay",
		},
		{
			Origin: "eu", Group: "edge", TypeURL: wire.RouteType, Change: "add", Reason: "frozen", Count: 1, Names: []string{"v\x1b"},
			Ends: "operator", By: "alice at 10.0.0.1", Note: "bad routes",
		},
	}
	const table = `ORIGIN   GROUP  TYPE  CHANGE  REASON         SINCE  UNTIL     BY                 RESOURCES  NAMES
default  all    cds   remove  large-removal  1m0s   in 9m0s   relay              5          NAMES1
    names only: returning clients reported them
default  edge   rds   change  breaking       0s     origin    relay              4          NAMES2
    r: 1
    s: 2
    t: 3
DETAILeu       edge   rds   add     frozen         -      operator  alice at 10.0.0.1  1          v\u001b
    bad routes
`
	for wide, names := range map[bool]*strings.Replacer{
		false: strings.NewReplacer("NAMES1", "a, b, c, …", "NAMES2", "r, s, t, …", "DETAIL", ""),
		true:  strings.NewReplacer("NAMES1", "a, b, c, d, e", "NAMES2", "r, s, t, u", "DETAIL", "    u: 4\n"),
	} {
		var out strings.Builder
		if err := printPending(&out, rows, "pending", wide, now); err != nil || out.String() != names.Replace(table) {
			t.Errorf("wide=%t: %v, got\n%s\nwant\n%s", wide, err, out.String(), names.Replace(table))
		}
	}
}

// TestPrintDecision verifies the output of pass and drop, and of a dry run.
func TestPrintDecision(t *testing.T) {
	now := time.Unix(10_000, 0)
	row := admin.PendingChange{
		Origin: "default", TypeURL: wire.ClusterType, Change: "remove", Reason: "suspect", Count: 1, Names: []string{"a"}, Ends: "origin", By: "relay",
	}
	table := "ORIGIN   GROUP  TYPE  CHANGE  REASON   SINCE  UNTIL   BY     RESOURCES  NAMES\n" +
		"default  all    cds   remove  suspect  -      origin  relay  1          a\n"
	for _, tt := range []struct {
		answer admin.PendingDecision
		want   string
	}{
		{admin.PendingDecision{}, "nothing is passed\n"},
		{admin.PendingDecision{Pending: []admin.PendingChange{row}}, "passed:\n" + table},
		{admin.PendingDecision{Pending: []admin.PendingChange{row}, DryRun: true}, "dry run: would be passed:\n" + table},
		{
			admin.PendingDecision{Skipped: []admin.SkippedPending{{Reason: "frozen", Count: 2, Use: "tender thaw"}}, Warning: "lost"},
			"nothing is passed\nnote: 2 changes are not passed: frozen: use tender thaw\nnote: lost\n",
		},
	} {
		var out strings.Builder
		if err := printDecision(&out, "passed", &tt.answer, now); err != nil || out.String() != tt.want {
			t.Errorf("%+v: %v, got\n%s\nwant\n%s", tt.answer, err, out.String(), tt.want)
		}
	}
}

// TestPendingNote verifies the line of tender status.
func TestPendingNote(t *testing.T) {
	for want, pending := range map[string]map[string]int{
		"": nil,
		"1 change is PENDING (1 stage): tender pending":                 {"stage": 1},
		"5 changes are PENDING (2 suspect, 3 breaking): tender pending": {"breaking": 3, "suspect": 2},
	} {
		if got := pendingNote(pending); got != want {
			t.Errorf("%v: %q, want %q", pending, got, want)
		}
	}
}

package relay

import (
	"slices"
	"strings"
	"testing"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/config"
	"github.com/xdstender/tender/relay/nodegroup"
)

// TestD1_FeaturesOnThePage checks the table of client features in relay/PROTOCOL.md against the features that the
// relay sends and that are part of group keys.
func TestD1_FeaturesOnThePage(t *testing.T) {
	var always, grouped []string
	for _, row := range rowsBelow(t, "### D.1 ") {
		feature := strings.Trim(row[0], "`")
		if row[3] == "group key" {
			grouped = append(grouped, feature)
		}
		if row[4] == "always" {
			always = append(always, feature)
		}
	}
	for _, c := range []struct {
		what      string
		got, want []string
	}{
		{"always sent upstream", always, config.OwnFeatures},
		{"part of the group key", grouped, nodegroup.ContentFeatures},
	} {
		if !slices.Equal(c.got, c.want) {
			t.Errorf("page: %q are %s, relay: %q", c.got, c.what, c.want)
		}
	}
}

// TestD2_TypesOnThePage checks the table of types in relay/PROTOCOL.md against package wire.
func TestD2_TypesOnThePage(t *testing.T) {
	known := map[string]bool{}
	for _, row := range rowsBelow(t, "### D.2 ") {
		typeURL := "type.googleapis.com/" + row[0]
		if strings.HasPrefix(row[0], "any other ") {
			typeURL = "type.googleapis.com/acme.Other"
		} else {
			known[typeURL] = true
		}
		if wire.Known(typeURL) != known[typeURL] {
			t.Errorf("page: %s is a type of the protocol: %t", row[0], known[typeURL])
		}
		if want := wire.LegacyWildcard(typeURL); (row[2] == "yes") != want {
			t.Errorf("page: %q as the legacy wildcard of %s, relay: %t", row[2], row[0], want)
		}
		if want := wire.FullState(typeURL); (row[3] == "yes") != want {
			t.Errorf("page: %q as the full state of %s, relay: %t", row[3], row[0], want)
		}
	}
	if want := wire.Rank("type.googleapis.com/acme.Other"); len(known) != want {
		t.Errorf("page: %d types of the protocol, relay: %d", len(known), want)
	}
}

// rowsBelow returns the cells of the rows of the first table below a heading of
// relay/PROTOCOL.md.
func rowsBelow(t *testing.T, heading string) (rows [][]string) {
	t.Helper()
	_, text, _ := strings.Cut(pages(t)["PROTOCOL.md"], "\n"+heading)
	_, table, _ := strings.Cut(text, "\n|---")
	table, _, _ = strings.Cut(table, "\n\n")
	for line := range strings.Lines(table) {
		if cells := strings.Split(strings.Trim(line, "| \n"), " | "); len(cells) > 3 {
			rows = append(rows, cells)
		}
	}
	if len(rows) < 5 {
		t.Fatalf("%s has a table of %d rows, want at least 5", heading, len(rows))
	}
	return rows
}

package cli

import (
	"strings"
	"testing"
)

// TestTableCutsNoTwoCellsAlike verifies that cells are cut only as far as different ones differ in their column, and that
// a long row loses only a part of its last cell.
func TestTableCutsNoTwoCellsAlike(t *testing.T) {
	const a, b = "user_agent_name=envoy,SHOP=cart,locality.zone=1", "user_agent_name=envoy,SHOP=till,locality.zone=1"
	var narrowTable Table
	narrowTable.Row("GROUP", "NODE", "STATE")
	narrowTable.Row(a, strings.Repeat("n", 50), strings.Repeat("x", 300))
	narrowTable.Row(b, "node", "-")
	narrowTable.Row()
	narrowTable.Row(a, "alone") // another block
	var out strings.Builder
	if err := narrowTable.Print(&out); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(out.String(), "\n")
	if !strings.HasPrefix(lines[1], a+"  nnnnnnnnnnnnn…nnnnnnnnnnnn  xxxx") || !strings.HasPrefix(lines[2], b+"  node") {
		t.Errorf("rows with groups that differ in the middle:\n%s", out.String())
	}
	if n := len([]rune(lines[1])); n != 2*narrow {
		t.Errorf("a long row has %d characters, want %d:\n%s", n, 2*narrow, lines[1])
	}
	if lines[4] != "user_agent_na…ality.zone=1  alone" {
		t.Errorf("a group that is alone in its column: %s, want it cut", lines[4])
	}
}

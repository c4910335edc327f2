package main

import (
	"bytes"
	"encoding/json"
	"os"
	"testing"
)

// TestFileIsWritten holds tender.json to the code.
func TestFileIsWritten(t *testing.T) {
	var want bytes.Buffer
	if err := write(&want); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile("tender.json"); err != nil || !bytes.Equal(got, want.Bytes()) {
		t.Errorf("tender.json is not what the code writes (%v); run\n\tgo run ./deploy/grafana >deploy/grafana/tender.json", err)
	}
}

// TestDashboard holds what Grafana needs of the file: a version of the model, numbers and places
// that no two panels share, and of each panel a title, a data source and what it shows.
func TestDashboard(t *testing.T) {
	text, err := os.ReadFile("tender.json")
	if err != nil {
		t.Fatal(err)
	}
	var d dashboard
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	if d.UID == "" || d.Title == "" || d.SchemaVersion < 36 {
		t.Errorf("uid %q, title %q, schemaVersion %d; want both, and 36 at least, where data sources have a type and a uid", d.UID, d.Title, d.SchemaVersion)
	}
	if len(d.Panels) < 30 {
		t.Errorf("%d panels, want 30 at least", len(d.Panels))
	}
	ids := map[int]string{}
	taken := map[[2]int]string{} // by unit of the grid
	for _, p := range d.Panels {
		if other := ids[p.ID]; p.ID <= 0 || other != "" {
			t.Errorf("%s: its id %d is not positive, or that of %q too", p.Title, p.ID, other)
		}
		ids[p.ID] = p.Title
		place(t, p, taken)
		complete(t, p)
	}
}

// place wants a panel to be within the grid, where no other is.
func place(t *testing.T, p panel, taken map[[2]int]string) {
	t.Helper()
	g := p.GridPos
	if g.W <= 0 || g.H <= 0 || g.X < 0 || g.Y < 0 || g.X+g.W > gridWidth {
		t.Errorf("%s: gridPos %+v is not within %d columns", p.Title, g, gridWidth)
	}
	for x := g.X; x < g.X+g.W; x++ {
		for y := g.Y; y < g.Y+g.H; y++ {
			if other := taken[[2]int{x, y}]; other != "" {
				t.Errorf("%s and %s overlap at column %d, line %d", p.Title, other, x, y)
				return
			}
			taken[[2]int{x, y}] = p.Title
		}
	}
}

// complete wants a panel to have what Grafana shows of it.
func complete(t *testing.T, p panel) {
	t.Helper()
	if p.Title == "" {
		t.Errorf("panel %d has no title", p.ID)
	}
	if p.Type == "row" {
		return
	}
	if p.Description == "" || p.Datasource == nil || *p.Datasource != *prometheus || p.FieldConfig == nil || len(p.Targets) == 0 {
		t.Errorf("%s lacks a description, the data source that the reader chose, how values look, or what it shows", p.Title)
	}
	refs := map[string]bool{}
	for _, target := range p.Targets {
		if target.RefID == "" || refs[target.RefID] || target.Expr == "" || *target.Datasource != *prometheus || target.Instant == target.Range {
			t.Errorf("%s: target %+v: want a refId of its own, an expression, the data source, and either instant or range", p.Title, target)
		}
		refs[target.RefID] = true
	}
}

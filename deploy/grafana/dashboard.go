package main

import (
	"bytes"
	"encoding/json"
	"strings"
)

// schemaVersion is the version of Grafana's dashboard model that these types implement. Later
// versions of Grafana accept it and convert it.
//
// Source: Grafana 10's kinds/dashboard.
const schemaVersion = 39

// gridWidth is the width of Grafana's grid in units. A unit is 30 pixels high.
const gridWidth = 24

// The types up to mappedText are the part of Grafana's dashboard model that this program writes. The order of their
// fields is the order in the file.

// A dashboard is the root of the model.
type dashboard struct {
	UID           string     `json:"uid"`
	Title         string     `json:"title"`
	Description   string     `json:"description"`
	Tags          []string   `json:"tags"`
	SchemaVersion int        `json:"schemaVersion"`
	Version       int        `json:"version"`
	Editable      bool       `json:"editable"`
	GraphTooltip  int        `json:"graphTooltip"` // 1 shares the crosshair between all panels
	Refresh       string     `json:"refresh"`
	Time          timeRange  `json:"time"`
	Links         []link     `json:"links"`
	Templating    templating `json:"templating"`
	Panels        []panel    `json:"panels"`
}

type timeRange struct {
	From string `json:"from"`
	To   string `json:"to"`
}

type link struct {
	Title       string `json:"title"`
	Type        string `json:"type"`
	URL         string `json:"url"`
	TargetBlank bool   `json:"targetBlank"`
}

type templating struct {
	List []variable `json:"list"`
}

// A variable is a selector at the top of the dashboard.
type variable struct {
	Name       string  `json:"name"`
	Label      string  `json:"label"`
	Type       string  `json:"type"`
	Query      any     `json:"query"`
	Definition string  `json:"definition,omitempty"` // the query as shown in the user interface
	Datasource *source `json:"datasource,omitempty"`
	Refresh    int     `json:"refresh"` // 1 on load, 2 when the time range changes
	Sort       int     `json:"sort,omitempty"`
	Multi      bool    `json:"multi"`
	IncludeAll bool    `json:"includeAll"`
	AllValue   string  `json:"allValue,omitempty"`
	Current    choice  `json:"current"`
}

type choice struct {
	Text  string `json:"text,omitempty"`
	Value string `json:"value,omitempty"`
}

type variableQuery struct {
	Query string `json:"query"`
	RefID string `json:"refId"`
}

type source struct {
	Type string `json:"type"`
	UID  string `json:"uid"`
}

// prometheus is the data source that the user has selected.
var prometheus = &source{"prometheus", "${datasource}"}

type panel struct {
	ID          int          `json:"id"`
	Type        string       `json:"type"`
	Title       string       `json:"title"`
	Description string       `json:"description,omitempty"`
	GridPos     position     `json:"gridPos"`
	Collapsed   *bool        `json:"collapsed,omitempty"` // nil unless the panel is a row
	Datasource  *source      `json:"datasource,omitempty"`
	Targets     []target     `json:"targets,omitempty"`
	FieldConfig *fieldConfig `json:"fieldConfig,omitempty"`
	Options     any          `json:"options,omitempty"`
}

// A position is the place of a panel in the grid, in units of the grid.
type position struct {
	H int `json:"h"`
	W int `json:"w"`
	X int `json:"x"`
	Y int `json:"y"`
}

// A target is a query of a panel.
type target struct {
	RefID        string  `json:"refId"`
	Datasource   *source `json:"datasource"`
	Expr         string  `json:"expr"`
	LegendFormat string  `json:"legendFormat"`
	Instant      bool    `json:"instant"`
	Range        bool    `json:"range"`
	Format       string  `json:"format"`
}

type fieldConfig struct {
	Defaults  fieldDefaults `json:"defaults"`
	Overrides []any         `json:"overrides"`
}

type fieldDefaults struct {
	Unit       string     `json:"unit,omitempty"`
	Decimals   *int       `json:"decimals,omitempty"`
	Min        *int       `json:"min,omitempty"`
	NoValue    string     `json:"noValue,omitempty"`
	Color      color      `json:"color"`
	Thresholds thresholds `json:"thresholds"`
	Mappings   []mapping  `json:"mappings,omitempty"`
}

type color struct {
	Mode string `json:"mode"`
}

type thresholds struct {
	Mode  string `json:"mode"`
	Steps []step `json:"steps"`
}

// A step is the colour from a value upwards. The first step has no value, and applies to all lower values.
type step struct {
	Color string   `json:"color"`
	Value *float64 `json:"value"`
}

type mapping struct {
	Type    string                `json:"type"`
	Options map[string]mappedText `json:"options"`
}

type mappedText struct {
	Text  string `json:"text"`
	Color string `json:"color"`
	Index int    `json:"index"`
}

// newDashboard lays out rows from top to bottom, and the views of a row from left to right.
func newDashboard(rows []row) dashboard {
	d := dashboard{
		UID: "tender", Title: "Tender", Description: "xDS relays: what is stale, what clients reject, and how far behind any client is.",
		Tags: []string{"tender", "xds"}, SchemaVersion: schemaVersion, Version: 1, Editable: true, GraphTooltip: 1,
		Refresh: "30s", Time: timeRange{"now-1h", "now"},
		Links:      []link{{"What to do", "link", operations, true}, {"Metrics", "link", metrics, true}},
		Templating: templating{variables()},
	}
	y := 0
	for _, r := range rows {
		open := false
		d.add(panel{Type: "row", Title: r.title, GridPos: position{H: 1, W: gridWidth, Y: y}, Collapsed: &open})
		y++
		x, height := 0, 0
		for _, v := range r.views {
			if x+v.width > gridWidth {
				x, y, height = 0, y+height, 0
			}
			p := v.panel()
			p.GridPos = position{H: v.height, W: v.width, X: x, Y: y}
			d.add(p)
			x, height = x+v.width, max(height, v.height)
		}
		y += height
	}
	return d
}

// add adds a panel, and assigns it a unique ID.
func (d *dashboard) add(p panel) {
	p.ID = len(d.Panels) + 1
	d.Panels = append(d.Panels, p)
}

const (
	operations = "https://github.com/xdstender/tender/blob/main/deploy/docs/operations.md"
	metrics    = "https://github.com/xdstender/tender/blob/main/deploy/docs/metrics.md"
)

// variables are the selectors of the dashboard: the data source, the relays and the node groups.
func variables() []variable {
	all := []variable{{Name: "datasource", Label: "Data source", Type: "datasource", Query: "prometheus", Refresh: 1}}
	for _, v := range []struct{ name, label, query string }{
		{"job", "Job", `label_values(tender_build_info, job)`},
		{"instance", "Relay", `label_values(tender_build_info{job=~"$job"}, instance)`},
		{"group", "Node group", `label_values(tender_view_connected{$relays}, group)`},
	} {
		query := expand(v.query)
		all = append(all, variable{
			Name: v.name, Label: v.label, Type: "query", Query: variableQuery{query, v.name}, Definition: query, Datasource: prometheus,
			Refresh: 2, Sort: 1, Multi: true, IncludeAll: true, AllValue: ".*", Current: choice{"All", "$__all"},
		})
	}
	return all
}

// expand replaces placeholders in a query with label matchers for the selected relays or node groups.
func expand(query string) string {
	return strings.NewReplacer(
		"$relays", `job=~"$job", instance=~"$instance"`,
		"$groups", `job=~"$job", instance=~"$instance", group=~"$group"`,
	).Replace(query)
}

// encode returns JSON as Grafana exports it, without HTML escapes of comparison operators.
func encode(d dashboard) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(d)
	return b.Bytes(), err
}

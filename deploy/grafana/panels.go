package main

// A row is a titled section of the dashboard.
type row struct {
	title string
	views []view
}

// A view describes a panel in the terms of this program; panel converts it to Grafana's model.
type view struct {
	kind          string // panel type in Grafana
	title, help   string
	unit          string // unit in Grafana; empty for a plain number
	width, height int
	levels        []level
	words         map[string]mappedText // value to the text that replaces it
	queries       []query
}

// A query is a PromQL expression, and the template for the names of its lines.
type query struct{ expr, legend string }

// A level is the colour of values from a threshold upwards. Values below the first level are green.
type level struct {
	from  float64
	color string
}

// some is the level of values that should be 0.
var some = []level{{1, "red"}}

// stat returns a panel with the latest value as a large coloured number.
func stat(title, help, unit, expr string, levels ...level) view {
	return view{kind: "stat", title: title, help: help, unit: unit, width: 3, height: 4, levels: levels, queries: []query{{expr, ""}}}
}

// graph returns a panel with lines over time.
func graph(title, help, unit string, queries ...query) view {
	return view{kind: "timeseries", title: title, help: help, unit: unit, width: 8, height: 8, queries: queries}
}

// states returns a panel with the periods in which each series was 0 (off) or 1 (on).
func states(title, help string, off, on mappedText, queries ...query) view {
	return view{
		kind: "state-timeline", title: title, help: help, width: 8, height: 8, queries: queries,
		words: map[string]mappedText{"0": off, "1": on},
	}
}

// list returns a table with the current value of each series.
func list(title, help, unit, expr string) view {
	return view{kind: "table", title: title, help: help, unit: unit, width: 8, height: 8, queries: []query{{expr, ""}}}
}

// heat returns a heat map of a histogram of durations.
func heat(title, help, expr string) view {
	return view{kind: "heatmap", title: title, help: help, unit: "s", width: 8, height: 8, queries: []query{{expr, "{{le}}"}}}
}

func (v view) wide(width int) view {
	v.width = width
	return v
}

// now reports whether the view shows current values only, not a time range.
func (v view) now() bool { return v.kind == "stat" || v.kind == "table" }

// panel returns the view as a panel of Grafana, without ID and position.
func (v view) panel() panel {
	p := panel{Type: v.kind, Title: v.title, Description: v.help, Datasource: prometheus, FieldConfig: v.fields(), Options: v.options()}
	for i, q := range v.queries {
		t := target{RefID: string(rune('A' + i)), Datasource: prometheus, Expr: expand(q.expr), LegendFormat: q.legend, Instant: v.now(), Range: !v.now(), Format: "time_series"}
		switch v.kind {
		case "table", "heatmap":
			t.Format = v.kind
		}
		p.Targets = append(p.Targets, t)
	}
	return p
}

func (v view) fields() *fieldConfig {
	f := &fieldConfig{Overrides: []any{}}
	f.Defaults = fieldDefaults{Unit: v.unit, Color: color{"palette-classic"}, Thresholds: thresholds{"absolute", []step{{Color: "green"}}}}
	if v.kind != "timeseries" {
		f.Defaults.Color.Mode = "thresholds"
	} else {
		f.Defaults.Min = new(int)
	}
	if v.kind == "stat" {
		f.Defaults.NoValue = "none"
		if v.unit == "" {
			f.Defaults.Decimals = new(int)
		}
	}
	for _, l := range v.levels {
		f.Defaults.Thresholds.Steps = append(f.Defaults.Thresholds.Steps, step{l.color, &l.from})
	}
	if len(v.words) > 0 {
		f.Defaults.Mappings = []mapping{{"value", v.words}}
	}
	return f
}

// options returns the options of the panel type in Grafana's model.
func (v view) options() any {
	last := map[string]any{"calcs": []string{"lastNotNull"}, "fields": "", "values": false}
	switch v.kind {
	case "stat":
		return map[string]any{"colorMode": "background", "graphMode": "none", "justifyMode": "auto", "textMode": "auto", "reduceOptions": last}
	case "timeseries":
		return map[string]any{
			"legend":  map[string]any{"displayMode": "list", "placement": "bottom", "showLegend": true},
			"tooltip": map[string]any{"mode": "multi", "sort": "desc"},
		}
	case "state-timeline":
		return map[string]any{"mergeValues": true, "showValue": "never", "rowHeight": 0.8}
	case "heatmap":
		return map[string]any{"calculate": false, "yAxis": map[string]any{"unit": "s"}, "color": map[string]any{"mode": "scheme", "scheme": "Oranges", "steps": 64}}
	}
	return map[string]any{"showHeader": true}
}

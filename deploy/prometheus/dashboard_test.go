package prometheus_test

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"
)

// grafana is the part of a dashboard that is about queries.
type grafana struct {
	Templating struct {
		List []struct {
			Name, Type, Definition string
		}
	}
	Panels []struct {
		Title   string
		Targets []struct{ Expr, LegendFormat string }
	}
}

var (
	// labelValues is what Grafana asks for the values of a variable.
	labelValues = regexp.MustCompile(`^label_values\((.+), (\w+)\)$`)
	// legend is a label that the name of a line has.
	legend = regexp.MustCompile(`{{(\w+)}}`)
	// left is a variable that was not replaced.
	left = regexp.MustCompile(`\$\w+`)
)

// variables are what Grafana replaces in a query.
var variables = strings.NewReplacer("$__rate_interval", "5m", "$job", "tender", "$instance", "a|b", "$group", ".*")

// B.43: each query of the dashboard asks for what relays export, and each line is called by
// labels that it has.
func TestB43_DashboardAsksForWhatIsExported(t *testing.T) {
	text, err := os.ReadFile("../grafana/tender.json")
	if err != nil {
		t.Fatal(err)
	}
	var d grafana
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	c, queries := checker{known: exported(t)}, 0
	check := func(where, query string) set {
		queries++
		query = variables.Replace(query)
		if unknown := left.FindString(query); unknown != "" {
			t.Errorf("%s: there is no variable %s", where, unknown)
			return nil
		}
		has, err := c.check(query)
		if err != nil {
			t.Errorf("%s: %v\n%s", where, err, query)
		}
		return has
	}
	for _, v := range d.Templating.List {
		if v.Type != "query" {
			continue
		}
		if parts := labelValues.FindStringSubmatch(v.Definition); parts == nil {
			t.Errorf("variable %s: %q is not label_values(query, label)", v.Name, v.Definition)
		} else if has := check("variable "+v.Name, parts[1]); !has[parts[2]] {
			t.Errorf("variable %s: there is no label %s", v.Name, parts[2])
		}
	}
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			has := check(p.Title, target.Expr)
			for _, match := range legend.FindAllStringSubmatch(target.LegendFormat, -1) {
				if has != nil && !has[match[1]] {
					t.Errorf("%s: a line is called by %s, which it has not", p.Title, match[1])
				}
			}
		}
	}
	if queries < 40 {
		t.Errorf("found %d queries, want 40 at least", queries)
	}
}

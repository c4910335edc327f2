package deploy_test

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"
)

// grafana holds the fields of a dashboard that contain queries.
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
	// labelValues matches the query for the values of a variable.
	labelValues = regexp.MustCompile(`^label_values\((.+), (\w+)\)$`)
	// legend matches a label in the template for the name of a line.
	legend = regexp.MustCompile(`{{(\w+)}}`)
	// left matches a variable that was not replaced.
	left = regexp.MustCompile(`\$\w+`)
)

// examples replaces the variables of Grafana in a query with example values.
var examples = strings.NewReplacer("$__rate_interval", "5m", "$job", "tender", "$instance", "a|b", "$group", ".*")

// B.43: each query of the dashboard uses exported metrics only, and each line is named by
// labels of its series.
func TestB43_DashboardAsksForWhatIsExported(t *testing.T) {
	var d grafana
	if err := json.Unmarshal([]byte(readText(t, "grafana/tender.json")), &d); err != nil {
		t.Fatal(err)
	}
	c, queries := checker{known: exported(t)}, 0
	check := func(where, query string) set {
		queries++
		query = examples.Replace(query)
		if unknown := left.FindString(query); unknown != "" {
			t.Errorf("%s: the variable %s does not exist", where, unknown)
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
			t.Errorf("variable %s: the label %s does not exist", v.Name, parts[2])
		}
	}
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			has := check(p.Title, target.Expr)
			for _, match := range legend.FindAllStringSubmatch(target.LegendFormat, -1) {
				if has != nil && !has[match[1]] {
					t.Errorf("%s: a line is named by the label %s, which its series do not have", p.Title, match[1])
				}
			}
		}
	}
	if queries < 40 {
		t.Errorf("found %d queries, want 40 at least", queries)
	}
}

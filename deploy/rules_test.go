package deploy_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	rulesFile     = "prometheus/tender.rules.yaml"
	ruleTestsFile = "prometheus/tender.rules.test.yaml"
)

// An alert is an alert rule of the rules file.
type alert struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

// alerts returns all alert rules of the rules file.
func alerts(t *testing.T) (all []alert) {
	t.Helper()
	var file struct {
		Groups []struct {
			Name  string  `json:"name"`
			Rules []alert `json:"rules"`
		} `json:"groups"`
	}
	readYAML(t, rulesFile, &file)
	for _, group := range file.Groups {
		all = append(all, group.Rules...)
	}
	if len(all) < 15 {
		t.Fatalf("%s has %d alerts, want 15 at least", rulesFile, len(all))
	}
	return all
}

// templated matches a label in the template of an annotation.
var templated = regexp.MustCompile(`\$labels\.(\w+)`)

// B.43: an alert uses exported metrics only, and its annotations use labels of its result only.
func TestB43_AlertsAskForWhatIsExported(t *testing.T) {
	c := checker{known: exported(t)}
	for _, a := range alerts(t) {
		has, err := c.check(a.Expr)
		if err != nil {
			t.Errorf("%s: %v", a.Alert, err)
			continue
		}
		for name, text := range a.Annotations {
			for _, match := range templated.FindAllStringSubmatch(text, -1) {
				if !has[match[1]] {
					t.Errorf("%s: its %s uses the label %s, which its result does not have", a.Alert, name, match[1])
				}
			}
		}
	}
}

// B.43: each alert has a duration, a severity for routing, and a runbook_url that links to its section on the page of
// operations.
func TestB43_AlertsHaveRunbooks(t *testing.T) {
	page := readText(t, "docs/operations.md")
	const url = "https://github.com/xdstender/tender/blob/main/deploy/docs/operations.md#"
	for _, a := range alerts(t) {
		if a.For == "" || !slices.Contains([]string{"critical", "warning"}, a.Labels["severity"]) {
			t.Errorf("%s: for is %q and the labels are %q, want a duration, and a severity, critical or warning", a.Alert, a.For, a.Labels)
		}
		if got, want := a.Annotations["runbook_url"], url+strings.ToLower(a.Alert); got != want || !strings.Contains(page, "# "+a.Alert+"\n\n**Cause.**") {
			t.Errorf("%s: runbook_url is %q, want %q, with a section there that begins with the cause", a.Alert, got, want)
		}
	}
}

// B.43: each alert has a test of its name, with a time at which no alert fires, and one at which only this alert fires.
// TestB43_AlertsFire in system/deploy runs these tests.
func TestB43_AlertsHaveTests(t *testing.T) {
	var file struct {
		Tests []struct {
			Name        string `json:"name"`
			Expressions []struct {
				Samples []struct {
					Labels string `json:"labels"`
				} `json:"exp_samples"`
			} `json:"promql_expr_test"`
		} `json:"tests"`
	}
	readYAML(t, ruleTestsFile, &file)
	quiet, firing := set{}, set{} // alerts with a test at which no alert fires, and at which only this alert fires
	for _, tt := range file.Tests {
		for _, e := range tt.Expressions {
			if len(e.Samples) == 0 {
				quiet[tt.Name] = true
			} else if len(e.Samples) == 1 && strings.Contains(e.Samples[0].Labels, `alertname="`+tt.Name+`"`) {
				firing[tt.Name] = true
			}
		}
	}
	for _, a := range alerts(t) {
		if !quiet[a.Alert] || !firing[a.Alert] {
			t.Errorf("%s: %s has a time at which no alert fires: %t, and one at which only this alert fires: %t", a.Alert, ruleTestsFile, quiet[a.Alert], firing[a.Alert])
		}
	}
}

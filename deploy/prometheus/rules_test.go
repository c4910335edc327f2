package prometheus_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"sigs.k8s.io/yaml"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	rulesFile = "tender.rules.yaml"
	testsFile = "tender.rules.test.yaml"
	runbooks  = "../docs/operations.md"
	runbook   = "https://github.com/xdstender/tender/blob/main/deploy/docs/operations.md#"
)

// An alert is a rule of the file.
type alert struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

func read(t *testing.T, name string, into any) {
	t.Helper()
	text, err := os.ReadFile(name)
	if err == nil {
		err = yaml.UnmarshalStrict(text, into)
	}
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

func alerts(t *testing.T) (all []alert) {
	t.Helper()
	var file struct {
		Groups []struct {
			Name  string  `json:"name"`
			Rules []alert `json:"rules"`
		} `json:"groups"`
	}
	read(t, rulesFile, &file)
	for _, group := range file.Groups {
		all = append(all, group.Rules...)
	}
	if len(all) < 15 {
		t.Fatalf("%s has %d alerts, want 15 at least", rulesFile, len(all))
	}
	return all
}

// templated is a label that an annotation names.
var templated = regexp.MustCompile(`\$labels\.(\w+)`)

// B.43: an alert asks for what relays export, and tells only of labels that it has.
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
					t.Errorf("%s: its %s names the label %s, which it has not", a.Alert, name, match[1])
				}
			}
		}
	}
}

// section is what the page has of an alert: the cause, what to look at by which commands, and
// what to do.
var section = regexp.MustCompile("(?s)^\n\\*\\*Cause\\.\\*\\* .+\n\n\\*\\*Look\\*\\* .+:\n\n```console\n\\$ .+\n```\n\n\\*\\*Do\\.\\*\\* .+\\.\n+$")

// B.43: an alert says for how long, how bad it is, and where it is written what to do: in a
// section of the page, of which each that is called so is of an alert.
func TestB43_AlertsHaveRunbooks(t *testing.T) {
	page, err := os.ReadFile(runbooks)
	if err != nil {
		t.Fatal(err)
	}
	sections := map[string]string{} // by anchor
	for _, part := range regexp.MustCompile(`(?m)^##+ `).Split(string(page), -1) {
		name, text, _ := strings.Cut(part, "\n")
		if !strings.HasPrefix(name, "Tender") {
			continue
		}
		if sections[strings.ToLower(name)] = name; !section.MatchString(text) {
			t.Errorf("%s: the section of %s has not the cause, what to look at with its commands, and what to do:\n%s", runbooks, name, text)
		}
	}
	for _, a := range alerts(t) {
		if d, err := time.ParseDuration(a.For); err != nil || d <= 0 {
			t.Errorf("%s: for %q, want a duration", a.Alert, a.For)
		}
		if len(a.Labels) != 1 || !slices.Contains([]string{"critical", "warning"}, a.Labels["severity"]) {
			t.Errorf("%s: labels %q, want a severity, critical or warning", a.Alert, a.Labels)
		}
		if len(a.Annotations) != 3 || a.Annotations["summary"] == "" || !strings.HasSuffix(a.Annotations["description"], ".") {
			t.Errorf("%s: annotations %q, want summary, runbook_url and a description in sentences", a.Alert, a.Annotations)
		}
		anchor, ok := strings.CutPrefix(a.Annotations["runbook_url"], runbook)
		if !ok || anchor != strings.ToLower(a.Alert) || sections[anchor] != a.Alert {
			t.Errorf("%s: runbook_url %q, want %s%s, and a section there", a.Alert, a.Annotations["runbook_url"], runbook, strings.ToLower(a.Alert))
		}
		delete(sections, anchor)
	}
	for _, name := range sections {
		t.Errorf("%s has a section of %s: there is no such alert", runbooks, name)
	}
}

// promtool returns the path of Prometheus's own tool.
func promtool(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err != nil {
		path, err = filepath.Abs("../../.bin/promtool")
	}
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		t.Fatalf("run `make deps`: %v", err)
	}
	return path
}

// B.43: Prometheus takes the rules, and each alert fires when it should, and not before: the
// file of its tests has one of each.
func TestB43_AlertsFire(t *testing.T) {
	for _, args := range [][]string{{"check", "rules", rulesFile}, {"test", "rules", testsFile}} {
		if out, err := exec.CommandContext(t.Context(), promtool(t), args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	type test struct {
		Name        string `json:"name"`
		Expressions []struct {
			Expr    string `json:"expr"`
			Time    string `json:"eval_time"`
			Samples []struct {
				Labels string  `json:"labels"`
				Value  float64 `json:"value"`
			} `json:"exp_samples"`
		} `json:"promql_expr_test"`
		Interval string `json:"interval"`
		Series   []any  `json:"input_series"`
		Alerts   []any  `json:"alert_rule_test"`
	}
	var file struct {
		Rules    []string `json:"rule_files"`
		Interval string   `json:"evaluation_interval"`
		Tests    []test   `json:"tests"`
	}
	read(t, testsFile, &file)
	tests := map[string]test{}
	for _, tt := range file.Tests {
		tests[tt.Name] = tt
	}
	for _, a := range alerts(t) {
		var quiet, fires bool
		for _, e := range tests[a.Alert].Expressions {
			quiet = quiet || len(e.Samples) == 0
			fires = fires || len(e.Samples) == 1 && strings.Contains(e.Samples[0].Labels, `alertname="`+a.Alert+`"`)
		}
		if !quiet || !fires {
			t.Errorf("%s: the test of this name in %s has a moment when nothing fires: %t, and one when only this does: %t", a.Alert, testsFile, quiet, fires)
		}
	}
}

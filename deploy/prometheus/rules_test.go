package prometheus_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"sigs.k8s.io/yaml"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	rulesFile = "tender.rules.yaml"
	testsFile = "tender.rules.test.yaml"
)

// An alert is a rule of the file.
type alert struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	Annotations map[string]string `json:"annotations"`
}

func read(t *testing.T, name string, into any) {
	t.Helper()
	text, err := os.ReadFile(name)
	if err == nil {
		err = yaml.Unmarshal(text, into)
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

// B.43: each alert has a section on the page of operations, and its runbook_url leads there.
func TestB43_AlertsHaveRunbooks(t *testing.T) {
	page, err := os.ReadFile("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	const url = "https://github.com/xdstender/tender/blob/main/deploy/docs/operations.md#"
	for _, a := range alerts(t) {
		if got, want := a.Annotations["runbook_url"], url+strings.ToLower(a.Alert); got != want || !strings.Contains(string(page), "# "+a.Alert+"\n\n**Cause.**") {
			t.Errorf("%s: runbook_url is %q, want %q, with a section there that begins with the cause", a.Alert, got, want)
		}
	}
}

// promtool runs Prometheus's own tool on a file of rules, and on the file of their tests.
func promtool(t *testing.T, rules, tests string) {
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
	for _, args := range [][]string{{"check", "rules", rules}, {"test", "rules", tests}} {
		if out, err := exec.CommandContext(t.Context(), path, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// B.43: Prometheus accepts the rules, and each alert fires when it should and not before, in a test of its name.
func TestB43_AlertsFire(t *testing.T) {
	promtool(t, rulesFile, testsFile)
	tests, err := os.ReadFile(testsFile)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range alerts(t) {
		if !strings.Contains(string(tests), "name: "+a.Alert+"\n") {
			t.Errorf("%s has no test of %s", testsFile, a.Alert)
		}
	}
}

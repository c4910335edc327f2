package deploy_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// promtool checks a file of rules in deploy/prometheus, and runs the tests of another file on it.
func promtool(t *testing.T, rules, tests string) {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err != nil {
		path, err = filepath.Abs(root + "/.bin/promtool")
	}
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		t.Fatalf("run `make deps`: %v", err)
	}
	for _, args := range [][]string{{"check", "rules", rules}, {"test", "rules", tests}} {
		cmd := exec.CommandContext(t.Context(), path, args...)
		cmd.Dir = root + "/deploy/prometheus"
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// B.43: Prometheus accepts the alert rules, which fire in their tests. TestB43_AlertsHaveTests in deploy checks that
// each alert has tests.
func TestB43_AlertsFire(t *testing.T) {
	promtool(t, "tender.rules.yaml", "tender.rules.test.yaml")
}

// B.43: the recording rules pass their tests in promtool.
func TestB43_ObjectivesAreMeasured(t *testing.T) {
	promtool(t, "tender.slo.rules.yaml", "tender.slo.rules.test.yaml")
}

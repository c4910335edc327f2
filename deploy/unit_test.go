package deploy_test

import (
	"maps"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/xdstender/tender/relay/config"
)

// setting returns the value of a setting. It fails the test unless the unit contains it exactly once.
func setting(t *testing.T, unit, name string) string {
	t.Helper()
	found := regexp.MustCompile(`(?m)^`+name+`=(.*)$`).FindAllStringSubmatch(unit, -1)
	if len(found) != 1 {
		t.Fatalf("the unit has %d settings %s, want 1", len(found), name)
	}
	return found[0][1]
}

// TestUnit compares the limits of the unit with those of the relay.
func TestUnit(t *testing.T) {
	unit := readText(t, "systemd/tender.service")
	cfg, err := config.Load(append(assignments(t, readText(t, "systemd/tender.env")), strings.Fields(strings.ReplaceAll(setting(t, unit, "Environment"), "%S", "/var/lib"))...))
	if err != nil {
		t.Fatal(err)
	}
	if dir := "/var/lib/" + setting(t, unit, "StateDirectory"); string(cfg.SnapshotDir) != dir {
		t.Errorf("TENDER_SNAPSHOT_DIR is %s, want the StateDirectory, %s", cfg.SnapshotDir, dir)
	}
	for name, least := range map[string]int{"TimeoutStopSec": int(cfg.Drain.Seconds()) + 5, "LimitNOFILE": 2 * cfg.MaxConnections} {
		if got, err := strconv.Atoi(strings.TrimSuffix(setting(t, unit, name), "s")); err != nil || got < least {
			t.Errorf("%s is %d (%v), want %d at least", name, got, err, least)
		}
	}
}

// TestUnitWithALocalEnvoy checks the drop-in for TENDER_CHECK_ENVOY: it lifts each restriction of the unit that the start of an Envoy
// needs lifted, and no other.
func TestUnitWithALocalEnvoy(t *testing.T) {
	unit, page := readText(t, "systemd/tender.service"), readText(t, "docs/configuration.md")
	dropIn := regexp.MustCompile("(?s)```\n\\[Service\\]\n(.*?)```").FindStringSubmatch(page)
	if dropIn == nil {
		t.Fatal("configuration.md has no drop-in")
	}
	got := make(map[string]string)
	for line := range strings.Lines(dropIn[1]) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		if got[name] = value; value == "no" && setting(t, unit, name) != "yes" {
			t.Errorf("the drop-in lifts %s, which the unit does not have", name)
		}
	}
	want := map[string]string{
		"RestrictNamespaces":     "no",       // those of the Envoy
		"ProtectKernelTunables":  "no",       // net.ipv4.ip_nonlocal_bind in its network namespace
		"MemoryDenyWriteExecute": "no",       // Wasm
		"SystemCallFilter":       "@mount",   // empty directories
		"OOMPolicy":              "continue", // systemd would end the relay with an Envoy that has needed too much memory
	}
	if !maps.Equal(got, want) {
		t.Errorf("the drop-in has %q, want %q", got, want)
	}
}

// TestUnitVariables checks that the relay accepts the variables of the unit's file, with and without those in comments.
func TestUnitVariables(t *testing.T) {
	file := readText(t, "systemd/tender.env")
	for name, text := range map[string]string{
		"the file":     file,
		"its comments": regexp.MustCompile(`(?m)^#(TENDER_)`).ReplaceAllString(file, "$1"),
	} {
		env := assignments(t, text)
		if _, err := config.Load(env); err != nil || len(env) < 2 {
			t.Errorf("%s: Load(%q): %v", name, env, err)
		}
	}
}

// plain matches a value that a shell and systemd read as it is, and quoted one without its quotes.
var plain, quoted = regexp.MustCompile(`^[\w./:,@+-]+$`), regexp.MustCompile(`^'([^']*)'$`)

// assignments returns the variables of a file. It rejects values that need more than single quotes.
// TestVariablesAreReadTheSame in system/deploy reads the file with a shell and with systemd.
func assignments(t *testing.T, text string) (env []string) {
	t.Helper()
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		switch {
		case !ok || strings.HasPrefix(name, "#"):
			continue
		case quoted.MatchString(value):
			value = strings.Trim(value, "'")
		case !plain.MatchString(value):
			t.Errorf("%s=%s: the value is not in single quotes", name, value)
		}
		env = append(env, name+"="+value)
	}
	return env
}

package systemd

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/xdstender/tender/relay"
)

// maxExposure is the highest exposure that systemd-analyze security may report for the unit, in tenths: 0 is a
// service without rights beyond its own files, 100 is an unconfined one.
const maxExposure = 13

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// setting returns the value of a setting that the unit has once.
func setting(t *testing.T, unit, name string) string {
	t.Helper()
	found := regexp.MustCompile(`(?m)^`+name+`=(.*)$`).FindAllStringSubmatch(unit, -1)
	if len(found) != 1 {
		t.Fatalf("the unit has %d settings %s, want 1", len(found), name)
	}
	return found[0][1]
}

// TestVerify checks the unit with systemd-analyze: its syntax, and its exposure.
func TestVerify(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Fatalf("%v: make deps installs it", err)
	}
	unit := read(t, "tender.service")
	program, _, _ := strings.Cut(setting(t, unit, "ExecStart"), " ")
	there, err := os.Executable() // systemd looks for the program
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "tender.service")
	if err := os.WriteFile(name, []byte(strings.Replace(unit, "ExecStart="+program, "ExecStart="+there, 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"verify", "--man=no", name},
		{"security", "--offline=true", "--no-pager", "--threshold=" + strconv.Itoa(maxExposure), name},
	} {
		out, err := exec.CommandContext(t.Context(), "systemd-analyze", args...).CombinedOutput()
		if unknown := strings.Contains(string(out), "ignoring"); err != nil || unknown {
			t.Errorf("systemd-analyze %q: %v\n%s", args, err, out)
		}
	}
}

// TestUnit compares the limits of the unit with those of the relay.
func TestUnit(t *testing.T) {
	unit := read(t, "tender.service")
	cfg, err := relay.LoadConfig(variables(read(t, "tender.env"), false))
	if err != nil {
		t.Fatal(err)
	}
	for name, least := range map[string]int{"TimeoutStopSec": int(cfg.Drain.Seconds()) + 5, "LimitNOFILE": 2 * cfg.MaxConnections} {
		if got, err := strconv.Atoi(strings.TrimSuffix(setting(t, unit, name), "s")); err != nil || got < least {
			t.Errorf("%s is %d (%v), want %d at least", name, got, err, least)
		}
	}
	for name, want := range map[string]string{"LimitCORE": "0", "Environment": "TENDER_SNAPSHOT_DIR=%S/" + setting(t, unit, "StateDirectory")} {
		if got := setting(t, unit, name); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
}

// variables returns the assignments of an environment file; all includes those in comments.
func variables(text string, all bool) []string {
	pattern := `(?m)^(TENDER_\w+=.*)$`
	if all {
		pattern = `(?m)^#?(TENDER_\w+=.*)$`
	}
	var found []string
	for _, match := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		found = append(found, match[1])
	}
	return found
}

// TestVariables checks that the relay accepts the variables of the file, with and without those in comments.
func TestVariables(t *testing.T) {
	for _, all := range []bool{false, true} {
		env := variables(read(t, "tender.env"), all)
		if _, err := relay.LoadConfig(env); err != nil || len(env) < 2 {
			t.Errorf("LoadConfig(%q): %v", env, err)
		}
	}
}

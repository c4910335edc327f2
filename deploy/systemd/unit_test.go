package systemd

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/xdstender/tender/relay"
)

// maxExposure is the bound of what systemd-analyze security makes of the unit, in tenths: 0 is
// nothing that the service could do beyond its own files, 100 is everything.
const maxExposure = 13

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// setting returns what the unit says of a setting that it has once.
func setting(t *testing.T, unit, name string) string {
	t.Helper()
	found := regexp.MustCompile(`(?m)^`+name+`=(.*)$`).FindAllStringSubmatch(unit, -1)
	if len(found) != 1 {
		t.Fatalf("the unit has %d settings %s, want 1", len(found), name)
	}
	return found[0][1]
}

// TestVerify has systemd read the unit, and say how much the service could do.
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

// TestUnit holds the numbers of the unit to those of the relay.
func TestUnit(t *testing.T) {
	unit := read(t, "tender.service")
	cfg, err := relay.LoadConfig(variables(read(t, "tender.env"), false))
	if err != nil {
		t.Fatal(err)
	}
	if stop, err := time.ParseDuration(setting(t, unit, "TimeoutStopSec")); err != nil || stop < cfg.Drain+5*time.Second {
		t.Errorf("TimeoutStopSec is %v (%v), want 5s at least beyond TENDER_DRAIN, %v", stop, err, cfg.Drain)
	}
	if files, err := strconv.Atoi(setting(t, unit, "LimitNOFILE")); err != nil || files < 2*cfg.MaxConnections {
		t.Errorf("LimitNOFILE is %d (%v), want twice TENDER_MAX_CONNECTIONS, %d, at least", files, err, cfg.MaxConnections)
	}
	if got, want := setting(t, unit, "Environment"), "TENDER_SNAPSHOT_DIR=%S/"+setting(t, unit, "StateDirectory"); got != want {
		t.Errorf("Environment is %s, want %s", got, want)
	}
}

// variables returns the assignments of a file of variables, with or without those that are
// comments.
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

// TestVariables holds that the relay takes what the file says, also what it suggests.
func TestVariables(t *testing.T) {
	text := read(t, "tender.env")
	for _, all := range []bool{false, true} {
		env := variables(text, all)
		if _, err := relay.LoadConfig(env); err != nil || len(env) < 2 {
			t.Errorf("the relay does not take %q: %v", env, err)
		}
	}
	if named := regexp.MustCompile(`TENDER_\w+`).FindAllString(text+read(t, "tender.service"), -1); len(named) < 15 {
		t.Errorf("the files name %d variables, want 15 at least", len(named))
	} else {
		for _, name := range named {
			if !strings.Contains(relay.MarkdownTable(), "`"+name+"`") {
				t.Errorf("there is no variable %s", name)
			}
		}
	}
}

package deploy_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// maxExposure is the maximum exposure that systemd-analyze security may report for the unit, in tenths: 0 is a fully
// confined service, 100 an unconfined one.
const maxExposure = 13

// unitDir has the unit and the file with its variables.
const unitDir = root + "/deploy/systemd/"

// TestUnitIsValid checks the unit with systemd-analyze.
func TestUnitIsValid(t *testing.T) {
	there, err := os.Executable() // systemd checks that the program exists
	if err != nil {
		t.Fatal(err)
	}
	checkUnit(t, readText(t, unitDir+"tender.service"), there)
}

// checkUnit checks a unit with systemd-analyze: its syntax, and its exposure. The program stands for that of the unit.
func checkUnit(t *testing.T, unit, there string) {
	t.Helper()
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Fatalf("%v: make deps installs it", err)
	}
	program := regexp.MustCompile(`(?m)^ExecStart=(\S+)`).FindStringSubmatch(unit)
	if program == nil {
		t.Fatal("the unit has no ExecStart")
	}
	name := filepath.Join(t.TempDir(), "tender.service")
	if err := os.WriteFile(name, []byte(strings.Replace(unit, program[0], "ExecStart="+there, 1)), 0o644); err != nil {
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

// TestVariablesAreReadTheSame checks that a shell and systemd read the same values from the file of variables, with and
// without those in comments.
func TestVariablesAreReadTheSame(t *testing.T) {
	file := readText(t, unitDir+"tender.env")
	for name, text := range map[string]string{
		"the file":     file,
		"its comments": regexp.MustCompile(`(?m)^#(TENDER_)`).ReplaceAllString(file, "$1"),
	} {
		path := filepath.Join(t.TempDir(), "tender.env")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		env := shellRead(t, path)
		if diff := cmp.Diff(systemdRead(t, path), env); diff != "" || len(env) < 2 {
			t.Errorf("%s is read differently, or has fewer than two variables (-systemd +sh):\n%s", name, diff)
		}
	}
}

// TestRecipes runs the commands that read a file of variables. One is in the comment of the file, and one in install.md
// for docker run, which keeps quotes in values.
func TestRecipes(t *testing.T) {
	dir := t.TempDir()
	const metadata = `{"NAMESPACE": "tender", "note": "it is $HOME"}`
	path := filepath.Join(dir, "tender.env")
	programs := map[string]string{
		"tender.env": "# a comment\nTENDER_ORIGIN=control-plane.example:18000\nTENDER_NODE_METADATA='" + metadata + "'\n",
		"tender":     "#!/bin/sh\necho \"$1 $TENDER_NODE_METADATA\"\n",
		"docker":     "#!/bin/sh\necho \"$@\"\necho \"$1 $TENDER_NODE_METADATA\"\n",
	}
	for name, text := range programs {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	check := regexp.MustCompile(`(?m)^#\t(.*)$`).FindStringSubmatch(readText(t, unitDir+"tender.env"))
	run := regexp.MustCompile(`(?m)^set -a; \. (?s:.*?)\n\x60\x60\x60$`).FindString(readText(t, root+"/deploy/docs/install.md"))
	if check == nil || run == "" {
		t.Fatal("tender.env or install.md has no recipe")
	}
	for recipe, wants := range map[string][]string{
		check[1]:                 {"check " + metadata},
		strings.Trim(run, "`\n"): {"-e TENDER_ORIGIN -e TENDER_NODE_METADATA", "run " + metadata},
	} {
		cmd := exec.CommandContext(t.Context(), "sh", "-ec", strings.ReplaceAll(recipe, "/etc/tender/tender.env", path))
		cmd.Dir, cmd.Env = dir, []string{"PATH=" + dir + ":" + os.Getenv("PATH")}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v", recipe, err)
		}
		for _, want := range wants {
			if !strings.Contains(string(out), want) {
				t.Errorf("%s\nprints\n%s\nwhich lacks %q", recipe, out, want)
			}
		}
	}
}

// shellRead returns the variables of a file as a shell reads them, sorted.
func shellRead(t *testing.T, path string) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "env", "-i", "sh", "-ec", `PATH=/usr/bin:/bin; set -a; . "$(realpath "$0")"; env -0`, path).Output()
	if err != nil {
		t.Fatal(err)
	}
	return ours(strings.Split(string(out), "\x00"))
}

// environmentGenerator prints the variables of files, parsed by systemd's parser of EnvironmentFile and quoted for a
// shell.
const environmentGenerator = "/usr/lib/systemd/user-environment-generators/30-systemd-environment-d-generator"

// systemdRead returns the variables of a file as systemd reads them, sorted.
func systemdRead(t *testing.T, path string) []string {
	t.Helper()
	home := t.TempDir()
	if err := os.Mkdir(filepath.Join(home, "environment.d"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(path, filepath.Join(home, "environment.d", "tender.conf")); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), environmentGenerator)
	cmd.Env = []string{"HOME=" + home, "XDG_CONFIG_HOME=" + home}
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: make deps installs systemd", err)
	}
	printed := filepath.Join(home, "printed")
	if err := os.WriteFile(printed, out, 0o600); err != nil {
		t.Fatal(err)
	}
	return shellRead(t, printed)
}

// ours returns the variables of Tender among assignments, sorted.
func ours(all []string) (found []string) {
	for _, assignment := range all {
		if strings.HasPrefix(assignment, "TENDER_") {
			found = append(found, assignment)
		}
	}
	slices.Sort(found)
	return found
}

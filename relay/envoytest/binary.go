package envoytest

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/xdstender/tender/relay/relaytest"
)

// versionFiles is the directory with a pip requirements file for each version of Envoy that the tests run with.
const versionFiles = "relay/envoytest/versions"

// Binary returns the path of the Envoy to run. It is the value of the environment variable ENVOY or, if that is not
// set, the newest version that `make deps` installs.
func Binary(tb relaytest.TB) string {
	tb.Helper()
	if path := os.Getenv("ENVOY"); path != "" {
		return existing(tb, path)
	}
	all := Versions(tb)
	return Installed(tb, all[len(all)-1])
}

// Installed returns the path of an Envoy that `make deps` installs, by its version.
func Installed(tb relaytest.TB, version string) string {
	tb.Helper()
	return existing(tb, filepath.Join(root(tb), ".bin", "envoy-"+version))
}

// VersionOf returns the version of the Envoy at a path, such as 1.40.0.
func VersionOf(tb relaytest.TB, path string) string {
	tb.Helper()
	out, err := exec.Command(path, "--version").Output()
	if err != nil {
		tb.Fatalf("version of %s: %v", path, err)
	}
	parts := strings.Split(string(out), "/") // PATH  version: COMMIT/VERSION/STATE/TYPE/LIBRARY
	if len(parts) < 5 {
		tb.Fatalf("version of %s: got %q", path, out)
	}
	return parts[len(parts)-4]
}

// existing returns path. It fails the test if there is no such file.
func existing(tb relaytest.TB, path string) string {
	tb.Helper()
	if _, err := os.Stat(path); err != nil {
		tb.Fatalf("no Envoy binary: %v: run `make deps`, or set ENVOY to the path of an Envoy", err)
	}
	return path
}

// Previous returns the path of the tender binary of the previous commit, which `make previous` builds.
func Previous(tb relaytest.TB) string {
	tb.Helper()
	path := filepath.Join(root(tb), ".bin", "tender-previous")
	if _, err := os.Stat(path); err != nil {
		tb.Fatalf("no binary of the previous commit: %v: run `make previous`", err)
	}
	return path
}

// Versions returns the versions of Envoy that the tests run with, oldest first.
func Versions(tb relaytest.TB) []string {
	tb.Helper()
	files, err := filepath.Glob(filepath.Join(root(tb), versionFiles, "*.txt"))
	if err != nil || len(files) == 0 {
		tb.Fatalf("no versions of Envoy in %s: %v", versionFiles, err)
	}
	var versions []string
	for _, file := range files {
		versions = append(versions, strings.TrimSuffix(filepath.Base(file), ".txt"))
	}
	slices.SortFunc(versions, func(a, b string) int { return slices.Compare(numbers(a), numbers(b)) })
	return versions
}

// numbers returns the numbers of a version, such as 1, 40 and 0 for 1.40.0.
func numbers(version string) (parts []int) {
	for part := range strings.SplitSeq(version, ".") {
		n, _ := strconv.Atoi(part) // other text counts as 0 and sorts first
		parts = append(parts, n)
	}
	return parts
}

// root returns the root directory of the repository, which must contain the working directory.
func root(tb relaytest.TB) string {
	tb.Helper()
	dir, err := os.Getwd()
	if err != nil {
		tb.Fatalf("find the repository: %v", err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, versionFiles)); err == nil {
			return dir
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			tb.Fatalf("no directory above the working directory has %s", versionFiles)
		}
		dir = parent
	}
}

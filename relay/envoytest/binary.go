package envoytest

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/xdstender/tender/relay/relaytest"
)

// versionFiles is where the versions of Envoy stand that the tests run with: one pip requirements file each.
const versionFiles = "relay/envoytest/versions"

// Binary returns the path of the Envoy to run: the one that the variable ENVOY names, else the newest version
// that `make deps` installs.
func Binary(tb relaytest.TB) string {
	tb.Helper()
	if path := os.Getenv("ENVOY"); path != "" {
		return existing(tb, path)
	}
	all := Versions(tb)
	return Installed(tb, all[len(all)-1])
}

// Installed returns the path of the Envoy of a version, which `make deps` installs.
func Installed(tb relaytest.TB, version string) string {
	tb.Helper()
	return existing(tb, filepath.Join(root(tb), ".bin", "envoy-"+version))
}

func existing(tb relaytest.TB, path string) string {
	tb.Helper()
	if _, err := os.Stat(path); err != nil {
		tb.Fatalf("no Envoy: %v: run `make deps`, or set ENVOY to the path of an Envoy", err)
	}
	return path
}

// Previous returns the path of the tender of the commit before, which `make previous` builds.
func Previous(tb relaytest.TB) string {
	tb.Helper()
	path := filepath.Join(root(tb), ".bin", "tender-previous")
	if _, err := os.Stat(path); err != nil {
		tb.Fatalf("no binary of the commit before: %v: run `make previous`", err)
	}
	return path
}

// Versions returns the versions of Envoy that the tests run with, the oldest first.
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

// numbers returns the parts of a version: 1.40.0 is 1, 40, 0.
func numbers(version string) (parts []int) {
	for part := range strings.SplitSeq(version, ".") {
		n, _ := strconv.Atoi(part) // what is no number sorts first
		parts = append(parts, n)
	}
	return parts
}

// root returns the directory of the repository, which the working directory is below of.
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

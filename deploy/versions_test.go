package deploy_test

import (
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// envoyVersions returns the versions of Envoy that the tests run with, newest first.
func envoyVersions(t *testing.T) (versions []string) {
	t.Helper()
	files, err := filepath.Glob(root + "/relay/envoytest/versions/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("found no versions of Envoy: %v", err)
	}
	for _, file := range files {
		versions = append(versions, strings.TrimSuffix(filepath.Base(file), ".txt"))
	}
	slices.SortFunc(versions, func(a, b string) int { return slices.Compare(numbers(t, b), numbers(t, a)) })
	return versions
}

// numbers returns the numbers of a version such as 1.40.0.
func numbers(t *testing.T, version string) (parts []int) {
	t.Helper()
	for part := range strings.SplitSeq(version, ".") {
		n, err := strconv.Atoi(part)
		if err != nil {
			t.Fatalf("version %q: %v", version, err)
		}
		parts = append(parts, n)
	}
	return parts
}

// TestEnvoyVersionsOnPages compares the versions of Envoy on the pages with those that the tests run with.
func TestEnvoyVersionsOnPages(t *testing.T) {
	versions := envoyVersions(t)
	for page, want := range map[string]string{
		"README.md":                    "Tested with Envoy " + strings.Join(versions, " and ") + ".",
		"deploy/docs/compatibility.md": "| Envoy | " + strings.Join(versions, ", ") + " | `make system` |\n",
	} {
		if !strings.Contains(read(t).pages[page], want) {
			t.Errorf("%s lacks the versions that the tests run with: %s", page, want)
		}
	}
}

// TestCompatibility compares compatibility.md with the versions of dependencies, and of the programs that make interop runs.
func TestCompatibility(t *testing.T) {
	page := readText(t, "docs/compatibility.md")
	for _, of := range []struct{ component, file, version string }{
		{"gRPC for Go", "go.mod", `\bgoogle\.golang\.org/grpc v(\S+)`},
		{"go-control-plane", "go.mod", `envoyproxy/go-control-plane v(\S+)`},
		{"Go, to build", "go.mod", `(?m)^go (\S+)`},
		{"gRPC for Node.js (`@grpc/grpc-js-xds`)", "system/interop/testdata/grpc-js/package-lock.json", `"node_modules/@grpc/grpc-js-xds": \{\s+"version": "([^"]+)"`},
		{"Envoy Gateway", "Makefile", `gateway/cmd/envoy-gateway@v(\S+)`},
		{"envoyproxy/ratelimit", "Makefile", `ratelimit/src/service_cmd@v\S+-([0-9a-f]{12})`},
		{"MOSN", "Makefile", `mosn\.io/mosn@v(\S+)`},
	} {
		match := regexp.MustCompile(of.version).FindStringSubmatch(readText(t, root+"/"+of.file))
		if match == nil {
			t.Errorf("%s has no version of %s", of.file, of.component)
			continue
		}
		row := regexp.MustCompile(`(?m)^\| ` + regexp.QuoteMeta(of.component) + "( \\|) `?" + regexp.QuoteMeta(match[1]) + "\\b")
		if !row.MatchString(page) {
			t.Errorf("compatibility.md does not have %s in the version %s of %s", of.component, match[1], of.file)
		}
	}
}

// tableRow matches a row of a table with the cells of its first two columns.
var tableRow = regexp.MustCompile(`(?m)^\| ([^|]+) \| ([^|]*) \|`)

// TestFitIsTested checks that a control plane or a client whose fit is Yes in the README is one that tests of this
// repository run: a component in the first table of compatibility.md, or a directory of files. All others have another
// fit, which names what is missing.
func TestFitIsTested(t *testing.T) {
	tables, _, _ := strings.Cut(readText(t, "docs/compatibility.md"), "tested by hand")
	components := []string{"Directory of files"}
	for _, match := range tableRow.FindAllStringSubmatch(tables, -1) {
		components = append(components, match[1])
	}
	_, section, _ := strings.Cut(readText(t, root+"/README.md"), "\n## Control planes and clients\n")
	section, _, _ = strings.Cut(section, "\n## ")
	tested := 0
	for _, match := range tableRow.FindAllStringSubmatch(section, -1) {
		name, fit := strings.TrimPrefix(match[1], "["), match[2]
		isTested := slices.ContainsFunc(components, func(c string) bool { return strings.HasPrefix(name, c) })
		if fit == "Yes" && !isTested {
			t.Errorf("README.md says that %s fits, which no test runs", name)
		} else if fit == "Yes" {
			tested++
		}
		if strings.HasPrefix(name, "Istio") && !strings.Contains(fit, "ot tested") {
			t.Errorf("README.md says %q of %s, and not that istio-proxy was not tested", fit, name)
		}
	}
	if tested < 6 {
		t.Errorf("README.md has %d tested control planes and clients, want 6 at least", tested)
	}
}

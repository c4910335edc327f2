package relay

import (
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// dependency matches a row of the table of direct dependencies in DESIGN.md.
var dependency = regexp.MustCompile("(?m)^\\| `([^`]+)` \\| (program|tests|bench) \\| \\S")

// TestDirectDependencies checks the table in DESIGN.md against both go.mod files and all imports: it has a row with the
// purpose of each direct dependency, and states whether the program or only the tests import it.
func TestDirectDependencies(t *testing.T) {
	text, err := os.ReadFile("DESIGN.md")
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]string{}
	for _, row := range dependency.FindAllStringSubmatch(string(text), -1) {
		listed[row[1]] = row[2]
	}
	required := map[string]string{}
	for _, dir := range []string{"../bench", ".."} {
		for _, m := range directly(t, dir) {
			required[m] = "nowhere"
		}
	}
	for name, file := range parseModule(t) {
		for _, spec := range file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatalf("%s: import %s: %v", name, spec.Path.Value, err)
			}
			if m := moduleOf(imported, required); m != "" {
				required[m] = nearer(required[m], partOf(name))
			}
		}
	}
	for _, m := range slices.Sorted(maps.Keys(required)) {
		if got, want := listed[m], required[m]; got != want {
			t.Errorf("table of DESIGN.md: %s is listed for %q, want %q", m, got, want)
		}
		delete(listed, m)
	}
	for _, m := range slices.Sorted(maps.Keys(listed)) {
		t.Errorf("table of DESIGN.md: %s is not a direct dependency", m)
	}
}

// TestProgramImports checks that the program, not only its tests, imports a package of each of these modules.
func TestProgramImports(t *testing.T) {
	imports := "{{with .Module}}{{if .Main}}{{join $.Imports `\n`}}{{end}}{{end}}"
	out, err := exec.Command("go", "list", "-deps", "-f", imports, "../cmd/tender").Output()
	if err != nil {
		t.Fatal(err)
	}
	modules, found := map[string]string{}, map[string]bool{}
	for _, m := range directly(t, "..") {
		modules[m] = m
	}
	for imported := range strings.FieldsSeq(string(out)) {
		found[moduleOf(imported, modules)] = true
	}
	for _, m := range []string{
		"google.golang.org/grpc", "google.golang.org/protobuf", "github.com/envoyproxy/go-control-plane/envoy",
		"github.com/hashicorp/golang-lru/v2", "go.opentelemetry.io/otel", "github.com/sethvargo/go-envconfig",
	} {
		if !found[m] {
			t.Errorf("no package of the program imports %s", m)
		}
	}
}

// directly returns the modules that the go.mod in a directory requires directly.
func directly(t *testing.T, dir string) []string {
	t.Helper()
	list := exec.Command("go", "mod", "edit", "-json")
	list.Dir = dir
	out, err := list.Output()
	if err != nil {
		t.Fatalf("%v in %s: %v", list, dir, err)
	}
	var mod struct {
		Require []struct {
			Path     string
			Indirect bool
		}
	}
	if err := json.Unmarshal(out, &mod); err != nil {
		t.Fatalf("%v in %s: %v", list, dir, err)
	}
	var direct []string
	for _, m := range mod.Require {
		if !m.Indirect && m.Path+"/" != module {
			direct = append(direct, m.Path)
		}
	}
	return direct
}

// moduleOf returns the module that contains a package, which is the one with the longest matching path, or "".
func moduleOf(imported string, modules map[string]string) string {
	for ; imported != "."; imported = path.Dir(imported) {
		if _, ok := modules[imported]; ok {
			return imported
		}
	}
	return ""
}

// partOf returns the part that a file belongs to: program, tests or bench.
func partOf(name string) string {
	switch {
	case strings.HasPrefix(name, "bench/"):
		return "bench"
	case strings.HasSuffix(name, "_test.go"),
		strings.HasPrefix(name, "relay/relaytest/"), strings.HasPrefix(name, "relay/envoytest/"):
		return "tests"
	default:
		return "program"
	}
}

// nearer returns the part that is nearer to the program.
func nearer(a, b string) string {
	order := []string{"program", "tests", "bench", "nowhere"}
	return order[min(slices.Index(order, a), slices.Index(order, b))]
}

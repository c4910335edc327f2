package relay

import (
	"go/ast"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// starters are packages that tests outside of system and bench may import only where stated here: files, or
// directories. The first starts processes; each binary with the second links a whole relay.
var starters = map[string][]string{
	"os/exec": {
		"cmd/tender/real_test.go", // one scenario with each real peer
		"deploy/testrun",
		"deploy/deps_test.go",                                            // a script
		"deploy/release/release_test.go",                                 // openssl, dpkg and diff
		"relay/dependencies_test.go", "cache/wire/schema/schema_test.go", // go list
		// Themselves, with a limit on the size of files:
		"relay/snapshot/full_unix_test.go", "relay/conformance/rules_rollback_full_unix_test.go",
	},
	module + "relay/envoytest": {"cmd/tender/real_test.go"},
	module + "relay/relaytest/instance": {
		"cmd/tender", "relay", "relay/authz", "relay/conformance", "relay/tlsfiles",
	},
}

// TestLayersOfTests checks that make test has no test that belongs in make system, and that few of its binaries link a
// relay.
func TestLayersOfTests(t *testing.T) {
	for name, file := range parseModule(t) {
		if !strings.HasSuffix(name, "_test.go") || strings.HasPrefix(name, "system/") || strings.HasPrefix(name, "bench/") {
			continue
		}
		for _, spec := range file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatalf("%s: import %s: %v", name, spec.Path.Value, err)
			}
			allowed, restricted := starters[imported]
			if restricted && !slices.Contains(allowed, name) && !slices.Contains(allowed, path.Dir(name)) {
				t.Errorf("%s imports %s: such a test belongs in system/, or its file in the list of this test", name, imported)
			}
		}
	}
}

// TestRandomTestsAreNamed checks that the name of each function with check.Rounds or check.RoundsOfRapid contains Random,
// because make system selects tests by that word.
func TestRandomTestsAreNamed(t *testing.T) {
	found := 0
	for name, file := range parseModule(t) {
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Body == nil || !strings.HasSuffix(name, "_test.go") {
				continue
			}
			ast.Inspect(f.Body, func(n ast.Node) bool {
				call, ok := n.(*ast.SelectorExpr)
				if !ok || call.Sel.Name != "Rounds" && call.Sel.Name != "RoundsOfRapid" {
					return true
				}
				if pkg, ok := call.X.(*ast.Ident); ok && pkg.Name == "check" {
					found++
					if !strings.Contains(f.Name.Name, "Random") {
						t.Errorf("%s: %s uses check.%s, but its name does not contain Random", name, f.Name.Name, call.Sel.Name)
					}
				}
				return true
			})
		}
	}
	if found == 0 {
		t.Error("no test uses check.Rounds")
	}
}

package relay

import (
	"go/ast"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// claims are statements of package comments, each with a function that reports whether a part of the package breaks it.
var claims = map[string]func(ast.Node) bool{
	"starts no goroutine": func(n ast.Node) bool {
		_, starts := n.(*ast.GoStmt)
		return starts
	},
	"has no lock": func(n ast.Node) bool {
		expr, is := n.(ast.Expr)
		return is && isMutex(expr)
	},
	"does no I/O": func(n ast.Node) bool {
		return imports(n, func(p string) bool {
			return slices.Contains([]string{"os", "os/exec", "io/fs", "net", "net/http", "google.golang.org/grpc"}, p)
		})
	},
	"imports no other package of the module": func(n ast.Node) bool {
		return imports(n, func(p string) bool { return strings.HasPrefix(p, module) })
	},
}

// imports reports whether a node is an import of one of the selected packages.
func imports(n ast.Node, selected func(path string) bool) bool {
	spec, is := n.(*ast.ImportSpec)
	if !is {
		return false
	}
	imported, err := strconv.Unquote(spec.Path.Value)
	return err == nil && selected(imported)
}

// TestPackageClaims checks the claims in package comments.
func TestPackageClaims(t *testing.T) {
	made := map[string][]string{} // claims by directory
	product := func(name string) bool { return !strings.HasSuffix(name, "_test.go") }
	for name, file := range parseFiles(t, product) {
		doc := strings.ToLower(strings.Join(strings.Fields(file.Doc.Text()), " "))
		for claim := range claims {
			if strings.Contains(doc, strings.ToLower(claim)) {
				made[path.Dir(name)] = append(made[path.Dir(name)], claim)
			}
		}
	}
	claiming := func(name string) bool { return product(name) && made[path.Dir(name)] != nil }
	for name, file := range parseFiles(t, claiming) {
		for _, claim := range made[path.Dir(name)] {
			ast.Inspect(file, func(n ast.Node) bool {
				if n != nil && claims[claim](n) {
					t.Errorf("%s breaks the claim of its package that it %s", name, claim)
				}
				return true
			})
		}
	}
	if len(made) < 4 {
		t.Errorf("packages with claims: %v, want at least 4", made)
	}
}

// compound matches a name of several words, as identifiers have.
var compound = regexp.MustCompile(`\b(?:[a-z][a-z0-9]+[A-Z]|[A-Z][a-z0-9]+[A-Z])\w*\b`)

// TestCommentsNameIdentifiers checks that identifiers that comments name exist in the module, or are in a text of it,
// such as a name in JSON. It skips names of tests.
func TestCommentsNameIdentifiers(t *testing.T) {
	known := map[string]bool{ // names of other projects and formats
		"OpenTelemetry": true, "ClientHello": true, "DefaultServeMux": true, "PositionalArgs": true, "HealthStatus": true,
		"lowerCamelCase": true, "uXXXX": true, "viewBox": true, "SdsSecretConfig": true, "ExtensionConfigSource": true,
	}
	files := parseFiles(t, func(name string) bool {
		return partOf(name) == "program" && !strings.HasPrefix(name, "deploy/")
	})
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.Ident:
				known[n.Name] = true
			case *ast.BasicLit:
				for _, name := range compound.FindAllString(n.Value, -1) {
					known[name] = true
				}
			}
			return true
		})
	}
	for name, file := range files {
		for _, group := range file.Comments {
			for _, comment := range group.List {
				for _, named := range compound.FindAllString(comment.Text, -1) {
					if !known[named] && !known[strings.TrimSuffix(named, "s")] && !strings.HasPrefix(named, "Test") {
						t.Errorf("%s names %s, which does not exist: %s", name, named, comment.Text)
					}
				}
			}
		}
	}
}

package relay

import (
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/xdstender/tender/relay/relaytest/check"
)

// module is the prefix of the import paths of this module.
const module = "github.com/xdstender/tender/"

// layers has, for each layer, the other layers that it may import. A layer is a directory with all subdirectories that
// are not layers themselves. Packages of a layer may import each other. upstream and downstream share only cache.
var layers = map[string][]string{
	"cmd":   {"relay", "upstream", "downstream", "pending", "cache", "cache/wire", "cache/wire/schema"},
	"relay": {"upstream", "downstream", "pending", "cache", "cache/wire", "cache/wire/schema"},
	"relay/envoytest": {"relay", "relay/relaytest", "upstream", "downstream", "pending", "cache", "cache/wire",
		"cache/wire/schema"},
	"relay/relaytest":   {"relay", "upstream", "downstream", "pending", "cache", "cache/wire", "cache/wire/schema"},
	"upstream":          {"pending", "cache", "cache/wire", "cache/wire/schema"},
	"pending":           {"cache", "cache/wire", "cache/wire/schema"},
	"downstream":        {"cache", "cache/wire", "cache/wire/schema"},
	"cache":             {"cache/wire", "cache/wire/schema"},
	"cache/wire":        {"cache/wire/schema"},
	"cache/wire/schema": {},
	"deploy":            {"relay", "downstream"},
	"system": {"cmd", "deploy", "relay", "relay/envoytest", "relay/relaytest", "upstream", "downstream", "pending", "cache", "cache/wire",
		"cache/wire/schema"},
	"bench": {"relay", "relay/envoytest", "relay/relaytest", "upstream", "downstream", "pending", "cache", "cache/wire",
		"cache/wire/schema"},
}

// layerOf returns the layer of a directory, or "".
func layerOf(dir string) string {
	for ; dir != "."; dir = path.Dir(dir) {
		if _, ok := layers[dir]; ok {
			return dir
		}
	}
	return ""
}

// mayImport reports whether a file in directory from may import directory to. Tests may also import relaytest and
// envoytest, and pending, since what waits is a state that clients see.
func mayImport(from, to string, test bool) bool {
	source, target := layerOf(from), layerOf(to)
	if source == "" || target == "" {
		return false
	}
	return source == target || slices.Contains(layers[source], target) ||
		test && (target == "relay/relaytest" || target == "relay/envoytest" || target == "pending" && source == "downstream")
}

// TestImportOrder checks that packages import only lower layers.
func TestImportOrder(t *testing.T) {
	for name, file := range parseModule(t) {
		for _, spec := range file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatalf("%s: import %s: %v", name, spec.Path.Value, err)
			}
			to, ours := strings.CutPrefix(imported, module)
			if ours && !mayImport(path.Dir(name), to, strings.HasSuffix(name, "_test.go")) {
				t.Errorf("%s imports %s: %s is not a lower layer", name, imported, to)
			}
		}
	}
}

func TestImportOrderItself(t *testing.T) {
	tests := []struct {
		from, to string
		test     bool
		want     bool
	}{
		{"cmd/tender", "relay", false, true},
		{"relay", "cmd/tender", false, false},
		{"relay", "downstream", false, true},
		{"relay/telemetry", "relay/admin", false, true},
		{"upstream", "downstream", false, false},
		{"upstream", "downstream", true, false},
		{"downstream", "upstream", false, false},
		{"downstream", "relay", false, false},
		{"downstream", "relay/relaytest", false, false},
		{"downstream", "relay/relaytest", true, true},
		{"relay", "relay/relaytest", false, false},
		{"cache", "upstream", true, false},
		{"cache", "cache/wire", false, true},
		{"cache/wire", "cache", false, false},
		{"cache/wire/schema", "cache/wire", false, false},
		{"cache", "somewhere/else", false, false},
	}
	for _, tt := range tests {
		if got := mayImport(tt.from, tt.to, tt.test); got != tt.want {
			t.Errorf("mayImport(%q, %q, test %v) = %v, want %v", tt.from, tt.to, tt.test, got, tt.want)
		}
	}
}

// TestDeployDoesNotLinkTheRelay checks that neither the packages below deploy nor their tests import package relay,
// directly or through other packages. So make test builds and runs them in seconds.
func TestDeployDoesNotLinkTheRelay(t *testing.T) {
	imports, tested := map[string][]string{}, map[string]bool{} // by directory; those of tests count for deploy only
	for name, file := range parseModule(t) {
		dir, test := path.Dir(name), strings.HasSuffix(name, "_test.go")
		deployed := dir == "deploy" || strings.HasPrefix(dir, "deploy/")
		tested[dir] = deployed
		if test && !deployed {
			continue
		}
		for _, spec := range file.Imports {
			imports[dir] = append(imports[dir], strings.TrimPrefix(strings.Trim(spec.Path.Value, `"`), module))
		}
	}
	through := map[string]string{} // directory to the directory that imports it
	var follow func(dir string)
	follow = func(dir string) {
		for _, imported := range imports[dir] {
			if _, seen := through[imported]; !seen {
				through[imported] = dir
				follow(imported)
			}
		}
	}
	for dir, deployed := range tested {
		if deployed {
			follow(dir)
		}
	}
	if from, linked := through["relay"]; linked {
		t.Errorf("deploy links package relay, which %s imports: move the test to system/deploy", from)
	}
	if _, found := through["relay/config"]; !found {
		t.Error("deploy does not import relay/config: the test has followed no imports")
	}
}

// TestPackageDocs checks that each package has exactly one package comment.
func TestPackageDocs(t *testing.T) {
	type pkg struct{ dir, name string }
	docs := map[pkg][]string{} // first lines of package comments
	for name, file := range parseModule(t) {
		if !strings.HasSuffix(name, "_test.go") {
			p := pkg{path.Dir(name), file.Name.Name}
			docs[p] = append(docs[p], opening(file)...)
		}
	}
	for p, lines := range docs {
		want := "Package " + p.name + " "
		if p.name == "main" {
			want = "Command " + path.Base(p.dir) + " "
		}
		if len(lines) != 1 || !strings.HasPrefix(lines[0], want) {
			t.Errorf("package %s in %s has the package comments %q, want one that starts with %q", p.name, p.dir, lines, want)
		}
	}
}

// unstable is the end of the package comment of packages whose API may change.
const unstable = " The package is not a stable API: programs that embed Tender use package relay."

// TestOnlyPackageRelayIsStable checks that the comment of every other package with exported identifiers declares them
// unstable. It skips bench, which is another module.
func TestOnlyPackageRelayIsStable(t *testing.T) {
	says, exports := map[string]bool{}, map[string]bool{}
	for name, file := range parseModule(t) {
		dir := path.Dir(name)
		if strings.HasSuffix(name, "_test.go") || file.Name.Name == "main" || strings.HasPrefix(dir, "bench/") {
			continue
		}
		exports[dir] = exports[dir] || slices.ContainsFunc(file.Decls, declaresExported)
		if doc := strings.Join(strings.Fields(file.Doc.Text()), " "); doc != "" {
			says[dir] = strings.HasSuffix(doc, unstable)
		}
	}
	for dir, exported := range exports {
		if want := exported && dir != "relay"; says[dir] != want {
			t.Errorf("package %s is declared unstable: %v, want %v\n%s", dir, says[dir], want, unstable)
		}
	}
}

// fileOrder matches a claim about the order of files in a package comment.
var fileOrder = regexp.MustCompile(`(?i)\b(files? before|(earlier|later|previous|preceding) files?)\b`)

// TestFileOrdersAreChecked checks that a package whose comment claims an order of its files has a test of that order.
func TestFileOrdersAreChecked(t *testing.T) {
	found := 0
	for name, file := range parseModule(t) {
		doc := strings.Join(strings.Fields(file.Doc.Text()), " ")
		if strings.HasSuffix(name, "_test.go") || !fileOrder.MatchString(doc) {
			continue
		}
		found++
		if !strings.Contains(doc, check.OrderClaim) {
			t.Errorf("%s claims an order of files in other words than %q", name, check.OrderClaim)
		}
		test := path.Join(path.Dir(name), "order_test.go")
		if content, _ := os.ReadFile(path.Join("..", test)); !strings.Contains(string(content), "check.FileOrder(t") {
			t.Errorf("%s claims an order of files, and %s does not check it", name, test)
		}
	}
	if found < 9 {
		t.Errorf("%d packages claim an order of files, want at least 9", found)
	}
}

// declaresExported reports whether a declaration has an exported identifier, or an exported method of an exported type.
func declaresExported(decl ast.Decl) bool {
	switch decl := decl.(type) {
	case *ast.FuncDecl:
		return decl.Name.IsExported() && (decl.Recv == nil || ast.IsExported(strings.TrimPrefix(types.ExprString(decl.Recv.List[0].Type), "*")))
	case *ast.GenDecl:
		return slices.ContainsFunc(decl.Specs, func(spec ast.Spec) bool {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				return spec.Name.IsExported()
			case *ast.ValueSpec:
				return slices.ContainsFunc(spec.Names, (*ast.Ident).IsExported)
			}
			return false
		})
	}
	return false
}

// opening returns the first line of a file's package comment, if there is one.
func opening(file *ast.File) []string {
	if file.Doc == nil {
		return nil
	}
	line, _, _ := strings.Cut(file.Doc.Text(), "\n")
	return []string{line}
}

// parseModule returns all Go files of the module whose build constraints match, with comments, by path from the root. It
// skips programs for go run (//go:build ignore).
func parseModule(t *testing.T) map[string]*ast.File {
	t.Helper()
	files, err := parsed()
	if err != nil {
		t.Fatalf("read the module: %v", err)
	}
	return files
}

// parseFiles is parseModule for the files whose path from the root a function selects.
func parseFiles(t *testing.T, selected func(name string) bool) map[string]*ast.File {
	t.Helper()
	files := maps.Clone(parseModule(t))
	maps.DeleteFunc(files, func(name string, _ *ast.File) bool { return !selected(name) })
	if len(files) < 2 {
		t.Fatalf("found %d Go files, want those of a part of the module", len(files))
	}
	return files
}

// parsed parses the module once for all tests.
var parsed = sync.OnceValues(func() (map[string]*ast.File, error) {
	const root = ".."
	files := map[string]*ast.File{}
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := entry.Name()
		if entry.IsDir() {
			if base == "testdata" || name != root && strings.HasPrefix(base, ".") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(base, ".go") {
			return nil
		}
		if built, err := build.Default.MatchFile(filepath.Dir(name), base); err != nil || !built {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(root, name)
		files[filepath.ToSlash(relative)] = file
		return err
	})
	return files, err
})

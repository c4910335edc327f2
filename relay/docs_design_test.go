package relay

import (
	"go/ast"
	"go/parser"
	"go/types"
	"os"
	"regexp"
	"strings"
	"testing"
)

// goFile matches the path of a Go file in backquotes.
var goFile = regexp.MustCompile("`([a-z]+/[a-z_/]+\\.go)`")

// TestDesignNamesFiles checks that the source files named in DESIGN.md exist.
func TestDesignNamesFiles(t *testing.T) {
	named := goFile.FindAllStringSubmatch(pages(t)["DESIGN.md"], -1)
	for _, match := range named {
		if _, err := os.Stat("../" + match[1]); err != nil {
			t.Errorf("DESIGN.md names %s: %v", match[1], err)
		}
	}
	if len(named) < 3 {
		t.Errorf("DESIGN.md names %d source files, want at least 3", len(named))
	}
}

// step matches a function in the list of doc.go that describes the hot path.
var step = regexp.MustCompile(`(?m)^//\t(\w+)\.(\w+)\.(\w+) `)

// TestHotPathIsListed checks that the methods on the hot path that doc.go lists exist.
func TestHotPathIsListed(t *testing.T) {
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	methods := map[string]bool{}
	for _, file := range parseModule(t, parser.SkipObjectResolution) {
		for _, decl := range file.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv != nil {
				receiver := strings.TrimPrefix(types.ExprString(fn.Recv.List[0].Type), "*")
				methods[file.Name.Name+"."+receiver+"."+fn.Name.Name] = true
			}
		}
	}
	steps := step.FindAllStringSubmatch(string(doc), -1)
	for _, match := range steps {
		if method := strings.Join(match[1:], "."); !methods[method] {
			t.Errorf("doc.go lists %s, which does not exist", method)
		}
	}
	if len(steps) < 5 {
		t.Errorf("doc.go lists %d methods, want at least 5", len(steps))
	}
}

// TestLocksAreListed checks that the list of locks in doc.go contains each struct of a relay that has a mutex.
func TestLocksAreListed(t *testing.T) {
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	_, locks, _ := strings.Cut(string(doc), "\n// # Locks\n")
	locks, _, _ = strings.Cut(locks, "\n// # ")
	found := 0
	for name, file := range parseModule(t, parser.SkipObjectResolution) {
		if partOf(name) != "program" || strings.Contains(name, "/demo/") || strings.HasPrefix(name, "cmd/") {
			continue // not part of a running relay
		}
		for _, decl := range file.Decls {
			for _, owner := range mutexesIn(decl) {
				found++
				listed := regexp.MustCompile(`\b` + regexp.QuoteMeta(owner) + `\b`)
				if !listed.MatchString(locks) {
					t.Errorf("%s: %s has a mutex: add it to the list of locks in relay/doc.go, with what it guards", name, owner)
				}
			}
		}
	}
	if found < 20 {
		t.Errorf("found %d mutexes, want at least 20", found)
	}
}

// mutexesIn returns the names of the structs and variables of a declaration that have a mutex.
func mutexesIn(decl ast.Decl) (owners []string) {
	general, ok := decl.(*ast.GenDecl)
	if !ok {
		return nil
	}
	for _, spec := range general.Specs {
		switch spec := spec.(type) {
		case *ast.TypeSpec:
			if fields, ok := spec.Type.(*ast.StructType); ok {
				for _, field := range fields.Fields.List {
					if isMutex(field.Type) {
						owners = append(owners, spec.Name.Name)
					}
				}
			}
		case *ast.ValueSpec:
			if isMutex(spec.Type) {
				owners = append(owners, spec.Names[0].Name)
			}
		}
	}
	return owners
}

// isMutex reports whether an expression is sync.Mutex or sync.RWMutex.
func isMutex(of ast.Expr) bool {
	selector, ok := of.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	pkg, ok := selector.X.(*ast.Ident)
	return ok && pkg.Name == "sync" && strings.HasSuffix(selector.Sel.Name, "Mutex")
}

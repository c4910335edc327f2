package subscription

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/xdstender/tender/relay/relaytest/check"
)

// TestReadingOrder holds the files to the order that doc.go gives: each uses only the functions, methods and types that
// the files before it declare. Names that are declared in several files do not count.
func TestReadingOrder(t *testing.T) {
	fset := token.NewFileSet()
	parse := func(name string) *ast.File {
		file := check.Must(parser.ParseFile(fset, name, nil, parser.ParseComments))
		return file
	}
	doc := parse("doc.go").Doc.Text()
	var order []string
	for _, m := range regexp.MustCompile(`(?m)^\t(\w+\.go) `).FindAllStringSubmatch(doc, -1) {
		order = append(order, m[1])
	}
	entries := check.Must(os.ReadDir("."))
	for _, e := range entries {
		if name := e.Name(); strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go") && name != "doc.go" && !slices.Contains(order, name) {
			t.Errorf("%s has no place in the order that doc.go gives", name)
		}
	}
	files := make(map[string]*ast.File)
	declared := make(map[string]string) // the file of each name; empty if there are several, or if it is a field too
	declare := func(name, file string) {
		if other, is := declared[name]; is && other != file {
			file = ""
		}
		declared[name] = file
	}
	for _, name := range order {
		files[name] = parse(name)
		ast.Inspect(files[name], func(n ast.Node) bool {
			switch d := n.(type) {
			case *ast.FuncDecl:
				if d.Recv == nil || !d.Name.IsExported() { // else package cache may have a method of that name
					declare(d.Name.Name, name)
				}
			case *ast.TypeSpec:
				declare(d.Name.Name, name)
			case *ast.Field:
				for _, field := range d.Names {
					declare(field.Name, "")
				}
			}
			return true
		})
	}
	for i, name := range order {
		for use := range uses(files[name]) {
			if at := declared[use]; at != "" && slices.Index(order, at) > i {
				t.Errorf("%s uses %s, which %s declares: that stands after it in doc.go", name, use, at)
			}
		}
	}
}

// uses returns the names that a file uses and that may be those of the package: not selected from another package, and
// not local.
func uses(file *ast.File) map[string]bool {
	imported := make(map[string]bool)
	for _, spec := range file.Imports {
		path := strings.Trim(spec.Path.Value, `"`)
		imported[path[strings.LastIndex(path, "/")+1:]] = true
	}
	found, local := make(map[string]bool), make(map[string]bool)
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			x, is := n.X.(*ast.Ident)
			if is && imported[x.Name] {
				return false
			}
		case *ast.AssignStmt:
			for _, left := range n.Lhs {
				if id, is := left.(*ast.Ident); is && n.Tok == token.DEFINE {
					local[id.Name] = true
				}
			}
		case *ast.Ident:
			found[n.Name] = true
		}
		return true
	})
	for name := range local {
		delete(found, name)
	}
	return found
}

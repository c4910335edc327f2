package check

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// ReadingOrder holds the files of a package to the order that its doc.go gives, in lines that begin with a tab: each
// uses only the functions, methods and types that it or the files before it declare. Names that several files declare,
// exported methods and the exceptions do not count.
func ReadingOrder(t *testing.T, exceptions ...string) {
	t.Helper()
	order := readingOrder()
	for _, e := range Must(os.ReadDir(".")) {
		if name := e.Name(); strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go") && name != "doc.go" && !slices.Contains(order, name) {
			t.Errorf("%s has no place in the order that doc.go gives", name)
		}
	}
	files, declared := make(map[string]*ast.File), make(map[string]string)
	for _, name := range order {
		files[name] = Must(parser.ParseFile(token.NewFileSet(), name, nil, 0))
		declare(files[name], name, declared)
	}
	for i, name := range order {
		for use := range uses(files[name]) {
			if at := declared[use]; at != "" && slices.Index(order, at) > i && !slices.Contains(exceptions, use) {
				t.Errorf("%s uses %s, which %s declares: that stands after it in doc.go", name, use, at)
			}
		}
	}
}

// readingOrder returns the files in the order that doc.go gives.
func readingOrder() (order []string) {
	doc := Must(parser.ParseFile(token.NewFileSet(), "doc.go", nil, parser.ParseComments)).Doc.Text()
	for line := range strings.Lines(doc) {
		if strings.HasPrefix(line, "\t") {
			order = append(order, regexp.MustCompile(`\w+\.go\b`).FindAllString(line, -1)...)
		}
	}
	return order
}

// declare notes in which file each name is declared; in none if there are several, or if it is a field or parameter too.
func declare(file *ast.File, name string, declared map[string]string) {
	in := func(what, name string) {
		if other, is := declared[what]; is && other != name {
			name = ""
		}
		declared[what] = name
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch d := n.(type) {
		case *ast.FuncDecl:
			if predeclared := types.Universe.Lookup(d.Name.Name) != nil; !predeclared && (d.Recv == nil || !d.Name.IsExported()) {
				in(d.Name.Name, name)
			}
		case *ast.TypeSpec:
			in(d.Name.Name, name)
		case *ast.Field:
			for _, field := range d.Names {
				in(field.Name, "")
			}
		}
		return true
	})
}

// uses returns the names that a file uses and that may be those of the package: not selected from another package, no
// exported methods, and not local.
func uses(file *ast.File) map[string]bool {
	imported := make(map[string]bool)
	for _, spec := range file.Imports {
		path := strings.Trim(spec.Path.Value, `"`)
		imported[path[strings.LastIndex(path, "/")+1:]] = true
	}
	found := make(map[string]bool)
	var local []ast.Expr
	var visit func(ast.Node) bool
	visit = func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			if x, is := n.X.(*ast.Ident); is && imported[x.Name] {
				return false
			}
			if n.Sel.IsExported() {
				ast.Inspect(n.X, visit)
				return false
			}
		case *ast.AssignStmt:
			if n.Tok == token.DEFINE {
				local = append(local, n.Lhs...)
			}
		case *ast.RangeStmt:
			local = append(local, n.Key, n.Value)
		case *ast.Ident:
			found[n.Name] = true
		}
		return true
	}
	ast.Inspect(file, visit)
	for _, x := range local {
		delete(found, types.ExprString(x))
	}
	return found
}

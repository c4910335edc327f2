package relay

import (
	"go/ast"
	"go/token"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// typeComparisons has the files that compare the type of a message with one that the protocol defines, with what they then read.
var typeComparisons = map[string]string{
	"cache/wire/content.go":                "endpoints in an assignment",
	"cache/wire/types.go":                  "the names of Secrets of all versions",
	"upstream/reconcile/take.go":           "endpoints in an assignment",
	"downstream/subscription/referrers.go": "references to assignments",
	"relay/lint/finding.go":                "references to clusters",
	"relay/lint/linter.go":                 "references to clusters",
}

// TestR001_TypesAreRows checks that what differs between types is asked of their rows (schema.ResourceTypes), so that a new type is a
// row. Only code that reads the content of a type names it in a comparison.
func TestR001_TypesAreRows(t *testing.T) {
	named := regexp.MustCompile(`^[A-Z]\w*Type$|^LocalityEndpoint$`)
	isType := func(e ast.Expr) bool {
		switch e := e.(type) {
		case *ast.SelectorExpr:
			pkg, is := e.X.(*ast.Ident)
			return is && (pkg.Name == "wire" || pkg.Name == "schema") && named.MatchString(e.Sel.Name)
		case *ast.Ident:
			return named.MatchString(e.Name)
		default:
			return false
		}
	}
	unused := maps.Clone(typeComparisons)
	for name, file := range parseModule(t) {
		if strings.HasSuffix(name, "_test.go") || slices.ContainsFunc([]string{"bench/", "system/", "relay/relaytest/", "relay/demo/"},
			func(dir string) bool { return strings.HasPrefix(name, dir) }) {
			continue
		}
		for n := range ast.Preorder(file) {
			var compared []ast.Expr
			switch n := n.(type) {
			case *ast.BinaryExpr:
				if n.Op == token.EQL || n.Op == token.NEQ {
					compared = []ast.Expr{n.X, n.Y}
				}
			case *ast.CaseClause:
				compared = n.List
			}
			if !slices.ContainsFunc(compared, isType) {
				continue
			}
			delete(unused, name)
			if typeComparisons[name] == "" {
				t.Errorf("%s compares a type: ask its row in cache/wire/schema/types.go, or add the file with the content that it reads", name)
			}
		}
	}
	for name := range unused {
		t.Errorf("%s compares no type any longer: remove it from the list", name)
	}
}

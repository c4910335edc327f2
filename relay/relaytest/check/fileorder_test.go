package check

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// ordered returns a doc.go that lists a.go and b.go in this order, and claims the exceptions.
func ordered(exceptions ...string) string {
	return "// Package p is a test. " + claimOf(exceptions) + "\n//\n//\ta.go first\n//\tb.go second\npackage p\n"
}

// TestFileOrderFindsLaterUses has, for each kind of identifier, a file a.go that uses what b.go declares.
func TestFileOrderFindsLaterUses(t *testing.T) {
	const (
		typeT   = "type T struct{ Field, other int }; func (*T) Method() int { return 0 }; func (T) method() {}"
		later   = ", which b.go declares: that stands after it in doc.go"
		generic = "type G[E any] struct{ e E }; func (g G[E]) method() {}"
	)
	tests := []struct {
		name, a, b string
		want       []string // identifiers that a.go must not use
	}{
		{"constant", "var _ = first", "const first = 1", []string{"first"}},
		{"variable", "func f() { variable++ }", "var variable int", []string{"variable"}},
		{"function", "func f() { called() }", "func called() {}", []string{"called"}},
		{"function value", "var f = called", "func called() {}", []string{"called"}},
		{"type", "func f(T) {}", typeT, []string{"T"}},
		{"type of a field", "type S struct{ t *T }", typeT, []string{"T"}},
		{"constant in the type of a field", "type S struct{ t [n]int }", "const n = 1", []string{"n"}},
		{"field", "var x = New().Field", typeT + "; func New() *T { return nil }", []string{"New", "T.Field"}},
		{"field in a literal", "var x = T{other: 1}", typeT, []string{"T", "T.other"}},
		{"promoted field", "type S struct{ T }; func (s S) f() int { return s.Field }", typeT, []string{"T", "T.Field"}},
		{"method", "func (s S) f() { s.t.method() }; type S struct{ t T }", typeT, []string{"T", "T.method"}},
		{"exported method", "func (s S) f() { s.t.Method() }; type S struct{ t *T }", typeT, []string{"T", "T.Method"}},
		{"method expression", "var f = (*T).Method", typeT, []string{"T", "T.Method"}},
		{"method of a generic type", "func f() { G[int]{}.method() }", generic, []string{"G", "G.method"}},
		{"field of a generic type", "func f() { _ = G[int]{}.e }", generic, []string{"G", "G.e"}},
		{"method of an interface", "func f(i I) { i.M() }", "type I interface{ M() }", []string{"I", "I.M"}},
		{"method of a value from another package",
			"import \"sync/atomic\"; type S struct{ p atomic.Pointer[T] }; func (s *S) f() { s.p.Load().Method() }",
			typeT, []string{"T", "T.Method"}},
		{"local variable of the same name", "func f(called int) int { return called }", "func called() {}", nil},
		{"field of the same name", "type S struct{ called int }; func f(s S) int { return s.called }", "func called() {}", nil},
		{"earlier identifier", "const first = 1", "const second = first", nil},
	}
	for _, tt := range tests {
		var want []string
		for _, name := range tt.want {
			want = append(want, "a.go uses "+name+later)
		}
		files := map[string]string{"doc.go": ordered(), "a.go": "package p\n" + tt.a, "b.go": "package p\n" + tt.b}
		problemsAre(t, tt.name, files, nil, want)
	}
}

// TestFileOrderFindsLaterUsesOnOtherPlatforms checks a file that this platform does not build.
func TestFileOrderFindsLaterUsesOnOtherPlatforms(t *testing.T) {
	files := map[string]string{
		"doc.go":   strings.Replace(ordered(), "a.go", "a.go other.go", 1),
		"a.go":     "//go:build !plan9\n\npackage p\n\ntype T struct{ a int }\n",
		"other.go": "//go:build plan9\n\npackage p\n\ntype T struct{ b int }\n\nfunc (t T) f() int { return t.b + called() }\n",
		"b.go":     "package p\n\nfunc called() int { return 0 }\n",
	}
	problemsAre(t, "file for another platform", files, nil,
		[]string{"other.go uses called, which b.go declares: that stands after it in doc.go"})
}

func TestFileOrderExceptions(t *testing.T) {
	const b = "package p\n\ntype T struct{}\n\nfunc (T) method() {}\n\nfunc called() {}\n"
	tests := []struct {
		name, a    string
		exceptions []string
		want       []string
	}{
		{"needed", "func f() { called() }", []string{"called"}, nil},
		{"several", "func f(t T) { called(); t.method() }", []string{"T", "T.method", "called"}, nil},
		{"type without its methods", "func f(t T) { t.method() }", []string{"T"},
			[]string{"a.go uses T.method, which b.go declares: that stands after it in doc.go"}},
		{"not needed", "func f() {}", []string{"called"}, []string{"the exception of called is not needed"}},
		{"types of fields", "type S struct{ t []*T; f func(T) }", []string{FieldTypes}, nil},
		{"types of fields, not of parameters", "type S struct{ t T }; func f(T) {}", []string{FieldTypes},
			[]string{"a.go uses T, which b.go declares: that stands after it in doc.go"}},
		{"types of fields, not needed", "type S struct{ s *S }", []string{FieldTypes},
			[]string{"the exception of " + FieldTypes + " is not needed"}},
	}
	for _, tt := range tests {
		files := map[string]string{"doc.go": ordered(tt.exceptions...), "a.go": "package p\n" + tt.a, "b.go": b}
		problemsAre(t, tt.name, files, tt.exceptions, tt.want)
	}
}

// TestFileOrderComparesDoc checks that doc.go lists each file once and claims what the test checks.
func TestFileOrderComparesDoc(t *testing.T) {
	files := map[string]string{
		"doc.go":    "// Package p has files.\n//\n//\ta.go a.go\n//\tgone.go\npackage p\n",
		"a.go":      "package p\n",
		"b.go":      "package p\n",
		"b_test.go": "package p\n\nimport _ \"testing\"\n",
	}
	problemsAre(t, "no claim", files, nil, []string{
		"doc.go does not claim: " + OrderClaim + ":", "doc.go does not list b.go",
		"doc.go lists a.go twice", "doc.go lists gone.go, which does not exist",
	})
	files = map[string]string{"doc.go": ordered("x"), "a.go": "package p\n", "b.go": "package p\n"}
	problemsAre(t, "claim with another exception", files, nil, []string{"doc.go does not claim: " + OrderClaim + ":"})
	files["doc.go"] = ordered()
	problemsAre(t, "claim without the exception", files, []string{"x"}, []string{
		"doc.go does not claim: " + OrderClaim + ", except x:", "the exception of x is not needed",
	})
}

// problemsAre checks the problems of a package with the given files.
func problemsAre(t *testing.T, name string, files map[string]string, exceptions, want []string) {
	t.Helper()
	dir := t.TempDir()
	for file, text := range files {
		OK(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644))
	}
	if got := orderProblems(dir, exceptions); !slices.Equal(got, want) {
		t.Errorf("%s:\ngot  %s\nwant %s", name, strings.Join(got, "\n     "), strings.Join(want, "\n     "))
	}
}

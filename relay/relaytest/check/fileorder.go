package check

import (
	"fmt"
	"go/ast"
	"go/build"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// OrderClaim is the sentence of a doc.go that [FileOrder] checks. Exceptions follow it.
const OrderClaim = "A file uses only identifiers that it or a file before it declares"

// FieldTypes is the exception of [FileOrder] for types: a field of a struct may have a type that a later file
// declares.
const FieldTypes = "the types of struct fields"

// FileOrder checks the order in which doc.go lists the files of the package, in lines that begin with a tab. A file
// must use no constant, variable, type, function, method or field that a later file declares. Each exception is
// FieldTypes or an identifier such as View or View.Generation; the exception of a type does not include its fields and
// methods. Each exception must be needed. doc.go must state OrderClaim with exactly these exceptions, as in
// "..., except A, B and C:".
//
// Identifiers are resolved by the type checker, which reads the export data of imported packages from the build cache.
func FileOrder(t *testing.T, exceptions ...string) {
	t.Helper()
	for _, problem := range orderProblems(".", exceptions) {
		t.Error(problem)
	}
}

func orderProblems(dir string, exceptions []string) (problems []string) {
	p := parsePackage(dir)
	doc := p.files["doc.go"].Doc.Text()
	if claim := claimOf(exceptions); !strings.Contains(strings.Join(strings.Fields(doc), " "), claim) {
		problems = append(problems, fmt.Sprintf("doc.go does not claim: %s", claim))
	}
	order := append([]string{"doc.go"}, listedFiles(doc)...)
	problems = append(problems, p.placeProblems(order)...)
	needed := make(map[string]bool)
	for _, u := range p.laterUses(order) {
		exception := u.of
		if u.fieldType && slices.Contains(exceptions, FieldTypes) {
			exception = FieldTypes
		}
		if needed[exception] = true; !slices.Contains(exceptions, exception) {
			problems = append(problems,
				fmt.Sprintf("%s uses %s, which %s declares: that stands after it in doc.go", u.in, u.of, u.declaredIn))
		}
	}
	for _, exception := range exceptions {
		if !needed[exception] {
			problems = append(problems, fmt.Sprintf("the exception of %s is not needed", exception))
		}
	}
	slices.Sort(problems)
	return slices.Compact(problems)
}

// claimOf returns the claim in the words of doc.go.
func claimOf(exceptions []string) string {
	switch n := len(exceptions); n {
	case 0:
		return OrderClaim + ":"
	case 1:
		return OrderClaim + ", except " + exceptions[0] + ":"
	default:
		return OrderClaim + ", except " + strings.Join(exceptions[:n-1], ", ") + " and " + exceptions[n-1] + ":"
	}
}

// listedFiles returns the files in the lines of a comment that begin with a tab.
func listedFiles(doc string) (files []string) {
	for line := range strings.Lines(doc) {
		if strings.HasPrefix(line, "\t") {
			files = append(files, regexp.MustCompile(`\w+\.go\b`).FindAllString(line, -1)...)
		}
	}
	return files
}

// A parsedPackage is the files of a package without its tests, by name.
type parsedPackage struct {
	dir   string
	set   *token.FileSet
	files map[string]*ast.File
}

func parsePackage(dir string) parsedPackage {
	p := parsedPackage{dir: dir, set: token.NewFileSet(), files: make(map[string]*ast.File)}
	for _, path := range Must(filepath.Glob(filepath.Join(dir, "*.go"))) {
		if !strings.HasSuffix(path, "_test.go") {
			file := Must(parser.ParseFile(p.set, path, nil, parser.ParseComments|parser.SkipObjectResolution))
			p.files[filepath.Base(path)] = file
		}
	}
	return p
}

// placeProblems compares the files of the package with those in the order.
func (p parsedPackage) placeProblems(order []string) (problems []string) {
	for i, name := range order {
		if p.files[name] == nil {
			problems = append(problems, fmt.Sprintf("doc.go lists %s, which does not exist", name))
		} else if slices.Contains(order[:i], name) {
			problems = append(problems, fmt.Sprintf("doc.go lists %s twice", name))
		}
	}
	for name := range p.files {
		if !slices.Contains(order, name) {
			problems = append(problems, fmt.Sprintf("doc.go does not list %s", name))
		}
	}
	return problems
}

// A use of an identifier that another file declares.
type use struct {
	in, of, declaredIn string
	fieldType          bool // the type of a field, or a part of it
}

// laterUses returns the uses of identifiers that later files in the order declare. It checks files for other platforms
// one by one.
func (p parsedPackage) laterUses(order []string) (later []use) {
	imports := p.importer()
	var built []*ast.File
	others := make(map[string]*ast.File)
	for name, file := range p.files {
		if Must(build.Default.MatchFile(p.dir, name)) {
			built = append(built, file)
		} else {
			others[name] = file
		}
	}
	isLater := func(u use) bool { return slices.Index(order, u.declaredIn) > slices.Index(order, u.in) }
	for _, u := range p.uses(built, imports, nil) {
		if isLater(u) {
			later = append(later, u)
		}
	}
	for name, file := range others {
		tolerate := func(error) {} // the file declares identifiers again
		for _, u := range p.uses(append([]*ast.File{file}, built...), imports, tolerate) {
			if u.in == name && isLater(u) {
				later = append(later, u)
			}
		}
	}
	return later
}

// uses returns the uses of identifiers of the package. It panics on errors of types, unless onError gets them.
func (p parsedPackage) uses(files []*ast.File, imports types.Importer, onError func(error)) (found []use) {
	info := &types.Info{Uses: make(map[*ast.Ident]types.Object)}
	config := types.Config{Importer: imports, Error: onError}
	checked, err := config.Check("checked", p.set, files, info)
	if onError == nil {
		Must(checked, err)
	}
	owners, fieldTypes := ownersIn(checked), fieldTypesIn(files)
	for ident, of := range info.Uses {
		if name, isType := of.(*types.TypeName); of.Pkg() == checked {
			found = append(found, use{
				in: p.fileOf(ident.Pos()), of: owners[of.Pos()] + of.Name(), declaredIn: p.fileOf(of.Pos()),
				fieldType: isType && fieldTypes[ident] && !name.IsAlias(),
			})
		}
	}
	return found
}

func (p parsedPackage) fileOf(pos token.Pos) string {
	return filepath.Base(p.set.Position(pos).Filename)
}

// ownersIn returns, by the position of each field and method, the name of its type and a dot. Instances of a generic
// type have the positions of the type.
func ownersIn(pkg *types.Package) map[token.Pos]string {
	owners := make(map[token.Pos]string)
	for _, name := range pkg.Scope().Names() {
		of, isType := pkg.Scope().Lookup(name).(*types.TypeName)
		if !isType || of.IsAlias() {
			continue
		}
		if named, is := of.Type().(*types.Named); is {
			for method := range named.Methods() {
				owners[method.Pos()] = name + "."
			}
		}
		switch of := of.Type().Underlying().(type) {
		case *types.Struct:
			for field := range of.Fields() {
				owners[field.Pos()] = name + "."
			}
		case *types.Interface:
			for method := range of.ExplicitMethods() {
				owners[method.Pos()] = name + "."
			}
		}
	}
	return owners
}

// fieldTypesIn returns the identifiers in the types of fields of structs.
func fieldTypesIn(files []*ast.File) map[*ast.Ident]bool {
	found := make(map[*ast.Ident]bool)
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			of, isStruct := n.(*ast.StructType)
			if !isStruct {
				return true
			}
			for _, field := range of.Fields.List {
				ast.Inspect(field.Type, func(n ast.Node) bool {
					if ident, is := n.(*ast.Ident); is {
						found[ident] = true
					}
					return true
				})
			}
			return true
		})
	}
	return found
}

// importer returns an importer of the packages that the files import. The go command finds their export data, which the
// build of the test has left in the build cache.
func (p parsedPackage) importer() types.Importer {
	args := []string{"list", "-e", "-export", "-f", "{{.ImportPath}} {{.Export}}"}
	info, _ := debug.ReadBuildInfo()
	for _, setting := range info.Settings {
		if slices.Contains([]string{"-race", "-trimpath", "-tags"}, setting.Key) {
			args = append(args, setting.Key+"="+setting.Value)
		}
	}
	exported := make(map[string]string)
	var paths []string
	for _, file := range p.files {
		for _, spec := range file.Imports {
			paths = append(paths, Must(strconv.Unquote(spec.Path.Value)))
		}
	}
	if len(paths) > 0 {
		for line := range strings.Lines(string(Must(exec.Command("go", append(args, paths...)...).Output()))) {
			path, file, _ := strings.Cut(strings.TrimSpace(line), " ")
			exported[path] = file
		}
	}
	return importer.ForCompiler(p.set, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exported[path]) })
}

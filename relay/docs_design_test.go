package relay

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path"
	"regexp"
	"slices"
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

// codeName matches a name of code in backquotes that is qualified by a package or a type, such as `wire.Resource.Keys`.
var codeName = regexp.MustCompile("`(?:[a-z]+/)*([A-Za-z]+(?:\\.[A-Za-z]+)+)`")

// TestDesignNamesCode checks that the functions, types, methods and fields that DESIGN.md names with their package or type
// exist. Those of other modules and of Protocol Buffers are not checked.
func TestDesignNamesCode(t *testing.T) {
	declared := map[string]bool{} // as package, package.Name, package.Type.Member and Type.Member
	for name, file := range parseModule(t) {
		if partOf(name) != "program" {
			continue
		}
		pkg := file.Name.Name
		declared[pkg] = true
		for _, decl := range file.Decls {
			for _, of := range declaredNames(decl) {
				owner, _, _ := strings.Cut(of, ".")
				declared[owner], declared[of], declared[pkg+"."+of] = true, true, true
			}
		}
	}
	checked := 0
	for _, match := range codeName.FindAllStringSubmatch(pages(t)["DESIGN.md"], -1) {
		owner, _, _ := strings.Cut(match[1], ".")
		if suffix := path.Ext(match[1]); slices.Contains([]string{".go", ".json", ".yaml", ".txt", ".md"}, suffix) || !declared[owner] {
			continue
		}
		if checked++; !declared[match[1]] {
			t.Errorf("DESIGN.md names %s, which does not exist", match[1])
		}
	}
	if checked < 10 {
		t.Errorf("DESIGN.md names %d functions, types, methods and fields, want at least 10", checked)
	}
}

// declaredNames returns the names that a declaration declares: of functions, values and types, and of methods and fields
// after their type and a point.
func declaredNames(decl ast.Decl) (names []string) {
	if fn, ok := decl.(*ast.FuncDecl); ok {
		if fn.Recv == nil {
			return []string{fn.Name.Name}
		}
		receiver, _, _ := strings.Cut(strings.TrimPrefix(types.ExprString(fn.Recv.List[0].Type), "*"), "[")
		return []string{receiver + "." + fn.Name.Name}
	}
	general, ok := decl.(*ast.GenDecl)
	if !ok {
		return nil
	}
	for _, spec := range general.Specs {
		switch spec := spec.(type) {
		case *ast.ValueSpec:
			for _, name := range spec.Names {
				names = append(names, name.Name)
			}
		case *ast.TypeSpec:
			names = append(names, spec.Name.Name)
			if fields, ok := spec.Type.(*ast.StructType); ok {
				for _, field := range fields.Fields.List {
					for _, name := range field.Names {
						names = append(names, spec.Name.Name+"."+name.Name)
					}
				}
			}
		}
	}
	return names
}

// A step is a method or a type in the list of doc.go that describes the hot path.
type step struct {
	depth               int // of its indent
	pkg, receiver, name string
	file                string
}

// hotPath returns the steps in the list of doc.go. Each ends with the name of a file in parentheses.
func hotPath(t *testing.T) (steps []step) {
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	listed := regexp.MustCompile(
		`(?m)^//\t((?:  )*)(\w+)\.(?:(\w+)\.)?(\w+) [^()]*(?:\([^()]* [^()]*\)[^()]*)?\(([a-z/_]+\.go)\)$`)
	for _, m := range listed.FindAllStringSubmatch(string(doc), -1) {
		steps = append(steps, step{len(m[1]) / 2, m[2], m[3], m[4], m[5]})
	}
	if len(steps) != 8 {
		t.Fatalf("doc.go lists the steps %v, want 8", steps)
	}
	return steps
}

// TestHotPathIsListed checks that the steps of the hot path are declared in the files that doc.go names, and that each
// step uses those that are indented below it. It follows the names that functions of the package of a step use.
func TestHotPathIsListed(t *testing.T) {
	steps := hotPath(t)
	module := parseFiles(t, func(name string) bool {
		return partOf(name) == "program" &&
			slices.ContainsFunc(steps, func(s step) bool { return path.Dir(s.file) == path.Dir(name) })
	})
	for i, s := range steps {
		if module[s.file] == nil || !declares(module[s.file], s) {
			t.Errorf("%s does not declare %s.%s.%s", s.file, s.pkg, s.receiver, s.name)
		}
		for _, inner := range steps[i+1:] {
			if inner.depth <= s.depth {
				break
			}
			use := inner.name
			if inner.receiver == "" {
				use = inner.pkg + "." + inner.name
			}
			if inner.depth == s.depth+1 && !usesFrom(module, s)[use] {
				t.Errorf("%s.%s.%s does not use %s", s.pkg, s.receiver, s.name, use)
			}
		}
	}
}

// declares reports whether a file declares the method or the type of a step.
func declares(file *ast.File, s step) bool {
	return file.Name.Name == s.pkg && slices.ContainsFunc(file.Decls, func(decl ast.Decl) bool {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			return decl.Recv != nil && decl.Name.Name == s.name &&
				strings.TrimPrefix(types.ExprString(decl.Recv.List[0].Type), "*") == s.receiver
		case *ast.GenDecl:
			return s.receiver == "" && slices.ContainsFunc(decl.Specs, func(spec ast.Spec) bool {
				of, isType := spec.(*ast.TypeSpec)
				return isType && of.Name.Name == s.name
			})
		}
		return false
	})
}

// usesFrom returns the names and selectors that the function of a step uses, directly or through functions of its
// package.
func usesFrom(module map[string]*ast.File, s step) map[string]bool {
	bodies := map[string][]*ast.FuncDecl{} // by name
	var next []*ast.FuncDecl
	for name, file := range module {
		if path.Dir(name) != path.Dir(s.file) {
			continue
		}
		for _, decl := range file.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok {
				if bodies[fn.Name.Name] = append(bodies[fn.Name.Name], fn); name == s.file && fn.Name.Name == s.name {
					next = append(next, fn)
				}
			}
		}
	}
	used := map[string]bool{}
	for len(next) > 0 {
		fn := next[0]
		next = next[1:]
		ast.Inspect(fn.Body, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				used[types.ExprString(n)] = true
			case *ast.Ident:
				if !used[n.Name] {
					used[n.Name] = true
					next = append(next, bodies[n.Name]...)
				}
			}
			return true
		})
	}
	return used
}

// TestPartsAreListed checks that the types that doc.go lists as parts of a relay are declared in the files that it
// names.
func TestPartsAreListed(t *testing.T) {
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(doc), "[Relay] (relay.go) uses these types:\n//\n")
	list, _, _ = strings.Cut(list, "\n//\n")
	listed := regexp.MustCompile(`(?m)^//\t(\w+(?:, \w+)*)\s[^()]*\((\w+\.go(?:, \w+\.go)*)`)
	found := 0
	for _, m := range listed.FindAllStringSubmatch(list, -1) {
		for _, name := range strings.Split(m[1], ", ") {
			found++
			if !slices.ContainsFunc(strings.Split(m[2], ", "), func(file string) bool {
				parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
				return err == nil && declares(parsed, step{pkg: "relay", name: name})
			}) {
				t.Errorf("%s does not declare %s", m[2], name)
			}
		}
	}
	if found < 13 {
		t.Errorf("found %d types with their files in doc.go, want at least 13", found)
	}
}

// TestLocksAreListed checks that the list of locks in doc.go names the structs and variables of a relay that have a
// mutex, and no others.
func TestLocksAreListed(t *testing.T) {
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(doc), "\n// # Locks\n")
	list, _, _ = strings.Cut(list, "\n// # ")
	listed := map[string]bool{}
	for _, name := range regexp.MustCompile(`\b[a-z]+\.\w+`).FindAllString(list, -1) {
		listed[name] = false
	}
	inRelay := func(name string) bool {
		return partOf(name) == "program" && !strings.Contains(name, "/demo/") && !strings.HasPrefix(name, "cmd/")
	}
	for name, file := range parseFiles(t, inRelay) {
		for _, decl := range file.Decls {
			for _, owner := range mutexesIn(decl) {
				owner = file.Name.Name + "." + owner
				if _, is := listed[owner]; !is {
					t.Errorf("%s: %s has a mutex: add it to the list of locks in relay/doc.go, with what it guards", name, owner)
				}
				listed[owner] = true
			}
		}
	}
	for name, exists := range listed {
		if !exists {
			t.Errorf("relay/doc.go lists the lock %s, which does not exist", name)
		}
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

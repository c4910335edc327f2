package jsonspec

import (
	"go/ast"
	"go/token"
	"go/types"
	"reflect"
	"regexp"
	"strings"
)

// A reader of a schema does not see the Go code. So a description names fields as JSON does, and numbers instead of
// constants.
var (
	word      = regexp.MustCompile(`[A-Za-z]\w*`)
	camelCase = regexp.MustCompile(`[a-z0-9][A-Z]`)
	subject   = regexp.MustCompile(`(^|[.:] )([A-Z]\w*)(,| (?:is|are|has|have|was|were|and|reports|counts|count|says|lists|makes|returns)\b)`)
	inside    = regexp.MustCompile(`([a-z,;] )([A-Z]\w*)`) // a sentence
	isNil     = regexp.MustCompile(`\bnil (if|unless|without|for)\b`)
	isNilHere = regexp.MustCompile(`\bNil (if|unless|without|for)\b`)
)

// describe returns a comment on a struct, or on a field of it, for readers of its schema.
func (s *Schemas) describe(t reflect.Type, text string) string {
	fields := map[string]string{}
	s.jsonNames(t, fields)
	delete(fields, t.Name()) // the struct
	delete(fields, "Node")   // names in the text
	delete(fields, "Envoy")
	text = subject.ReplaceAllStringFunc(text, func(found string) string {
		parts := subject.FindStringSubmatch(found)
		if name := fields[parts[2]]; name != "" {
			return parts[1] + "`" + name + "`" + parts[3]
		}
		return found
	})
	text = word.ReplaceAllStringFunc(text, func(found string) string {
		switch {
		case s.constants[found] != "":
			return s.constants[found]
		case fields[found] != "" && camelCase.MatchString(found):
			return "`" + fields[found] + "`"
		}
		return found
	})
	text = inside.ReplaceAllStringFunc(text, func(found string) string {
		parts := inside.FindStringSubmatch(found)
		if name := fields[parts[2]]; name != "" {
			return parts[1] + "`" + name + "`"
		}
		return found
	})
	return isNilHere.ReplaceAllString(isNil.ReplaceAllString(text, "absent $1"), "Absent $1")
}

// jsonNames adds the JSON names of the fields of a struct, and of structs in it without a name of their own, by Go name.
func (s *Schemas) jsonNames(t reflect.Type, names map[string]string) {
	for field := range t.Fields() {
		tag := field.Tag.Get("json")
		if field.Anonymous && tag == "" {
			of := field.Type
			if of.Kind() == reflect.Pointer {
				of = of.Elem()
			}
			s.jsonNames(of, names)
			continue
		}
		if name, _, _ := strings.Cut(tag, ","); name != "" && name != "-" {
			names[field.Name] = name
		}
	}
}

// constantsOf returns the whole numbers that a file declares as constants, by name.
func constantsOf(file *ast.File) map[string]string {
	found := map[string]string{}
	for _, declaration := range file.Decls {
		of, ok := declaration.(*ast.GenDecl)
		if !ok || of.Tok != token.CONST {
			continue
		}
		for _, declared := range of.Specs {
			values := declared.(*ast.ValueSpec)
			for i, value := range values.Values {
				// A value that refers to other declarations has no type here.
				if got, err := types.Eval(token.NewFileSet(), nil, token.NoPos, types.ExprString(value)); err == nil &&
					types.Identical(got.Type, types.Typ[types.UntypedInt]) {
					found[values.Names[i].Name] = got.Value.ExactString()
				}
			}
		}
	}
	return found
}

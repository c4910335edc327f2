// Package jsonspec makes JSON schemas of Go types, with their comments as descriptions, and checks JSON against schemas. Tests
// generate published schemas by it, and hold the output of the program to them.
//
// The package is not a stable API: programs that embed Tender use package relay.
package jsonspec

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/xdstender/tender/relay/relaytest"
)

// An Object is a JSON object.
type Object = map[string]any

// Schemas are the schemas of structs.
type Schemas struct {
	All Object // by name

	// Name returns the name of the schema of a struct: that of the struct, after the prefix of its package. It may be replaced
	// before the first Ref.
	Name func(t reflect.Type) string

	tb        relaytest.TB
	at        string                  // where the schemas are in their document
	types     map[string]reflect.Type // by schema
	comments  map[string]string       // by schema, or by schema, "." and field
	constants map[string]string       // the numbers of constants by name
}

// New returns no schemas. at is where they will be in their document, such as #/$defs/. dirs has the directories of the
// packages, with the prefix that the names of their schemas have.
func New(tb relaytest.TB, at string, dirs map[string]string) *Schemas {
	tb.Helper()
	s := &Schemas{All: Object{}, tb: tb, at: at, types: make(map[string]reflect.Type), comments: make(map[string]string), constants: make(map[string]string)}
	prefixes := make(map[string]string)
	for dir, prefix := range dirs {
		s.readComments(tb, dir, prefix)
		prefixes[filepath.Base(dir)] = prefix
	}
	s.Name = func(t reflect.Type) string { return prefixes[path.Base(t.PkgPath())] + t.Name() }
	return s
}

// Ref returns a reference to the schema of a struct, and adds that schema. The fields of arguments are optional.
func (s *Schemas) Ref(t reflect.Type, arguments bool) Object {
	s.tb.Helper()
	name := s.Name(t)
	if other, ok := s.types[name]; ok && other != t {
		s.tb.Fatalf("%v and %v have schemas of the name %s", other, t, name)
	} else if !ok {
		s.types[name] = t
		schema := Object{"type": "object", "additionalProperties": false}
		s.All[name] = schema
		if text := s.comments[name]; text != "" {
			schema["description"] = s.describe(t, text)
		}
		properties, required := Object{}, []string{}
		s.addFields(t, properties, &required, arguments)
		schema["properties"] = properties
		if len(required) > 0 {
			schema["required"] = required
		}
	}
	return Object{"$ref": s.at + name}
}

// addFields adds the fields of a struct, and those of structs in it without a name of their own.
func (s *Schemas) addFields(t reflect.Type, properties Object, required *[]string, arguments bool) {
	for field := range t.Fields() {
		if field.Anonymous && field.Tag.Get("json") == "" {
			of := field.Type
			optional := arguments
			if of.Kind() == reflect.Pointer {
				of, optional = of.Elem(), true
			}
			s.addFields(of, properties, required, optional)
			continue
		}
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "-" || name == "" {
			continue
		}
		schema := s.schema(field.Type)
		if text := s.comments[s.Name(t)+"."+field.Name]; text != "" {
			schema["description"] = s.describe(t, text)
		}
		properties[name] = schema
		if !arguments && !strings.Contains(options, "omit") {
			*required = append(*required, name)
		}
	}
}

// schema returns the schema of a type.
func (s *Schemas) schema(t reflect.Type) Object {
	switch {
	case t == reflect.TypeFor[time.Time]():
		return Object{"type": "string", "format": "date-time"}
	case t == reflect.TypeFor[json.RawMessage]():
		return Object{}
	case t.Kind() == reflect.Pointer:
		return s.schema(t.Elem())
	case t.Kind() == reflect.Struct:
		return s.Ref(t, false)
	case t.Kind() == reflect.Slice:
		return Object{"type": []string{"array", "null"}, "items": s.schema(t.Elem())}
	case t.Kind() == reflect.Map:
		return Object{"type": []string{"object", "null"}, "additionalProperties": s.schema(t.Elem())}
	case t.Kind() == reflect.Bool:
		return Object{"type": "boolean"}
	case t.Kind() == reflect.Float64:
		return Object{"type": "number"}
	case t.Kind() == reflect.String || t.Implements(reflect.TypeFor[interface{ MarshalText() ([]byte, error) }]()):
		return Object{"type": "string"}
	default:
		return Object{"type": "integer"}
	}
}

// readComments reads the comments of the types in a directory, and of their fields, and the constants.
func (s *Schemas) readComments(tb relaytest.TB, dir, begin string) {
	tb.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		tb.Fatalf("comments: %v", err)
	}
	found := map[string]string{}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			tb.Fatalf("comments: %v", err)
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ParseComments)
		if err != nil {
			tb.Fatalf("comments: %v", err)
		}
		maps.Copy(found, commentsOf(file))
		maps.Copy(s.constants, constantsOf(file))
	}
	for name, text := range found {
		s.comments[begin+name] = text
	}
}

// commentsOf returns the comments of the structs of a file and of their fields.
func commentsOf(file *ast.File) map[string]string {
	found := map[string]string{}
	for _, declaration := range file.Decls {
		of, ok := declaration.(*ast.GenDecl)
		if !ok || of.Tok != token.TYPE {
			continue
		}
		for _, declared := range of.Specs {
			named := declared.(*ast.TypeSpec)
			fields, ok := named.Type.(*ast.StructType)
			if !ok {
				continue
			}
			found[named.Name.Name] = oneLine(of.Doc)
			for _, field := range fields.Fields.List {
				for _, name := range field.Names {
					found[named.Name.Name+"."+name.Name] = strings.TrimSpace(oneLine(field.Doc) + " " + oneLine(field.Comment))
				}
			}
		}
	}
	return found
}

// oneLine returns the first paragraph of a comment, without the marks of links.
func oneLine(c *ast.CommentGroup) string {
	text, _, _ := strings.Cut(c.Text(), "\n\n")
	text = strings.Join(strings.Fields(text), " ")
	return regexp.MustCompile(`\[([\w.]+)\]`).ReplaceAllString(text, "$1")
}

// A Validator checks JSON against the schemas of a document.
type Validator struct {
	tb       relaytest.TB
	at       string
	compiler *jsonschema.Compiler
}

// NewValidator returns a validator of a JSON document with schemas at a path, such as #/$defs/.
func NewValidator(tb relaytest.TB, document []byte, at string) *Validator {
	tb.Helper()
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(document))
	if err != nil {
		tb.Fatalf("schemas: %v", err)
	}
	v := &Validator{tb: tb, at: at, compiler: jsonschema.NewCompiler()}
	v.compiler.DefaultDraft(jsonschema.Draft2020)
	v.compiler.AssertFormat()
	if err := v.compiler.AddResource("schemas.json", value); err != nil {
		tb.Fatalf("schemas: %v", err)
	}
	return v
}

// Check returns an error unless JSON matches the schema of a name.
func (v *Validator) Check(name string, text []byte) error {
	v.tb.Helper()
	schema, err := v.compiler.Compile("schemas.json" + v.at + name)
	if err != nil {
		return err
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return err
	}
	return schema.Validate(value)
}

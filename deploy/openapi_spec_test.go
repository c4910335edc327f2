package deploy_test

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A spec makes an OpenAPI document. Schemas are made from the types of the API, and their descriptions from the comments.
type spec struct {
	schemas  object
	comments map[string]string // by type, or by type, "." and field
}

func newSpec(t *testing.T) *spec {
	t.Helper()
	s := &spec{schemas: object{}, comments: map[string]string{}}
	s.readComments(t, "admin", "")
	s.readComments(t, "rollout", "Rollout")
	return s
}

// document returns the OpenAPI document.
func (s *spec) document() object {
	paths := object{}
	for _, o := range operations() {
		path, _ := paths[o.path].(object)
		if path == nil {
			path = object{}
			paths[o.path] = path
		}
		path[strings.ToLower(o.method)] = s.operation(o)
	}
	return object{
		"openapi": "3.1.0",
		"info": object{
			"title": "Tender admin API", "version": "v1", "license": object{"name": "Apache-2.0", "identifier": "Apache-2.0"},
			"description": "The HTTP API on TENDER_ADMIN_LISTEN. Fields may be added under /api/v1; none is removed or changes its meaning. With Accept: application/json, responses have no indentation.",
		},
		"servers":    []object{{"url": "http://127.0.0.1:18080"}},
		"security":   []object{{}, {"operator": []string{}}},
		"paths":      paths,
		"components": object{"schemas": s.schemas, "securitySchemes": object{"operator": object{"type": "mutualTLS", "description": "A certificate of an operator, by TENDER_AUTHZ. Not needed on loopback."}}},
	}
}

// operation returns the object of an operation.
func (s *spec) operation(o operation) object {
	op := object{"summary": o.summary, "operationId": operationID(o)}
	var parameters []object
	if strings.Contains(o.path, "{number}") {
		parameters = append(parameters, object{"name": "number", "in": "path", "required": true, "schema": object{"type": "integer"}, "description": "The number of the stream"})
	}
	for _, p := range o.query {
		parameters = append(parameters, object{"name": p.name, "in": "query", "schema": object{"type": "string"}, "description": p.description})
	}
	if parameters != nil {
		op["parameters"] = parameters
	}
	if o.args != nil {
		op["requestBody"] = object{"content": object{"application/json": object{"schema": s.ref(reflect.TypeOf(o.args), true)}}}
	}
	ok := object{"description": "Success"}
	if o.answer != nil {
		ok["content"] = object{"application/json": object{"schema": s.ref(reflect.TypeOf(o.answer), false)}}
	} else {
		ok["content"] = object{o.media: object{}}
	}
	responses := object{"200": ok}
	for _, code := range append([]int{400, 403, 500}, o.codes...) {
		responses[strconv.Itoa(code)] = object{"description": descriptions[code], "content": object{"application/json": object{"schema": s.ref(reflect.TypeFor[errorAnswer](), false)}}}
	}
	if o.media == "text/plain" {
		responses = object{"200": ok}
		for _, code := range o.codes {
			responses[strconv.Itoa(code)] = object{"description": descriptions[code], "content": object{o.media: object{}}}
		}
	}
	op["responses"] = responses
	return op
}

var descriptions = map[int]string{
	400: "An invalid parameter or argument", 403: "The identity lacks the permission, or the Host is not that of the relay",
	404: "Not found, or the feature is off", 409: "Not possible in the present state", 500: "An internal error", 503: "Not ready",
}

// operationID returns the name of an operation, such as getClientsNumber.
func operationID(o operation) string {
	id := strings.ToLower(o.method)
	for _, part := range regexp.MustCompile(`[a-z]+`).FindAllString(strings.TrimPrefix(o.path, "/api/v1"), -1) {
		id += strings.ToUpper(part[:1]) + part[1:]
	}
	return id
}

// nameOf returns the name of the schema of a value.
func nameOf(value any) string { return schemaName(reflect.TypeOf(value)) }

func schemaName(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[errorAnswer]():
		return "Error"
	case strings.HasSuffix(t.PkgPath(), "/rollout"):
		return "Rollout" + t.Name()
	}
	return t.Name()
}

// ref returns a reference to the schema of a struct, and adds that schema. The fields of arguments are optional.
func (s *spec) ref(t reflect.Type, arguments bool) object {
	name := schemaName(t)
	if _, ok := s.schemas[name]; !ok {
		schema := object{"type": "object", "additionalProperties": false}
		s.schemas[name] = schema
		if text := s.comments[name]; text != "" {
			schema["description"] = text
		}
		properties, required := object{}, []string{}
		s.addFields(t, properties, &required, arguments)
		schema["properties"] = properties
		if len(required) > 0 {
			schema["required"] = required
		}
	}
	return object{"$ref": "#/components/schemas/" + name}
}

// addFields adds the fields of a struct, and those of structs in it without a name of their own.
func (s *spec) addFields(t reflect.Type, properties object, required *[]string, arguments bool) {
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
		if text := s.comments[schemaName(t)+"."+field.Name]; text != "" {
			schema["description"] = text
		}
		properties[name] = schema
		if !arguments && !strings.Contains(options, "omit") {
			*required = append(*required, name)
		}
	}
}

// schema returns the schema of a type.
func (s *spec) schema(t reflect.Type) object {
	switch {
	case t == reflect.TypeFor[time.Time]():
		return object{"type": "string", "format": "date-time"}
	case t == reflect.TypeFor[json.RawMessage]():
		return object{}
	case t.Kind() == reflect.Pointer:
		return s.schema(t.Elem())
	case t.Kind() == reflect.Struct:
		return s.ref(t, false)
	case t.Kind() == reflect.Slice:
		return object{"type": []string{"array", "null"}, "items": s.schema(t.Elem())}
	case t.Kind() == reflect.Map:
		return object{"type": []string{"object", "null"}, "additionalProperties": s.schema(t.Elem())}
	case t.Kind() == reflect.Bool:
		return object{"type": "boolean"}
	case t.Kind() == reflect.Float64:
		return object{"type": "number"}
	case t.Kind() == reflect.String || t.Implements(reflect.TypeFor[interface{ MarshalText() ([]byte, error) }]()):
		return object{"type": "string"}
	default:
		return object{"type": "integer"}
	}
}

// readComments reads the comments of the types of a package and of their fields.
func (s *spec) readComments(t *testing.T, pkg, begin string) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(root, "relay", pkg, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		maps.Copy(found, commentsOf(file))
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

package deploy_test

import (
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/xdstender/tender/relay/relaytest/jsonspec"
)

// A spec makes an OpenAPI document. Schemas are made from the types of the API, and their descriptions from the comments.
type spec struct{ schemas *jsonspec.Schemas }

func newSpec(t *testing.T) *spec {
	t.Helper()
	s := jsonspec.New(t, "#/components/schemas/", map[string]string{root + "/relay/admin": "", root + "/relay/rollout": "Rollout"})
	ofType := s.Name
	s.Name = func(t reflect.Type) string {
		if t == reflect.TypeFor[errorAnswer]() {
			return "Error"
		}
		return ofType(t)
	}
	return &spec{s}
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
		"components": object{"schemas": s.schemas.All, "securitySchemes": object{"operator": object{"type": "mutualTLS", "description": "A certificate of an operator, by TENDER_AUTHZ. Not needed on loopback."}}},
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
		op["requestBody"] = object{"content": object{"application/json": object{"schema": s.schemas.Ref(reflect.TypeOf(o.args), true)}}}
	}
	ok := object{"description": "Success"}
	if o.answer != nil {
		ok["content"] = object{"application/json": object{"schema": s.schemas.Ref(reflect.TypeOf(o.answer), false)}}
	} else {
		ok["content"] = object{o.media: object{}}
	}
	responses := object{"200": ok}
	for _, code := range append([]int{400, 403, 500}, o.codes...) {
		responses[strconv.Itoa(code)] = object{"description": descriptions[code], "content": object{"application/json": object{"schema": s.schemas.Ref(reflect.TypeFor[errorAnswer](), false)}}}
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

package deploy_test

import (
	"os"
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

const openapiFile = "docs/openapi.yaml"

// TestOpenAPI compares openapi.yaml with the operations and types of the admin API. With -update it writes the file.
// Descriptions are from comments. They are not compared, so that a comment can be edited alone.
func TestOpenAPI(t *testing.T) {
	s := newSpec(t)
	document := s.document()
	s.describe(t)
	text, err := yaml.Marshal(document)
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		text := append([]byte("# Generated: go test ./deploy -run TestOpenAPI -update\n"), text...)
		if err := os.WriteFile(openapiFile, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(undescribed(t, text), undescribed(t, []byte(readText(t, openapiFile)))); diff != "" {
		t.Errorf("%s differs from the API; run\n\tgo test ./deploy -run TestOpenAPI -update\n(-want +got)\n%s", openapiFile, diff)
	}
}

// undescribed returns a document without the descriptions, which are strings; properties of this name are not.
func undescribed(t *testing.T, document []byte) (value any) {
	t.Helper()
	if err := yaml.Unmarshal(document, &value); err != nil {
		t.Fatal(err)
	}
	var remove func(value any)
	remove = func(value any) {
		switch value := value.(type) {
		case object:
			if _, ok := value["description"].(string); ok {
				delete(value, "description")
			}
			for _, below := range value {
				remove(below)
			}
		case []any:
			for _, below := range value {
				remove(below)
			}
		}
	}
	remove(value)
	return value
}

var (
	servedPath    = regexp.MustCompile(`(?:get\(|MethodGet, )"(/[a-z][^"]*)"`)
	servedCommand = regexp.MustCompile(`NewCommand\("([a-z]+)"`)
)

// TestOpenAPIHasEveryRoute compares the operations with the routes in the source of the admin API.
func TestOpenAPIHasEveryRoute(t *testing.T) {
	served := map[string]bool{}
	for _, match := range servedPath.FindAllStringSubmatch(readText(t, root+"/relay/admin/server.go"), -1) {
		served["GET "+match[1]] = true
	}
	for _, match := range servedCommand.FindAllStringSubmatch(readText(t, root+"/relay/admin.go"), -1) {
		served["POST /api/v1/"+match[1]] = true
		served["POST /api/v1/tier/"+match[1]] = true
	}
	for _, command := range []string{"promote", "abort", "resume", "undo"} {
		served["POST /api/v1/rollout/"+command] = true // TestOpenAPIResponses in system/deploy requests them
	}
	described := map[string]bool{}
	for _, o := range operations() {
		described[o.method+" "+o.path] = true
		if !served[o.method+" "+o.path] {
			t.Errorf("%s has %s %s, which is not served", openapiFile, o.method, o.path)
		}
	}
	for route := range served {
		if !described[route] {
			t.Errorf("%s does not have %s", openapiFile, route)
		}
	}
	if len(served) < 25 {
		t.Errorf("found %d routes, want 25 at least", len(served))
	}
}

package docs_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"sigs.k8s.io/yaml"

	"github.com/xdstender/tender/relay"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/instance"
)

var update = flag.Bool("update", false, "write deploy/docs/openapi.yaml")

const openapiFile = "openapi.yaml"

// TestOpenAPI holds openapi.yaml to the operations and types of the admin API. With -update it writes the file.
// Descriptions are from comments. They are not compared, so that a comment can be edited alone.
func TestOpenAPI(t *testing.T) {
	text, err := yaml.Marshal(newSpec(t).document())
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		text := append([]byte("# Generated: go test ./deploy/docs -run TestOpenAPI -update\n"), text...)
		if err := os.WriteFile(openapiFile, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(undescribed(t, text), undescribed(t, readFile(t, openapiFile))); diff != "" {
		t.Errorf("%s differs from the API; run\n\tgo test ./deploy/docs -run TestOpenAPI -update\n(-want +got)\n%s", openapiFile, diff)
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

// TestOpenAPIHasEveryRoute holds the operations to the routes in the source of the admin surface, in both directions.
func TestOpenAPIHasEveryRoute(t *testing.T) {
	served := map[string]bool{}
	for _, match := range servedPath.FindAllStringSubmatch(string(readFile(t, root+"/relay/admin/server.go")), -1) {
		served["GET "+match[1]] = true
	}
	for _, match := range servedCommand.FindAllStringSubmatch(string(readFile(t, root+"/relay/admin.go")), -1) {
		served["POST /api/v1/"+match[1]] = true
		served["POST /api/v1/fleet/"+match[1]] = true
	}
	for _, command := range []string{"promote", "abort", "resume", "undo"} {
		served["POST /api/v1/rollout/"+command] = true // TestOpenAPIResponses asks for them
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

// TestOpenAPIResponses holds the responses of a running relay to the schemas of openapi.yaml: of each operation, and of
// requests that are rejected.
func TestOpenAPIResponses(t *testing.T) {
	t.Parallel()
	o := relaytest.NewOrigin(t, relaytest.OriginOptions{})
	o.Put(relaytest.Cluster("web"))
	r := instance.Start(t, instance.Options{Env: []string{
		"TENDER_ORIGIN=" + o.Addr(), "TENDER_ADMIN_LISTEN=127.0.0.1:0", "TENDER_SNAPSHOT_DIR=" + t.TempDir(),
		"TENDER_ROLLOUT=50% approve", "TENDER_DELTA_VERSIONS=content",
	}, Options: relay.Options{Level: new(slog.LevelVar)}})
	client := r.Client(relaytest.ClientOptions{Node: relaytest.EnvoyNode("edge-1")})
	client.Subscribe(relaytest.ClusterType)
	client.Nack(client.Recv(t.Context()), "unknown http filter")
	schemas := compileSchemas(t)
	for _, o := range operations() {
		if o.answer == nil {
			continue
		}
		target := "http://" + r.AdminAddrs()[0].String() + strings.Replace(o.path, "{number}", firstClient(t, r.AdminAddrs()[0].String()), 1) + o.sample
		schema := schemas[nameOf(o.answer)]
		code, body := ask(t, o.method, target, o.body)
		switch {
		case code == http.StatusOK:
		case slices.Contains(o.codes, code):
			schema = schemas["Error"]
		default:
			t.Errorf("%s %s: code %d\n%s", o.method, target, code, body)
			continue
		}
		value, err := jsonschema.UnmarshalJSON(bytes.NewReader(body))
		if err == nil {
			err = schema.Validate(value)
		}
		if err != nil {
			t.Errorf("%s %s: %v\n%s", o.method, target, err, body)
		}
	}
	code, body := ask(t, http.MethodPost, "http://"+r.AdminAddrs()[0].String()+"/api/v1/freeze", `{"origins": 1}`)
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(body))
	if err != nil || code != http.StatusBadRequest || schemas["Error"].Validate(value) != nil {
		t.Errorf("unknown argument: code %d, %v, %s", code, err, body)
	}
	if schemas["Status"].Validate(value) == nil {
		t.Error("an error is a valid Status: the schemas accept anything")
	}
}

// compileSchemas returns the schemas of openapi.yaml by name.
func compileSchemas(t *testing.T) map[string]*jsonschema.Schema {
	t.Helper()
	text, err := yaml.YAMLToJSON(readFile(t, openapiFile))
	if err != nil {
		t.Fatal(err)
	}
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.AssertFormat()
	if err := c.AddResource("openapi.json", document); err != nil {
		t.Fatal(err)
	}
	all := map[string]*jsonschema.Schema{}
	for _, o := range operations() {
		for _, of := range []any{o.answer, o.args, errorAnswer{}} {
			if of == nil {
				continue
			}
			name := nameOf(of)
			if all[name], err = c.Compile("openapi.json#/components/schemas/" + name); err != nil {
				t.Fatal(err)
			}
		}
	}
	return all
}

// firstClient returns the number of a client of the relay.
func firstClient(t *testing.T, admin string) string {
	t.Helper()
	_, body := ask(t, http.MethodGet, "http://"+admin+"/api/v1/clients", "")
	var list struct {
		Clients []struct {
			Number json.Number `json:"number"`
		} `json:"clients"`
	}
	if err := json.Unmarshal(body, &list); err != nil || len(list.Clients) == 0 {
		t.Fatalf("the relay has no client: %v\n%s", err, body)
	}
	return list.Clients[0].Number.String()
}

// ask sends a request to the admin address.
func ask(t *testing.T, method, target, body string) (code int, answer []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, target, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }() // it was read
	answer, err = io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, answer
}

func readFile(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.FromSlash(name))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

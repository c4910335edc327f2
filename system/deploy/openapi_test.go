package deploy_test

import (
	"encoding/json"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/xdstender/tender/relay"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/instance"
	"github.com/xdstender/tender/relay/relaytest/jsonspec"
)

// An answer is a response of an operation in openapi.yaml.
type answer struct {
	Content map[string]struct {
		Schema struct {
			Ref string `json:"$ref"`
		}
	}
}

// schema returns the name of the schema of a JSON response, or "".
func (a answer) schema() string {
	if ref := a.Content["application/json"].Schema.Ref; ref != "" {
		return path.Base(ref)
	}
	return ""
}

// An operation is an operation of the admin API.
type operation struct {
	method, path string
	arguments    string            // the query, or the body
	answers      map[string]answer // by status code
}

// asked are the first requests, in their order: those that need arguments, and those that depend on others.
var asked = []operation{
	{method: "GET", path: "/api/v1/resources", arguments: "?type=cds"},
	{method: "GET", path: "/api/v1/history", arguments: "?type=cds&name=web"},
	{method: "GET", path: "/api/v1/rollback/diff", arguments: "?to=1m"},
	{method: "POST", path: "/api/v1/freeze", arguments: `{"reason": "test"}`},
	{method: "POST", path: "/api/v1/thaw"},
	{method: "POST", path: "/api/v1/rollback", arguments: `{"to": "1m", "dry_run": true}`},
	{method: "POST", path: "/api/v1/pass", arguments: `{"all": true}`},
	{method: "POST", path: "/api/v1/drop", arguments: `{"all": true}`},
	{method: "POST", path: "/api/v1/audit", arguments: `{"type": "cds"}`},
	{method: "POST", path: "/api/v1/loglevel", arguments: `{"level": "info"}`},
}

// readOperations returns the operations of openapi.yaml with JSON responses, in the order in which the test requests
// them. Operations on the whole tier have the arguments of those on one relay.
func readOperations(t *testing.T) (all []operation) {
	t.Helper()
	var document struct {
		Paths map[string]map[string]struct{ Responses map[string]answer }
	}
	if err := yaml.Unmarshal([]byte(readText(t, openapiFile)), &document); err != nil {
		t.Fatal(err)
	}
	arguments := map[string]string{}
	for _, o := range asked {
		o.answers = document.Paths[o.path][strings.ToLower(o.method)].Responses
		arguments[o.method+o.path] = o.arguments
		delete(document.Paths[o.path], strings.ToLower(o.method))
		all = append(all, o)
	}
	for _, path := range slices.Sorted(maps.Keys(document.Paths)) {
		for method, of := range document.Paths[path] {
			o := operation{method: strings.ToUpper(method), path: path, answers: of.Responses}
			o.arguments = arguments[o.method+strings.Replace(path, "/tier/", "/", 1)]
			if o.answers["200"].schema() != "" {
				all = append(all, o)
			}
		}
	}
	if len(all) < 25 {
		t.Fatalf("%s has %d operations with JSON responses, want 25 at least", openapiFile, len(all))
	}
	return all
}

// openapiFile is the OpenAPI document. TestOpenAPI in deploy compares it with the code.
const openapiFile = root + "/deploy/docs/openapi.yaml"

// TestOpenAPIResponses checks that the responses of a running relay match the schemas in openapi.yaml: of each
// operation, and of a request that is rejected.
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
	schemas, admin := schemasOf(t), "http://"+r.AdminAddrs()[0].String()
	for _, o := range readOperations(t) {
		target, body := admin+strings.Replace(o.path, "{number}", firstClient(t, admin), 1), ""
		if o.method == http.MethodGet {
			target += o.arguments
		} else {
			body = o.arguments
		}
		code, got := ask(t, o.method, target, body)
		expected, ok := o.answers[strconv.Itoa(code)]
		if slices.Contains([]int{400, 403, 500}, code) || !ok { // every operation has these errors
			t.Errorf("%s %s: code %d\n%s", o.method, target, code, got)
			continue
		}
		if err := schemas.Check(expected.schema(), got); err != nil {
			t.Errorf("%s %s: %v\n%s", o.method, target, err, got)
		}
	}
	code, body := ask(t, http.MethodPost, admin+"/api/v1/freeze", `{"origins": 1}`)
	if err := schemas.Check("Error", body); err != nil || code != http.StatusBadRequest {
		t.Errorf("unknown argument: code %d, %v, %s", code, err, body)
	}
	if schemas.Check("Status", body) == nil {
		t.Error("an error is a valid Status: the schemas accept anything")
	}
}

// schemasOf returns a validator of the schemas of openapi.yaml.
func schemasOf(t *testing.T) *jsonspec.Validator {
	t.Helper()
	text, err := yaml.YAMLToJSON([]byte(readText(t, openapiFile)))
	if err != nil {
		t.Fatal(err)
	}
	return jsonspec.NewValidator(t, text, "#/components/schemas/")
}

// firstClient returns the number of a client of the relay.
func firstClient(t *testing.T, admin string) string {
	t.Helper()
	_, body := ask(t, http.MethodGet, admin+"/api/v1/clients", "")
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

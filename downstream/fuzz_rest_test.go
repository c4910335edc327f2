package downstream

import (
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	routepb "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// oneView serves one view to every node.
type oneView struct{ view *cache.View }

func (v oneView) Join(*node, Caller) (Group, error) {
	return Group{View: v.view, Key: "all", Leave: func() {}}, nil
}

// FuzzREST polls with any body. The response has exactly the requested resources, and a poll with its version is
// answered 304; or the response is an error with a reason. No body crashes the relay.
func FuzzREST(f *testing.F) {
	view, w := cache.New(cache.Config{})
	w.SetConnected(true)
	u := wire.Update{TypeURL: wire.RouteType, SystemVersion: "s~1"}
	for _, name := range []string{"a", "b", "ü\""} {
		value, err := proto.Marshal(&routepb.RouteConfiguration{Name: name})
		check.OK(f, err)
		r, err := wire.NewResource(wire.RouteType, name, "", value)
		check.OK(f, err)
		u.Resources = append(u.Resources, r)
	}
	w.Apply(cache.Wildcard, u)
	w.SetPhase(wire.RouteType, cache.Confirmed)
	server, err := New(Config{Views: oneView{view}, MaxNames: 10})
	check.OK(f, err)
	for _, seed := range []string{
		``, `{}`, `null`, `[]`, `{"node":{}}`, `{"node":{"id":"n"},"resource_names":["a"]}`,
		`{"node":{"id":"n","metadata":{"a":[null,1e309,{"b":"\u0000"}]}},"resourceNames":["*","b","b"],"versionInfo":"v"}`,
		`{"node":{},"type_url":"` + wire.RouteType + `","response_nonce":"7",` +
			`"resource_locators":[{"name":"ü\"","dynamic_parameters":{"params":{"a":"b"}}}]}`,
		`{"node":{},"error_detail":{"code":3,"message":"no","details":[{"@type":"a/b.C","d":{}},{}]},"new":[[[]]]}`,
		`{"node":{"extensions":[{"type_descriptor":"x","version":{"version":{"major_number":1}}}],` +
			`"listening_addresses":[{"pipe":{"path":"@"}}]},"resource_names":["x"]}`,
		`{"node":{},"resource_names":["` + strings.Repeat("n", maxNameBytes+1) + `"]}`,
		`{"node":{},"resource_names":["*"]}`, `{"node":{"id":"\ud800"}}`,
	} {
		f.Add(seed)
	}
	poll := func(body string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodPost, "/v3/discovery:routes", strings.NewReader(body))
		r.Header.Set(timeoutHeader, "0")
		reply := httptest.NewRecorder()
		server.REST().ServeHTTP(reply, r)
		w.TakeDemand() // no upstream session takes it, and it keeps names in memory
		return reply
	}
	f.Fuzz(func(t *testing.T, body string) {
		reply := poll(body)
		if reply.Code != http.StatusOK {
			checkError(t, body, reply)
			return
		}
		resp := new(discoverypb.DiscoveryResponse)
		if err := protojson.Unmarshal(reply.Body.Bytes(), resp); err != nil {
			t.Fatalf("response to %q is %s: %v", body, reply.Body, err)
		}
		req, scanned := new(discoverypb.DiscoveryRequest), []byte(body)
		scanBody(scanned) // removes extensions
		if err := unmarshalOptions.Unmarshal(scanned, req); err != nil {
			t.Fatalf("%q got a response, but is not a request: %v", body, err)
		}
		checkResources(t, req, resp)
		req.VersionInfo, req.ErrorDetail = resp.GetVersionInfo(), nil
		again, err := protojson.Marshal(req)
		check.OK(t, err)
		if reply := poll(string(again)); reply.Code != http.StatusNotModified || reply.Body.Len() > 0 {
			t.Fatalf("response to %s is %d %s, want 304", again, reply.Code, reply.Body)
		}
	})
}

// checkError checks the error response to a poll.
func checkError(t *testing.T, body string, reply *httptest.ResponseRecorder) {
	allowed := []int{http.StatusNotModified, http.StatusBadRequest, http.StatusTooManyRequests,
		http.StatusRequestEntityTooLarge, http.StatusServiceUnavailable}
	if !slices.Contains(allowed, reply.Code) {
		t.Fatalf("response to %q is %d %s, want one of %v", body, reply.Code, reply.Body, allowed)
	}
	st := new(statuspb.Status)
	if err := protojson.Unmarshal(reply.Body.Bytes(), st); reply.Code != http.StatusNotModified &&
		(err != nil || st.GetMessage() == "") {
		t.Fatalf("response to %q is %d %s, want a google.rpc.Status: %v", body, reply.Code, reply.Body, err)
	}
}

// checkResources checks that a response has the requested ones of the routes a, b and ü".
func checkResources(t *testing.T, req *discoverypb.DiscoveryRequest, resp *discoverypb.DiscoveryResponse) {
	names := req.GetResourceNames()
	for _, l := range req.GetResourceLocators() {
		names = append(names, l.GetName())
	}
	want, got := map[string]bool{}, map[string]bool{}
	for _, name := range []string{"a", "b", "ü\""} {
		if slices.Contains(names, name) || slices.Contains(names, wire.Wildcard) {
			want[name] = true
		}
	}
	for _, resource := range resp.GetResources() {
		route := new(routepb.RouteConfiguration)
		check.OK(t, resource.UnmarshalTo(route))
		got[route.GetName()] = true
	}
	if !maps.Equal(got, want) {
		t.Fatalf("response to a request of %q has %v, want %v", names, got, want)
	}
}

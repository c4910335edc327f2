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

// FuzzREST: whatever the body of a poll is, the answer is a response that has just
// what was asked for and is current from then on, or an error that says why not; and
// the relay fails at none.
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
	server, err := New(Config{Views: oneView{view}, MaxNames: 10, MaxNameBytes: 100})
	check.OK(f, err)
	for _, seed := range []string{
		``, `{}`, `null`, `[]`, `{"node":{}}`, `{"node":{"id":"n"},"resource_names":["a"]}`,
		`{"node":{"id":"n","metadata":{"a":[null,1e309,{"b":"\u0000"}]}},"resourceNames":["*","b","b"],"versionInfo":"v"}`,
		`{"node":{},"type_url":"` + wire.RouteType + `","response_nonce":"7","resource_locators":[{"name":"ü\"","dynamic_parameters":{"params":{"a":"b"}}}]}`,
		`{"node":{},"error_detail":{"code":3,"message":"no","details":[{"@type":"a/b.C","d":{}},{}]},"new":[[[]]]}`,
		`{"node":{"extensions":[{"type_descriptor":"x","version":{"version":{"major_number":1}}}],"listening_addresses":[{"pipe":{"path":"@"}}]},"resource_names":["x"]}`,
		`{"node":{},"resource_names":["` + strings.Repeat("n",
			101) + `"]}`, `{"node":{},"resource_names":["*"]}`, `{"node":{"id":"\ud800"}}`,
	} {
		f.Add(seed)
	}
	poll := func(body string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodPost, "/v3/discovery:routes", strings.NewReader(body))
		r.Header.Set(timeoutHeader, "0")
		reply := httptest.NewRecorder()
		server.REST().ServeHTTP(reply, r)
		w.TakeDemand() // nobody else does, and names that are in it are kept
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
			t.Fatalf("%q is answered %s: %v", body, reply.Body, err)
		}
		asked, read := new(discoverypb.DiscoveryRequest), []byte(body)
		scanBody(read) // which does not read extensions either
		if err := unmarshalOptions.Unmarshal(read, asked); err != nil {
			t.Fatalf("%q is answered, but it is no request: %v", body, err)
		}
		checkResources(t, asked, resp)
		asked.VersionInfo, asked.ErrorDetail = resp.GetVersionInfo(), nil
		again, err := protojson.Marshal(asked)
		check.OK(t, err)
		if reply := poll(string(again)); reply.Code != http.StatusNotModified || reply.Body.Len() > 0 {
			t.Fatalf("%s is answered %d %s, want 304", again, reply.Code, reply.Body)
		}
	})
}

// checkRefused checks the answer to a poll that got no response.
func checkError(t *testing.T, body string, reply *httptest.ResponseRecorder) {
	allowed := []int{http.StatusNotModified, http.StatusBadRequest, http.StatusTooManyRequests,
		http.StatusRequestEntityTooLarge, http.StatusServiceUnavailable}
	if !slices.Contains(allowed, reply.Code) {
		t.Fatalf("%q is answered %d %s", body, reply.Code, reply.Body)
	}
	st := new(statuspb.Status)
	if err := protojson.Unmarshal(reply.Body.Bytes(), st); reply.Code != http.StatusNotModified &&
		(err != nil || st.GetMessage() == "") {
		t.Fatalf("%q is answered %d %s, want a google.rpc.Status: %v", body, reply.Code, reply.Body, err)
	}
}

// checkAsked checks that a response has what of the routes a, b and ü" was asked for.
func checkResources(t *testing.T, asked *discoverypb.DiscoveryRequest, resp *discoverypb.DiscoveryResponse) {
	names := asked.GetResourceNames()
	for _, l := range asked.GetResourceLocators() {
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
		t.Fatalf("asked for %q, got %v", names, got)
	}
}

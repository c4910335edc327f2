package conformance_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerpb "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routepb "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	tlspb "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	runtimepb "github.com/envoyproxy/go-control-plane/envoy/service/runtime/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/xdstender/tender/relay/relaytest"
)

// restResources returns a resource named a for each type that can be polled, by the last element of the type's
// path.
func restResources(t *testing.T) map[string]proto.Message {
	t.Helper()
	fields, err := structpb.NewStruct(map[string]any{"re2.max_program_size": 1000})
	if err != nil {
		t.Fatal(err)
	}
	secret := &tlspb.Secret{Name: "a", Type: &tlspb.Secret_GenericSecret{GenericSecret: &tlspb.GenericSecret{
		Secret: &corepb.DataSource{Specifier: &corepb.DataSource_InlineBytes{InlineBytes: []byte{0, 1, 0xff}}},
	}}}
	inner, err := anypb.New(secret)
	if err != nil {
		t.Fatal(err)
	}
	return map[string]proto.Message{
		"listeners":         relaytest.Listener("a", "route"),
		"clusters":          relaytest.StaticCluster("a", "10.0.0.1:80"),
		"endpoints":         relaytest.Endpoints("a", "10.0.0.1:80", "10.0.0.2:80"),
		"routes":            relaytest.Route("a", []string{"*"}, "cluster"),
		"scoped-routes":     &routepb.ScopedRouteConfiguration{Name: "a", RouteConfigurationName: "route"},
		"secrets":           secret,
		"runtime":           &runtimepb.Runtime{Name: "a", Layer: fields},
		"extension_configs": &corepb.TypedExtensionConfig{Name: "a", TypedConfig: inner},
	}
}

// R113: each type is served at its path, without a nonce, over HTTP/1.1 and HTTP/2. The JSON contains all of the
// origin's content, including the configuration of a filter in a listener. B.38: each response names the serving
// relay.
func TestR113_EveryType(t *testing.T) {
	t.Parallel()
	for name, http2 := range map[string]bool{"HTTP/1.1": false, "HTTP/2": true} {
		t.Run(name, func(t *testing.T) {
			o := relaytest.NewOrigin(t, relaytest.OriginOptions{Behaviour: relaytest.Behaviour{ControlPlane: "pilot"}})
			resources := restResources(t)
			for _, m := range resources {
				o.Put(m)
			}
			c := restPoller(t, start(t, o), http2)
			for kind, want := range resources {
				for range 2 {
					reply := c.poll(kind, "20000", "", "a")
					resp := reply.response()
					if len(resp.GetResources()) != 1 || resp.GetVersionInfo() == "" {
						t.Fatalf("%s: got %v, want 1 resource and a version", kind, resp)
					}
					body, err := resp.GetResources()[0].UnmarshalNew()
					if err != nil || !proto.Equal(body, want) {
						t.Errorf("%s: got %v, %v, want %v", kind, body, err, want)
					}
					if resp.GetTypeUrl() != resp.GetResources()[0].GetTypeUrl() {
						t.Errorf("%s: got the type_url %s", kind, resp.GetTypeUrl())
					}
					if id := resp.GetControlPlane().GetIdentifier(); !strings.HasPrefix(id, "tender/test#") ||
						strings.Contains(id, "pilot") {
						t.Errorf("%s: got the control_plane %q", kind, id)
					}
					if got := reply.header.Get("Content-Type"); got != "application/json" {
						t.Errorf("%s: got the content type %q", kind, got)
					}
				}
			}
		})
	}
}

// R113: a poll has the same version as a SotW stream for the same set, so that clients can change from one to the
// other.
func TestR113_VersionOfStreams(t *testing.T) {
	t.Parallel()
	originBubble(t, func(t *testing.T, o *relaytest.Origin) {
		o.Change(func(b *relaytest.Behaviour) { b.SystemVersion = "2026-11" })
		o.Put(relaytest.Cluster("a"), relaytest.Cluster("b"), domainRoute("a", "x"), domainRoute("b", "x"),
			relaytest.Listener("a", "r"))
		r := start(t, o)
		poller := restPoller(t, r, false)
		for _, tc := range []struct {
			kind, typeURL string
			names         []string
		}{
			{"clusters", typeCDS, nil},
			{"listeners", typeLDS, []string{"a"}},
			{"routes", typeRDS, []string{"a", "b"}},
		} {
			c := r.Client(relaytest.ClientOptions{Variant: relaytest.SotW})
			c.Subscribe(tc.typeURL, tc.names...)
			want := c.Recv(t.Context())
			if !strings.HasPrefix(want.Version, "2026-11~") {
				t.Fatalf("%s: a stream has the unexpected version %q", tc.kind, want.Version)
			}
			if got := poller.poll(tc.kind, "", "", tc.names...).expectNames(want.Names()...); got != want.Version {
				t.Errorf("%s: got version %q, want %q as on a stream", tc.kind, got, want.Version)
			}
			other := "another" + want.Version[strings.Index(want.Version, "~"):]
			poller.poll(tc.kind, "0", other, tc.names...).expectNotModified() // the readable prefix is not compared (B.2)
		}
	})
}

// R113, B.17: names have the same meaning as in SotW streams: none is the legacy wildcard for types that have it,
// "*" is a wildcard, and each response holds all subscribed resources.
func TestR113_Names(t *testing.T) {
	t.Parallel()
	all := []string{"a", "b", "c"}
	tests := []struct {
		name, kind, fields string
		want               []string
	}{
		{"clusters without names", "clusters", "", all},
		{"clusters by wildcard", "clusters", `,"resource_names":["*"]`, all},
		{"clusters by name", "clusters", `,"resourceNames":["c","a","c"]`, []string{"a", "c"}},
		{"clusters by wildcard and name", "clusters", `,"resource_names":["*","a"]`, all},
		{"a cluster that does not exist", "clusters", `,"resource_names":["a","x"]`, []string{"a"}},
		{"routes without names", "routes", "", nil},
		{"routes by wildcard", "routes", `,"resource_names":["*"]`, all},
		{"routes by name", "routes", `,"resource_names":["b","c"]`, []string{"b", "c"}},
		{"a route that does not exist", "routes", `,"resource_names":["x"]`, nil},
		{"routes by locator", "routes", `,"resource_names":["b"],"resource_locators":[{"name":"a"}]`, []string{"a", "b"}},
	}
	restBubble(t, func(t *testing.T, o *relaytest.Origin, c *restClient) {
		for _, name := range all {
			o.Put(relaytest.Cluster(name), domainRoute(name, "x"), relaytest.Endpoints(name, "10.0.0.1:80"))
		}
		for _, tt := range tests {
			t.Log(tt.name)
			body := `{"node":{"id":"client"}` + tt.fields + "}"
			c.post("/v3/discovery:"+tt.kind, body, restHold("20000")...).expectNames(tt.want...)
		}
	})
}

// R113: unknown fields and content types do not matter.
func TestR113_UnknownFields(t *testing.T) {
	t.Parallel()
	restBubble(t, func(t *testing.T, o *relaytest.Origin, c *restClient) {
		o.Put(relaytest.Cluster("a"))
		for name, body := range map[string]string{
			"unknown fields": `{"node":{"id":"n","new":{"a":[1]}},"newer":[{}],"resource_names":["a"]}`,
			"all of a node": `{"node":{"id":"n","metadata":{"a":{"b":[null,1.5,"x"]}},"locality":{"sub_zone":"z"},
				"dynamic_parameters":{"p":{"params":{"k":"v"}}},
				"user_agent_build_version":{"version":{"major_number":1},"metadata":{"m":true}},
				"extensions":[{"name":"x","category":"c","type_urls":["a.B"],"version":{"version":{"patch":1}}}],
				"client_features":["f"],"listening_addresses":[{}]}}`,
			"an Any of an unknown type": `{"node":{"id":"n"},"error_detail":{"code":3,"details":[
				{"@type":"x/acme.Thing","a":{"b":1}},{"@type":"x/google.protobuf.Duration","value":"1s"}]}}`,
			"a nonce":       `{"node":{"id":"n"},"response_nonce":"77"}`,
			"its own type":  `{"node":{"id":"n"},"type_url":"` + typeCDS + `"}`,
			"an empty node": `{"node":{}}`,
		} {
			for _, contentType := range []string{"application/json", "application/x-www-form-urlencoded",
				"text/plain; charset=utf-16"} {
				if got := c.post("/v3/discovery:clusters", body, "Content-Type", contentType); got.status != http.StatusOK {
					t.Errorf("%s as %s: got status %d, %s", name, contentType, got.status, got.body)
				}
			}
		}
	})
}

// R113: an invalid poll is refused with the reason, and does not affect other polls.
func TestR113_BadInput(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("n", 4097)
	const node = `"node":{"id":"n"}`
	tests := []struct {
		name, body string
		status     int
		message    string
		header     []string
	}{
		{"nothing", "", 400, "the body is not a DiscoveryRequest in JSON: syntax error (line 1:1)", nil},
		{"invalid bytes", "\xff\x00", 400, "not a DiscoveryRequest in JSON", nil},
		{"half", `{"node":{"id":"n"}`, 400, "unexpected EOF", nil},
		{"a list", `[]`, 400, "unexpected token [", nil},
		{"null", `null`, 400, "unexpected token null", nil},
		{"two bodies", `{` + node + `}{` + node + `}`, 400, "unexpected token {", nil},
		{"a field twice", `{` + node + `,"version_info":"a","versionInfo":"b"}`, 400, `duplicate field \"versionInfo\"`, nil},
		{"a number for a name", `{` + node + `,"resource_names":[7]}`, 400, "line 1:38", nil},
		{"a text for names", `{` + node + `,"resource_names":"a"}`, 400, `unexpected token \"a\"`, nil},
		{"a name that is not UTF-8", `{` + node + ",\"resource_names\":[\"\xff\"]}", 400, "invalid UTF-8", nil},
		{"too deep", `{"node":{"metadata":` + strings.Repeat(`{"a":`, 20000) + "1" + strings.Repeat("}", 20001) + "}", 400,
			"is nested 20002 times, at most 2000 are allowed", nil},
		{"protobuf", "\x12\x03\x0a\x01n", 400, "not a DiscoveryRequest in JSON", nil},
		{"no node", `{}`, 400, "node is missing", nil},
		{"a null node", `{"node":null}`, 400, "node is missing", nil},
		{"another type", `{` + node + `,"type_url":"` + typeLDS + `"}`, 400,
			`type_url \"` + typeLDS + `\": /v3/discovery:clusters serves \"` + typeCDS, nil},
		{"a long name", `{` + node + `,"resource_names":["` + long + `"]}`, 400, "of 4097 bytes, at most 4096 are allowed",
			nil},
		{"many names", `{` + node + `,"resource_names":["a","b","c","d"]}`, 429,
			"4 resource names on one stream, at most 3 are allowed", nil},
		{"a large body", `{` + node + strings.Repeat(" ", 4<<20) + `}`, 413, "more than 4194304 bytes", nil},
		{"a time that is none", `{` + node + `}`, 400, `header x-envoy-expected-rq-timeout-ms is \"soon\"`, restHold("soon")},
		{"a time before now", `{` + node + `}`, 400, `is \"-1\": use a whole number of milliseconds`, restHold("-1")},
	}
	originBubble(t, func(t *testing.T, o *relaytest.Origin) {
		o.Put(relaytest.Cluster("a"))
		r := start(t, o, "TENDER_MAX_NAMES=3")
		c, other := restPoller(t, r, false), restPoller(t, r, true)
		version := other.poll("clusters", "", "").expectNames("a")
		held := other.pollAsync(t.Context(), "clusters", "30000", version)
		for _, tt := range tests {
			reply := c.post("/v3/discovery:clusters", tt.body, tt.header...)
			if reply.status != tt.status || !strings.Contains(reply.body, tt.message) {
				t.Errorf("%s: got status %d, %s, want %d and %s", tt.name, reply.status, reply.body, tt.status, tt.message)
			}
			restStatus(t, reply)
		}
		expectHeld(t, held, 0)
		o.Put(relaytest.Cluster("b"))
		expectAnswered(t, held).expectNames("a", "b")
	})
}

// restStatus checks that a reply is an error in JSON form.
func restStatus(t *testing.T, reply restReply) {
	t.Helper()
	st := new(statuspb.Status)
	if err := protojson.Unmarshal([]byte(reply.body), st); err != nil || st.GetCode() == 0 || st.GetMessage() == "" {
		t.Errorf("got status %d with the body %s, want a google.rpc.Status: %v", reply.status, reply.body, err)
	}
	if got := reply.header.Get("Content-Type"); got != "application/json" {
		t.Errorf("got an error of content type %q", got)
	}
}

// R116: REST serves neither ADS nor Delta nor other paths, and polls are POST requests.
func TestR116_OtherPaths(t *testing.T) {
	t.Parallel()
	restBubble(t, func(t *testing.T, o *relaytest.Origin, c *restClient) {
		o.Put(relaytest.Cluster("a"))
		body := restBody(t, "")
		for _, path := range []string{
			"/", "/v3", "/v3/discovery:", "/v3/discovery:ads", "/v3/discovery:delta_clusters", "/v3/discovery:virtual_hosts",
			"/v3/discovery:clusters/", "/v3/discovery/clusters", "/v2/discovery:clusters", "/v3/clusters",
			"//v3/discovery:clusters",
			discoverypb.AggregatedDiscoveryService_StreamAggregatedResources_FullMethodName,
			discoverypb.AggregatedDiscoveryService_DeltaAggregatedResources_FullMethodName,
			"/" + strings.Repeat("x", 10000),
		} {
			reply := c.post(path, body)
			restStatus(t, reply.expectStatus(http.StatusNotFound, "aggregated and Delta xDS need gRPC"))
			if len(reply.body) > 1000 {
				t.Errorf("%.20s…: got an error of %d bytes", path, len(reply.body))
			}
		}
		for _, method := range []string{http.MethodGet, http.MethodPut, http.MethodDelete, http.MethodOptions, "PROPFIND"} {
			reply, err := c.send(t.Context(), method, "/v3/discovery:clusters", body)
			if err != nil {
				t.Fatal(err)
			}
			restStatus(t, reply.expectStatus(http.StatusMethodNotAllowed, method))
			if got := reply.header.Get("Allow"); got != http.MethodPost {
				t.Errorf("%s: got Allow %q, want POST", method, got)
			}
		}
	})
}

// R113: a resource with a type that JSON encoding does not know fails the polls that subscribe to it, and no
// others.
func TestR113_UnknownTypes(t *testing.T) {
	t.Parallel()
	originBubble(t, func(t *testing.T, o *relaytest.Origin) {
		strange := &listenerpb.Listener{Name: "strange", ApiListener: &listenerpb.ApiListener{
			ApiListener: relaytest.Opaque("type.googleapis.com/acme.Filter", "f", []byte("x")),
		}}
		o.Put(strange, relaytest.Listener("a", "route"))
		r := start(t, o)
		c := restPoller(t, r, false)
		restStatus(t, c.poll("listeners", "", "").expectStatus(http.StatusNotImplemented,
			`resource \"strange\" of type \"`+typeLDS+`\": the relay does not know type \"type.googleapis.com/acme.Filter\"`))
		c.poll("listeners", "", "", "a").expectNames("a")
		for range 100 {
			c.poll("listeners", "", "", "strange").expectStatus(http.StatusNotImplemented, "acme.Filter")
		}
		if n := r.Log.Count("poll cannot be answered in json"); n == 0 || n > 50 {
			t.Errorf("logged 101 failed polls %d times, want a few", n)
		}

		o.SetRaw(typeLDS, &discoverypb.Resource{Name: "broken", Version: "1",
			Resource: &anypb.Any{TypeUrl: typeLDS, Value: []byte{0xff}}})
		restStatus(t, c.poll("listeners", "20000", "", "broken").expectStatus(http.StatusBadGateway, `resource \"broken\"`))
		c.poll("listeners", "", "", "a").expectNames("a")
	})
}

// R113: polling clients receive the resources of their group.
func TestR052_RESTGroups(t *testing.T) {
	t.Parallel()
	restBubble(t, func(t *testing.T, o *relaytest.Origin, c *restClient) {
		o.Put(relaytest.Cluster("a"))
		o.For(func(n *corepb.Node) bool { return n.GetCluster() == "west" }).Put(relaytest.Cluster("w"))
		for cluster, want := range map[string]string{"east": "a", "west": "w"} {
			c.post("/v3/discovery:clusters", `{"node":{"id":"n","cluster":"`+cluster+`"}}`,
				restHold("20000")...).expectNames(want)
		}
	}, "TENDER_NODE_GROUP_BY=cluster")
}

// R029: an error in a poll is logged like a NACK, and has no other effect. No known client sends one.
func TestR029_RESTNACK(t *testing.T) {
	t.Parallel()
	originBubble(t, func(t *testing.T, o *relaytest.Origin) {
		o.Put(relaytest.Cluster("a"))
		r := start(t, o)
		c := restPoller(t, r, false)
		c.post("/v3/discovery:clusters",
			`{"node":{"id":"n"},"error_detail":{"code":3,"message":"bad cluster"}}`).expectNames("a")
		if n := r.Log.Count(`detail="bad cluster"`); n != 1 {
			t.Errorf("logged the NACK %d times, want 1", n)
		}
	})
}

// B.6: names stay subscribed between two polls, so that the next poll gets changes at once.
func TestB6_RESTNamesLinger(t *testing.T) {
	t.Parallel()
	restBubble(t, func(t *testing.T, o *relaytest.Origin, c *restClient) {
		o.Put(domainRoute("a", "x"))
		first := c.poll("routes", "", "", "a").expectNames("a")
		o.Put(domainRoute("a", "y"))
		synctest.Wait()
		reply := c.poll("routes", "", first, "a").expectDuration(0)
		if second := reply.expectNames("a"); second == first {
			t.Error("the version did not change with the route")
		}
		if s := o.State(); !slices.Equal(s.Names(typeRDS), []string{"a"}) {
			t.Errorf("subscriptions at the origin are %q, want a to linger", s.Names(typeRDS))
		}
	})
}

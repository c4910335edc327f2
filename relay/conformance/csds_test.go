package conformance_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	clusterpb "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlspb "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	statuspb "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	matcherpb "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xdstender/tender/relay/relaytest"
)

// operator returns a connection to the relay's admin address.
func (r *running) operator() *grpc.ClientConn {
	r.t.Helper()
	conn, err := grpc.NewClient("passthrough:///localhost", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return r.DialAdmin(ctx) }))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// fetch calls FetchClientStatus.
func fetch(t testing.TB, r *running, q *statuspb.ClientStatusRequest,
	opts ...grpc.CallOption) *statuspb.ClientStatusResponse {
	t.Helper()
	resp, err := statuspb.NewClientStatusDiscoveryServiceClient(r.operator()).FetchClientStatus(t.Context(), q, opts...)
	if err != nil {
		t.Fatalf("FetchClientStatus: %v", err)
	}
	return resp
}

// lines formats each resource's state as scope, name and status: "n1 a SYNCED".
func lines(resp *statuspb.ClientStatusResponse) (out []string) {
	for _, c := range resp.GetConfig() {
		for _, g := range c.GetGenericXdsConfigs() {
			state := g.GetConfigStatus().String()
			if strings.HasPrefix(c.GetClientScope(), "origin/") {
				state = g.GetClientStatus().String()
			}
			out = append(out, fmt.Sprintf("%s %s %s", c.GetNode().GetId(), g.GetName(), state))
		}
	}
	return out
}

// scope returns the configs of a response whose scope has the prefix.
func scope(resp *statuspb.ClientStatusResponse, prefix string) *statuspb.ClientStatusResponse {
	out := new(statuspb.ClientStatusResponse)
	for _, c := range resp.GetConfig() {
		if strings.HasPrefix(c.GetClientScope(), prefix) {
			out.Config = append(out.Config, c)
		}
	}
	return out
}

// wantLines fails the test unless a response has exactly these lines.
func wantLines(t *testing.T, what string, resp *statuspb.ClientStatusResponse, want ...string) {
	t.Helper()
	if got := lines(resp); !slices.Equal(got, want) {
		t.Errorf("%s: got\n%s\nwant\n%s", what, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// exactly returns a matcher for one node ID.
func exactly(id string) []*matcherpb.NodeMatcher {
	return []*matcherpb.NodeMatcher{{
		NodeId: &matcherpb.StringMatcher{MatchPattern: &matcherpb.StringMatcher_Exact{Exact: id}},
	}}
}

// R141, R039: CSDS reports the state of each resource at each client, and at the relay as a client of its origin.
// A NACK is an error of the resources in that response.
func TestR141_BothViews(t *testing.T) {
	t.Parallel()
	originBubble(t, func(t *testing.T, o *relaytest.Origin) {
		o.Put(relaytest.Cluster("a"), relaytest.Cluster("b"), relaytest.Endpoints("a"))
		o.Fail(relaytest.EndpointType, "denied", codes.PermissionDenied, "not yours")
		r := start(t, o, operated)
		oneAfterOther(r,
			relaytest.ClientOptions{AutoAck: true, Node: relaytest.EnvoyNode("good")},
			relaytest.ClientOptions{AutoAck: true, Variant: relaytest.SotW, Node: relaytest.EnvoyNode("bad"),
				Reject: rejecting("a", "no such filter")},
			relaytest.ClientOptions{Node: relaytest.EnvoyNode("slow")},
		)[0].Subscribe(relaytest.EndpointType, "a", "denied", "nobody")
		time.Sleep(20 * time.Second) // virtual time

		resp := fetch(t, r, &statuspb.ClientStatusRequest{})
		wantLines(t, "clients", scope(resp, "client/"),
			"good a SYNCED", "good b SYNCED", "good a SYNCED", "good denied NOT_SENT", "good nobody SYNCED",
			"bad a ERROR", "bad b ERROR", "slow a STALE", "slow b STALE")
		wantLines(t, "subscriptions of the relay", scope(resp, "origin/default"),
			"tender/test a ACKED", "tender/test b ACKED", "tender/test a ACKED", "tender/test denied RECEIVED_ERROR",
			"tender/test nobody DOES_NOT_EXIST")
		failed := scope(resp, "client/2").GetConfig()[0].GetGenericXdsConfigs()[0].GetErrorState()
		if failed.GetDetails() != "no such filter" || failed.GetVersionInfo() == "" || failed.GetLastUpdateAttempt() == nil {
			t.Errorf("the error of a client that sent a NACK: %v, want its message, the version and the time", failed)
		}
		for _, c := range resp.GetConfig() {
			for _, g := range c.GetGenericXdsConfigs() {
				if (g.GetXdsConfig() == nil) == (g.GetName() == "a" || g.GetName() == "b") ||
					g.GetXdsConfig() != nil && g.GetXdsConfig().GetTypeUrl() != g.GetTypeUrl() {
					t.Errorf("got the content of %s of %s: %v", g.GetName(), c.GetClientScope(), g.GetXdsConfig())
				}
			}
		}
		resp = fetch(t, r, &statuspb.ClientStatusRequest{ExcludeResourceContents: true,
			NodeMatchers: append(exactly("slow"), exactly("bad")...)})
		wantLines(t, "two clients by their nodes", resp, "bad a ERROR", "bad b ERROR", "slow a STALE", "slow b STALE")
		if body := resp.GetConfig()[0].GetGenericXdsConfigs()[0].GetXdsConfig(); body != nil {
			t.Errorf("got excluded contents: %v", body)
		}
	})
}

// A name without a response of the origin is REQUESTED, and TIMEOUT once the origin has had its time.
func TestR141_WaitsForTheOrigin(t *testing.T) {
	t.Parallel()
	originBubble(t, func(t *testing.T, o *relaytest.Origin) {
		o.Change(func(b *relaytest.Behaviour) { b.SilentOnMissing = true })
		r := start(t, o, operated)
		c := r.Client(relaytest.ClientOptions{Node: relaytest.EnvoyNode("n")})
		c.Subscribe(relaytest.EndpointType, "a")
		synctest.Wait()
		wantLines(t, "initially", fetch(t, r, &statuspb.ClientStatusRequest{}), "tender/test a REQUESTED", "n a NOT_SENT")
		time.Sleep(15 * time.Second)
		wantLines(t, "15s later", fetch(t, r, &statuspb.ClientStatusRequest{}), "tender/test a TIMEOUT", "n a NOT_SENT")
	})
}

// B.30, B.36: CSDS responses contain no Secrets, no fields that are annotated as sensitive, and no error message
// of a client for a Secret.
func TestB36_CSDSHasNoSecrets(t *testing.T) {
	t.Parallel()
	const key = "-----BEGIN PRIVATE KEY-----"
	inline := &corepb.DataSource{Specifier: &corepb.DataSource_InlineString{InlineString: key}}
	originBubble(t, func(t *testing.T, o *relaytest.Origin) {
		o.Put(&tlspb.Secret{Name: "s",
			Type: &tlspb.Secret_GenericSecret{GenericSecret: &tlspb.GenericSecret{Secret: inline}}})
		o.Put(clusterWithKey(t, "c", inline))
		r := start(t, o, operated)
		c := r.Client(relaytest.ClientOptions{AutoAck: true, Reject: rejecting("s", "cannot parse "+key)})
		c.Subscribe(relaytest.SecretType, "s")
		c.Subscribe(relaytest.ClusterType)
		time.Sleep(time.Second) // virtual time
		resp := fetch(t, r, &statuspb.ClientStatusRequest{})
		wantLines(t, "all", resp, "tender/test c ACKED", "tender/test s ACKED", "client c SYNCED", "client s ERROR")
		for _, c := range resp.GetConfig() {
			for _, g := range c.GetGenericXdsConfigs() {
				if strings.Contains(string(g.GetXdsConfig().GetValue()), "PRIVATE") ||
					strings.Contains(g.GetErrorState().GetDetails(), "PRIVATE") {
					t.Errorf("%s of %s has a private key: %v", g.GetName(), c.GetClientScope(), g)
				}
				if g.GetName() == "c" && !strings.Contains(string(g.GetXdsConfig().GetValue()), "[redacted]") {
					t.Errorf("the key of a cluster is not redacted: %v", g.GetXdsConfig())
				}
			}
		}
	})
}

// A response is limited to the default size of gRPC clients: first it omits contents, then it is an error. A
// stream sends several responses.
func TestB30_CSDSIsBounded(t *testing.T) {
	t.Parallel()
	originBubble(t, func(t *testing.T, o *relaytest.Origin) {
		o.Put(relaytest.StaticCluster(strings.Repeat("b", 3<<20)), relaytest.StaticCluster("a"))
		r := start(t, o, operated)
		for i := range 2 {
			c := r.Client(relaytest.ClientOptions{AutoAck: true, Node: relaytest.EnvoyNode(fmt.Sprint("n", i))})
			c.Subscribe(relaytest.ClusterType)
			synctest.Wait()
		}
		client := statuspb.NewClientStatusDiscoveryServiceClient(r.operator())
		var header metadata.MD
		_, err := client.FetchClientStatus(t.Context(), &statuspb.ClientStatusRequest{}, grpc.Header(&header))
		if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "node_matchers") {
			t.Errorf("FetchClientStatus of too many clients: got %v, want RESOURCE_EXHAUSTED", err)
		}
		resp := fetch(t, r, &statuspb.ClientStatusRequest{NodeMatchers: exactly("n1")}, grpc.Header(&header))
		if got := header.Get("tender-left-out"); len(resp.GetConfig()) != 1 || len(got) != 1 ||
			resp.GetConfig()[0].GetGenericXdsConfigs()[0].GetXdsConfig() != nil {
			t.Errorf("FetchClientStatus without contents: got %d clients, omitted: %q", len(resp.GetConfig()), got)
		}
		stream, err := client.StreamClientStatus(t.Context())
		if err == nil {
			err = errors.Join(stream.Send(&statuspb.ClientStatusRequest{}), stream.CloseSend())
		}
		if err != nil {
			t.Fatal(err)
		}
		all := new(statuspb.ClientStatusResponse)
		responses := 0
		for resp, err := stream.Recv(); err == nil; resp, err = stream.Recv() {
			responses++
			all.Config = append(all.Config, resp.GetConfig()...)
		}
		names := 0
		for _, c := range all.GetConfig() {
			names += len(c.GetGenericXdsConfigs())
		}
		if responses < 2 || names != 6 {
			t.Errorf("StreamClientStatus: got %d responses with %d resources, want several with 2 per client and of the relay",
				responses, names)
		}
	})
}

// Invalid requests are refused, and reflection describes the service for grpcurl.
func TestR141_GRPCUrl(t *testing.T) {
	t.Parallel()
	o := relaytest.NewOrigin(t, relaytest.OriginOptions{})
	r := start(t, o, operated)
	_, err := statuspb.NewClientStatusDiscoveryServiceClient(r.operator()).FetchClientStatus(t.Context(),
		&statuspb.ClientStatusRequest{NodeMatchers: []*matcherpb.NodeMatcher{{
			NodeId: &matcherpb.StringMatcher{
				MatchPattern: &matcherpb.StringMatcher_SafeRegex{SafeRegex: &matcherpb.RegexMatcher{Regex: "("}},
			},
		}}})
	if status.Code(err) != codes.InvalidArgument ||
		!strings.Contains(err.Error(), "node_matchers[0].node_id: safe_regex.regex: ") {
		t.Errorf("FetchClientStatus with an invalid expression: %v", err)
	}
	foreign, err := grpc.NewClient(r.AdminAddrs()[0].String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("attacker.example"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = foreign.Close() }()
	if resp, err := statuspb.NewClientStatusDiscoveryServiceClient(foreign).FetchClientStatus(t.Context(),
		&statuspb.ClientStatusRequest{}); err == nil || !strings.Contains(err.Error(), "421") {
		t.Errorf("FetchClientStatus with the host attacker.example: got %v, error %v; want 421", resp, err)
	}
	stream, err := reflectionpb.NewServerReflectionClient(r.operator()).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const service = "envoy.service.status.v3.ClientStatusDiscoveryService"
	if err := stream.Send(&reflectionpb.ServerReflectionRequest{
		MessageRequest: &reflectionpb.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: service},
	}); err != nil {
		t.Fatal(err)
	}
	resp, err := stream.Recv()
	if err != nil || len(resp.GetFileDescriptorResponse().GetFileDescriptorProto()) == 0 {
		t.Errorf("reflection of %s: %v, %v", service, resp, err)
	}
	if err := stream.CloseSend(); err != nil {
		t.Error(err)
	}
}

// clusterWithKey returns a cluster with a private key.
func clusterWithKey(t *testing.T, name string, key *corepb.DataSource) *clusterpb.Cluster {
	t.Helper()
	tls, err := anypb.New(&tlspb.UpstreamTlsContext{CommonTlsContext: &tlspb.CommonTlsContext{
		TlsCertificates: []*tlspb.TlsCertificate{{PrivateKey: key}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	c := relaytest.StaticCluster(name)
	c.TransportSocket = &corepb.TransportSocket{Name: "tls",
		ConfigType: &corepb.TransportSocket_TypedConfig{TypedConfig: tls}}
	return c
}

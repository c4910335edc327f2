package conformance_test

import (
	"slices"
	"testing"
	"time"

	xdspb "github.com/cncf/xds/go/xds/core/v3"
	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xdstender/tender/relay/relaytest"
)

// envIs returns a constraint that the parameter env equals value.
func envIs(value string) *discoverypb.DynamicParameterConstraints {
	return &discoverypb.DynamicParameterConstraints{Type: &discoverypb.DynamicParameterConstraints_Constraint{
		Constraint: &discoverypb.DynamicParameterConstraints_SingleConstraint{
			Key:            "env",
			ConstraintType: &discoverypb.DynamicParameterConstraints_SingleConstraint_Value{Value: value},
		},
	}}
}

// without returns a constraint that a parameter is absent.
func without(key string) *discoverypb.DynamicParameterConstraints {
	exists := &discoverypb.DynamicParameterConstraints_SingleConstraint_Exists{}
	return &discoverypb.DynamicParameterConstraints{Type: &discoverypb.DynamicParameterConstraints_NotConstraints{
		NotConstraints: &discoverypb.DynamicParameterConstraints{Type: &discoverypb.DynamicParameterConstraints_Constraint{
			Constraint: &discoverypb.DynamicParameterConstraints_SingleConstraint{
				Key:            key,
				ConstraintType: &discoverypb.DynamicParameterConstraints_SingleConstraint_Exists_{Exists: exists},
			},
		}},
	}}
}

// variant returns a version of a resource that applies to clients whose parameters meet c.
func variant(name, version string, c *discoverypb.DynamicParameterConstraints, addr string) *discoverypb.Resource {
	body, err := anypb.New(relaytest.Endpoints(name, addr))
	if err != nil {
		panic(err) // cannot happen: the message is valid
	}
	return &discoverypb.Resource{
		ResourceName: &discoverypb.ResourceName{Name: name, DynamicParameterConstraints: c},
		Version:      version,
		Resource:     body,
	}
}

// fullName returns a resource name with constraints.
func fullName(name string, c *discoverypb.DynamicParameterConstraints) *discoverypb.ResourceName {
	return &discoverypb.ResourceName{Name: name, DynamicParameterConstraints: c}
}

// A variantClient is a Delta client that sends dynamic parameters.
type variantClient struct {
	t   *testing.T
	rpc discoverypb.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
}

// variantClient opens a stream and subscribes to one endpoint resource, with parameters by locator, or without by
// name.
func (r *running) variantClient(t *testing.T, n *corepb.Node, name string,
	parameters map[string]string) *variantClient {
	t.Helper()
	rpc, err := discoverypb.NewAggregatedDiscoveryServiceClient(r.Conn()).DeltaAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c := &variantClient{t, rpc}
	req := &discoverypb.DeltaDiscoveryRequest{Node: n, TypeUrl: relaytest.EndpointType}
	if parameters == nil {
		req.ResourceNamesSubscribe = []string{name}
	} else {
		req.ResourceLocatorsSubscribe = []*discoverypb.ResourceLocator{{Name: name, DynamicParameters: parameters}}
	}
	c.send(req)
	return c
}

func (c *variantClient) send(req *discoverypb.DeltaDiscoveryRequest) {
	c.t.Helper()
	if err := c.rpc.Send(req); err != nil {
		c.t.Fatal(err)
	}
}

// next receives and ACKs the next response.
func (c *variantClient) next() *discoverypb.DeltaDiscoveryResponse {
	c.t.Helper()
	resp, err := c.rpc.Recv()
	if err != nil {
		c.t.Fatal(err)
	}
	c.send(&discoverypb.DeltaDiscoveryRequest{TypeUrl: resp.GetTypeUrl(), ResponseNonce: resp.GetNonce()})
	return resp
}

// want fails the test unless the next response holds exactly these resources and removals.
func (c *variantClient) want(resources []*discoverypb.Resource, removed ...*discoverypb.ResourceName) {
	c.t.Helper()
	got := c.next()
	if diff := cmp.Diff(resources, got.GetResources(), protocmp.Transform()); diff != "" {
		c.t.Errorf("resources (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(removed, got.GetRemovedResourceNames(), protocmp.Transform()); diff != "" {
		c.t.Errorf("removed_resource_names (-want +got):\n%s", diff)
	}
	if removed := got.GetRemovedResources(); len(removed) > 0 {
		c.t.Errorf("removed_resources %q, want none", removed)
	}
}

// nextSubscription returns the next request to the origin that subscribes to resources, and its locators.
func nextSubscription(t *testing.T, s *relaytest.OriginStream) (*discoverypb.DeltaDiscoveryRequest,
	[]*discoverypb.ResourceLocator) {
	t.Helper()
	for {
		req := s.Recv(t.Context())
		if len(req.GetResourceNamesSubscribe())+len(req.GetResourceLocatorsSubscribe()) > 0 {
			return req, req.GetResourceLocatorsSubscribe()
		}
	}
}

// variantsRelay starts a relay with dynamic parameters enabled, whose origin's streams are scripted by the test.
func variantsRelay(t *testing.T, env ...string) (*running, *relaytest.Origin) {
	t.Helper()
	o := relaytest.NewOrigin(t, relaytest.OriginOptions{Behaviour: relaytest.Behaviour{Manual: true}})
	return start(t, o, append([]string{"TENDER_DYNAMIC_PARAMETERS=on"}, env...)...), o
}

// Each client receives the variant that matches its parameters, with its constraints. The relay subscribes at the
// origin with the parameters of each client.
func TestR122_EachClientItsVariant(t *testing.T) {
	t.Parallel()
	r, o := variantsRelay(t)
	prod := r.variantClient(t, relaytest.EnvoyNode("p"), "a", map[string]string{"env": "prod"})
	s := o.Accept(t.Context())
	if _, got := nextSubscription(t, s); len(got) != 1 || got[0].GetName() != "a" ||
		got[0].GetDynamicParameters()["env"] != "prod" {
		t.Fatalf("the origin got a subscription to %v, want a with env=prod", got)
	}
	test := r.variantClient(t, relaytest.EnvoyNode("t"), "a", map[string]string{"env": "test"})
	if _, got := nextSubscription(t, s); len(got) != 1 || got[0].GetDynamicParameters()["env"] != "test" {
		t.Fatalf("the origin got a subscription to %v, want a with env=test", got)
	}
	plain := r.variantClient(t, relaytest.EnvoyNode("n"), "a", nil)
	if req, _ := nextSubscription(t, s); !slices.Equal(req.GetResourceNamesSubscribe(), []string{"a"}) {
		t.Fatalf("the origin got the request %v, want a subscription to a", req)
	}

	forProd, forTest, others := variant("a", "1", envIs("prod"), "10.0.0.1:1"),
		variant("a", "1", envIs("test"), "10.0.0.2:1"), variant("a", "1", without("env"), "10.0.0.3:1")
	s.Send(&discoverypb.DeltaDiscoveryResponse{TypeUrl: relaytest.EndpointType,
		Resources: []*discoverypb.Resource{forProd, forTest, others}})
	prod.want([]*discoverypb.Resource{forProd})
	test.want([]*discoverypb.Resource{forTest})
	plain.want([]*discoverypb.Resource{others})

	// A change of one variant is sent only to the clients that match it.
	changed := variant("a", "2", envIs("test"), "10.0.0.9:1")
	s.Send(&discoverypb.DeltaDiscoveryResponse{TypeUrl: relaytest.EndpointType,
		Resources: []*discoverypb.Resource{changed}})
	test.want([]*discoverypb.Resource{changed})
	again := variant("a", "2", envIs("prod"), "10.0.0.8:1")
	s.Send(&discoverypb.DeltaDiscoveryResponse{TypeUrl: relaytest.EndpointType, Resources: []*discoverypb.Resource{again}})
	prod.want([]*discoverypb.Resource{again})
}

// When two variants replace one, a client receives the removal and the additions in one response.
func TestR122_ReplacementInOneResponse(t *testing.T) {
	t.Parallel()
	r, o := variantsRelay(t)
	c := r.variantClient(t, relaytest.EnvoyNode("p"), "a", map[string]string{"env": "prod"})
	s := o.Accept(t.Context())
	nextSubscription(t, s)
	all := &discoverypb.DynamicParameterConstraints{Type: &discoverypb.DynamicParameterConstraints_OrConstraints{
		OrConstraints: &discoverypb.DynamicParameterConstraints_ConstraintList{
			Constraints: []*discoverypb.DynamicParameterConstraints{envIs("prod"), envIs("test")},
		},
	}}
	one := variant("a", "1", all, "10.0.0.1:1")
	s.Send(&discoverypb.DeltaDiscoveryResponse{TypeUrl: relaytest.EndpointType, Resources: []*discoverypb.Resource{one}})
	c.want([]*discoverypb.Resource{one})
	forProd, forTest := variant("a", "2", envIs("prod"), "10.0.0.1:1"), variant("a", "2", envIs("test"), "10.0.0.2:1")
	s.Send(&discoverypb.DeltaDiscoveryResponse{
		TypeUrl:              relaytest.EndpointType,
		Resources:            []*discoverypb.Resource{forTest, forProd},
		RemovedResourceNames: []*discoverypb.ResourceName{fullName("a", all)},
	})
	c.want([]*discoverypb.Resource{forProd}, fullName("a", all))
}

// A removal names the constraints of the variant, and is sent only to clients that received the variant.
func TestR121_AVariantIsRemovedByItsConstraints(t *testing.T) {
	t.Parallel()
	r, o := variantsRelay(t)
	prod := r.variantClient(t, relaytest.EnvoyNode("p"), "a", map[string]string{"env": "prod"})
	s := o.Accept(t.Context())
	nextSubscription(t, s)
	test := r.variantClient(t, relaytest.EnvoyNode("t"), "a", map[string]string{"env": "test"})
	nextSubscription(t, s)
	forProd, forTest := variant("a", "1", envIs("prod"), "10.0.0.1:1"), variant("a", "1", envIs("test"), "10.0.0.2:1")
	s.Send(&discoverypb.DeltaDiscoveryResponse{TypeUrl: relaytest.EndpointType,
		Resources: []*discoverypb.Resource{forProd, forTest}})
	prod.want([]*discoverypb.Resource{forProd})
	test.want([]*discoverypb.Resource{forTest})
	s.Send(&discoverypb.DeltaDiscoveryResponse{TypeUrl: relaytest.EndpointType,
		RemovedResourceNames: []*discoverypb.ResourceName{fullName("a", envIs("prod"))}})
	prod.want(nil, fullName("a", envIs("prod")))
	changed := variant("a", "2", envIs("test"), "10.0.0.9:1")
	s.Send(&discoverypb.DeltaDiscoveryResponse{TypeUrl: relaytest.EndpointType,
		Resources: []*discoverypb.Resource{changed}})
	test.want([]*discoverypb.Resource{changed})
}

// A wildcard client has no parameters. It receives the variant for clients without parameters, and a removal with
// that variant's constraints.
func TestR121_VariantsAmongTheMembers(t *testing.T) {
	t.Parallel()
	r, o := variantsRelay(t)
	c := r.variantClient(t, relaytest.EnvoyNode("w"), "*", nil)
	s := o.Accept(t.Context())
	nextSubscription(t, s)
	others := variant("a", "1", without("env"), "10.0.0.3:1")
	s.Send(&discoverypb.DeltaDiscoveryResponse{
		TypeUrl: relaytest.EndpointType,
		Resources: []*discoverypb.Resource{variant("a", "1", envIs("prod"), "10.0.0.1:1"), others,
			variant("a", "1", envIs("test"), "10.0.0.2:1")},
	})
	c.want([]*discoverypb.Resource{others})
	s.Send(&discoverypb.DeltaDiscoveryResponse{
		TypeUrl:              relaytest.EndpointType,
		RemovedResourceNames: []*discoverypb.ResourceName{fullName("a", envIs("prod")), fullName("a", without("env"))},
	})
	c.want(nil, fullName("a", without("env")))
}

// A resource with both name and resource_name is refused.
func TestR121_BothNamesAreRefused(t *testing.T) {
	t.Parallel()
	r, o := variantsRelay(t)
	r.variantClient(t, relaytest.EnvoyNode("p"), "a", map[string]string{"env": "prod"})
	s := o.Accept(t.Context())
	nextSubscription(t, s)
	both := variant("a", "1", envIs("prod"), "10.0.0.1:1")
	both.Name = "b"
	nonce := s.Send(&discoverypb.DeltaDiscoveryResponse{TypeUrl: relaytest.EndpointType,
		Resources: []*discoverypb.Resource{both}})
	for {
		if req := s.Recv(t.Context()); req.GetResponseNonce() == nonce {
			if got := status.FromProto(req.GetErrorDetail()); got.Code() != codes.InvalidArgument {
				t.Errorf("got %v, want a NACK with %v", req, codes.InvalidArgument)
			}
			return
		}
	}
}

// A subscription by name uses the dynamic parameters of the Node for the type. A request whose Node has other
// parameters ends the stream.
func TestB24_ParametersOfTheNode(t *testing.T) {
	t.Parallel()
	r, o := variantsRelay(t)
	n := relaytest.EnvoyNode("p")
	n.DynamicParameters = map[string]*xdspb.ContextParams{
		relaytest.EndpointType: {Params: map[string]string{"env": "prod"}},
	}
	c := r.variantClient(t, n, "a", nil)
	s := o.Accept(t.Context())
	if _, got := nextSubscription(t, s); len(got) != 1 || got[0].GetDynamicParameters()["env"] != "prod" {
		t.Fatalf("the origin got a subscription to %v, want a with env=prod", got)
	}
	forProd := variant("a", "1", envIs("prod"), "10.0.0.1:1")
	s.Send(&discoverypb.DeltaDiscoveryResponse{TypeUrl: relaytest.EndpointType,
		Resources: []*discoverypb.Resource{forProd}})
	c.want([]*discoverypb.Resource{forProd})
	changed := proto.CloneOf(n)
	changed.DynamicParameters[relaytest.EndpointType].Params["env"] = "test"
	c.send(&discoverypb.DeltaDiscoveryRequest{Node: changed, TypeUrl: relaytest.ClusterType})
	if _, err := c.rpc.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("the stream ended with %v, want %v", err, codes.Unavailable)
	}
}

// A request may contain names and locators. Without TENDER_DYNAMIC_PARAMETERS, the relay ignores the parameters of
// locators.
func TestR120_NamesAndLocators(t *testing.T) {
	t.Parallel()
	o := relaytest.NewOrigin(t, relaytest.OriginOptions{})
	o.Put(relaytest.Endpoints("a", "10.0.0.1:1"), relaytest.Endpoints("b", "10.0.0.2:1"),
		relaytest.Endpoints("c", "10.0.0.3:1"))
	for _, env := range []string{"TENDER_DYNAMIC_PARAMETERS=off", "TENDER_DYNAMIC_PARAMETERS=on"} {
		r := start(t, o, env)
		c := r.variantClient(t, relaytest.EnvoyNode("l"), "a", nil)
		with := map[string]string{"env": "prod"}
		if env == "TENDER_DYNAMIC_PARAMETERS=on" {
			with = nil // a locator without parameters equals a name
		}
		c.send(&discoverypb.DeltaDiscoveryRequest{
			TypeUrl:                   relaytest.EndpointType,
			ResourceNamesSubscribe:    []string{"b"},
			ResourceLocatorsSubscribe: []*discoverypb.ResourceLocator{{Name: "c", DynamicParameters: with}},
		})
		var got []string
		for len(got) < 3 {
			for _, r := range c.next().GetResources() {
				got = append(got, r.GetName())
			}
		}
		if slices.Sort(got); !slices.Equal(got, []string{"a", "b", "c"}) {
			t.Errorf("%s: got %q, want a, b and c", env, got)
		}
		for _, req := range o.State().Requests(relaytest.EndpointType) {
			if got := req.Message.GetResourceLocatorsSubscribe(); len(got) > 0 {
				t.Errorf("%s: the origin got a subscription with the locators %v, want only names", env, got)
			}
		}
	}
}

// The names of a request are the union of its names and locators. In SotW a client unsubscribes by omitting a name
// from both lists, in Delta by either list.
func TestR120_BothListsAreOne(t *testing.T) {
	t.Parallel()
	for _, env := range []string{"TENDER_DYNAMIC_PARAMETERS=off", "TENDER_DYNAMIC_PARAMETERS=on"} {
		eachVariant(t, func(t *testing.T, v relaytest.Variant) {
			worldBubble(t, []string{env}, func(w *world) {
				w.change("eds a@1", "eds b@1", "eds c@1")
				c := w.manualClient(v)
				c.Send(bothLists(v, "", []string{"a"}, []string{"b", "c"}))
				w.sleep(time.Second)
				c.expect(formatFor(v, "eds a@1 b@1 c@1"))
				c.Send(bothLists(v, c.batch[0].Nonce, []string{"c"}, []string{"a"}))
				w.change("eds b@2")
				c.expect()
				w.change("eds a@2", "eds c@2")
				c.expect(formatFor(v, "eds a@2 c@2"))
			})
		})
	}
}

// bothLists returns a first request that subscribes to names and located if nonce is empty. Otherwise it returns
// an ACK that ends the subscription to b.
func bothLists(v relaytest.Variant, nonce string, names, located []string) proto.Message {
	locators := func(names ...string) (out []*discoverypb.ResourceLocator) {
		for _, name := range names {
			out = append(out, &discoverypb.ResourceLocator{Name: name})
		}
		return out
	}
	n := relaytest.EnvoyNode("l")
	switch {
	case v == relaytest.SotW:
		return &discoverypb.DiscoveryRequest{Node: n, TypeUrl: relaytest.EndpointType, ResponseNonce: nonce,
			ResourceNames: names, ResourceLocators: locators(located...)}
	case nonce == "":
		return &discoverypb.DeltaDiscoveryRequest{Node: n, TypeUrl: relaytest.EndpointType, ResourceNamesSubscribe: names,
			ResourceLocatorsSubscribe: locators(located...)}
	default:
		return &discoverypb.DeltaDiscoveryRequest{TypeUrl: relaytest.EndpointType, ResponseNonce: nonce,
			ResourceLocatorsUnsubscribe: locators("b")}
	}
}

// A SotW client with wrapper support receives the constraints in the Resource wrapper.
func TestR122_WrappedInSotW(t *testing.T) {
	t.Parallel()
	r, o := variantsRelay(t)
	rpc, err := discoverypb.NewAggregatedDiscoveryServiceClient(r.Conn()).StreamAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	n := relaytest.EnvoyNode("w")
	n.ClientFeatures = []string{"xds.config.resource-in-sotw"}
	if err := rpc.Send(&discoverypb.DiscoveryRequest{
		Node: n, TypeUrl: relaytest.EndpointType,
		ResourceLocators: []*discoverypb.ResourceLocator{{Name: "a", DynamicParameters: map[string]string{"env": "prod"}}},
	}); err != nil {
		t.Fatal(err)
	}
	s := o.Accept(t.Context())
	nextSubscription(t, s)
	forProd := variant("a", "1", envIs("prod"), "10.0.0.1:1")
	s.Send(&discoverypb.DeltaDiscoveryResponse{TypeUrl: relaytest.EndpointType,
		Resources: []*discoverypb.Resource{forProd}})
	resp, err := rpc.Recv()
	if err != nil {
		t.Fatal(err)
	}
	got := new(discoverypb.Resource)
	if len(resp.GetResources()) != 1 || resp.GetResources()[0].UnmarshalTo(got) != nil || !proto.Equal(got, forProd) {
		t.Errorf("got %v, want %v in a Resource wrapper", resp, forProd)
	}
}

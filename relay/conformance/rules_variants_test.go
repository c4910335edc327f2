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

// Constraints of variants.
func envIs(value string) *discoverypb.DynamicParameterConstraints {
	return &discoverypb.DynamicParameterConstraints{Type: &discoverypb.DynamicParameterConstraints_Constraint{
		Constraint: &discoverypb.DynamicParameterConstraints_SingleConstraint{
			Key:            "env",
			ConstraintType: &discoverypb.DynamicParameterConstraints_SingleConstraint_Value{Value: value},
		},
	}}
}

func without(key string) *discoverypb.DynamicParameterConstraints {
	return &discoverypb.DynamicParameterConstraints{Type: &discoverypb.DynamicParameterConstraints_NotConstraints{
		NotConstraints: &discoverypb.DynamicParameterConstraints{Type: &discoverypb.DynamicParameterConstraints_Constraint{
			Constraint: &discoverypb.DynamicParameterConstraints_SingleConstraint{
				Key:            key,
				ConstraintType: &discoverypb.DynamicParameterConstraints_SingleConstraint_Exists_{Exists: &discoverypb.DynamicParameterConstraints_SingleConstraint_Exists{}},
			},
		}},
	}}
}

func variant(name, version string, c *discoverypb.DynamicParameterConstraints, addr string) *discoverypb.Resource {
	body, err := anypb.New(relaytest.Endpoints(name, addr))
	if err != nil {
		panic(err) // of a message that no test changes
	}
	return &discoverypb.Resource{
		ResourceName: &discoverypb.ResourceName{Name: name, DynamicParameterConstraints: c},
		Version:      version,
		Resource:     body,
	}
}

func fullName(name string, c *discoverypb.DynamicParameterConstraints) *discoverypb.ResourceName {
	return &discoverypb.ResourceName{Name: name, DynamicParameterConstraints: c}
}

// A variantClient is a Delta client that says parameters.
type variantClient struct {
	t   *testing.T
	rpc discoverypb.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
}

func (r *running) variantClient(t *testing.T, n *corepb.Node, name string, parameters map[string]string) *variantClient {
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

// next returns the next response, which it ACKs.
func (c *variantClient) next() *discoverypb.DeltaDiscoveryResponse {
	c.t.Helper()
	resp, err := c.rpc.Recv()
	if err != nil {
		c.t.Fatal(err)
	}
	c.send(&discoverypb.DeltaDiscoveryRequest{TypeUrl: resp.GetTypeUrl(), ResponseNonce: resp.GetNonce()})
	return resp
}

// want fails unless the next response holds just that.
func (c *variantClient) want(resources []*discoverypb.Resource, gone ...*discoverypb.ResourceName) {
	c.t.Helper()
	got := c.next()
	if diff := cmp.Diff(resources, got.GetResources(), protocmp.Transform()); diff != "" {
		c.t.Errorf("resources (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(gone, got.GetRemovedResourceNames(), protocmp.Transform()); diff != "" {
		c.t.Errorf("removed_resource_names (-want +got):\n%s", diff)
	}
	if removed := got.GetRemovedResources(); len(removed) > 0 {
		c.t.Errorf("removed_resources %q, want none", removed)
	}
}

// asked returns the locators and names that the origin is asked for next.
func asked(t *testing.T, s *relaytest.OriginStream) (*discoverypb.DeltaDiscoveryRequest, []*discoverypb.ResourceLocator) {
	t.Helper()
	for {
		req := s.Recv(t.Context())
		if len(req.GetResourceNamesSubscribe())+len(req.GetResourceLocatorsSubscribe()) > 0 {
			return req, req.GetResourceLocatorsSubscribe()
		}
	}
}

func variantsRelay(t *testing.T, env ...string) (*running, *relaytest.Origin) {
	t.Helper()
	o := relaytest.NewOrigin(t, relaytest.OriginOptions{Behaviour: relaytest.Behaviour{Manual: true}})
	return start(t, o, append([]string{"TENDER_DYNAMIC_PARAMETERS=on"}, env...)...), o
}

// Each client is sent the variant that its parameters match, with the constraints on
// the wire; the origin is asked with the parameters of each.
func TestR122_EachClientItsVariant(t *testing.T) {
	t.Parallel()
	r, o := variantsRelay(t)
	prod := r.variantClient(t, relaytest.EnvoyNode("p"), "a", map[string]string{"env": "prod"})
	s := o.Accept(t.Context())
	if _, got := asked(t, s); len(got) != 1 || got[0].GetName() != "a" || got[0].GetDynamicParameters()["env"] != "prod" {
		t.Fatalf("the origin is asked for %v, want a with env=prod", got)
	}
	test := r.variantClient(t, relaytest.EnvoyNode("t"), "a", map[string]string{"env": "test"})
	if _, got := asked(t, s); len(got) != 1 || got[0].GetDynamicParameters()["env"] != "test" {
		t.Fatalf("the origin is asked for %v, want a with env=test", got)
	}
	plain := r.variantClient(t, relaytest.EnvoyNode("n"), "a", nil)
	if req, _ := asked(t, s); !slices.Equal(req.GetResourceNamesSubscribe(), []string{"a"}) {
		t.Fatalf("the origin is asked for %v, want a", req)
	}

	forProd, forTest, others := variant("a", "1", envIs("prod"), "10.0.0.1:1"), variant("a", "1", envIs("test"), "10.0.0.2:1"), variant("a", "1", without("env"), "10.0.0.3:1")
	s.Send(&discoverypb.DeltaDiscoveryResponse{TypeUrl: relaytest.EndpointType, Resources: []*discoverypb.Resource{forProd, forTest, others}})
	prod.want([]*discoverypb.Resource{forProd})
	test.want([]*discoverypb.Resource{forTest})
	plain.want([]*discoverypb.Resource{others})

	// One changes, and only those who see it are told.
	changed := variant("a", "2", envIs("test"), "10.0.0.9:1")
	s.Send(&discoverypb.DeltaDiscoveryResponse{TypeUrl: relaytest.EndpointType, Resources: []*discoverypb.Resource{changed}})
	test.want([]*discoverypb.Resource{changed})
	again := variant("a", "2", envIs("prod"), "10.0.0.8:1")
	s.Send(&discoverypb.DeltaDiscoveryResponse{TypeUrl: relaytest.EndpointType, Resources: []*discoverypb.Resource{again}})
	prod.want([]*discoverypb.Resource{again})
}

// A variant that is replaced by two goes and they come in one response.
func TestR122_ASplitShowsNothingBetween(t *testing.T) {
	t.Parallel()
	r, o := variantsRelay(t)
	c := r.variantClient(t, relaytest.EnvoyNode("p"), "a", map[string]string{"env": "prod"})
	s := o.Accept(t.Context())
	asked(t, s)
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

// A variant goes by its constraints, and only for those who were shown it.
func TestR121_AVariantIsRemovedByItsConstraints(t *testing.T) {
	t.Parallel()
	r, o := variantsRelay(t)
	prod := r.variantClient(t, relaytest.EnvoyNode("p"), "a", map[string]string{"env": "prod"})
	s := o.Accept(t.Context())
	asked(t, s)
	test := r.variantClient(t, relaytest.EnvoyNode("t"), "a", map[string]string{"env": "test"})
	asked(t, s)
	forProd, forTest := variant("a", "1", envIs("prod"), "10.0.0.1:1"), variant("a", "1", envIs("test"), "10.0.0.2:1")
	s.Send(&discoverypb.DeltaDiscoveryResponse{TypeUrl: relaytest.EndpointType, Resources: []*discoverypb.Resource{forProd, forTest}})
	prod.want([]*discoverypb.Resource{forProd})
	test.want([]*discoverypb.Resource{forTest})
	s.Send(&discoverypb.DeltaDiscoveryResponse{TypeUrl: relaytest.EndpointType, RemovedResourceNames: []*discoverypb.ResourceName{fullName("a", envIs("prod"))}})
	prod.want(nil, fullName("a", envIs("prod")))
	changed := variant("a", "2", envIs("test"), "10.0.0.9:1")
	s.Send(&discoverypb.DeltaDiscoveryResponse{TypeUrl: relaytest.EndpointType, Resources: []*discoverypb.Resource{changed}})
	test.want([]*discoverypb.Resource{changed})
}

// A client that follows the wildcard has no parameters: it is sent the variant for such
// clients, and told by its constraints when that is gone.
func TestR121_VariantsAmongTheMembers(t *testing.T) {
	t.Parallel()
	r, o := variantsRelay(t)
	c := r.variantClient(t, relaytest.EnvoyNode("w"), "*", nil)
	s := o.Accept(t.Context())
	asked(t, s)
	others := variant("a", "1", without("env"), "10.0.0.3:1")
	s.Send(&discoverypb.DeltaDiscoveryResponse{
		TypeUrl:   relaytest.EndpointType,
		Resources: []*discoverypb.Resource{variant("a", "1", envIs("prod"), "10.0.0.1:1"), others, variant("a", "1", envIs("test"), "10.0.0.2:1")},
	})
	c.want([]*discoverypb.Resource{others})
	s.Send(&discoverypb.DeltaDiscoveryResponse{
		TypeUrl:              relaytest.EndpointType,
		RemovedResourceNames: []*discoverypb.ResourceName{fullName("a", envIs("prod")), fullName("a", without("env"))},
	})
	c.want(nil, fullName("a", without("env")))
}

// A resource has a name or a resource_name, and not both.
func TestR121_BothNamesAreRefused(t *testing.T) {
	t.Parallel()
	r, o := variantsRelay(t)
	r.variantClient(t, relaytest.EnvoyNode("p"), "a", map[string]string{"env": "prod"})
	s := o.Accept(t.Context())
	asked(t, s)
	both := variant("a", "1", envIs("prod"), "10.0.0.1:1")
	both.Name = "b"
	nonce := s.Send(&discoverypb.DeltaDiscoveryResponse{TypeUrl: relaytest.EndpointType, Resources: []*discoverypb.Resource{both}})
	for {
		if req := s.Recv(t.Context()); req.GetResponseNonce() == nonce {
			if got := status.FromProto(req.GetErrorDetail()); got.Code() != codes.InvalidArgument {
				t.Errorf("answered %v, want a NACK with %v", req, codes.InvalidArgument)
			}
			return
		}
	}
}

// B.24: where a name comes without parameters, those of the Node for the type count,
// and a Node that comes with others ends the stream.
func TestB24_ParametersOfTheNode(t *testing.T) {
	t.Parallel()
	r, o := variantsRelay(t)
	n := relaytest.EnvoyNode("p")
	n.DynamicParameters = map[string]*xdspb.ContextParams{relaytest.EndpointType: {Params: map[string]string{"env": "prod"}}}
	c := r.variantClient(t, n, "a", nil)
	s := o.Accept(t.Context())
	if _, got := asked(t, s); len(got) != 1 || got[0].GetDynamicParameters()["env"] != "prod" {
		t.Fatalf("the origin is asked for %v, want a with env=prod", got)
	}
	forProd := variant("a", "1", envIs("prod"), "10.0.0.1:1")
	s.Send(&discoverypb.DeltaDiscoveryResponse{TypeUrl: relaytest.EndpointType, Resources: []*discoverypb.Resource{forProd}})
	c.want([]*discoverypb.Resource{forProd})
	changed := proto.CloneOf(n)
	changed.DynamicParameters[relaytest.EndpointType].Params["env"] = "test"
	c.send(&discoverypb.DeltaDiscoveryRequest{Node: changed, TypeUrl: relaytest.ClusterType})
	if _, err := c.rpc.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("the stream ended with %v, want %v", err, codes.Unavailable)
	}
}

// A request may say some names as names and some as locators (R120). Without the
// switch, parameters are not looked at.
func TestR120_NamesAndLocators(t *testing.T) {
	t.Parallel()
	o := relaytest.NewOrigin(t, relaytest.OriginOptions{})
	o.Put(relaytest.Endpoints("a", "10.0.0.1:1"), relaytest.Endpoints("b", "10.0.0.2:1"), relaytest.Endpoints("c", "10.0.0.3:1"))
	for _, env := range []string{"TENDER_DYNAMIC_PARAMETERS=off", "TENDER_DYNAMIC_PARAMETERS=on"} {
		r := start(t, o, env)
		c := r.variantClient(t, relaytest.EnvoyNode("l"), "a", nil)
		with := map[string]string{"env": "prod"}
		if env == "TENDER_DYNAMIC_PARAMETERS=on" {
			with = nil // to go without is to be asked for by name
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
				t.Errorf("%s: the origin was asked for %v", env, got)
			}
		}
	}
}

// TestR120_BothListsAreOne: what a client wants is in both lists of a request; in SotW a
// name is given up by leaving it out of both, in Delta by either.
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

// bothLists is a request for names and locators: to begin with for all that they say, as
// an answer for nothing else.
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
		return &discoverypb.DiscoveryRequest{Node: n, TypeUrl: relaytest.EndpointType, ResponseNonce: nonce, ResourceNames: names, ResourceLocators: locators(located...)}
	case nonce == "":
		return &discoverypb.DeltaDiscoveryRequest{Node: n, TypeUrl: relaytest.EndpointType, ResourceNamesSubscribe: names, ResourceLocatorsSubscribe: locators(located...)}
	default:
		return &discoverypb.DeltaDiscoveryRequest{TypeUrl: relaytest.EndpointType, ResponseNonce: nonce, ResourceLocatorsUnsubscribe: locators("b")}
	}
}

// A SotW client that understands it is sent the constraints in the Resource message.
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
	asked(t, s)
	forProd := variant("a", "1", envIs("prod"), "10.0.0.1:1")
	s.Send(&discoverypb.DeltaDiscoveryResponse{TypeUrl: relaytest.EndpointType, Resources: []*discoverypb.Resource{forProd}})
	resp, err := rpc.Recv()
	if err != nil {
		t.Fatal(err)
	}
	got := new(discoverypb.Resource)
	if len(resp.GetResources()) != 1 || resp.GetResources()[0].UnmarshalTo(got) != nil || !proto.Equal(got, forProd) {
		t.Errorf("got %v, want %v in its message", resp, forProd)
	}
}

package conformance_test

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/xdstender/tender/relay/relaytest"
)

// B.17: the types with a legacy wildcard, and the resources in the response to a change of one of two names, for
// an Envoy and for a gRPC client.
func TestB17_Types(t *testing.T) {
	t.Parallel()
	tests := []struct {
		typeURL string
		legacy  bool // the first empty request is a wildcard
		full    bool // SotW responses are complete sets for all clients
		envoy   bool // SotW responses are complete sets for Envoy
	}{
		{relaytest.ListenerType, true, true, true},
		{relaytest.ClusterType, true, true, true},
		{relaytest.ScopedRouteType, true, true, true},
		{relaytest.VirtualHostType, true, false, false},
		{acmeThing, true, false, false},
		{relaytest.RouteType, false, false, false},
		{relaytest.EndpointType, false, false, false},
		{relaytest.SecretType, false, false, true},
		{relaytest.RuntimeType, false, false, true},
		{relaytest.ExtensionConfigType, false, false, true},
		{relaytest.LocalityEndpointType, false, false, false},
	}
	var types []string
	for _, test := range tests {
		types = append(types, test.typeURL)
	}
	o := originWith(t, relaytest.OriginOptions{}, types, "a", "b")
	r := start(t, o)
	for _, node := range []string{"envoy", "grpc"} {
		eachVariant(t, func(t *testing.T, v relaytest.Variant) {
			for _, test := range tests {
				opts := relaytest.ClientOptions{Variant: v}
				if node == "grpc" {
					opts.Node = relaytest.GRPCNode("g")
				}
				c := r.Client(opts)
				c.Subscribe(test.typeURL)
				if test.legacy {
					recvAndAck(t, c, test.typeURL, "a", "b")
				}
				watchSentinel(t, o, c)

				c = r.Client(opts)
				c.Subscribe(test.typeURL, "a", "b")
				for !c.State().Has(test.typeURL, "a", "b") {
					c.Ack(c.Recv(t.Context()))
				}
				o.Put(opaque(test.typeURL, "b", node+v.String()))
				want := []string{"b"}
				if v == relaytest.SotW && (test.full || test.envoy && node == "envoy") {
					want = []string{"a", "b"}
				}
				recvAndAck(t, c, test.typeURL, want...)
				c.Close()
			}
		})
	}
}

// B.17: an Envoy gets all its secrets in one response, however large they are.
func TestB17_LargeGroupIsSentOnce(t *testing.T) {
	t.Parallel()
	o := relaytest.NewOrigin(t, relaytest.OriginOptions{})
	large := bytes.Repeat([]byte{'x'}, 700<<10)
	o.Put(relaytest.Opaque(relaytest.SecretType, "a", large), relaytest.Opaque(relaytest.SecretType, "b", large),
		relaytest.Opaque(relaytest.SecretType, "c", large))
	r := start(t, o)
	others := r.Client(relaytest.ClientOptions{AutoAck: true})
	others.Subscribe(relaytest.SecretType, "a", "b", "c")
	others.WaitState(t.Context(), func(s relaytest.State) bool { return s.Has(relaytest.SecretType, "a", "b", "c") })

	c := r.Client(relaytest.ClientOptions{Variant: relaytest.SotW})
	c.Subscribe(relaytest.SecretType, "a", "b", "c")
	recvAndAck(t, c, relaytest.SecretType, "a", "b", "c")
	watchSentinel(t, o, c)
	o.Put(opaque(relaytest.SecretType, "b", "small"))
	recvAndAck(t, c, relaytest.SecretType, "a", "b", "c")
	expectNoneInFlight(t, o, c, "all there")
}

// B.21: resources of any type are passed on with their bytes and with unknown fields of the Resource message.
func TestB21_UnknownTypes(t *testing.T) {
	t.Parallel()
	types := []string{acmeThing, "type.googleapis.com/istio.networking.nds.v1.NameTable", "envoy.api.v2.Cluster", "x"}
	eachVariant(t, func(t *testing.T, v relaytest.Variant) {
		o := originWith(t, relaytest.OriginOptions{}, types, "a", "with space", "日本", "a/b?c=d", "xdstp:no")
		r := start(t, o)
		for _, node := range []string{"envoy", "grpc"} { // with wrappers for gRPC
			opts := relaytest.ClientOptions{Variant: v, AutoAck: true}
			if node == "grpc" {
				opts.Node = relaytest.GRPCNode("g")
			}
			c := r.Client(opts)
			for _, typeURL := range types {
				c.Subscribe(typeURL, "*")
				c.WaitState(t.Context(), func(s relaytest.State) bool { return len(s[typeURL]) == 5 })
				if !c.State().SameContent(o.Resources(), typeURL) {
					t.Errorf("%s: the client's content differs from the origin's", typeURL)
				}
			}
		}
	})
}

// B.22: a resource of an unknown type may have an empty name. One of a known type is NACKed.
func TestB22_EmptyNames(t *testing.T) {
	t.Parallel()
	o := relaytest.NewOrigin(t, relaytest.OriginOptions{Behaviour: relaytest.Behaviour{Manual: true}})
	r := start(t, o)
	rpc, err := discoverypb.NewAggregatedDiscoveryServiceClient(r.Conn()).DeltaAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	sotw := r.Client(relaytest.ClientOptions{Variant: relaytest.SotW})
	for _, typeURL := range []string{acmeThing, relaytest.ClusterType} {
		if err := rpc.Send(&discoverypb.DeltaDiscoveryRequest{Node: relaytest.EnvoyNode("e"), TypeUrl: typeURL}); err != nil {
			t.Fatal(err)
		}
		sotw.Subscribe(typeURL)
	}
	origin := o.Accept(t.Context())
	for range 2 {
		origin.Recv(t.Context())
	}
	unnamed := func(typeURL, text string) *discoverypb.DeltaDiscoveryResponse {
		return &discoverypb.DeltaDiscoveryResponse{TypeUrl: typeURL, Resources: []*discoverypb.Resource{
			{Version: text, Resource: opaque(typeURL, "in the body", text)}}}
	}
	for _, text := range []string{"first", "second"} {
		nonce := origin.Send(unnamed(acmeThing, text))
		origin.ExpectRequest(t.Context(), &discoverypb.DeltaDiscoveryRequest{TypeUrl: acmeThing, ResponseNonce: nonce})
		resp, err := rpc.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if got := resp.GetResources(); len(got) != 1 || got[0].GetName() != "" || got[0].GetVersion() != text {
			t.Errorf("got %v, want 1 resource without a name", resp)
		}
		if err := rpc.Send(&discoverypb.DeltaDiscoveryRequest{TypeUrl: acmeThing,
			ResponseNonce: resp.GetNonce()}); err != nil {
			t.Fatal(err)
		}
		recvAndAck(t, sotw, acmeThing, "in the body")
	}
	nonce := origin.Send(unnamed(relaytest.ClusterType, "first"))
	if req := origin.Recv(t.Context()); req.GetResponseNonce() != nonce || req.GetErrorDetail() == nil {
		t.Errorf("a cluster without a name: got %v, want a NACK", req)
	}
}

// B.1: a large wildcard set is sent in several responses, each after the ACK of the previous one. Each resource is
// sent once, even if many change or are removed meanwhile.
func TestB1_LargeSetInChunks(t *testing.T) {
	t.Parallel()
	const count, size = 320, 16 << 10 // 5 MiB
	originBubble(t, func(t *testing.T, o *relaytest.Origin) {
		payload := func(name, text string) []byte {
			return append([]byte(name+text), bytes.Repeat([]byte{'x'}, size)...)
		}
		names := make([]string, count)
		o.Apply(func(tx *relaytest.Tx) {
			for i := range names {
				names[i] = fmt.Sprintf("thing-%04d", i)
				tx.Put(relaytest.Opaque(relaytest.ClusterType, names[i], payload(names[i], "first")))
			}
		})
		r := start(t, o)
		for _, form := range [][]string{nil, names} {
			c := r.Client(relaytest.ClientOptions{})
			c.Subscribe(relaytest.ClusterType, form...)
			got, responses := make(map[string]int), 0
			for len(got) < count {
				resp := c.Recv(t.Context())
				responses++
				for _, name := range resp.Names() {
					got[name]++
				}
				if responses == 1 {
					awaitRequestsRead(t, o, c) // the next one is not sent before this ACK
				}
				c.Ack(resp)
			}
			for name, n := range got {
				if n != 1 {
					t.Errorf("got %q %d times, want once", name, n)
				}
			}
			if responses < 4 || responses > 8 {
				t.Errorf("got 5 MiB in %d responses, want 4 to 8", responses)
			}
			c.Fence(t.Context(), relaytest.ClusterType, names[7], func() {
				o.Put(relaytest.Opaque(relaytest.ClusterType, names[7], payload("again", fmt.Sprint(len(form)))))
			})
			c.Close()
		}

		c := r.Client(relaytest.ClientOptions{})
		c.Subscribe(relaytest.ClusterType)
		first := c.Recv(t.Context())
		sent := first.Names()
		slices.Sort(sent)
		seen := sent[0]
		o.Apply(func(tx *relaytest.Tx) {
			for i, name := range names {
				switch i % 3 {
				case 0:
					tx.Put(relaytest.Opaque(relaytest.ClusterType, name, payload(name, "second")))
				case 1:
					if name != seen {
						tx.Remove(relaytest.ClusterType, name)
					}
				}
			}
		})
		c.Ack(first)
		for !c.State().SameContent(o.Resources(), relaytest.ClusterType) {
			c.Ack(c.Recv(t.Context()))
		}
		contents := make(map[relaytest.Digest]bool)
		for _, resp := range c.Responses() {
			for _, res := range resp.Resources {
				if contents[res.Digest] {
					t.Errorf("got %q twice with the same content", res.Name)
				}
				contents[res.Digest] = true
			}
		}
		c.Fence(t.Context(), relaytest.ClusterType, seen, func() {
			o.Put(relaytest.Opaque(relaytest.ClusterType, seen, payload(seen, "third")))
		})
	})
}

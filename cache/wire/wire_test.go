package wire_test

import (
	"testing"

	clusterpb "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/xdstender/tender/cache/wire"
)

// acme is a type that the protocol does not define.
const acme = "type.googleapis.com/acme.v1.Foo"

// notUTF8 is not valid in a protobuf string.
const notUTF8 = "a\xffb"

func marshal(tb testing.TB, m proto.Message) []byte {
	tb.Helper()
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		tb.Fatalf("marshal %T: %v", m, err)
	}
	return b
}

// bytesField returns one length-delimited field.
func bytesField[T ~string | ~[]byte](num protowire.Number, val T) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, num, protowire.BytesType), []byte(val))
}

func join(parts ...[]byte) []byte {
	var out []byte
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
}

// anyOf returns an encoded google.protobuf.Any.
func anyOf(typeURL string, value []byte) []byte {
	return join(bytesField(1, typeURL), bytesField(2, value))
}

// resourceOf returns an encoded discovery Resource with this body.
func resourceOf(version, name string, body []byte) []byte {
	return join(bytesField(1, version), bytesField(2, body), bytesField(3, name))
}

// updateOf returns an encoded DeltaDiscoveryResponse with these Resources.
func updateOf(typeURL string, resources ...[]byte) []byte {
	msg := bytesField(1, "system-1")
	for _, r := range resources {
		msg = append(msg, bytesField(2, r)...)
	}
	return join(msg, bytesField(4, typeURL), bytesField(5, "nonce-1"))
}

func decode(tb testing.TB, msg []byte) wire.Update {
	tb.Helper()
	u, err := wire.Decoder{}.Decode(msg)
	if err != nil {
		tb.Fatalf("Decode(%q): %v", msg, err)
	}
	return u
}

// decodeOne decodes an update with a single resource.
func decodeOne(tb testing.TB, typeURL string, resource []byte) *wire.Resource {
	tb.Helper()
	u := decode(tb, updateOf(typeURL, resource))
	if len(u.Resources) != 1 {
		tb.Fatalf("Decode: got %d resources, want 1", len(u.Resources))
	}
	return u.Resources[0]
}

// send marshals a response as the server does and returns the encoded bytes.
func send(tb testing.TB, r *wire.Response) []byte {
	tb.Helper()
	buf, err := wire.Codec{}.Marshal(r)
	if err != nil {
		tb.Fatalf("Codec.Marshal: %v", err)
	}
	defer buf.Free()
	return buf.Materialize()
}

// relayDelta sends resources in a DeltaDiscoveryResponse and decodes it as a client does.
func relayDelta(tb testing.TB, typeURL string, resources ...*wire.Resource) *discoverypb.DeltaDiscoveryResponse {
	tb.Helper()
	body := wire.NewDeltaBody(typeURL, "system-1")
	for _, r := range resources {
		body.Add(r, r.TTL)
	}
	out := new(discoverypb.DeltaDiscoveryResponse)
	receive(tb, send(tb, &wire.Response{Body: body, Nonce: "nonce-9"}), out)
	return out
}

// relaySotW sends resources in a DiscoveryResponse and decodes it as a client
// does.
func relaySotW(tb testing.TB, typeURL string, resources ...*wire.Resource) *discoverypb.DiscoveryResponse {
	tb.Helper()
	body := wire.NewSotWBody(typeURL, "version-1", wire.Unwrapped)
	for _, r := range resources {
		body.Add(r, r.TTL)
	}
	out := new(discoverypb.DiscoveryResponse)
	receive(tb, send(tb, &wire.Response{Body: body, Nonce: "nonce-9"}), out)
	return out
}

// relayWrapped sends resources in a DiscoveryResponse, each in a wrapper, and
// returns what a client unwraps.
func relayWrapped(tb testing.TB, typeURL string, resources ...*wire.Resource) []*discoverypb.Resource {
	tb.Helper()
	body := wire.NewSotWBody(typeURL, "version-1", wire.WrapAll)
	for _, r := range resources {
		body.Add(r, r.TTL)
	}
	res := new(discoverypb.DiscoveryResponse)
	receive(tb, send(tb, &wire.Response{Body: body}), res)
	if res.GetTypeUrl() != typeURL {
		tb.Errorf("wrapped: got type %q, want %q", res.GetTypeUrl(), typeURL)
	}
	var out []*discoverypb.Resource
	for _, any := range res.GetResources() {
		r := new(discoverypb.Resource)
		if err := any.UnmarshalTo(r); err != nil {
			tb.Fatalf("a client cannot unwrap %v: %v", any, err)
		}
		out = append(out, r)
	}
	if len(out) != body.Len() {
		tb.Errorf("wrapped: got %d resources, Len %d", len(out), body.Len())
	}
	return out
}

func receive(tb testing.TB, b []byte, into proto.Message) {
	tb.Helper()
	if err := proto.Unmarshal(b, into); err != nil {
		tb.Fatalf("a client's decoder refuses %T %q: %v", into, b, err)
	}
}

func wantMessage(tb testing.TB, what string, got, want proto.Message) {
	tb.Helper()
	if !proto.Equal(got, want) {
		tb.Errorf("%s: -want +got:\n%s", what, cmp.Diff(want, got, protocmp.Transform()))
	}
}

// richUpdate uses every field of a DeltaDiscoveryResponse and of a Resource that
// an origin may set.
func richUpdate() *discoverypb.DeltaDiscoveryResponse {
	meta, err := structpb.NewStruct(map[string]any{"env": "prod", "weight": 3.5, "tags": []any{"a", true, nil}})
	if err != nil {
		panic(err)
	}
	return &discoverypb.DeltaDiscoveryResponse{
		SystemVersionInfo: "system-7",
		TypeUrl:           acme,
		Nonce:             "nonce-7",
		ControlPlane:      &corepb.ControlPlane{Identifier: "istiod-0"},
		RemovedResources:  []string{"gone", "gone/2"},
		Resources: []*discoverypb.Resource{
			{
				Name:         "shop",
				Version:      "v1",
				Aliases:      []string{"shop.example", "shop.svc"},
				Resource:     &anypb.Any{TypeUrl: acme, Value: []byte("\x0a\x03abc\x92\x89\x02\x02hi")},
				Ttl:          durationpb.New(1500000000),
				CacheControl: &discoverypb.Resource_CacheControl{DoNotCache: true},
				Metadata:     &corepb.Metadata{FilterMetadata: map[string]*structpb.Struct{"acme": meta}},
			},
			{Name: "bare", Resource: &anypb.Any{TypeUrl: acme, Value: []byte{1, 2, 3}}},
			{Name: "heartbeat", Version: "v2", Ttl: durationpb.New(2000000000)},
			{Version: "v3", Resource: &anypb.Any{TypeUrl: acme}}, // no name
		},
	}
}

// clusterUpdate is what an origin sends for CDS.
func clusterUpdate(tb testing.TB) *discoverypb.DeltaDiscoveryResponse {
	tb.Helper()
	u := &discoverypb.DeltaDiscoveryResponse{SystemVersionInfo: "3", TypeUrl: wire.ClusterType, Nonce: "n3"}
	for _, name := range []string{"a", "b"} {
		u.Resources = append(u.Resources, &discoverypb.Resource{
			Name: name, Version: "1",
			Resource: &anypb.Any{TypeUrl: wire.ClusterType, Value: marshal(tb, edsCluster(name, "cla/"+name))},
		})
	}
	u.RemovedResources = []string{"c"}
	return u
}

func edsCluster(name, service string) *clusterpb.Cluster {
	return &clusterpb.Cluster{
		Name:                 name,
		ClusterDiscoveryType: &clusterpb.Cluster_Type{Type: clusterpb.Cluster_EDS},
		EdsClusterConfig:     &clusterpb.Cluster_EdsClusterConfig{ServiceName: service},
	}
}

// envConstraints returns constraints that clients with this value of env satisfy.
func envConstraints(env string) *discoverypb.DynamicParameterConstraints {
	return &discoverypb.DynamicParameterConstraints{Type: &discoverypb.DynamicParameterConstraints_Constraint{
		Constraint: &discoverypb.DynamicParameterConstraints_SingleConstraint{
			Key:            "env",
			ConstraintType: &discoverypb.DynamicParameterConstraints_SingleConstraint_Value{Value: env},
		},
	}}
}

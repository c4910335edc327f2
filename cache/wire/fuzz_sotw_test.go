package wire_test

import (
	"bytes"
	"slices"
	"testing"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/xdstender/tender/cache/wire"
)

// wrapperType is the type of the message in which a SotW origin may wrap a resource.
const wrapperType = "type.googleapis.com/envoy.service.discovery.v3.Resource"

// FuzzDecodeSotW compares the decoder of SotW responses with the generated decoder, and the relayed responses with the
// output of a client's generated decoder.
func FuzzDecodeSotW(f *testing.F) {
	for _, seed := range sotwSeeds() {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, msg []byte) {
		checkSotW(t, wire.Decoder{}, msg)
		checkSotW(t, wire.Decoder{ContentVersions: true}, msg)
	})
}

func sotwSeeds() [][]byte {
	a, b := named("a"), named("b")
	body := anyOf(wire.ClusterType, a)
	unknown := bytesField(4242, "new")
	return [][]byte{
		nil,
		updateOf(wire.ClusterType),
		updateOf(wire.ClusterType, body, anyOf(wire.ClusterType, b)),
		updateOf(wire.ClusterType, body, body),
		updateOf(wire.ClusterType, body, wrap(resourceOf("1", "b", anyOf(wire.ClusterType, b)))),
		updateOf(wire.ClusterType, wrap(resourceOf("1", "", body))),
		updateOf(wire.ClusterType, wrap(resourceOf("1", "", anyOf(wire.ListenerType, a)))),
		updateOf(wire.ClusterType,
			wrap(join(bytesField(2, bytesField(1, wire.ClusterType)), bytesField(2, bytesField(2, a))))),
		updateOf(wire.ClusterType, wrap(join(bytesField(3, "a"), bytesField(6, bytesField(1, ""))))), // a heartbeat
		updateOf(wire.ClusterType, anyOf(wire.ListenerType, a)),
		updateOf(wire.ClusterType, anyOf(wire.ClusterType, nil)),
		updateOf(wire.ClusterType, anyOf(wire.ClusterType, named(notUTF8))),
		updateOf(wire.ClusterType, anyOf(wire.ClusterType, []byte("\xff"))),
		updateOf(wire.ClusterType, anyOf(wire.ClusterType, join(a, b, unknown))),
		updateOf(wire.ClusterType, join(body, unknown)),
		updateOf(wire.LocalityEndpoint, anyOf(wire.LocalityEndpoint, a)),
		updateOf(acme, anyOf(acme, a)),
		updateOf(acme, wrap(resourceOf("1", "", anyOf(acme, a)))),
		updateOf(acme,
			wrap(join(resourceOf("1", "a", anyOf(acme, a)), bytesField(4, "alias"), bytesField(6, "\x08\x05"), unknown))),
		updateOf(acme, wrap(join(resourceOf("1", "a", anyOf(acme, a)), bytesField(6, "\x08")))), // malformed ttl
		join(updateOf(acme), bytesField(6, bytesField(1, "plane")), protowire.AppendTag(nil, 3, protowire.VarintType),
			[]byte{1}),
		join(updateOf(acme), bytesField(6, bytesField(1, notUTF8))),
		join(updateOf(acme), bytesField(7, unknown)),
	}
}

// named returns a message with a name in field 1, as every known type has it.
func named(name string) []byte { return bytesField(1, name) }

// wrap returns an Any that holds a Resource message.
func wrap(resource []byte) []byte { return anyOf(wrapperType, resource) }

// checkSotW decodes msg with d and with the generated decoder, and compares the results.
func checkSotW(t *testing.T, d wire.Decoder, msg []byte) {
	t.Helper()
	in := new(discoverypb.DiscoveryResponse)
	refused := proto.Unmarshal(msg, in)
	input := bytes.Clone(msg)
	got, err := d.DecodeSotW(input)
	for i := range input {
		input[i] ^= 0xff // the update must not share memory with the input
	}
	if err != nil && !knownError(err) {
		t.Fatalf("DecodeSotW(%q): got an undocumented error: %v", msg, err)
	}
	if refused != nil {
		if err == nil {
			checkRelay(t, got)
		}
		return
	}
	want, found := asUpdate(in)
	// For a malformed wrapper, the decoders may report different errors.
	if !fits(err, found) && (err == nil || !slices.Contains(found, wire.ErrMalformed)) {
		t.Fatalf("DecodeSotW(%q): got error %v, want one of %v", msg, err, found)
	}
	checkEnvelope(t, msg, got, want, err == nil)
	if err != nil {
		return
	}
	if len(got.Resources) != len(want.GetResources()) {
		t.Fatalf("DecodeSotW(%q): got %d resources, want %d", msg, len(got.Resources), len(want.GetResources()))
	}
	for i, r := range got.Resources {
		checkResource(t, d, r, want.GetResources()[i])
	}
	checkRelayed(t, got, want)
}

// asUpdate returns the equivalent response of a Delta origin, and an error for each violation of the protocol.
func asUpdate(in *discoverypb.DiscoveryResponse) (out *discoverypb.DeltaDiscoveryResponse, found []error) {
	out = &discoverypb.DeltaDiscoveryResponse{
		SystemVersionInfo: in.GetVersionInfo(), TypeUrl: in.GetTypeUrl(), Nonce: in.GetNonce(),
		ControlPlane:   in.GetControlPlane(),
		ResourceErrors: in.GetResourceErrors(),
	}
	for _, body := range in.GetResources() {
		r, err := asResource(in.GetTypeUrl(), body)
		if err != nil {
			found = append(found, err)
			continue
		}
		out.Resources = append(out.Resources, r)
	}
	return out, append(found, faults(out)...)
}

func asResource(typeURL string, body *anypb.Any) (*discoverypb.Resource, error) {
	r := &discoverypb.Resource{Resource: body}
	named := wire.Known(typeURL) && typeURL != wire.LocalityEndpoint
	switch {
	case body.GetTypeUrl() == wrapperType:
		r = new(discoverypb.Resource)
		opts := proto.UnmarshalOptions{RecursionLimit: protowire.DefaultRecursionLimit - 1}
		if opts.Unmarshal(body.GetValue(), r) != nil {
			return nil, wire.ErrMalformed
		}
		if r.GetName() != "" || r.GetResourceName() != nil || r.GetResource() == nil || !named {
			return r, nil
		}
		if r.GetResource().GetTypeUrl() != typeURL {
			return nil, wire.ErrTypeMismatch
		}
	case body.GetTypeUrl() != typeURL:
		return nil, wire.ErrTypeMismatch
	case !named:
		return nil, wire.ErrUnnamed
	}
	// Decode with any message type that has a string in field 1.
	own := new(wrapperspb.StringValue)
	if proto.Unmarshal(r.GetResource().GetValue(), own) != nil {
		return nil, wire.ErrMalformed
	}
	if r.Name = own.GetValue(); r.Name == "" {
		return nil, wire.ErrUnnamed
	}
	return r, nil
}

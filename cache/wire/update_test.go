package wire_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache/wire"
)

func TestR062_DuplicateNamesAreRejected(t *testing.T) {
	a, b := resourceOf("1", "a", anyOf(acme, []byte("a"))), resourceOf("1", "b", anyOf(acme, []byte("b")))
	const spelled, respelled = xdstpFoo + "?a=1&b=2", xdstpFoo + "?b=2&a=1" // of one name
	removed := func(names ...string) (out []byte) {
		for _, n := range names {
			out = append(out, bytesField(6, n)...)
		}
		return out
	}
	tests := []struct {
		name string
		msg  []byte
		want string // the name in the error, "" for no error
	}{
		{"distinct", join(updateOf(acme, a, b), removed("c", "d")), ""},
		{"resource twice", updateOf(acme, a, b, a), `"a"`},
		{"resource twice, other content", updateOf(acme, b, resourceOf("2", "b", anyOf(acme, nil))), `"b"`},
		{"removed twice", join(updateOf(acme, a), removed("c", "d", "c")), `"c"`},
		{"in both lists", join(updateOf(acme, a, b), removed("b")), `"b"`},
		{"in both lists, removed first on the wire", join(removed("b"), updateOf(acme, a, b)), `"b"`},
		{"alias equals another name", updateOf(acme, a, join(b, bytesField(4, "a"))), ""},
		{"case matters", join(updateOf(acme, a), removed("A")), ""},
		{"heartbeat and content", updateOf(acme, a, bytesField(3, "a")), `"a"`},
		{"resource twice, two spellings", updateOf(acme, resourceOf("1", spelled, anyOf(acme, nil)),
			resourceOf("1", respelled, anyOf(acme, nil))), spelled},
		{"removed twice, two spellings", join(updateOf(acme), removed(spelled, respelled)), spelled},
		{"in both lists, two spellings", join(updateOf(acme, resourceOf("1", spelled, anyOf(acme, nil))),
			removed(respelled)), spelled},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			u, err := wire.Decoder{}.Decode(tt.msg)
			if tt.want == "" {
				if err != nil {
					t.Fatalf("Decode: %v", err)
				}
				return
			}
			if !errors.Is(err, wire.ErrDuplicate) || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("Decode: got error %v, want ErrDuplicate with the name %s", err, tt.want)
			}
			wantRefusable(t, u, acme)
		})
	}
}

func TestR063_TypeMismatch(t *testing.T) {
	tests := []struct {
		name          string
		response, any string
		want          error
	}{
		{"same", wire.ClusterType, wire.ClusterType, nil},
		{"other known type", wire.ClusterType, wire.ListenerType, wire.ErrTypeMismatch},
		{"unknown type", wire.ClusterType, acme, wire.ErrTypeMismatch},
		{"known type in unknown", acme, wire.ClusterType, wire.ErrTypeMismatch},
		{"no type", wire.ClusterType, "", wire.ErrTypeMismatch},
		{"other prefix", wire.ClusterType, "example.com/envoy.config.cluster.v3.Cluster", wire.ErrTypeMismatch},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			u, err := wire.Decoder{}.Decode(updateOf(tt.response, resourceOf("1", "shop", anyOf(tt.any, nil))))
			if !errors.Is(err, tt.want) {
				t.Fatalf("Decode: got error %v, want %v", err, tt.want)
			}
			wantRefusable(t, u, tt.response)
			if err != nil && (!strings.Contains(err.Error(), tt.any) || !strings.Contains(err.Error(), `"shop"`)) {
				t.Errorf("error %q does not contain type %q and name shop", err, tt.any)
			}
		})
	}
}

func TestB22_EmptyNames(t *testing.T) {
	known := []string{
		wire.ListenerType, wire.ClusterType, wire.RouteType, wire.ScopedRouteType, wire.VirtualHostType, wire.EndpointType,
		wire.LocalityEndpoint, wire.SecretType, wire.RuntimeType, wire.ExtensionConfigType,
	}
	for _, typeURL := range known {
		u, err := wire.Decoder{}.Decode(updateOf(typeURL, resourceOf("1", "", anyOf(typeURL, nil))))
		if !errors.Is(err, wire.ErrUnnamed) || !strings.Contains(err.Error(), typeURL) {
			t.Errorf("%s: got error %v, want ErrUnnamed with the type", typeURL, err)
		}
		wantRefusable(t, u, typeURL)
		if _, err := wire.NewResource(typeURL, "", "1", nil); !errors.Is(err, wire.ErrUnnamed) {
			t.Errorf("NewResource(%s): got error %v, want ErrUnnamed", typeURL, err)
		}
	}
	if r := decodeOne(t, acme, resourceOf("1", "", anyOf(acme, []byte("x")))); r.Name != "" || string(r.Value()) != "x" {
		t.Errorf("unknown type: got name %q value %q, want no name and x", r.Name, r.Value())
	}
	unnamed := resourceOf("1", "", anyOf(acme, nil))
	if _, err := (wire.Decoder{}).Decode(updateOf(acme, unnamed, unnamed)); !errors.Is(err, wire.ErrDuplicate) {
		t.Errorf("two without a name: got error %v, want ErrDuplicate", err)
	}
}

// TestB9_LargeResources: a resource larger than the limit is decoded and has a Refusal. A resource of exactly the limit
// has none.
func TestB9_LargeResources(t *testing.T) {
	fits := resourceOf("1", "fits", anyOf(wire.ClusterType, make([]byte, 1000)))
	large := resourceOf("1", "large", anyOf(wire.ClusterType, make([]byte, 1000)))
	u, err := wire.Decoder{MaxResourceBytes: len(fits)}.Decode(updateOf(wire.ClusterType, fits, large))
	if err != nil {
		t.Fatal(err)
	}
	if len(u.Resources) != 2 || u.Resources[0].Refusal != nil || u.Resources[1].Name != "large" {
		t.Fatalf("decoded %+v, want two resources, the first without a Refusal", u.Resources)
	}
	want := fmt.Sprintf("the resource has %d bytes; at most %d are allowed", len(large), len(fits))
	if e := u.Resources[1].Refusal; e == nil || e.Name != "large" || e.Code != codes.Internal || e.Message != want {
		t.Errorf("large resource: Refusal %+v, want INTERNAL: %s", e, want)
	}
	if refused := slices.Collect(u.Refusals()); len(refused) != 1 || refused[0] != u.Resources[1] {
		t.Errorf("Refusals: %v, want the large resource", refused)
	}
}

func TestNotUTF8IsRejected(t *testing.T) {
	res := func(body []byte) []byte { return updateOf(acme, body) }
	body := anyOf(acme, nil)
	tests := map[string][]byte{
		"system version":                   join(updateOf(acme), bytesField(1, notUTF8)),
		"system version before all others": join(bytesField(1, notUTF8), updateOf(acme)),
		"removed name":                     join(bytesField(6, notUTF8), updateOf(acme)),
		"resource name":                    res(resourceOf("1", notUTF8, body)),
		"resource version":                 res(resourceOf(notUTF8, "a", body)),
		"alias":                            res(join(resourceOf("1", "a", body), bytesField(4, notUTF8))),
		"body type URL":                    res(resourceOf("1", "a", join(bytesField(1, notUTF8), bytesField(1, acme)))),
		"metadata key": res(join(resourceOf("1", "a", body),
			bytesField(9, bytesField(1, bytesField(1, notUTF8))))),
		"resource_name": res(join(resourceOf("1", "a", body), bytesField(8, bytesField(1, notUTF8)))),
	}
	for name, msg := range tests {
		t.Run(name, func(t *testing.T) {
			if err := proto.Unmarshal(msg, new(discoverypb.DeltaDiscoveryResponse)); err == nil {
				t.Fatal("test setup: the generated decoder accepts the input")
			}
			u, err := wire.Decoder{}.Decode(msg)
			if !errors.Is(err, wire.ErrMalformed) {
				t.Fatalf("Decode: got error %v, want ErrMalformed", err)
			}
			wantRefusable(t, u, acme)
		})
	}
	t.Run("nonce", func(t *testing.T) {
		u, err := wire.Decoder{}.Decode(join(bytesField(4, acme), bytesField(5, notUTF8)))
		if !errors.Is(err, wire.ErrMalformed) || u.TypeURL != acme || u.Nonce != "" {
			t.Errorf("got %+v, %v, want ErrMalformed and no nonce", u, err)
		}
	})
	t.Run("type URL", func(t *testing.T) {
		u, err := wire.Decoder{}.Decode(join(bytesField(4, notUTF8), bytesField(5, "nonce-1")))
		if !errors.Is(err, wire.ErrMalformed) || u.TypeURL != "" || u.Nonce != "nonce-1" {
			t.Errorf("got %+v, %v, want ErrMalformed and no type URL", u, err)
		}
	})
	// Bytes need not be UTF-8: a value is not checked.
	if r := decodeOne(t, acme, resourceOf("1", "a", anyOf(acme, []byte(notUTF8)))); string(r.Value()) != notUTF8 {
		t.Errorf("value: got %q, want %q", r.Value(), notUTF8)
	}
}

// wantRefusable checks that the update can be rejected with a NACK (Decoder.Decode).
func wantRefusable(t *testing.T, u wire.Update, typeURL string) {
	t.Helper()
	if u.TypeURL != typeURL || u.Nonce != "nonce-1" {
		t.Errorf("got type %q nonce %q, want %q and nonce-1", u.TypeURL, u.Nonce, typeURL)
	}
}

func TestMalformedUpdateKeepsTypeAndNonce(t *testing.T) {
	body := anyOf(acme, []byte("v"))
	split := func(first, second string) []byte {
		return join(bytesField(3, "a"), bytesField(2, first), bytesField(2, second))
	}
	whole := string(anyOf(acme, []byte("v")))
	noField := protowire.AppendVarint(protowire.AppendVarint(nil, uint64(protowire.MaxValidNumber+1)<<3), 1)
	tests := map[string][]byte{
		"resource is garbage":          []byte("\xff\xff\xff"),
		"body is garbage":              resourceOf("1", "a", []byte{0x0a}),
		"body ends a group":            resourceOf("1", "a", join(body, []byte{0x1c})),
		"body has field 0":             resourceOf("1", "a", join(body, []byte{0x00, 0x00})),
		"body has a field too large":   resourceOf("1", "a", join(body, noField)),
		"ttl is garbage":               join(resourceOf("1", "a", body), bytesField(6, "\x08")),
		"cache control is garbage":     join(resourceOf("1", "a", body), bytesField(7, "\x08")),
		"resource_name is garbage":     join(resourceOf("1", "a", body), bytesField(8, "\x0a\x05")),
		"metadata is garbage":          join(resourceOf("1", "a", body), bytesField(9, "\x0a\x05")),
		"bodies whole only when added": split(whole[:9], whole[9:]),
	}
	for name, resource := range tests {
		t.Run(name, func(t *testing.T) {
			msg := updateOf(acme, resourceOf("1", "good", body), resource)
			if err := proto.Unmarshal(msg, new(discoverypb.DeltaDiscoveryResponse)); err == nil {
				t.Fatal("test setup: the generated decoder accepts the input")
			}
			u, err := wire.Decoder{}.Decode(msg)
			if !errors.Is(err, wire.ErrMalformed) {
				t.Fatalf("Decode(%q): got error %v, want ErrMalformed", msg, err)
			}
			wantRefusable(t, u, acme)
		})
	}
	for typeURL, msg := range map[string][]byte{"": bytesField(5, "nonce-1"),
		acme: join(updateOf(acme), bytesField(7, "\x0a\x05"))} {
		u, err := wire.Decoder{}.Decode(msg)
		if !errors.Is(err, wire.ErrMalformed) {
			t.Errorf("no type URL, or a malformed control plane: got error %v, want ErrMalformed", err)
		}
		wantRefusable(t, u, typeURL)
	}
}

// TestTruncatedUpdate truncates a message at every byte: the whole message, and each of its resources, bodies and
// wrappers inside a complete message.
func TestTruncatedUpdate(t *testing.T) {
	for _, u := range []*discoverypb.DeltaDiscoveryResponse{richUpdate(), clusterUpdate(t)} {
		whole := marshal(t, u)
		for i := range whole {
			checkTruncated(t, whole[:i])
		}
		resource := marshal(t, u.GetResources()[0])
		for i := range resource {
			checkTruncated(t, updateOf(u.GetTypeUrl(), resource[:i]))
		}
		body := marshal(t, u.GetResources()[0].GetResource())
		for i := range body {
			checkTruncated(t, updateOf(u.GetTypeUrl(), resourceOf("1", "a", body[:i])))
		}
		metadata := marshal(t, u.GetResources()[0].GetMetadata())
		for i := range metadata {
			checkTruncated(t, updateOf(u.GetTypeUrl(), join(resourceOf("1", "a", body), bytesField(9, metadata[:i]))))
		}
	}
}

// checkTruncated compares the error with that of the generated decoder.
func checkTruncated(t *testing.T, msg []byte) {
	t.Helper()
	checkUpdate(t, wire.Decoder{}, msg)
	refused := proto.Unmarshal(msg, new(discoverypb.DeltaDiscoveryResponse))
	if _, err := (wire.Decoder{}).Decode(msg); refused != nil && !errors.Is(err, wire.ErrMalformed) {
		t.Errorf("Decode(%q): got error %v, want ErrMalformed: %v", msg, err, refused)
	}
}

// TestDeepNesting: the decoder accepts a resource, a removal and an error at the deepest nesting that a client accepts in
// a response, and not one level more.
func TestDeepNesting(t *testing.T) {
	for _, tt := range []struct {
		name   string
		levels int // of the deepest that is accepted, around the constraints
		update func(full []byte) []byte
	}{
		{"resource", 4, func(full []byte) []byte { return updateOf(acme, bytesField(8, full)) }},
		{"removal", 3, func(full []byte) []byte { return join(updateOf(acme), bytesField(8, full)) }},
		{"error", 4, func(full []byte) []byte { return join(updateOf(acme), bytesField(9, bytesField(1, full))) }},
	} {
		msg := func(levels int) []byte {
			return tt.update(join(bytesField(1, "deep"), bytesField(2, constraintsOf(levels))))
		}
		deepest := protowire.DefaultRecursionLimit - tt.levels
		u, err := wire.Decoder{}.Decode(msg(deepest))
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		checkRelay(t, u)
		_, err = wire.Decoder{}.Decode(msg(deepest + 1))
		refused := proto.Unmarshal(msg(deepest+1), new(discoverypb.DeltaDiscoveryResponse))
		if !errors.Is(err, wire.ErrMalformed) || refused == nil {
			t.Errorf("%s, one more level: Decode %v, and a client %v, want both to reject it", tt.name, err, refused)
		}
	}
}

// constraintsOf returns encoded DynamicParameterConstraints with this number of levels. Each byte is written once.
func constraintsOf(levels int) []byte {
	const notConstraints = 4
	var heads [][]byte // of the fields, from the innermost on
	size := 0
	for range levels {
		head := protowire.AppendVarint(protowire.AppendTag(nil, notConstraints, protowire.BytesType), uint64(size))
		heads = append(heads, head)
		size += len(head)
	}
	slices.Reverse(heads)
	return bytes.Join(heads, nil)
}

func TestRank(t *testing.T) {
	order := []string{ // B.11
		wire.ClusterType, wire.EndpointType, wire.LocalityEndpoint, wire.SecretType, wire.ExtensionConfigType,
		wire.RuntimeType,
		wire.ListenerType, wire.ScopedRouteType, wire.RouteType, wire.VirtualHostType, acme,
	}
	for i := 1; i < len(order); i++ {
		if wire.Rank(order[i-1]) >= wire.Rank(order[i]) {
			t.Errorf("rank of %s is %d, not before %s, %d", order[i-1], wire.Rank(order[i-1]), order[i], wire.Rank(order[i]))
		}
	}
	for i, typeURL := range order {
		if got, want := wire.Known(typeURL), i < len(order)-1; got != want {
			t.Errorf("Known(%s): got %t, want %t", typeURL, got, want)
		}
	}
	if wire.Rank(acme) != wire.Rank("") {
		t.Error("unknown types differ in rank")
	}
}

package wire_test

import (
	"bytes"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache/wire"
)

// FuzzDecodeRequest compares the request decoder with the generated decoder, for both requests.
func FuzzDecodeRequest(f *testing.F) {
	for _, seed := range requestSeeds(f) {
		f.Add(seed, true)
		f.Add(seed, false)
	}
	f.Fuzz(func(t *testing.T, msg []byte, delta bool) { checkRequest(t, msg, delta) })
}

func richDeltaRequest() *discoverypb.DeltaDiscoveryRequest {
	return &discoverypb.DeltaDiscoveryRequest{
		Node:                     richNode(),
		TypeUrl:                  wire.EndpointType,
		ResourceNamesSubscribe:   []string{"a", "b", "a"},
		ResourceNamesUnsubscribe: []string{"c", wire.Wildcard},
		ResourceLocatorsSubscribe: []*discoverypb.ResourceLocator{{Name: "d",
			DynamicParameters: map[string]string{"k": "v"}}, {}},
		ResourceLocatorsUnsubscribe: []*discoverypb.ResourceLocator{{Name: "e"}},
		InitialResourceVersions:     map[string]string{"a": "1", "b": "", "": "2"},
		ResponseNonce:               "nonce-1",
		ErrorDetail:                 &statuspb.Status{Code: -3, Message: "no such thing"},
	}
}

func richSotWRequest() *discoverypb.DiscoveryRequest {
	return &discoverypb.DiscoveryRequest{
		Node:             richNode(),
		TypeUrl:          wire.EndpointType,
		VersionInfo:      "7",
		ResourceNames:    []string{"a", "b", "a"},
		ResourceLocators: []*discoverypb.ResourceLocator{{Name: "d"}},
		ResponseNonce:    "nonce-1",
		ErrorDetail:      &statuspb.Status{Code: 3, Message: "no such thing"},
	}
}

func richNode() *corepb.Node {
	return &corepb.Node{
		Id: "envoy-1", Cluster: "shop", UserAgentName: "envoy",
		Locality: &corepb.Locality{Region: "eu", Zone: "eu-1"}, ClientFeatures: []string{"xds.config.resource-in-sotw"},
		Extensions: []*corepb.Extension{{Name: "envoy.filters.http.router", Category: "envoy.filters.http"}},
	}
}

// manyNames returns the names of a request of either variant, with a field of another number between them. Depending on
// size, they are decoded into shared strings or are too long for that.
func manyNames(n, size int) (msg []byte) {
	for i := range n {
		msg = append(msg, bytesField(3, strings.Repeat(string(rune('a'+i%26)), 1+(i*size)%(2*size)))...)
		if i == n/2 {
			msg = append(msg, bytesField(4, "c")...)
		}
	}
	return append(msg, bytesField(3, "last")...)
}

func requestSeeds(tb testing.TB) [][]byte {
	node := marshal(tb, richNode())
	return [][]byte{
		nil,
		marshal(tb, richDeltaRequest()),
		marshal(tb, richSotWRequest()),
		marshal(tb, &discoverypb.DeltaDiscoveryRequest{TypeUrl: acme, ErrorDetail: &statuspb.Status{}}),
		marshal(tb, &discoverypb.DiscoveryRequest{TypeUrl: acme, Node: &corepb.Node{}}),
		join(bytesField(1, node), bytesField(1, ""), bytesField(1, node)),
		join(bytesField(2, node), bytesField(2, node)),
		join(bytesField(5, "\x0a\x01a\x12\x01v"), bytesField(5, "\x12\x01w"), bytesField(5, "\x0a\x01a\x0a\x01b\x08\x01")),
		join(bytesField(6, "\x08\x03"), bytesField(6, "\x12\x01m\x10\x01"),
			bytesField(7, "\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")),
		join(bytesField(7, "\x0a\x01a"), bytesField(8, "\x0a\x01a\x0a\x01b"), bytesField(9, "\x0a")),
		bytesField(3, notUTF8), bytesField(4, notUTF8), bytesField(5, notUTF8), bytesField(6, notUTF8),
		{0x18, 0x01, 0x1b, 0x1c, 0x20, 0x02},
		manyNames(2000, 7), manyNames(40, 100), manyNames(20, 3000),
		{0xf8, 0xff, 0xff, 0xff, 0x1f, 0x01}, // an invalid field number
	}
}

// An oracle is a request that the generated decoder has decoded.
type oracle struct {
	typeURL, nonce, version string
	node                    *corepb.Node
	subscribe, unsubscribe  []string
	initial                 map[string]string
	status                  *statuspb.Status
}

func oracleOf(msg []byte, delta bool) (o oracle, err error) {
	if delta {
		m := new(discoverypb.DeltaDiscoveryRequest)
		err = proto.Unmarshal(msg, m)
		return oracle{
			typeURL: m.GetTypeUrl(), nonce: m.GetResponseNonce(), node: m.GetNode(),
			subscribe:   names(m.GetResourceNamesSubscribe(), m.GetResourceLocatorsSubscribe()),
			unsubscribe: names(m.GetResourceNamesUnsubscribe(), m.GetResourceLocatorsUnsubscribe()),
			initial:     m.GetInitialResourceVersions(), status: m.GetErrorDetail(),
		}, err
	}
	m := new(discoverypb.DiscoveryRequest)
	err = proto.Unmarshal(msg, m)
	return oracle{
		typeURL: m.GetTypeUrl(), nonce: m.GetResponseNonce(), version: m.GetVersionInfo(), node: m.GetNode(),
		subscribe: names(m.GetResourceNames(), m.GetResourceLocators()), status: m.GetErrorDetail(),
	}, err
}

// names returns plain names and those of locators, sorted: the fields may be mixed in a message.
func names(plain []string, locators []*discoverypb.ResourceLocator) []string {
	out := slices.Clone(plain)
	for _, l := range locators {
		out = append(out, l.GetName())
	}
	return slices.Sorted(slices.Values(out))
}

func checkRequest(t *testing.T, msg []byte, delta bool) {
	t.Helper()
	want, refused := oracleOf(msg, delta)
	got := wire.Request{Delta: delta, TypeURL: "stale", Subscribe: []string{"stale"}, Rejected: true}
	input := bytes.Clone(msg)
	err := got.Decode(input)
	for i := range input {
		input[i] ^= 0xff // the request must not share memory with the input
	}
	if err != nil && !errors.Is(err, wire.ErrRequest) {
		t.Fatalf("Decode(%q): error %v does not wrap ErrRequest", msg, err)
	}
	if got.Delta != delta {
		t.Errorf("Decode(%q): Delta became %t", msg, got.Delta)
	}
	if err == nil {
		checkStrings(t, msg, got)
	}
	if refused != nil {
		return
	}
	if err != nil {
		t.Fatalf("Decode(%q): %v, but the generated decoder accepts it", msg, err)
	}
	checkScalars(t, msg, got, want)
	checkNames(t, msg, got, want)
	checkNode(t, msg, got, want)
	again := wire.Request{Delta: delta}
	if err := again.Decode(msg); err != nil || again.NamesSum != got.NamesSum {
		t.Errorf("second Decode(%q): got sum %d, %v, want %d", msg, again.NamesSum, err, got.NamesSum)
	}
}

// checkStrings checks that a message which repeats a string of an accepted request is valid.
func checkStrings(t *testing.T, msg []byte, r wire.Request) {
	t.Helper()
	all := slices.Concat([]string{r.TypeURL, r.Nonce, r.Version, r.ErrorMessage}, r.Subscribe, r.Unsubscribe)
	for name, version := range r.InitialVersions {
		all = append(all, name, version)
	}
	for _, s := range all {
		if !utf8.ValidString(s) {
			t.Errorf("Decode(%q): %q is not UTF-8", msg, s)
		}
	}
}

func checkScalars(t *testing.T, msg []byte, got wire.Request, want oracle) {
	t.Helper()
	if got.TypeURL != want.typeURL || got.Nonce != want.nonce || got.Version != want.version {
		t.Errorf("Decode(%q): got type %q nonce %q version %q, want %q %q %q", msg,
			got.TypeURL, got.Nonce, got.Version, want.typeURL, want.nonce, want.version)
	}
	if got.Rejected != (want.status != nil) || got.ErrorCode != want.status.GetCode() ||
		got.ErrorMessage != wire.WithoutDump(want.status.GetMessage()) {
		t.Errorf("Decode(%q): got rejected %t code %d message %q, want %v", msg,
			got.Rejected, got.ErrorCode, got.ErrorMessage, want.status)
	}
}

func checkNames(t *testing.T, msg []byte, got wire.Request, want oracle) {
	t.Helper()
	if sub := slices.Sorted(slices.Values(got.Subscribe)); !slices.Equal(sub, want.subscribe) {
		t.Errorf("Decode(%q): got subscribe %q, want %q", msg, sub, want.subscribe)
	}
	if unsub := slices.Sorted(slices.Values(got.Unsubscribe)); !slices.Equal(unsub, want.unsubscribe) {
		t.Errorf("Decode(%q): got unsubscribe %q, want %q", msg, unsub, want.unsubscribe)
	}
	if !maps.Equal(got.InitialVersions, want.initial) {
		t.Errorf("Decode(%q): got initial versions %q, want %q", msg, got.InitialVersions, want.initial)
	}
}

func checkNode(t *testing.T, msg []byte, got wire.Request, want oracle) {
	t.Helper()
	if (got.Node != nil) != (want.node != nil) {
		t.Fatalf("Decode(%q): got node %q, want %v", msg, got.Node, want.node)
	}
	if want.node == nil {
		return
	}
	node := new(corepb.Node)
	if err := proto.Unmarshal(got.Node, node); err != nil {
		t.Fatalf("Decode(%q): node: %v", msg, err)
	}
	want.node.Extensions = nil
	wantMessage(t, "node", node, want.node)
}

package wire_test

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache/wire"
)

func decodeRequest(tb testing.TB, m proto.Message) wire.Request {
	tb.Helper()
	_, delta := m.(*discoverypb.DeltaDiscoveryRequest)
	r := wire.Request{Delta: delta}
	if err := r.Decode(marshal(tb, m)); err != nil {
		tb.Fatalf("Decode(%v): %v", m, err)
	}
	return r
}

// TestRequestOrder: decoded lists have the order of the message. Duplicates, and names in both lists, are kept for the
// caller (B.22).
func TestRequestOrder(t *testing.T) {
	r := decodeRequest(t, &discoverypb.DeltaDiscoveryRequest{
		ResourceNamesSubscribe:   []string{"b", "a", "b", wire.Wildcard},
		ResourceNamesUnsubscribe: []string{wire.Wildcard, "a"},
	})
	if want := []string{"b", "a", "b", "*"}; !slices.Equal(r.Subscribe, want) {
		t.Errorf("Subscribe: got %q, want %q", r.Subscribe, want)
	}
	if want := []string{"*", "a"}; !slices.Equal(r.Unsubscribe, want) {
		t.Errorf("Unsubscribe: got %q, want %q", r.Unsubscribe, want)
	}
}

func TestR120_LocatorsAreNames(t *testing.T) {
	locator := &discoverypb.ResourceLocator{Name: "b", DynamicParameters: map[string]string{"env": "prod"}}
	for _, m := range []proto.Message{
		&discoverypb.DiscoveryRequest{ResourceNames: []string{"a"},
			ResourceLocators: []*discoverypb.ResourceLocator{locator}},
		&discoverypb.DeltaDiscoveryRequest{
			ResourceNamesSubscribe: []string{"a"}, ResourceLocatorsSubscribe: []*discoverypb.ResourceLocator{locator},
		},
	} {
		if r := decodeRequest(t, m); !slices.Equal(r.Subscribe, []string{"a", "b"}) {
			t.Errorf("%T: got %q, want a and b", m, r.Subscribe)
		}
	}
}

func TestR029_RejectedByErrorDetailOnly(t *testing.T) {
	tests := []struct {
		name   string
		detail *statuspb.Status
		want   bool
	}{
		{"ACK", nil, false},
		{"NACK", &statuspb.Status{Code: 3, Message: "bad listener"}, true},
		{"NACK with an empty status", &statuspb.Status{}, true},
	}
	for _, tt := range tests {
		for _, m := range []proto.Message{
			&discoverypb.DiscoveryRequest{VersionInfo: "1", ResponseNonce: "n", ErrorDetail: tt.detail},
			&discoverypb.DeltaDiscoveryRequest{ResponseNonce: "n", ErrorDetail: tt.detail},
		} {
			r := decodeRequest(t, m)
			if r.Rejected != tt.want || r.ErrorCode != tt.detail.GetCode() || r.ErrorMessage != tt.detail.GetMessage() {
				t.Errorf("%s, %T: got %t %d %q", tt.name, m, r.Rejected, r.ErrorCode, r.ErrorMessage)
			}
		}
	}
}

func TestRequestInvalidUTF8(t *testing.T) {
	bad := bytesField(1, notUTF8)
	tests := []struct {
		name  string
		delta bool
		msg   []byte
	}{
		{"version", false, bytesField(1, notUTF8)},
		{"name", false, bytesField(3, notUTF8)},
		{"type URL", false, bytesField(4, notUTF8)},
		{"nonce", false, bytesField(5, notUTF8)},
		{"locator", false, bytesField(7, bad)},
		{"type URL", true, bytesField(2, notUTF8)},
		{"subscribe", true, bytesField(3, notUTF8)},
		{"unsubscribe", true, bytesField(4, notUTF8)},
		{"name of an initial version", true, bytesField(5, bad)},
		{"initial version", true, bytesField(5, bytesField(2, notUTF8))},
		{"nonce", true, bytesField(6, notUTF8)},
		{"subscribe locator", true, bytesField(8, bad)},
		{"unsubscribe locator", true, bytesField(9, bad)},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("%s delta=%t", tt.name, tt.delta), func(t *testing.T) {
			if _, err := oracleOf(tt.msg, tt.delta); err == nil {
				t.Fatal("the generated decoder accepts the input of this test")
			}
			r := wire.Request{Delta: tt.delta}
			if err := r.Decode(tt.msg); !errors.Is(err, wire.ErrRequest) {
				t.Errorf("got error %v, want ErrRequest", err)
			}
		})
	}
}

func TestTruncatedRequest(t *testing.T) {
	for _, m := range []proto.Message{richDeltaRequest(), richSotWRequest()} {
		msg := marshal(t, m)
		_, delta := m.(*discoverypb.DeltaDiscoveryRequest)
		for i := range msg {
			checkRequest(t, msg[:i], delta)
			_, rejected := oracleOf(msg[:i], delta)
			r := wire.Request{Delta: delta}
			if err := r.Decode(msg[:i]); (err != nil) != (rejected != nil) {
				t.Errorf("Decode(%q): got error %v, want as the generated decoder: %v", msg[:i], err, rejected)
			}
		}
	}
}

func TestRequestNestedGarbage(t *testing.T) {
	noField := protowire.AppendVarint(protowire.AppendVarint(nil, uint64(protowire.MaxValidNumber+1)<<3), 1)
	for _, garbage := range [][]byte{{0x0a}, {0x0a, 0x05, 'a'}, {0xff}, {0x0c}, noField} {
		for _, num := range []protowire.Number{5, 7, 8, 9} {
			msg := bytesField(num, garbage)
			r := wire.Request{Delta: true}
			if err := r.Decode(msg); !errors.Is(err, wire.ErrRequest) {
				t.Errorf("Decode(%q): got error %v, want ErrRequest", msg, err)
			}
		}
	}
}

func TestNamesSum(t *testing.T) {
	sum := func(m *discoverypb.DiscoveryRequest) uint64 { return decodeRequest(t, m).NamesSum }
	names := func(n ...string) *discoverypb.DiscoveryRequest {
		return &discoverypb.DiscoveryRequest{ResourceNames: n}
	}
	base := sum(names("a", "b"))
	ack := richSotWRequest()
	ack.ResourceNames, ack.ResourceLocators = []string{"a", "b"}, nil
	if got := sum(ack); got != base {
		t.Errorf("same names in another request: got %x, want %x", got, base)
	}
	for name, m := range map[string]*discoverypb.DiscoveryRequest{
		"none":              names(),
		"one less":          names("a"),
		"one more":          names("a", "b", "c"),
		"other order":       names("b", "a"),
		"run together":      names("ab"),
		"boundary moved":    names("ab", ""),
		"as a locator":      {ResourceNames: []string{"a"}, ResourceLocators: []*discoverypb.ResourceLocator{{Name: "b"}}},
		"locator parameter": {ResourceNames: []string{"a", "b"}, ResourceLocators: []*discoverypb.ResourceLocator{{}}},
	} {
		if got := sum(m); got == base {
			t.Errorf("%s: equal sums for different names", name)
		}
	}
	if sum(names()) != sum(&discoverypb.DiscoveryRequest{TypeUrl: acme}) {
		t.Error("no names: sums differ")
	}
}

// TestB35_ManyNamesTakeNoMemory: names beyond the limit are skipped before memory is allocated for them. The smallest
// have two encoded bytes, and would become a string.
func TestB35_ManyNamesTakeNoMemory(t *testing.T) {
	const most, listed = 100, 20_000
	for _, tt := range []struct {
		name  string
		field protowire.Number
		entry string
	}{
		{"resource_names_subscribe", 3, ""},
		{"resource_names_unsubscribe", 4, ""},
		{"initial_resource_versions", 5, "\x0a\x02nn"},
		{"resource_locators_subscribe", 8, "\x0a\x02nn\x12\x08\x0a\x02kk\x12\x02vv"},
		{"resource_locators_unsubscribe", 9, "\x0a\x02nn\x12\x08\x0a\x02kk\x12\x02vv"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var one []byte
			one = protowire.AppendBytes(protowire.AppendTag(one, tt.field, protowire.BytesType), []byte(tt.entry))
			msg := bytes.Repeat(one, listed)
			r := wire.Request{Delta: true, Limits: wire.Limits{MaxNames: most}}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err := r.Decode(msg)
			runtime.ReadMemStats(&after)
			const want = listed - most
			if kept := max(len(r.Subscribe), len(r.Unsubscribe)); err != nil || kept > most || r.Skipped != want {
				t.Errorf("Decode of %d names = %v, keeps %d and skips %d, want %d skipped", listed, err, kept, r.Skipped, want)
			}
			if used := after.Mallocs - before.Mallocs; used > 10*most {
				t.Errorf("Decode of %d names: %d allocations, want at most %d", listed, used, 10*most)
			}
			if used := after.TotalAlloc - before.TotalAlloc; used > 1000*most {
				t.Errorf("Decode of %d names: %d bytes allocated, want at most %d", listed, used, 1000*most)
			}
			if err = r.Decode(msg[:most*len(one)]); err != nil || r.Skipped > 0 {
				t.Errorf("Decode of %d names = %v, skips %d, want none", most, err, r.Skipped)
			}
		})
	}
}

// TestR036_RepeatedNamesAreSkipped: the names of a SotW request are skipped if the previous request of the type had the
// same names, and only then.
func TestR036_RepeatedNamesAreSkipped(t *testing.T) {
	many := func(first, n int) (names []string) {
		for i := range n {
			names = append(names, fmt.Sprint("name-", first+i))
		}
		return names
	}
	var latest wire.LatestNames
	for i, tt := range []struct {
		typeURL string
		names   []string
		leftOut bool
	}{
		{wire.EndpointType, many(0, 100), false},
		{wire.EndpointType, many(0, 100), true},
		{wire.EndpointType, many(0, 100), true},
		{wire.RouteType, many(0, 100), false}, // another type
		{wire.EndpointType, many(1, 100), false},
		{wire.EndpointType, many(0, 100), false}, // equal to an earlier request, but not to the previous one
		{wire.EndpointType, many(0, 3), false},
		{wire.EndpointType, many(0, 3), false}, // short lists are decoded
		{wire.EndpointType, many(0, 100), false},
		{wire.EndpointType, nil, false},
		{wire.EndpointType, many(0, 100), false}, // after a request without a stored hash
		{wire.RouteType, many(0, 100), true},
	} {
		msg := marshal(t, &discoverypb.DiscoveryRequest{TypeUrl: tt.typeURL, ResourceNames: tt.names, ResponseNonce: "1"})
		r := wire.Request{Limits: wire.Limits{Latest: &latest}}
		if err := r.Decode(msg); err != nil {
			t.Fatal(err)
		}
		all := wire.Request{}
		if err := all.Decode(msg); err != nil {
			t.Fatal(err)
		}
		want := tt.names
		if tt.leftOut {
			want = nil
		}
		if r.Repeated != tt.leftOut || !slices.Equal(r.Subscribe, want) || r.NamesSum != all.NamesSum || r.Nonce != "1" ||
			r.TypeURL != tt.typeURL {
			t.Errorf("request %d: %d names, repeated: %t; want %d", i, len(r.Subscribe), r.Repeated, len(want))
		}
	}
}

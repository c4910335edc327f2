package wire_test

import (
	"bytes"
	"testing"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/xdstender/tender/cache/wire"
)

// ttlOf returns an encoded Resource.ttl.
func ttlOf(tb testing.TB, d *durationpb.Duration) []byte {
	tb.Helper()
	return bytesField(6, marshal(tb, d))
}

// TestR104_SharedBytesHaveNoTTL: the shared bytes of a resource have no TTL, at any position in the origin's message.
// Each client is sent its remaining TTL, or none.
func TestR104_SharedBytesHaveNoTTL(t *testing.T) {
	body := anyOf(acme, []byte("content"))
	plain := resourceOf("1", "a", body)
	minute := ttlOf(t, durationpb.New(time.Minute))
	tests := map[string]struct {
		msg  []byte
		want time.Duration
	}{
		"none":    {plain, 0},
		"first":   {join(minute, plain), time.Minute},
		"last":    {join(plain, minute), time.Minute},
		"between": {join(bytesField(1, "1"), minute, bytesField(2, body), bytesField(3, "a")), time.Minute},
		"in parts that add": {join(ttlOf(t, &durationpb.Duration{Seconds: 1}), plain,
			ttlOf(t, &durationpb.Duration{Nanos: 5e8})), 1500 * time.Millisecond},
		"zero":               {join(plain, ttlOf(t, &durationpb.Duration{})), 0},
		"negative":           {join(plain, ttlOf(t, durationpb.New(-time.Second))), 0},
		"more than there is": {join(plain, ttlOf(t, &durationpb.Duration{Seconds: 1 << 40})), 1<<63 - 1},
	}
	for name, tt := range tests {
		r := decodeOne(t, acme, tt.msg)
		if r.TTL != tt.want {
			t.Errorf("%s: got TTL %v, want %v", name, r.TTL, tt.want)
		}
		if want := bytesField(2, plain); !bytes.Equal(r.Field(), want) {
			t.Errorf("%s: got the field %q, want %q", name, r.Field(), want)
		}
		if want := bytesField(2, body); !bytes.Equal(r.Body(), want) {
			t.Errorf("%s: got the body %q, want %q", name, r.Body(), want)
		}
		for _, left := range []time.Duration{0, 1, time.Millisecond, time.Second, 90*time.Second + 1, 300 * 24 * time.Hour} {
			b := wire.NewDeltaBody(acme, "")
			b.Add(r, left)
			got := new(discoverypb.DeltaDiscoveryResponse)
			receive(t, send(t, &wire.Response{Body: b, Nonce: "n"}), got)
			want := &discoverypb.Resource{Name: "a", Version: "1", Resource: &anypb.Any{TypeUrl: acme, Value: []byte("content")}}
			if left > 0 {
				want.Ttl = durationpb.New(left)
			}
			wantMessage(t, name+", "+left.String(), got.GetResources()[0], want)
		}
	}
}

// TestR106_Heartbeat: a heartbeat has a TTL and no content. An unresolved alias has neither.
func TestR106_Heartbeat(t *testing.T) {
	ttl := ttlOf(t, durationpb.New(time.Second))
	alias := bytesField(4, "b")
	tests := map[string]struct {
		msg                   []byte
		heartbeat, unresolved bool
	}{
		"heartbeat":            {join(bytesField(1, "1"), bytesField(3, "a"), ttl), true, false},
		"without a version":    {join(bytesField(3, "a"), ttl), true, false},
		"with aliases":         {join(bytesField(3, "a"), alias, ttl), true, false},
		"content":              {join(resourceOf("1", "a", anyOf(acme, nil)), ttl), false, false},
		"nothing":              {bytesField(3, "a"), false, false},
		"a TTL of nothing":     {join(bytesField(3, "a"), ttlOf(t, &durationpb.Duration{})), false, false},
		"alias that is no one": {join(bytesField(3, "a"), alias), false, true},
	}
	for name, tt := range tests {
		r := decodeOne(t, acme, tt.msg)
		if r.Heartbeat() != tt.heartbeat || r.Unresolved() != tt.unresolved {
			t.Errorf("%s: got heartbeat %t and unresolved %t, want %t and %t", name, r.Heartbeat(), r.Unresolved(),
				tt.heartbeat, tt.unresolved)
		}
	}

	r := decodeOne(t, acme, join(resourceOf("7", "a", anyOf(acme, []byte("x"))), alias, ttl))
	b := wire.NewDeltaBody(acme, "system")
	b.Heartbeat(r, 2500*time.Millisecond)
	got := new(discoverypb.DeltaDiscoveryResponse)
	receive(t, send(t, &wire.Response{Body: b, Nonce: "n"}), got)
	wantMessage(t, "heartbeat", got, &discoverypb.DeltaDiscoveryResponse{
		SystemVersionInfo: "system", TypeUrl: acme, Nonce: "n",
		Resources: []*discoverypb.Resource{{Name: "a", Version: "7", Ttl: durationpb.New(2500 * time.Millisecond)}},
	})
	if b.Len() != 1 {
		t.Errorf("heartbeat: got Len %d, want 1", b.Len())
	}
}

// TestR106_HeartbeatOfContentVersion: a heartbeat has the version that clients received, even if it was made from the
// content.
func TestR106_HeartbeatOfContentVersion(t *testing.T) {
	r := decodeOne(t, acme, resourceOf("", "a", anyOf(acme, []byte("x"))))
	b := wire.NewDeltaBody(acme, "")
	b.Heartbeat(r, time.Second)
	got := new(discoverypb.DeltaDiscoveryResponse)
	receive(t, send(t, &wire.Response{Body: b, Nonce: "n"}), got)
	if v := got.GetResources()[0].GetVersion(); v == "" || v != r.Version {
		t.Errorf("got version %q, want %q", v, r.Version)
	}
}

// TestR111_SotWHasNoHeartbeats: no SotW response contains a resource without content, in any wrapping.
func TestR111_SotWHasNoHeartbeats(t *testing.T) {
	ttl := ttlOf(t, durationpb.New(time.Second))
	for _, msg := range [][]byte{join(bytesField(1, "1"), bytesField(3, "a"), ttl),
		join(bytesField(3, "a"), bytesField(4, "b"))} {
		r := decodeOne(t, acme, msg)
		for _, wrap := range []wire.Wrap{wire.Unwrapped, wire.WrapDetails, wire.WrapAll} {
			b := wire.NewSotWBody(acme, "v", wrap)
			b.Add(r, time.Second)
			got := new(discoverypb.DiscoveryResponse)
			receive(t, send(t, &wire.Response{Body: b, Nonce: "n"}), got)
			if len(got.GetResources()) != 0 || b.Len() != 0 {
				t.Errorf("%v: got %v, want no resource", wrap, got)
			}
		}
	}
}

// TestB19_R110_OnlyInformativeWrappersAreSent: SotW clients are sent a Resource message only if it has fields that they
// need, and if they support it.
func TestB19_R110_OnlyInformativeWrappersAreSent(t *testing.T) {
	body := &anypb.Any{TypeUrl: acme, Value: []byte("content")}
	constraints := envConstraints("prod")
	tests := map[string]struct {
		resource *discoverypb.Resource
		left     time.Duration
		telling  bool // wrapped for all clients that support it
	}{
		"nothing to tell": {&discoverypb.Resource{Name: "a", Version: "1", Resource: body}, 0, false},
		"aliases":         {&discoverypb.Resource{Name: "a", Version: "1", Resource: body, Aliases: []string{"b"}}, 0, false},
		"metadata": {&discoverypb.Resource{Name: "a", Version: "1", Resource: body, Metadata: &corepb.Metadata{}}, 0,
			false},
		"a TTL that is not for the client": {
			&discoverypb.Resource{Name: "a", Version: "1", Resource: body, Ttl: durationpb.New(time.Minute)}, 0, false,
		},
		"a TTL": {&discoverypb.Resource{Name: "a", Version: "1", Resource: body, Ttl: durationpb.New(time.Minute)},
			time.Second, true},
		"do_not_cache": {
			&discoverypb.Resource{Name: "a", Version: "1", Resource: body,
				CacheControl: &discoverypb.Resource_CacheControl{DoNotCache: true}},
			0, true,
		},
		"constraints": {&discoverypb.Resource{
			Version: "1", Resource: body,
			ResourceName: &discoverypb.ResourceName{Name: "a", DynamicParameterConstraints: constraints},
		}, 0, true},
	}
	for name, tt := range tests {
		r := decodeOne(t, acme, marshal(t, tt.resource))
		wraps := map[wire.Wrap]bool{wire.Unwrapped: false, wire.WrapDetails: tt.telling, wire.WrapAll: true}
		for wrap, wrapped := range wraps {
			b := wire.NewSotWBody(acme, "v", wrap)
			b.Add(r, tt.left)
			res := new(discoverypb.DiscoveryResponse)
			receive(t, send(t, &wire.Response{Body: b, Nonce: "n"}), res)
			if len(res.GetResources()) != 1 {
				t.Fatalf("%s: got %v, want one resource", name, res)
			}
			got := res.GetResources()[0]
			if !wrapped {
				wantMessage(t, name, got, body)
				continue
			}
			inner := new(discoverypb.Resource)
			if err := got.UnmarshalTo(inner); err != nil {
				t.Errorf("%s, wrap %v: got %v, want a Resource message: %v", name, wrap, got, err)
				continue
			}
			want := proto.CloneOf(tt.resource)
			if want.Ttl = nil; tt.left > 0 {
				want.Ttl = durationpb.New(tt.left)
			}
			wantMessage(t, name, inner, want)
		}
	}
}

// TestR104_SharedFieldIsNotModified: sending a TTL to one client does not modify the bytes that other clients share.
func TestR104_SharedFieldIsNotModified(t *testing.T) {
	r := decodeOne(t, acme, join(resourceOf("1", "a", anyOf(acme, []byte("x"))), ttlOf(t, durationpb.New(time.Minute))))
	before := bytes.Clone(r.Field())
	for _, left := range []time.Duration{time.Hour, time.Second} {
		for _, b := range []*wire.Body{wire.NewDeltaBody(acme, ""), wire.NewSotWBody(acme, "v", wire.WrapDetails)} {
			b.Add(r, left)
			b.Join()
			if sent := send(t, &wire.Response{Body: b, Nonce: "n"}); len(sent) <= len(before) {
				t.Fatalf("got %d bytes, want more than the %d of the resource", len(sent), len(before))
			}
		}
	}
	if !bytes.Equal(r.Field(), before) {
		t.Errorf("got the field %q, want %q", r.Field(), before)
	}
}

package wire_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"slices"
	"strings"
	"testing"

	endpointpb "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache/wire"
)

var errFull = errors.New("full")

// A purse is a limit on memory, in bytes.
type purse int

func (p *purse) Hold(bytes int) error {
	if bytes > int(*p) {
		return errFull
	}
	*p -= purse(bytes)
	return nil
}

func compressed(t testing.TB, text []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write(text)
	if err = errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestB32_CompressedRequestsAreCharged: a compressed request is decoded if that is allowed. Its decompressed size is
// charged and limited.
func TestB32_CompressedRequestsAreCharged(t *testing.T) {
	msg, err := proto.Marshal(&discoverypb.DeltaDiscoveryRequest{TypeUrl: wire.ClusterType,
		ResponseNonce: strings.Repeat("n", 100_000)})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		limits wire.Limits
		room   purse
		err    error
	}{
		{"not allowed", wire.Limits{MaxBytes: 1 << 20}, 1 << 20, wire.ErrRequest},
		{"allowed", wire.Limits{MaxBytes: 1 << 20, Gzip: true}, 1 << 20, nil},
		{"at the limit", wire.Limits{MaxBytes: len(msg), Gzip: true}, 1 << 20, nil},
		{"too large", wire.Limits{MaxBytes: len(msg) - 1, Gzip: true}, 1 << 20, wire.ErrTooLarge},
		{"not enough memory", wire.Limits{MaxBytes: 1 << 20, Gzip: true}, 90_000, errFull},
	} {
		t.Run(tt.name, func(t *testing.T) {
			sent := compressed(t, msg)
			room := tt.room
			tt.limits.Memory = &room
			r := wire.Request{Delta: true, Limits: tt.limits}
			if err := (wire.Codec{}).Unmarshal(mem.BufferSlice{mem.SliceBuffer(sent)}, &r); err != nil ||
				!errors.Is(r.Err, tt.err) {
				t.Fatalf("Unmarshal: %v, %v, want %v", err, r.Err, tt.err)
			}
			if charged := int(tt.room - room); r.Size != wire.Framed(len(sent))+charged {
				t.Errorf("charged %d bytes, want %d received and %d held", r.Size, wire.Framed(len(sent)), charged)
			}
			if tt.err == nil && (len(r.Nonce) != 100_000 || r.Size < len(msg)) {
				t.Errorf("a nonce of %d bytes, charged %d", len(r.Nonce), r.Size)
			}
		})
	}
	broken := compressed(t, msg)
	if _, err := wire.Inflate(broken[:len(broken)/2], 1<<20, new(purse)); err == nil {
		t.Error("truncated message was decompressed")
	}
}

// TestB35_EntriesAreCharged: the memory of list entries is charged before it is allocated.
func TestB35_EntriesAreCharged(t *testing.T) {
	var msg []byte
	for range 10_000 {
		msg = protowire.AppendString(protowire.AppendTag(msg, 3, protowire.BytesType), "")
	}
	for _, tt := range []struct {
		room purse
		err  error
	}{{10_000*16 - 10_000, nil}, {10_000*16 - 10_000 - 1, errFull}} {
		r := wire.Request{Delta: true, Limits: wire.Limits{Memory: &tt.room}}
		if err := r.Decode(msg); !errors.Is(err, tt.err) || err != nil && cap(r.Subscribe) > 0 {
			t.Errorf("Decode: %v, capacity for %d names; want %v", err, cap(r.Subscribe), tt.err)
		}
	}
}

// TestCountElements compares the counts with the decoded message.
func TestCountElements(t *testing.T) {
	md := new(endpointpb.ClusterStats).ProtoReflect().Descriptor()
	stats := &endpointpb.ClusterStats{ClusterName: "a",
		UpstreamLocalityStats: []*endpointpb.UpstreamLocalityStats{{},
			{LoadMetricStats: []*endpointpb.EndpointLoadMetricStats{{}, {}}}}}
	msg, err := proto.Marshal(stats)
	if err != nil {
		t.Fatal(err)
	}
	for most, want := range map[int]int{100: 5, 5: 5, 3: 4} {
		if n, err := wire.CountElements(md, msg, 10, wire.Elements{Messages: most, Values: 100}); n.Messages != want ||
			err != nil {
			t.Errorf("%d messages, %v; want %d", n.Messages, err, want)
		}
	}
	twice := append(slices.Clone(msg), msg...) // repeats the name
	for most, want := range map[int]int{100: 9, 9: 9, 3: 4} {
		if n, err := wire.CountElements(md, twice, 10, wire.Elements{Messages: 100, Values: most}); n.Values != want ||
			err != nil {
			t.Errorf("%d values, %v; want %d", n.Values, err, want)
		}
	}
	plenty := wire.Elements{Messages: 100, Values: 100}
	if _, err := wire.CountElements(md, msg[:len(msg)-1], 10, plenty); !errors.Is(err, wire.ErrMalformed) {
		t.Errorf("truncated message: %v, want %v", err, wire.ErrMalformed)
	}
	if _, err := wire.CountElements(md, msg, 2, plenty); !errors.Is(err, wire.ErrMalformed) {
		t.Errorf("three nested messages, two allowed: %v, want %v", err, wire.ErrMalformed)
	}
}

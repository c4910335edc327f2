package wire_test

import (
	"errors"
	"slices"
	"testing"

	endpointpb "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
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

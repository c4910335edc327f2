package wire_test

import (
	"fmt"
	"runtime"
	"slices"
	"testing"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// cut returns a message in buffers of a size.
func cut(msg []byte, size int) (data mem.BufferSlice) {
	for piece := range slices.Chunk(msg, size) {
		data = append(data, mem.SliceBuffer(piece))
	}
	return data
}

// TestR036_RandomRequestsAreDecodedAsWithoutCodec: the codec, which hashes repeated names without parsing them, returns
// what Decode does. Requests of several types repeat their names, change them, and have further fields before, after and
// between them.
func TestR036_RandomRequestsAreDecodedAsWithoutCodec(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		byCodec := wire.Request{Limits: wire.Limits{Latest: new(wire.LatestNames)}}
		byDecode := wire.Request{Limits: wire.Limits{Latest: new(wire.LatestNames)}}
		for range rapid.IntRange(1, 12).Draw(t, "requests") {
			m := &discoverypb.DiscoveryRequest{
				TypeUrl:       rapid.SampledFrom([]string{wire.EndpointType, wire.RouteType, ""}).Draw(t, "type"),
				ResponseNonce: rapid.SampledFrom([]string{"", "1", "23"}).Draw(t, "nonce"),
				VersionInfo:   rapid.SampledFrom([]string{"", "v"}).Draw(t, "version"),
			}
			first := rapid.IntRange(0, 2).Draw(t, "first name")
			for i := range rapid.SampledFrom([]int{0, 3, 32, 100, 1000}).Draw(t, "names") {
				m.ResourceNames = append(m.ResourceNames, fmt.Sprint("name-", first+i))
			}
			if rapid.Bool().Draw(t, "node") {
				m.Node = &corepb.Node{Id: "n"}
			}
			if rapid.Bool().Draw(t, "error") {
				m.ErrorDetail = &statuspb.Status{Code: 3, Message: rapid.SampledFrom([]string{"no", string(words(5000))}).Draw(t, "message")}
			}
			msg := check.Must(proto.Marshal(m))
			switch rapid.IntRange(0, 5).Draw(t, "end") {
			case 0:
				msg = append(msg, bytesField(3, "another-name")...)
			case 1:
				msg = append(msg, 0xff)
			}
			data := cut(msg, rapid.SampledFrom([]int{1, 7, 100, 16 << 10}).Draw(t, "buffer"))
			check.OK(t, wire.Codec{}.Unmarshal(data, &byCodec))
			byDecode.Size = wire.Framed(len(msg))
			byDecode.Err = byDecode.Decode(msg)
			got, want := byCodec, byDecode
			got.Limits, want.Limits = wire.Limits{}, wire.Limits{}
			if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want) {
				t.Fatalf("the codec returns %+v, want %+v", got, want)
			}
		}
	})
}

// TestR036_RepeatedNamesAreNotCopied: a request that repeats its names takes no memory for them.
func TestR036_RepeatedNamesAreNotCopied(t *testing.T) {
	m := &discoverypb.DiscoveryRequest{TypeUrl: wire.EndpointType, VersionInfo: "7", ResponseNonce: "1"}
	for i := range 10_000 {
		m.ResourceNames = append(m.ResourceNames, fmt.Sprint("name-", i))
	}
	data := cut(marshal(t, m), 16<<10)
	r := wire.Request{Limits: wire.Limits{Latest: new(wire.LatestNames)}}
	check.OK(t, wire.Codec{}.Unmarshal(data, &r))
	const times = 100
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range times {
		check.OK(t, wire.Codec{}.Unmarshal(data, &r))
	}
	runtime.ReadMemStats(&after)
	if got := int(after.TotalAlloc-before.TotalAlloc) / times; got > data.Len()/10 || !r.Repeated {
		t.Errorf("a request of %d bytes takes %d bytes, want less than a tenth; repeated %t", data.Len(), got, r.Repeated)
	}
}

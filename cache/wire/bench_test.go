package wire_test

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest/check"
)

func BenchmarkDecodeUpdate(b *testing.B) {
	for _, n := range []int{1, 1000} {
		b.Run(fmt.Sprintf("resources=%d", n), func(b *testing.B) {
			value := bytes.Repeat([]byte{'x'}, 1024)
			var resources [][]byte
			for i := range n {
				resources = append(resources, resourceOf("1", fmt.Sprintf("resource-%04d", i), anyOf(acme, value)))
			}
			msg := updateOf(acme, resources...)
			b.SetBytes(int64(len(msg)))
			b.ReportAllocs()
			for b.Loop() {
				u, err := wire.Decoder{}.Decode(msg)
				if err != nil || len(u.Resources) != n {
					b.Fatalf("got %d resources, %v", len(u.Resources), err)
				}
			}
		})
	}
}

func BenchmarkMarshalResponse(b *testing.B) {
	for _, n := range []int{1, 1000} {
		for _, joined := range []bool{true, false} {
			b.Run(fmt.Sprintf("resources=%d/joined=%t", n, joined), func(b *testing.B) {
				body := bodyOf(b, true, n, 1024)
				if joined {
					body.Join()
				}
				r := &wire.Response{Body: body, Nonce: "0123456789abcdef", ControlPlane: "tender-1"}
				b.ReportAllocs()
				for b.Loop() {
					buf, err := wire.Codec{}.Marshal(r)
					if err != nil {
						b.Fatal(err)
					}
					buf.Free()
				}
			})
		}
	}
}

// BenchmarkSendResponse measures what gRPC does with a response before its transport: with gzip, the pieces are compressed
// already, and gRPC copies them.
func BenchmarkSendResponse(b *testing.B) {
	for _, size := range []int{1 << 10, 100 << 10} {
		for _, gzip := range []bool{false, true} {
			b.Run(fmt.Sprintf("bytes=%d/gzip=%t", size, gzip), func(b *testing.B) {
				body := wire.NewDeltaBody(acme, "7")
				body.Add(check.Must(wire.NewResource(acme, "a", "1", words(size))), 0)
				r := &wire.Response{Body: body.Join(), Nonce: "0123456789abcdef", Gzip: gzip}
				compressor := encoding.GetCompressor("gzip")
				b.ReportAllocs()
				for b.Loop() {
					data := check.Must(wire.Codec{}.Marshal(r))
					if gzip {
						var out mem.BufferSlice
						w := check.Must(compressor.Compress(mem.NewWriter(&out, mem.DefaultBufferPool())))
						for _, piece := range data {
							check.Must(w.Write(piece.ReadOnlyData()))
						}
						check.OK(b, w.Close())
						out.Free()
					}
					data.Free()
				}
			})
		}
	}
}

func BenchmarkDecodeRequest(b *testing.B) {
	m := &discoverypb.DiscoveryRequest{TypeUrl: wire.EndpointType, VersionInfo: "7", ResponseNonce: "0123456789abcdef"}
	for i := range 100 {
		m.ResourceNames = append(m.ResourceNames, fmt.Sprintf("outbound|80||service-%03d.shop.svc.cluster.local", i))
	}
	msg := marshal(b, m)
	b.SetBytes(int64(len(msg)))
	b.ReportAllocs()
	for b.Loop() {
		var r wire.Request
		if err := r.Decode(msg); err != nil || len(r.Subscribe) != 100 {
			b.Fatalf("got %d names, %v", len(r.Subscribe), err)
		}
	}
}

// BenchmarkDecodeACK measures an ACK without names, decoded into the request of its stream.
func BenchmarkDecodeACK(b *testing.B) {
	msg := marshal(b, &discoverypb.DeltaDiscoveryRequest{TypeUrl: wire.ClusterType, ResponseNonce: "17"})
	r := wire.Request{Delta: true}
	b.ReportAllocs()
	for b.Loop() {
		if err := r.Decode(msg); err != nil || r.Nonce != "17" {
			b.Fatalf("got %+v, %v", r, err)
		}
	}
}

// BenchmarkDecodeRepeatedNames measures an ACK that repeats all names, with the names decoded or skipped. It arrives in
// frames of 16 KiB.
func BenchmarkDecodeRepeatedNames(b *testing.B) {
	for _, names := range []int{1000, 10_000} {
		m := &discoverypb.DiscoveryRequest{TypeUrl: wire.EndpointType, VersionInfo: "7", ResponseNonce: "0123456789abcdef"}
		for i := range names {
			m.ResourceNames = append(m.ResourceNames, fmt.Sprintf("outbound|80||service-%05d.shop.svc.cluster.local", i))
		}
		data := cut(marshal(b, m), 16<<10)
		for _, latest := range []*wire.LatestNames{nil, new(wire.LatestNames)} {
			b.Run(fmt.Sprintf("names=%d/left_out=%t", names, latest != nil), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					r := wire.Request{Limits: wire.Limits{Latest: latest}}
					if err := (wire.Codec{}).Unmarshal(data, &r); err != nil || r.Err != nil {
						b.Fatal(err, r.Err)
					}
				}
			})
		}
	}
}

// BenchmarkDecodeLargeRequest decodes requests with 10,000 names in one goroutine per core. The 1 MiB buffers of the
// default pool were not measurably faster, and took five times the memory of the request.
func BenchmarkDecodeLargeRequest(b *testing.B) {
	names := make([]string, 10_000)
	for i := range names {
		names[i] = fmt.Sprint("invented-", i)
	}
	encoded, err := proto.Marshal(&discoverypb.DeltaDiscoveryRequest{TypeUrl: wire.EndpointType,
		ResourceNamesSubscribe: names})
	if err != nil {
		b.Fatal(err)
	}
	var frames mem.BufferSlice
	for frame := range slices.Chunk(encoded, 16<<10) {
		frames = append(frames, mem.SliceBuffer(frame))
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			r := wire.Request{Delta: true}
			if err := (wire.Codec{}).Unmarshal(frames, &r); err != nil || r.Err != nil {
				b.Error(err, r.Err)
			}
		}
	})
}

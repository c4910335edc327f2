package downstream

import (
	"compress/gzip"
	"io"
	"os"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// stockNode returns the recorded Node of an Envoy 1.40.0 whose bootstrap sets only id and cluster. It has 61,090 bytes,
// of which 516 extensions take 60,916.
func stockNode(tb testing.TB) []byte {
	tb.Helper()
	f := check.Must(os.Open("testdata/node-envoy-1.40.0.pb.gz"))
	defer func() { _ = f.Close() }() // read only
	r := check.Must(gzip.NewReader(f))
	raw := check.Must(io.ReadAll(r))
	return raw
}

// firstRequest returns the encoded first request of a Delta client with a Node.
func firstRequest(encodedNode []byte) []byte {
	msg := protowire.AppendTag(nil, 1, protowire.BytesType)
	msg = protowire.AppendBytes(msg, encodedNode)
	msg = protowire.AppendTag(msg, 2, protowire.BytesType)
	return protowire.AppendString(msg, wire.ClusterType)
}

// BenchmarkJoin measures the cost of decoding the first request of a stock Envoy and resolving its Node.
func BenchmarkJoin(b *testing.B) {
	view, _ := cache.New(cache.Config{})
	server := check.Must(New(Config{Views: oneView{view}}))
	msg := firstRequest(stockNode(b))
	b.ReportAllocs()
	for b.Loop() {
		s := &stream{server: server, cfg: &server.cfg, rpc: discardClient{}, delta: true}
		r := &wire.Request{Delta: true}
		check.OK(b, r.Decode(msg))
		check.OK(b, s.handleNow(r, time.Now()))
		s.close()
	}
}

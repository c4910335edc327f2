//go:build unix

package main

import (
	"context"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/instance"
)

// crowd is the number of clients of the benchmark.
const crowd = 10_000

// BenchmarkCrowd runs commands about the clients of a relay that has 10,000 of them, each with the clusters and listeners. The
// time includes that of the relay, which shares the process. TestB30_ListingLocksOneStream verifies that clients are served
// meanwhile.
func BenchmarkCrowd(b *testing.B) {
	o := relaytest.NewOrigin(b, relaytest.OriginOptions{Memory: true})
	for i := range 50 {
		name := fmt.Sprint("c", i)
		o.Put(relaytest.Cluster(name), relaytest.Listener(name, name))
	}
	r := startRemote(b, instance.Options{Origins: []*relaytest.Origin{o}})
	const perConnection = 100
	for i := range crowd / perConnection {
		conn, err := grpc.NewClient(r.target, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
				return memory.dial(ctx, "tcp", address)
			}))
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = conn.Close() })
		for k := range perConnection {
			acceptAll(b, conn, fmt.Sprintf("edge-%d-%d", i, k))
		}
	}
	for _, args := range []string{
		"wait --settle 0s --clients 10000", "clients", "clients -o json", "clients --state behind", "clients --zone b", "clients edge-7-7",
	} {
		b.Run(strings.ReplaceAll(args, " ", "_"), func(b *testing.B) {
			began := cpuTime(b)
			for b.Loop() {
				if code, stdout, stderr := execute(strings.Fields(args)...); code != exitOK {
					b.Fatal(code, stdout, stderr)
				}
			}
			b.ReportMetric((cpuTime(b)-began).Seconds()*1000/float64(b.N), "cpu-ms/op")
		})
	}
}

// cpuTime returns the CPU time of the process. Unlike the time of a command, it does not depend on what else the machine does.
func cpuTime(b *testing.B) time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// acceptAll opens a stream of a client that subscribes to all clusters and listeners, and accepts them.
func acceptAll(b *testing.B, conn *grpc.ClientConn, id string) {
	stream, err := discoverypb.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	node := relaytest.EnvoyNode(id)
	for _, typeURL := range []string{relaytest.ClusterType, relaytest.ListenerType} {
		ask := &discoverypb.DeltaDiscoveryRequest{Node: node, TypeUrl: typeURL}
		if err := stream.Send(ask); err != nil {
			b.Fatal(err)
		}
		answer, err := stream.Recv()
		if err != nil {
			b.Fatal(err)
		}
		if err := stream.Send(&discoverypb.DeltaDiscoveryRequest{TypeUrl: typeURL, ResponseNonce: answer.GetNonce()}); err != nil {
			b.Fatal(err)
		}
	}
}

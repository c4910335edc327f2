package conformance_test

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/xdstender/tender/relay"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/instance"
)

// A manyStream is an aggregated stream with little memory at the client.
type manyStream struct {
	grpc.ClientStream
	variant relaytest.Variant
}

// manyOpen opens a stream, and subscribes to all clusters and to one endpoint resource.
func manyOpen(ctx context.Context, t *testing.T, conn *grpc.ClientConn, v relaytest.Variant,
	endpoints string) manyStream {
	t.Helper()
	rpc, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, v.Method(""),
		grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	for _, req := range []proto.Message{manyFirst(v), newRequest(v, typeEDS, "", endpoints)} {
		if err := rpc.SendMsg(req); err != nil {
			t.Fatal(err)
		}
	}
	return manyStream{rpc, v}
}

// manyFirst returns the first request of a stream, for all clusters.
func manyFirst(v relaytest.Variant) proto.Message {
	clusters, node := newRequest(v, typeCDS, "", "*"), relaytest.EnvoyNode("many")
	switch req := clusters.(type) {
	case *discoverypb.DiscoveryRequest:
		req.Node = node
	case *discoverypb.DeltaDiscoveryRequest:
		req.Node = node
	}
	return clusters
}

// A manyResponse is the part of a response that the test uses.
type manyResponse interface {
	proto.Message
	GetTypeUrl() string
	GetNonce() string
}

// receive receives a response, and returns its number of resources.
func (s manyStream) receive() (got manyResponse, resources int, err error) {
	got = new(discoverypb.DiscoveryResponse)
	if s.variant == relaytest.Delta {
		got = new(discoverypb.DeltaDiscoveryResponse)
	}
	if err := s.RecvMsg(got); err != nil {
		return nil, 0, err
	}
	list := got.ProtoReflect().Get(got.ProtoReflect().Descriptor().Fields().ByName("resources")).List()
	return got, list.Len(), nil
}

// recvAndAck receives a response of a type with one resource, and ACKs it.
func (s manyStream) recvAndAck(t *testing.T, typeURL string, names ...string) {
	t.Helper()
	got, resources, err := s.receive()
	if err != nil {
		t.Fatal(err)
	}
	if got.GetTypeUrl() != typeURL || resources != 1 {
		t.Fatalf("got %d resources of %s, want 1 of %s", resources, got.GetTypeUrl(), typeURL)
	}
	if s.variant == relaytest.Delta {
		names = nil
	}
	if err := s.SendMsg(newRequest(s.variant, typeURL, got.GetNonce(), names...)); err != nil {
		t.Fatal(err)
	}
}

// manyGoroutines returns the number of goroutines in the test's bubble, without those of the runtime.
func manyGoroutines() int {
	for size := 1 << 20; ; size *= 2 {
		stacks := make([]byte, size)
		if n := runtime.Stack(stacks, true); n < size {
			return bytes.Count(stacks[:n], []byte(", synctest bubble "))
		}
	}
}

// Ended streams leave no goroutines or memory, whether they were cancelled before or after a response,
// half-closed, or lost their connection.
func TestC12_EndedStreamsAreReleased(t *testing.T) {
	const (
		rounds, streams = 6, 160
		maxBytes        = 50 // bytes per stream
	)
	originBubble(t, func(t *testing.T, o *relaytest.Origin) {
		o.Put(relaytest.Cluster("a"), relaytest.Endpoints("e0"))
		r := startMuted(t, o)
		stable := r.Client(relaytest.ClientOptions{AutoAck: true}) // keeps the view alive
		stable.Subscribe(typeCDS, "*")
		round := func() {
			conn, err := grpc.NewClient(r.Target, r.DialOptions...)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			for i := range streams {
				ctx, giveUp := context.WithCancel(ctx)
				defer giveUp()
				rpc := manyOpen(ctx, t, conn, relaytest.Variant(i%2), fmt.Sprint("e", i%10))
				switch way := i / 2 % 4; way {
				case 0:
					giveUp()
				case 1, 2:
					if err := rpc.RecvMsg(new(emptypb.Empty)); err != nil {
						t.Fatal(err)
					}
					if way == 1 {
						giveUp()
					} else if err := rpc.CloseSend(); err != nil {
						t.Fatal(err)
					}
				}
			}
			sleep(time.Minute)
			if n := r.Streams(); n != streams/4+1 {
				t.Fatalf("%d streams are open, want %d", n, streams/4+1)
			}
			if err := conn.Close(); err != nil {
				t.Fatal(err)
			}
			cancel()
			sleep(time.Hour) // longer than every linger
		}
		for range 2 { // until pools and tables have their final size
			round()
		}
		heap, goroutines := heapBytes(), manyGoroutines()
		for range rounds {
			round()
		}
		if n := manyGoroutines(); n != goroutines {
			t.Errorf("got %d goroutines after %d streams, want %d as before", n, rounds*streams, goroutines)
		}
		if grown := heapBytes() - heap; grown > maxBytes*rounds*streams {
			t.Errorf("memory grew by %d bytes after %d streams, want at maxBytes %d", grown, rounds*streams,
				maxBytes*rounds*streams)
		}
	})
}

// A gRPC process opens a stream per target, so a relay has many streams from each of many peers. All are served,
// at a limited cost per stream.
func TestR138_ManyStreamsOfManyPeers(t *testing.T) {
	const (
		peers, each = 40, 10
		maxBytes    = 14 << 10 // bytes of memory per stream, at both ends
	)
	goroutines := 3 // per stream: two of the relay, and one of the client
	if instance.Transport() == relay.TransportADS {
		goroutines = 1
	}
	originBubble(t, func(t *testing.T, o *relaytest.Origin) {
		o.Put(relaytest.Cluster("a"))
		for i := range 10 {
			o.Put(relaytest.Endpoints(fmt.Sprint("e", i)))
		}
		r := startMuted(t, o)
		r.Client(relaytest.ClientOptions{AutoAck: true}).Subscribe(typeCDS, "*")
		time.Sleep(10 * time.Second) // until the sets are complete
		var conns []*grpc.ClientConn
		for range peers {
			conns = append(conns, r.Conn())
		}
		var streams []manyStream
		open := func(n int) {
			for _, conn := range conns {
				for range n {
					endpoints := fmt.Sprint("e", len(streams)%10)
					s := manyOpen(t.Context(), t, conn, relaytest.Variant(len(streams)%2), endpoints)
					s.recvAndAck(t, typeCDS, "*")
					s.recvAndAck(t, typeEDS, endpoints)
					streams = append(streams, s)
				}
			}
			synctest.Wait()
		}
		open(1) // so that connections are not part of the measurement
		heap, before := heapBytes(), manyGoroutines()
		open(each - 1)
		const more = peers * (each - 1)
		if grown := heapBytes() - heap; grown > more*maxBytes {
			t.Errorf("%d streams use %d bytes each, want at maxBytes %d", more, grown/more, maxBytes)
		}
		if grown := manyGoroutines() - before; grown != more*goroutines {
			t.Errorf("%d streams use %d goroutines, want %d each", more, grown, goroutines)
		}
		o.Put(relaytest.Cluster("a", "changed"), relaytest.Endpoints("e1", "127.0.0.1:1"))
		for i, s := range streams {
			s.recvAndAck(t, typeCDS, "*")
			if i%10 == 1 {
				s.recvAndAck(t, typeEDS, "e1")
			}
		}
		if n := r.Streams(); n != peers*each+1 {
			t.Errorf("%d streams are open, want %d", n, peers*each+1)
		}
		if s := o.State(); s.OpenConnections != 1 || s.Type(typeCDS).Requests > 10 {
			t.Errorf("the origin has %d connections and got %d requests for clusters", s.OpenConnections,
				s.Type(typeCDS).Requests)
		}
	})
}

package attack

import (
	"context"
	"fmt"
	"net"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/bench/content"
)

var node = &corepb.Node{Id: "attacker"}

// everything returns an encoded request for all resources of a type.
func everything(typeURL string) []byte {
	b, err := proto.Marshal(&discoverypb.DeltaDiscoveryRequest{Node: node, TypeUrl: typeURL})
	if err != nil {
		panic(err) // cannot happen: all fields are ASCII
	}
	return b
}

// caller returns a gRPC client, and a function that closes its connection.
func (a *attacker) caller(opts ...grpc.DialOption) (discoverypb.AggregatedDiscoveryServiceClient, func(), error) {
	conn, err := a.connect(opts...)
	if err != nil {
		return nil, nil, err
	}
	return discoverypb.NewAggregatedDiscoveryServiceClient(conn), func() { _ = conn.Close() }, nil
}

// connect returns a gRPC connection from the source address of attacks. The caller must close it.
func (a *attacker) connect(opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	return grpc.NewClient(a.address, append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) { return dial(ctx, address) }))...)
}

// smallRequests alternately subscribes to a name and unsubscribes from it.
func (a *attacker) smallRequests() error {
	name := []string{content.Name(content.Cluster, 0)}
	return a.onStreams(50, func() nextRequest { return inAndOut(name) })
}

// inAndOut returns requests that alternately subscribe to names and unsubscribe from them.
func inAndOut(names []string) nextRequest {
	return func(n int) *discoverypb.DeltaDiscoveryRequest {
		r := &discoverypb.DeltaDiscoveryRequest{Node: node, TypeUrl: content.Cluster}
		if n%2 == 0 {
			r.ResourceNamesSubscribe = names
		} else {
			r.ResourceNamesUnsubscribe = names
		}
		return r
	}
}

// A nextRequest returns the nth request of a stream.
type nextRequest func(n int) *discoverypb.DeltaDiscoveryRequest

// onStreams sends requests on a number of streams without waiting for responses. requests is called for each stream.
func (a *attacker) onStreams(streams int, requests func() nextRequest) error {
	client, hangUp, err := a.caller()
	if err != nil {
		return err
	}
	defer hangUp()
	ended := make(chan error, streams)
	for range streams {
		go func() { ended <- a.askAgain(client, requests()) }() // the loop below waits for it
	}
	for range streams {
		err = <-ended
	}
	return err
}

// askAgain opens a stream and sends requests until it ends. It discards the responses.
func (a *attacker) askAgain(client discoverypb.AggregatedDiscoveryServiceClient, request nextRequest) error {
	stream, err := client.DeltaAggregatedResources(a.ctx)
	if err != nil {
		return err
	}
	go func() { // ends with the stream
		for {
			if _, err := stream.Recv(); err != nil {
				return
			}
		}
	}()
	for n := 0; ; n++ {
		if err := stream.Send(request(n)); err != nil {
			return err
		}
	}
}

// tooManyNames repeatedly opens a stream and subscribes to one name more than the limit per stream.
func (a *attacker) tooManyNames() error {
	client, hangUp, err := a.caller()
	if err != nil {
		return err
	}
	defer hangUp()
	r := &discoverypb.DeltaDiscoveryRequest{Node: node, TypeUrl: content.Endpoint, ResourceNamesSubscribe: make([]string, 100_001)}
	for i := range r.ResourceNamesSubscribe {
		r.ResourceNamesSubscribe[i] = fmt.Sprintf("cluster-%d.namespace.svc", i)
	}
	encoded := &grpc.PreparedMsg{}
	for {
		stream, err := client.DeltaAggregatedResources(a.ctx)
		if err != nil {
			return err
		}
		if err := encoded.Encode(stream, r); err != nil {
			return err
		}
		if err := stream.SendMsg(encoded); err != nil {
			return err
		}
		for err == nil {
			_, err = stream.Recv()
		}
		if a.ctx.Err() != nil {
			return err
		}
	}
}

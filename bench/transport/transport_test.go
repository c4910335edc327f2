package transport_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/bench/certs"
	"github.com/xdstender/tender/bench/transport"
)

const path = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"

// ads is a handler that answers each subscription with one response, and records ACKs and closed streams.
type ads struct {
	response []byte
	acks     chan string // nonces
	closed   chan struct{}

	// Guarded by mu.
	mu      sync.Mutex
	streams []*transport.Stream
}

// Open implements transport.Handler.
func (a *ads) Open(s *transport.Stream, p string) error {
	if p != path {
		return transport.Error{Code: int(codes.Unimplemented), Message: "unknown method " + p}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.streams = append(a.streams, s)
	return nil
}

// Message implements transport.Handler.
func (a *ads) Message(s *transport.Stream, b []byte) error {
	var m discoverypb.DeltaDiscoveryRequest
	if err := proto.Unmarshal(b, &m); err != nil {
		return transport.Error{Code: int(codes.InvalidArgument), Message: "not a request"}
	}
	if m.GetResponseNonce() != "" {
		a.acks <- m.GetResponseNonce()
		return nil
	}
	s.Queue(a.response)
	return nil
}

// Closed implements transport.Handler.
func (a *ads) Closed(*transport.Stream) { a.closed <- struct{}{} }

// send sends a response to all streams.
func (a *ads) send(response []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range a.streams {
		s.Conn().SendAll([]*transport.Stream{s}, response)
	}
}

// response returns an encoded response with one resource, whose name has size bytes.
func response(t *testing.T, nonce string, size int) []byte {
	t.Helper()
	b, err := proto.Marshal(&discoverypb.DeltaDiscoveryResponse{
		Nonce: nonce, Resources: []*discoverypb.Resource{{Name: string(bytes.Repeat([]byte("x"), size))}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// newADS returns an ads with a small response.
func newADS(t *testing.T) *ads {
	t.Helper()
	return &ads{response: response(t, "first", 10), acks: make(chan string, 1000), closed: make(chan struct{}, 1000)}
}

// serve starts a server with a new ads as handler.
func serve(t *testing.T, l transport.Limits, config *tls.Config) (a *ads, s *transport.Server, address string) {
	t.Helper()
	a = newADS(t)
	s, address = listen(t, a, l, config)
	return a, s, address
}

// listen starts a server with a given handler. The server runs until the end of the test.
func listen(t *testing.T, h transport.Handler, l transport.Limits, config *tls.Config) (s *transport.Server, address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s = transport.New(h, l, config)
	go func() { _ = s.Serve(listener) }() // until the test closes the listener
	t.Cleanup(func() {
		_ = listener.Close()
		s.Close()
	})
	return s, listener.Addr().String()
}

// dial returns a client of grpc-go, with TLS if config is not nil.
func dial(t *testing.T, address string, config *tls.Config) discoverypb.AggregatedDiscoveryServiceClient {
	t.Helper()
	secure := insecure.NewCredentials()
	if config != nil {
		secure = credentials.NewTLS(config)
	}
	c, err := grpc.NewClient(address, grpc.WithTransportCredentials(secure),
		grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(64<<10),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20), grpc.MaxCallSendMsgSize(64<<20)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return discoverypb.NewAggregatedDiscoveryServiceClient(c)
}

type stream = discoverypb.AggregatedDiscoveryService_DeltaAggregatedResourcesClient

// open opens a stream, and subscribes.
func open(ctx context.Context, t *testing.T, c discoverypb.AggregatedDiscoveryServiceClient) stream {
	t.Helper()
	s, err := c.DeltaAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Send(&discoverypb.DeltaDiscoveryRequest{TypeUrl: "t"}); err != nil {
		t.Fatal(err)
	}
	return s
}

// want receives a response, and checks its nonce and the size of its resource name.
func want(t *testing.T, s stream, nonce string, size int) {
	t.Helper()
	m, err := s.Recv()
	if err != nil {
		t.Fatalf("response %s: %v", nonce, err)
	}
	if m.GetNonce() != nonce || len(m.GetResources()[0].GetName()) != size {
		t.Fatalf("response %q with %d bytes, want %q with %d", m.GetNonce(), len(m.GetResources()[0].GetName()), nonce, size)
	}
}

// wantEnd receives the status of a stream.
func wantEnd(t *testing.T, s stream, code codes.Code) {
	t.Helper()
	_, err := s.Recv()
	if errors.Is(err, io.EOF) {
		err = nil
	}
	if status.Code(err) != code {
		t.Fatalf("stream ended with %v, want %v", err, code)
	}
}

// both runs a test in plaintext and with mutual TLS.
func both(t *testing.T, l transport.Limits, test func(t *testing.T, a *ads, c discoverypb.AggregatedDiscoveryServiceClient)) {
	t.Run("plaintext", func(t *testing.T) {
		a, _, address := serve(t, l, nil)
		test(t, a, dial(t, address, nil))
	})
	t.Run("TLS", func(t *testing.T) {
		set, err := certs.New()
		if err != nil {
			t.Fatal(err)
		}
		server, err1 := set.Server(false)
		client, err2 := set.Client()
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		a, _, address := serve(t, l, server)
		test(t, a, dial(t, address, client))
	})
}

func TestStream(t *testing.T) {
	both(t, transport.DefaultLimits(), func(t *testing.T, a *ads, c discoverypb.AggregatedDiscoveryServiceClient) {
		s := open(t.Context(), t, c)
		want(t, s, "first", 10)
		for i := range 20 {
			nonce := fmt.Sprint(i)
			a.send(response(t, nonce, 1000))
			want(t, s, nonce, 1000)
			if err := s.Send(&discoverypb.DeltaDiscoveryRequest{TypeUrl: "t", ResponseNonce: nonce}); err != nil {
				t.Fatal(err)
			}
			if got := <-a.acks; got != nonce {
				t.Fatalf("ACK of %q, want %q", got, nonce)
			}
		}
		if err := s.CloseSend(); err != nil {
			t.Fatal(err)
		}
		wantEnd(t, s, codes.OK)
		<-a.closed
	})
}

// TestLargeResponses sends more bytes than the windows of the client admit and the socket accepts, before the client
// reads anything.
func TestLargeResponses(t *testing.T) {
	both(t, transport.DefaultLimits(), func(t *testing.T, a *ads, c discoverypb.AggregatedDiscoveryServiceClient) {
		const size = 5 << 20
		var streams []stream
		for range 3 {
			s := open(t.Context(), t, c)
			want(t, s, "first", 10)
			streams = append(streams, s)
		}
		for i := range 3 {
			a.send(response(t, fmt.Sprint(i), size+i))
		}
		for i := range 3 {
			for _, s := range streams {
				want(t, s, fmt.Sprint(i), size+i)
			}
		}
	})
}

// TestLargeRequests sends a request that is larger than the windows of the server.
func TestLargeRequests(t *testing.T) {
	both(t, transport.DefaultLimits(), func(t *testing.T, a *ads, c discoverypb.AggregatedDiscoveryServiceClient) {
		s := open(t.Context(), t, c)
		want(t, s, "first", 10)
		names := make([]string, 100_000)
		for i := range names {
			names[i] = fmt.Sprintf("resource-%08d", i)
		}
		if err := s.Send(&discoverypb.DeltaDiscoveryRequest{TypeUrl: "t", ResponseNonce: "n", ResourceNamesSubscribe: names}); err != nil {
			t.Fatal(err)
		}
		if got := <-a.acks; got != "n" {
			t.Fatalf("ACK of %q, want %q", got, "n")
		}
	})
}

func TestManyStreams(t *testing.T) {
	l := transport.DefaultLimits()
	l.Streams = 50
	both(t, l, func(t *testing.T, a *ads, c discoverypb.AggregatedDiscoveryServiceClient) {
		ctx, cancel := context.WithCancel(t.Context())
		streams := []stream{open(ctx, t, c)}
		for len(streams) < l.Streams {
			streams = append(streams, open(t.Context(), t, c))
		}
		for _, s := range streams {
			want(t, s, "first", 10)
		}
		for i := range 3 {
			a.send(response(t, fmt.Sprint(i), 1000))
		}
		for _, s := range streams {
			for i := range 3 {
				want(t, s, fmt.Sprint(i), 1000)
			}
		}
		// The client respects the limit of streams, so a further stream waits for the end of the first one.
		another := make(chan error, 1)
		go func() {
			s, err := c.DeltaAggregatedResources(t.Context())
			if err == nil {
				err = s.Send(&discoverypb.DeltaDiscoveryRequest{TypeUrl: "t"})
			}
			if err == nil {
				_, err = s.Recv()
			}
			another <- err
		}()
		cancel()
		<-a.closed
		if err := <-another; err != nil {
			t.Fatal(err)
		}
		a.send(response(t, "last", 1000)) // the handler also sends on the first stream, which is closed
		for _, s := range streams[1:] {
			want(t, s, "last", 1000)
		}
	})
}

func TestStatus(t *testing.T) {
	_, _, address := serve(t, transport.DefaultLimits(), nil)
	c, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	err = c.Invoke(t.Context(), "/no.such/Method", &discoverypb.DiscoveryRequest{}, &discoverypb.DiscoveryResponse{})
	if s := status.Convert(err); s.Code() != codes.Unimplemented || s.Message() != "unknown method /no.such/Method" {
		t.Errorf("unknown method: %v", err)
	}
}

func TestClose(t *testing.T) {
	a, server, address := serve(t, transport.DefaultLimits(), nil)
	s := open(t.Context(), t, dial(t, address, nil))
	want(t, s, "first", 10)
	a.send(response(t, "last", 1<<20))
	server.Close()
	want(t, s, "last", 1<<20)
	wantEnd(t, s, codes.Unavailable)
	<-a.closed
}

// TestStalled checks that a client which stops reading does not delay other clients, and that the server closes its
// connection after the timeout.
func TestStalled(t *testing.T) {
	l := transport.DefaultLimits()
	l.Write = 200 * time.Millisecond
	a, _, address := serve(t, l, nil)
	p := newPeer(t, address)
	p.settings(1 << 30)
	p.window(0, 1<<30)
	p.open(1)
	p.message(1, nil)
	s := open(t.Context(), t, dial(t, address, nil))
	want(t, s, "first", 10)
	for i := range 20 { // more than the socket buffers accept
		a.send(response(t, fmt.Sprint(i), 1<<20))
		want(t, s, fmt.Sprint(i), 1<<20)
	}
	<-a.closed // of the peer
	a.send(response(t, "last", 10))
	want(t, s, "last", 10)
}

// TestQueue checks the limit of queued responses of a stream.
func TestQueue(t *testing.T) {
	l := transport.DefaultLimits()
	l.QueuedMessages = 3
	a, _, address := serve(t, l, nil)
	p := newPeer(t, address)
	p.settings(0)
	p.open(1)
	p.message(1, nil)
	p.ping() // the answer implies that the server has opened the stream and read the request
	for range 3 {
		a.send(response(t, "n", 10))
	}
	p.wantReset(1, "ENHANCE_YOUR_CALM")
}

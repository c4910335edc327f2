package transport

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/relay/relaytest/certs"
	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/relay/relaytest/memnet"
)

// dial returns a client of grpc-go, with TLS if config is not nil.
func dial(t testing.TB, f *fixture, config *tls.Config, more ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	secure := insecure.NewCredentials()
	if config != nil {
		secure = credentials.NewTLS(config)
	}
	target := f.address
	if strings.HasPrefix(target, "/") {
		target = "unix:" + target
	}
	c := check.Must(grpc.NewClient(target, append([]grpc.DialOption{
		grpc.WithTransportCredentials(secure), grpc.WithStaticStreamWindowSize(64 << 10), grpc.WithStaticConnWindowSize(64 << 10),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20), grpc.MaxCallSendMsgSize(64<<20)),
	}, more...)...))
	t.Cleanup(func() { _ = c.Close() })
	return c
}

type stream = discoverypb.AggregatedDiscoveryService_DeltaAggregatedResourcesClient

// subscribe opens a stream, and subscribes.
func subscribe(t testing.TB, c *grpc.ClientConn) stream { return subscribeBy(t.Context(), t, c) }

func subscribeBy(ctx context.Context, t testing.TB, c *grpc.ClientConn) stream {
	t.Helper()
	s := check.Must(discoverypb.NewAggregatedDiscoveryServiceClient(c).DeltaAggregatedResources(ctx))
	check.OK(t, s.Send(&discoverypb.DeltaDiscoveryRequest{TypeUrl: "t"}))
	return s
}

// want receives a response, and checks its nonce and the size of its resource name.
func want(t testing.TB, s stream, nonce string, size int) {
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
func wantEnd(t testing.TB, s stream, code codes.Code) {
	t.Helper()
	_, err := s.Recv()
	if errors.Is(err, io.EOF) {
		err = nil
	}
	if status.Code(err) != code {
		t.Fatalf("stream ended with %v, want %v", err, code)
	}
}

// pair returns the TLS configurations of a server and a client with certificates.
func pair(t testing.TB) (server, client *tls.Config) {
	ca := certs.NewCA(t)
	load := func(l certs.Leaf) tls.Certificate {
		p := ca.Sign(l)
		return check.Must(tls.X509KeyPair(p.Cert, p.Key))
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca.PEM)
	server = &tls.Config{
		Certificates: []tls.Certificate{load(certs.Leaf{Names: []string{"relay"}})}, ClientCAs: pool,
		ClientAuth: tls.RequireAndVerifyClientCert, NextProtos: []string{"h2"},
	}
	client = &tls.Config{
		Certificates: []tls.Certificate{load(certs.Leaf{Names: []string{"client"}})}, RootCAs: pool, ServerName: "relay",
	}
	return server, client
}

// each runs a test in plaintext, on a Unix socket, by IPv6 and with mTLS.
func each(t *testing.T, test func(t *testing.T, f *fixture, c *grpc.ClientConn)) {
	for _, network := range []string{"tcp", "tcp6", "unix"} {
		t.Run(network, func(t *testing.T) {
			f := start(t, options{network: network})
			test(t, f, dial(t, f, nil))
		})
	}
	t.Run("TLS", func(t *testing.T) {
		server, client := pair(t)
		f := start(t, options{tls: server})
		test(t, f, dial(t, f, client))
	})
}

// unread returns the bytes that the guard has charged for requests, which must be zero once they were handled.
func (f *fixture) unread() int64 {
	_, n := f.guard.Usage()
	return n
}

func TestStream(t *testing.T) {
	each(t, func(t *testing.T, f *fixture, c *grpc.ClientConn) {
		s := subscribe(t, c)
		want(t, s, "first", 10)
		for i := range 20 {
			nonce := fmt.Sprint(i)
			f.send(response(nonce, 1000))
			want(t, s, nonce, 1000)
			check.OK(t, s.Send(&discoverypb.DeltaDiscoveryRequest{TypeUrl: "t", ResponseNonce: nonce}))
			check.Equal(t, "ACK", <-f.acks, nonce)
		}
		check.OK(t, s.CloseSend())
		wantEnd(t, s, codes.OK)
		if err := <-f.closed; !errors.Is(err, io.EOF) {
			t.Errorf("closed with %v, want EOF", err)
		}
	})
}

// TestLargeResponses sends more bytes than the windows of the client admit and the socket accepts, before the client
// reads anything.
func TestLargeResponses(t *testing.T) {
	each(t, func(t *testing.T, f *fixture, c *grpc.ClientConn) {
		const size = 5 << 20
		var streams []stream
		for range 3 {
			s := subscribe(t, c)
			want(t, s, "first", 10)
			streams = append(streams, s)
		}
		sent := make(chan struct{})
		go func() { // SendMsg blocks while the clients do not read
			for i := range 3 {
				f.send(response(fmt.Sprint(i), size+i))
			}
			close(sent)
		}()
		for i := range 3 {
			for _, s := range streams {
				want(t, s, fmt.Sprint(i), size+i)
			}
		}
		<-sent
	})
}

// TestLargeRequests sends requests that are larger than the windows of the server.
func TestLargeRequests(t *testing.T) {
	each(t, func(t *testing.T, f *fixture, c *grpc.ClientConn) {
		s := subscribe(t, c)
		want(t, s, "first", 10)
		names := make([]string, 200_000)
		for i := range names {
			names[i] = fmt.Sprintf("resource-%08d", i)
		}
		for i := range 3 {
			nonce := fmt.Sprint(i)
			check.OK(t, s.Send(&discoverypb.DeltaDiscoveryRequest{TypeUrl: "t", ResponseNonce: nonce, ResourceNamesSubscribe: names}))
		}
		for i := range 3 {
			check.Equal(t, "ACK", <-f.acks, fmt.Sprint(i))
		}
		check.Equal(t, "bytes of requests that were handled", f.unread(), 0)
	})
}

func TestManyStreams(t *testing.T) {
	f := start(t, options{change: func(c *Config) { c.MaxStreams = 50 }})
	c := dial(t, f, nil)
	ctx, cancel := context.WithCancel(t.Context())
	streams := []stream{subscribeBy(ctx, t, c)}
	for len(streams) < 50 {
		streams = append(streams, subscribe(t, c))
	}
	for _, s := range streams {
		want(t, s, "first", 10)
	}
	for i := range 3 {
		f.send(response(fmt.Sprint(i), 1000))
	}
	for _, s := range streams {
		for i := range 3 {
			want(t, s, fmt.Sprint(i), 1000)
		}
	}
	// The client respects the limit of streams, so a further stream waits for the end of the first one.
	another := make(chan error, 1)
	go func() {
		s, err := discoverypb.NewAggregatedDiscoveryServiceClient(c).DeltaAggregatedResources(t.Context())
		if err == nil {
			err = s.Send(&discoverypb.DeltaDiscoveryRequest{TypeUrl: "t"})
		}
		if err == nil {
			_, err = s.Recv()
		}
		another <- err
	}()
	cancel()
	if err := <-f.closed; status.Code(err) != codes.Canceled {
		t.Errorf("closed with %v, want CANCELED", err)
	}
	check.OK(t, <-another)
	f.send(response("last", 1000)) // the first stream is closed
	for _, s := range streams[1:] {
		want(t, s, "last", 1000)
	}
}

// TestFlushWritesOnce checks that responses for several streams of a connection are written together.
func TestFlushWritesOnce(t *testing.T) {
	f := start(t, options{})
	p := ready(t, f.address)
	for stream := uint32(1); stream <= 19; stream += 2 {
		p.open(stream)
		p.message(stream, []byte{0x12, 1, 't'})
	}
	for range 10 {
		p.await("a response", func(f http2.Frame) bool { return f.Header().Type == http2.FrameData })
	}
	streams := f.all()
	for _, s := range streams {
		check.OK(t, s.SendMsg(&wire.Message{Bytes: []byte("x")}))
	}
	c := streams[0].conn
	c.mu.Lock()
	b := c.batch()
	c.mu.Unlock()
	if b == nil {
		t.Fatal("nothing is ready")
	}
	check.Equal(t, "bytes that one call writes", b.bytes, 10*(headerBytes+prefixBytes+1))
	check.Equal(t, "pieces of short messages", len(b.pieces), 1)
	b.release()
}

// TestOther checks methods that a gRPC server serves on the same connection: unary, with a stream, and unknown ones.
func TestOther(t *testing.T) {
	each(t, func(t *testing.T, f *fixture, c *grpc.ClientConn) {
		s := subscribe(t, c)
		want(t, s, "first", 10)
		h := healthpb.NewHealthClient(c)
		var header, trailer metadata.MD
		r, err := h.Check(t.Context(), &healthpb.HealthCheckRequest{}, grpc.Header(&header), grpc.Trailer(&trailer))
		if err != nil || r.GetStatus() != healthpb.HealthCheckResponse_SERVING {
			t.Errorf("health: %v, %v", r, err)
		}
		if got := header.Get("content-type"); len(got) != 1 || got[0] != "application/grpc" || header.Get("trailer") != nil {
			t.Errorf("header %v", header)
		}
		if _, err := h.Check(t.Context(), &healthpb.HealthCheckRequest{Service: "none"}); status.Code(err) != codes.NotFound {
			t.Errorf("unknown service: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		w := check.Must(h.Watch(ctx, &healthpb.HealthCheckRequest{}))
		if _, err := w.Recv(); err != nil {
			t.Errorf("watch: %v", err)
		}
		cancel()
		err = c.Invoke(t.Context(), "/no.such/Method", &healthpb.HealthCheckRequest{}, &healthpb.HealthCheckResponse{})
		if status.Code(err) != codes.Unimplemented {
			t.Errorf("unknown method: %v", err)
		}
		f.send(response("last", 10))
		want(t, s, "last", 10)
	})
}

// TestMetadata checks metadata in both directions, the peer of a stream, and its deadline.
func TestMetadata(t *testing.T) {
	var got metadata.MD
	var name string
	seen := make(chan struct{})
	server, client := pair(t)
	f := start(t, options{tls: server, change: func(c *Config) {
		c.Streams[path] = func(s *Stream) Receiver {
			got, _ = metadata.FromIncomingContext(s.Context())
			name = guard.PeerName(guard.PeerOf(s.Context()))
			check.OK(t, s.SetHeader(metadata.Pairs("x-one", "1")), s.SendHeader(metadata.Pairs("x-two-bin", "\x00\xff")))
			if err := s.SetHeader(metadata.Pairs("x", "late")); err == nil {
				t.Error("SetHeader after SendHeader succeeds")
			}
			close(seen)
			return discard{s}
		}
	}})
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	ctx = metadata.AppendToOutgoingContext(ctx, "x-text", "a", "x-text", "b", "x-binary-bin", "\x00\x01")
	s := subscribeBy(ctx, t, dial(t, f, client))
	<-seen
	header := check.Must(s.Header())
	check.Equal(t, "header", fmt.Sprint(header["x-one"], header["x-two-bin"]), "[1] [\x00\xff]")
	check.Equal(t, "metadata", fmt.Sprint(got["x-text"], got["x-binary-bin"], got["te"], got["grpc-timeout"]), "[a b] [\x00\x01] [] []")
	if len(got["user-agent"]) != 1 || len(got[":authority"]) != 1 {
		t.Errorf("metadata %v, want user-agent and :authority", got)
	}
	check.Equal(t, "peer", name, "client")
	wantEnd(t, s, codes.DeadlineExceeded)
}

// discard is a Receiver that ends its stream when the client does.
type discard struct{ s *Stream }

func (d discard) Offer(request []byte) bool { d.Receive(request); return true }
func (d discard) Continue()                 {}
func (d discard) Receive(request []byte) {
	guard.AccountOf(d.s.Context()).Release(wire.Framed(len(request)))
}
func (d discard) Closed(err error) { d.s.End(err) }

// TestStalled checks that a client which does not read blocks only its own SendMsg, and that the end of its stream ends
// that.
func TestStalled(t *testing.T) {
	f := start(t, options{})
	p := ready(t, f.address, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	p.open(1)
	p.message(1, []byte{0x12, 1, 't'})
	p.ping()
	s := subscribe(t, dial(t, f, nil))
	want(t, s, "first", 10)
	stalled := f.all()[0]
	blocked := make(chan error, 1)
	go func() {
		for {
			if err := stalled.SendMsg(&wire.Message{Bytes: make([]byte, 10<<10)}); err != nil {
				blocked <- err
				return
			}
		}
	}()
	check.OK(t, f.all()[1].SendMsg(&wire.Message{Bytes: response("next", 10)}))
	f.all()[1].Flush()
	want(t, s, "next", 10)
	stalled.end(status.Error(codes.Unavailable, "stalled"))
	if err := <-blocked; status.Code(err) != codes.Canceled {
		t.Errorf("SendMsg: %v, want CANCELED", err)
	}
}

// TestGracefulStop checks that streams that are open are served to their end, and others refused.
func TestGracefulStop(t *testing.T) {
	f := start(t, options{})
	p := ready(t, f.address)
	p.open(1)
	p.ping()
	stopped := make(chan struct{})
	go func() { f.server.GracefulStop(); close(stopped) }()
	goAway := func(f http2.Frame) bool { return f.Header().Type == http2.FrameGoAway }
	if first := p.await("GOAWAY", goAway).(*http2.GoAwayFrame); first.LastStreamID != maxWindow {
		t.Errorf("the first GOAWAY names stream %d", first.LastStreamID)
	}
	p.open(3) // was on the way
	ping := p.await("PING", func(f http2.Frame) bool { return f.Header().Type == http2.FramePing }).(*http2.PingFrame)
	p.must(p.frames.WritePing(true, ping.Data))
	if second := p.await("GOAWAY", goAway).(*http2.GoAwayFrame); second.LastStreamID != 3 {
		t.Errorf("the second GOAWAY names stream %d, want 3", second.LastStreamID)
	}
	p.open(5)
	check.Equal(t, "stream 5", p.ends(5), "reset REFUSED_STREAM")
	for _, stream := range []uint32{1, 3} {
		p.must(p.frames.WriteData(stream, true, nil))
		check.Equal(t, fmt.Sprint("stream ", stream), p.ends(stream), "200 0")
	}
	check.Equal(t, "connection", p.ends(0), "closed")
	_ = p.conn.Close()
	<-stopped
}

// TestConnectionLimits checks that the guard refuses connections, and that ended ones do not count.
func TestConnectionLimits(t *testing.T) {
	f := start(t, options{limits: guard.Limits{MaxConnections: 1}})
	p := ready(t, f.address)
	p.ping()
	second := newRogue(t, f.address)
	if got := second.ends(1); got != "closed" && !strings.Contains(got, "reset") {
		t.Errorf("second connection: %q, want it closed", got)
	}
	_ = p.conn.Close()
	for {
		if n, _ := f.guard.Usage(); n == 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	ready(t, f.address).ping()
}

// TestUnreadLimit checks that bytes of incomplete requests are charged, and that the connection above the limit is
// closed.
func TestUnreadLimit(t *testing.T) {
	f := start(t, options{limits: guard.Limits{MaxUnreadBytes: 4 << 20}})
	p := ready(t, f.address)
	p.open(1)
	p.data(1, prefix(0, 10<<20))
	for range 200 {
		p.data(1, make([]byte, 16<<10-headerBytes))
	}
	if got := p.ends(1); got != "closed" && !strings.Contains(got, "reset") && !strings.Contains(got, "broken") {
		t.Errorf("ended by %q, want the connection closed", got)
	}
	f.log.Await(t, 0, "reason=buffered_bytes")
	<-f.closed
	check.Equal(t, "bytes after the end", f.unread(), 0)
}

// bubble runs a test in virtual time with a connection in memory.
func bubble(t *testing.T, change func(*Config), test func(t *testing.T, p *rogue)) {
	synctest.Test(t, func(t *testing.T) {
		f := newADS()
		cfg := Config{
			Guard: guard.New(guard.Config{
				Limits: guard.WithDefaults(guard.Limits{}), Own: func(any) bool { return false },
				KeepNodes: func() bool { return false }, Logger: discardLogger,
			}),
			Credentials: insecure.NewCredentials(), Streams: map[string]func(*Stream) Receiver{path: f.open},
			MaxMessageBytes: 1 << 20, MaxStreams: 10, MaxHeaderBytes: 64 << 10, Window: 1 << 20, Handshake: 10 * time.Second,
		}
		change(&cfg)
		s, l := New(cfg), memnet.Listen(64<<10)
		served := make(chan error, 1)
		go func() { served <- s.Serve(l) }() // awaited below
		conn := check.Must(l.Dial(t.Context()))
		p := &rogue{t, conn, http2.NewFramer(conn, conn), s}
		p.bytes([]byte(http2.ClientPreface))
		test(t, p)
		_ = conn.Close()
		s.Stop()
		check.OK(t, <-served)
	})
}

// TestB34_Keepalive checks pings, and that a connection without answers ends.
func TestB34_Keepalive(t *testing.T) {
	bubble(t, func(c *Config) {
		c.Keepalive = keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}
	}, func(t *testing.T, p *rogue) {
		p.must(p.frames.WriteSettings())
		began := time.Now()
		for i := 1; i <= 3; i++ {
			ping := p.await("PING", func(f http2.Frame) bool { return f.Header().Type == http2.FramePing }).(*http2.PingFrame)
			check.Equal(t, "time of the ping", time.Since(began), time.Duration(i)*30*time.Second)
			p.must(p.frames.WritePing(true, ping.Data))
		}
		for {
			if _, err := p.frames.ReadFrame(); err != nil {
				break
			}
		}
		check.Equal(t, "end", time.Since(began), 4*30*time.Second+10*time.Second)
	})
}

// TestB33_MaximumAge checks that GOAWAY is sent at the age of a connection, with a jitter of 10 %, and that streams end
// after the grace period.
func TestB33_MaximumAge(t *testing.T) {
	bubble(t, func(c *Config) {
		c.Keepalive = keepalive.ServerParameters{MaxConnectionAge: time.Hour, MaxConnectionAgeGrace: 10 * time.Minute}
	}, func(t *testing.T, p *rogue) {
		p.must(p.frames.WriteSettings())
		p.open(1)
		began := time.Now()
		p.await("GOAWAY", func(f http2.Frame) bool { return f.Header().Type == http2.FrameGoAway })
		aged := time.Since(began)
		if aged < 54*time.Minute || aged > 66*time.Minute {
			t.Errorf("GOAWAY after %v, want an hour with a jitter of 10 %%", aged)
		}
		for {
			if _, err := p.frames.ReadFrame(); err != nil {
				break
			}
		}
		check.Equal(t, "end", time.Since(began)-aged, 10*time.Minute)
	})
}

// TestB33_MaximumAgeDuringDrain checks that a connection that drains already keeps its grace period.
func TestB33_MaximumAgeDuringDrain(t *testing.T) {
	bubble(t, func(c *Config) {
		c.Keepalive = keepalive.ServerParameters{MaxConnectionAge: time.Hour, MaxConnectionAgeGrace: 10 * time.Minute}
	}, func(t *testing.T, p *rogue) {
		p.must(p.frames.WriteSettings())
		p.open(1)
		began := time.Now()
		synctest.Wait()
		stopped := make(chan struct{})
		go func() { p.server.GracefulStop(); close(stopped) }()
		for {
			if _, err := p.frames.ReadFrame(); err != nil {
				break
			}
		}
		if took := time.Since(began); took < 64*time.Minute {
			t.Errorf("the stream was served for %v, want at least the age and the grace period", took)
		}
		<-stopped
	})
}

// TestB35_IncompleteFrame checks the timeout of a frame whose rest does not arrive.
func TestB35_IncompleteFrame(t *testing.T) {
	bubble(t, func(*Config) {}, func(t *testing.T, p *rogue) {
		p.must(p.frames.WriteSettings())
		p.open(1)
		time.Sleep(time.Hour) // between frames, there is no timeout
		p.bytes([]byte{0, 0, 8, byte(http2.FramePing)})
		began := time.Now()
		for {
			if _, err := p.frames.ReadFrame(); err != nil {
				break
			}
		}
		check.Equal(t, "end", time.Since(began), frameTimeout)
	})
}

// TestB35_AnswersThatAreNotRead checks that the streams, frames and resets that wait for a client that does not read are
// bounded.
func TestB35_AnswersThatAreNotRead(t *testing.T) {
	for name, attack := range map[string]func(p *rogue, stream uint32){
		"refused streams": func(p *rogue, stream uint32) { p.open(stream, "grpc-encoding", "gzip") },
		"settings":        func(p *rogue, _ uint32) { p.frame(http2.FrameSettings, 0, 0, nil) },
		"resets": func(p *rogue, stream uint32) {
			p.open(stream)
			p.frame(http2.FrameWindowUpdate, 0, stream, make([]byte, 4))
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(*Config) {}, func(t *testing.T, p *rogue) {
				p.must(p.frames.WriteSettings())
				for stream := uint32(1); ; stream += 2 {
					attack(p, stream)
					if n := p.openStreams(); n > 10 {
						t.Fatalf("%d streams are kept, want at most 10", n)
					}
					if _, err := p.conn.Write(nil); err != nil {
						return
					}
					if stream > 200_000 {
						t.Fatal("the connection has not ended")
					}
				}
			})
		})
	}
}

// openStreams returns how many streams the server keeps.
func (p *rogue) openStreams() (n int) {
	p.server.mu.Lock()
	defer p.server.mu.Unlock()
	for c := range p.server.conns {
		c.mu.Lock()
		n += len(c.streams)
		c.mu.Unlock()
	}
	return n
}

// TestB35_Handshake checks the timeout for the preface and the first SETTINGS.
func TestB35_Handshake(t *testing.T) {
	bubble(t, func(*Config) {}, func(t *testing.T, p *rogue) {
		began := time.Now()
		_, _ = io.Copy(io.Discard, p.conn)
		check.Equal(t, "end", time.Since(began), 10*time.Second)
	})
}

// TestNoGoroutines checks that an idle connection has one goroutine, whatever its streams. The test compares the
// goroutines of many streams with those of one.
func TestNoGoroutines(t *testing.T) {
	f := start(t, options{})
	p := ready(t, f.address)
	p.open(1)
	p.ping()
	before := goroutines()
	for stream := uint32(3); stream < 103; stream += 2 {
		p.open(stream)
		p.message(stream, []byte{0x12, 1, 't'})
	}
	for range 50 {
		p.await("a response", func(f http2.Frame) bool { return f.Header().Type == http2.FrameData })
	}
	for goroutines() > before { // those that received the requests are ending
		time.Sleep(time.Millisecond)
	}
}

// goroutines returns the number of goroutines of this package's connections.
func goroutines() int {
	return strings.Count(stacks(), "transport.(*Conn).serve(") + strings.Count(stacks(), "transport.(*Stream)")
}

var _ net.Conn = (*lower)(nil)

package transport

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"go.uber.org/goleak"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/relay/relaytest/logs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const path = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"

// patience is the limit of waits that should not take long.
const patience = 20 * time.Second

// An ads is a service that answers each subscription with one response and records ACKs.
type ads struct {
	response []byte
	acks     chan string // nonces
	closed   chan error

	// Guarded by mu.
	mu      sync.Mutex
	streams []*adsStream
}

// An adsStream is a stream of ads. It releases requests as package downstream does.
type adsStream struct {
	ads *ads
	*Stream
	left  []byte
	once  sync.Once
	ended chan struct{} // closed once End was called
}

func newADS() *ads {
	return &ads{response: response("first", 10), acks: make(chan string, 10_000), closed: make(chan error, 10_000)}
}

func (a *ads) open(s *Stream) Receiver {
	st := &adsStream{ads: a, Stream: s, ended: make(chan struct{})}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.streams = append(a.streams, st)
	return st
}

// all returns the open streams.
func (a *ads) all() []*adsStream {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]*adsStream(nil), a.streams...)
}

// send sends a response on all streams, and flushes each connection.
func (a *ads) send(response []byte) {
	for _, s := range a.all() {
		_ = s.SendMsg(&wire.Message{Bytes: response}) // fails if the client has disconnected
	}
	for _, s := range a.all() {
		s.Flush()
	}
}

// Offer handles ACKs, which have a nonce.
func (s *adsStream) Offer(request []byte) bool {
	if nonce := nonceOf(request); nonce != "" {
		s.ack(nonce, len(request))
		return true
	}
	s.left = bytes.Clone(request)
	return false
}

func (s *adsStream) ack(nonce string, size int) {
	guard.AccountOf(s.Context()).Release(wire.Framed(size))
	s.ads.acks <- nonce
}

// Continue implements Receiver.
func (s *adsStream) Continue() { s.Receive(s.left) }

// Receive implements Receiver.
func (s *adsStream) Receive(request []byte) {
	var m discoverypb.DeltaDiscoveryRequest
	if err := proto.Unmarshal(request, &m); err != nil {
		s.end(status.Error(codes.InvalidArgument, "not a request"))
		return
	}
	if m.GetResponseNonce() != "" {
		s.ack(m.GetResponseNonce(), len(request))
		return
	}
	guard.AccountOf(s.Context()).Release(wire.Framed(len(request)))
	_ = s.SendMsg(&wire.Message{Bytes: s.ads.response}) // fails if the client has disconnected
	s.Flush()
}

// Closed implements Receiver.
func (s *adsStream) Closed(err error) {
	s.ads.closed <- err
	if errors.Is(err, io.EOF) {
		err = nil
	}
	s.end(err)
}

func (s *adsStream) end(err error) {
	s.once.Do(func() {
		s.End(err)
		close(s.ended)
	})
}

// nonceOf returns the nonce of a request, empty if it has none.
func nonceOf(request []byte) string {
	var m discoverypb.DeltaDiscoveryRequest
	if err := proto.Unmarshal(request, &m); err != nil {
		return ""
	}
	return m.GetResponseNonce()
}

// response returns an encoded response with one resource, whose name has size bytes.
func response(nonce string, size int) []byte {
	return check.Must(proto.Marshal(&discoverypb.DeltaDiscoveryResponse{
		Nonce: nonce, Resources: []*discoverypb.Resource{{Name: string(bytes.Repeat([]byte("x"), size))}},
	}))
}

// A fixture is a running server with an ads and the health service.
type fixture struct {
	*ads
	server  *Server
	guard   *guard.Guard
	log     logs.Log
	address string
}

// options change the configuration of a fixture.
type options struct {
	change  func(*Config)
	limits  guard.Limits
	tls     *tls.Config
	network string // default: tcp
	wrap    func(net.Listener) net.Listener
}

// start starts a server, which runs until the end of the test.
func start(t testing.TB, o options) *fixture {
	t.Helper()
	f := &fixture{ads: newADS()}
	f.guard = guard.New(guard.Config{
		Limits: guard.WithDefaults(o.limits), Own: func(any) bool { return false }, KeepNodes: func() bool { return false },
		Logger: slog.New(slog.NewTextHandler(&f.log, nil)),
	})
	other := grpc.NewServer(append(PeerOptions(), grpc.ChainUnaryInterceptor(f.guard.UnaryInterceptor),
		grpc.ChainStreamInterceptor(f.guard.StreamInterceptor))...)
	healthpb.RegisterHealthServer(other, health.NewServer())
	cfg := Config{
		Guard: f.guard, Credentials: insecure.NewCredentials(), Other: other,
		Streams:         map[string]func(*Stream) Receiver{path: f.open},
		MaxMessageBytes: 16 << 20, MaxStreams: 100, MaxHeaderBytes: 64 << 10, Window: 1 << 20, Handshake: patience,
		Keepalive: keepalive.ServerParameters{Time: time.Hour, Timeout: time.Minute}, PingInterval: 10 * time.Second,
	}
	if o.tls != nil {
		cfg.Credentials = credentials.NewTLS(o.tls)
	}
	if o.change != nil {
		o.change(&cfg)
	}
	f.server = New(cfg)
	address := "127.0.0.1:0"
	if o.network == "unix" {
		address = t.TempDir() + "/socket"
	}
	if o.network == "tcp6" {
		address = "[::1]:0"
	}
	if o.network == "" {
		o.network = "tcp"
	}
	l := check.Must(net.Listen(o.network, address))
	f.address = l.Addr().String()
	if o.wrap != nil {
		l = o.wrap(l)
	}
	served := make(chan error, 1)
	go func() { served <- f.server.Serve(l) }() // awaited below
	t.Cleanup(func() {
		other.Stop()
		f.server.Stop()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return f
}

// A rogue is a client that can violate the protocol.
type rogue struct {
	testing.TB
	conn   net.Conn
	frames *http2.Framer
	server *Server // set in a bubble
}

// newRogue connects and sends the preface, without SETTINGS.
func newRogue(t testing.TB, address string) *rogue {
	t.Helper()
	conn := check.Must(net.Dial("tcp", address))
	t.Cleanup(func() { _ = conn.Close() })
	check.OK(t, conn.SetDeadline(time.Now().Add(patience)))
	p := &rogue{t, conn, http2.NewFramer(conn, conn), nil}
	p.frames.AllowIllegalWrites = true
	p.frames.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	p.bytes([]byte(http2.ClientPreface))
	return p
}

// ready is newRogue with SETTINGS.
func ready(t testing.TB, address string, settings ...http2.Setting) *rogue {
	t.Helper()
	p := newRogue(t, address)
	p.must(p.frames.WriteSettings(settings...))
	return p
}

// must ignores errors of writes. A write may fail because the server has closed the connection, which reads then show.
func (p *rogue) must(error) {}

func (p *rogue) bytes(b []byte) {
	_, err := p.conn.Write(b)
	p.must(err)
}

// frame sends a frame of a type without any check.
func (p *rogue) frame(kind http2.FrameType, flags http2.Flags, stream uint32, payload []byte) {
	p.bytes(append(appendHeader(nil, len(payload), kind, flags, stream), payload...))
}

// open starts a valid call with additional header fields.
func (p *rogue) open(stream uint32, more ...string) {
	p.headers(stream, 0, call(more...)...)
}

// call returns the fields of a valid call.
func call(more ...string) []string {
	return append([]string{
		":method", "POST", ":scheme", "http", ":path", path, "content-type", "application/grpc", "te", "trailers",
	}, more...)
}

// headers sends a header block in as many frames as it needs. fields alternates names and values.
func (p *rogue) headers(stream uint32, flags http2.Flags, fields ...string) {
	p.bytes(appendBlock(nil, encodeFields(nil, fields...), flags, stream))
}

func (p *rogue) data(stream uint32, b []byte) { p.must(p.frames.WriteData(stream, false, b)) }

// message sends a gRPC message.
func (p *rogue) message(stream uint32, m []byte) { p.data(stream, framed(m)) }

func framed(m []byte) []byte { return append(prefix(0, len(m)), m...) }

// prefix returns the prefix of a gRPC message of n bytes; flag 1 means compressed.
func prefix(flag byte, n int) []byte { return binary.BigEndian.AppendUint32([]byte{flag}, uint32(n)) }

// await reads frames until one satisfies a condition, and returns it.
func (p *rogue) await(what string, is func(http2.Frame) bool) http2.Frame {
	p.Helper()
	for {
		f, err := p.frames.ReadFrame()
		if err != nil {
			p.Fatalf("await %s: %v", what, err)
		}
		if is(f) {
			return f
		}
	}
}

// ping waits for the answer to a PING.
func (p *rogue) ping() {
	p.Helper()
	p.must(p.frames.WritePing(false, [8]byte{1}))
	p.await("the answer to a PING", func(f http2.Frame) bool {
		ping, is := f.(*http2.PingFrame)
		return is && ping.IsAck()
	})
}

// ends waits until a stream or the connection ends, and describes how: reset CODE, connection CODE, closed, or the HTTP
// and gRPC status.
func (p *rogue) ends(stream uint32) string {
	http := ""
	for {
		f, err := p.frames.ReadFrame()
		if errors.Is(err, io.EOF) {
			return "closed"
		}
		if err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return "nothing"
			}
			return err.Error()
		}
		switch f := f.(type) {
		case *http2.GoAwayFrame:
			return "connection " + f.ErrCode.String()
		case *http2.RSTStreamFrame:
			if f.StreamID == stream {
				return "reset " + f.ErrCode.String()
			}
		case *http2.MetaHeadersFrame:
			if f.StreamID != stream {
				continue
			}
			if s := f.PseudoValue("status"); s != "" {
				http = s
			}
			if f.StreamEnded() {
				return fmt.Sprintf("%s %s", http, fieldOf(f, "grpc-status"))
			}
		}
	}
}

package relay

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/gzip" // registers it: origins may compress what they send (B.32)
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream"
	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/relay/config"
)

// addServers creates the xDS servers: one server, or one for plaintext and one for TLS.
func (r *Relay) addServers(opts Options) {
	kinds := []credentials.TransportCredentials{insecure.NewCredentials()}
	if clients := r.credentials.Clients; clients != nil {
		secure := credentials.NewTLS(clients.Config("h2"))
		if len(r.cfg.TLSListen) == 0 {
			kinds = nil
		}
		kinds = append(kinds, secure)
	}
	bounds := r.server.Guard()
	for _, kind := range kinds {
		options := []grpc.ServerOption{
			grpc.Creds(bounds.Credentials(kind)), grpc.ChainUnaryInterceptor(bounds.UnaryInterceptor),
			grpc.KeepaliveParams(keepaliveOf(r.cfg, opts)), grpc.ConnectionTimeout(r.cfg.FirstRequestTimeout),
			grpc.ChainStreamInterceptor(bounds.StreamInterceptor, r.credentials.Authorizer.RefuseReflection),
		}
		options = append(options, compression(r.cfg.RequestCompression == CompressionGzip)...)
		server := NewGRPCServer(int(r.cfg.MaxRequestBytes), r.cfg.MaxStreamsPerConnection, options...)
		r.server.Register(server)
		healthpb.RegisterHealthServer(server, r.health)
		reflection.Register(server)
		r.servers = append(r.servers, server)
	}
}

// windowBytes is the HTTP/2 flow-control window of client connections and streams. It bounds unread requests. It is
// static, because the BDP estimator of grpc-go would send a ping for each message.
const windowBytes = 1 << 20

// maxHeaderBytes bounds the uncompressed headers of a request. Envoys and gRPC clients send a few hundred bytes; a
// token adds a few thousand.
const maxHeaderBytes = 64 << 10

// NewGRPCServer returns a gRPC server for many long-lived streams with few messages each, with the codec that
// [downstream.Server] requires. opts override its defaults. It is not stable.
func NewGRPCServer(maxRequestBytes, maxStreamsPerConnection int, opts ...grpc.ServerOption) *grpc.Server {
	return grpc.NewServer(append([]grpc.ServerOption{
		grpc.ForceServerCodecV2(wire.Codec{}),
		grpc.MaxRecvMsgSize(maxRequestBytes),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.MaxConcurrentStreams(uint32(maxStreamsPerConnection)),
		grpc.StaticStreamWindowSize(windowBytes),
		grpc.StaticConnWindowSize(windowBytes),
		// An Envoy that pings every 30s must not be disconnected (B.34).
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(pings),
	}, opts...)...)
}

// pings detect clients that disappeared without closing their connection, and keep NAT and load balancer entries alive.
// The kernel closes a connection whose data is not acknowledged within the same timeout (TCP_USER_TIMEOUT, which
// grpc-go sets).
var pings = keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}

// keepaliveOf returns the keepalive parameters and the maximum age of connections (B.33).
func keepaliveOf(cfg Config, opts Options) keepalive.ServerParameters {
	p := keepalive.ServerParameters{
		Time: cmp.Or(opts.PingAfter, pings.Time), Timeout: cmp.Or(opts.PingTimeout, pings.Timeout),
	}
	if cfg.ConnectionAge > 0 {
		p.MaxConnectionAge, p.MaxConnectionAgeGrace = cfg.ConnectionAge, guard.Grace(cfg.ConnectionAge)
	}
	return p
}

// serveStreams serves xDS on a listener until the server stops. It returns nil if the server has already stopped.
func (r *Relay) serveStreams(server *grpc.Server, l net.Listener) error {
	if err := server.Serve(r.server.Guard().Listener(l)); !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil
}

var errCompressed = errors.New("compressed requests are not accepted (TENDER_REQUEST_COMPRESSION=off)")

// compression returns the server options for compressed requests. One compressed byte can become a thousand bytes in
// memory, and the limits of grpc-go count compressed bytes. So grpc-go never decompresses a request, even if a
// telemetry exporter registers compressors. If compressed requests are accepted, package wire charges the quota and
// decompresses.
func compression(accepted bool) []grpc.ServerOption {
	if accepted {
		return []grpc.ServerOption{grpc.RPCDecompressor(keepCompressed{})} //nolint:staticcheck // SA1019: no alternative
	}
	return []grpc.ServerOption{
		grpc.ChainStreamInterceptor(rejectCompressed),
		grpc.RPCDecompressor(rejectGzip{}), //nolint:staticcheck // SA1019: precedes interceptors
	}
}

// rejectCompressed is an interceptor that rejects streams with a grpc-encoding, before a message is read.
func rejectCompressed(server any, rpc grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	if c := compressionOf(rpc.Context()); c == "" || c == encoding.Identity {
		return handle(server, rpc)
	}
	_ = rpc.SetHeader(metadata.Pairs("grpc-accept-encoding", encoding.Identity)) // the client may have disconnected
	return status.Error(codes.Unimplemented, errCompressed.Error())
}

// compressionOf returns the grpc-encoding header of a stream. grpc-go does not include it in the metadata.
func compressionOf(ctx context.Context) string {
	if s, ok := grpc.ServerTransportStreamFromContext(ctx).(interface{ RecvCompress() string }); ok {
		return s.RecvCompress()
	}
	return ""
}

// rejectGzip is a grpc.Decompressor that rejects gzip.
type rejectGzip struct{}

// Do implements grpc.Decompressor.
func (rejectGzip) Do(io.Reader) ([]byte, error) { return nil, errCompressed }

// Type implements grpc.Decompressor.
func (rejectGzip) Type() string { return gzip.Name }

// keepCompressed is a grpc.Decompressor that returns its input.
type keepCompressed struct{}

// Do implements grpc.Decompressor.
func (keepCompressed) Do(r io.Reader) ([]byte, error) { return io.ReadAll(r) }

// Type implements grpc.Decompressor.
func (keepCompressed) Type() string { return gzip.Name }

// restIdle is the idle timeout of REST connections. It is longer than the interval between polls of most clients.
const restIdle = 5 * time.Minute

// restWindow is the HTTP/2 flow-control window of REST connections, in bytes. The quota of buffered requests does not
// count bytes in this window.
const restWindow = 64 << 10

// newRESTServer returns the HTTP server for REST polls. It speaks HTTP/1.1 and HTTP/2, with and without TLS.
func newRESTServer(cfg Config, server *downstream.Server, log *slog.Logger) *http.Server {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true) // see serveREST
	return &http.Server{
		Handler:     server.REST(),
		ConnContext: guard.PollContext,
		Protocols:   &protocols,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: cfg.MaxStreamsPerConnection, MaxReceiveBufferPerConnection: restWindow,
			MaxReceiveBufferPerStream: restWindow,
		},
		ReadTimeout:    cfg.FirstRequestTimeout, // ends once the body was read
		WriteTimeout:   downstream.MaxHold + cfg.SendStall,
		IdleTimeout:    restIdle,
		MaxHeaderBytes: maxHeaderBytes,
		ErrorLog:       slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

// RESTAddrs returns the addresses of the REST listeners.
func (r *Relay) RESTAddrs() []net.Addr { return addrs(r.restListeners) }

// serveREST serves REST polls on a listener until the server is shut down, with TLS if TENDER_TLS_CERT is set. TLS must
// be below the listener of the guard, because that listener counts HTTP/2 frames.
func (r *Relay) serveREST(l net.Listener) error {
	l = r.server.Guard().Listener(l)
	if clients := r.credentials.Clients; clients != nil {
		l = tls.NewListener(l, clients.Config("h2", "http/1.1"))
	}
	if err := r.rest.Serve(r.server.Guard().PollListener(l)); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// stop closes all client streams and polls immediately.
func (r *Relay) stop() {
	for _, server := range r.servers {
		server.Stop()
	}
	_ = r.rest.Close() // its listeners are closed, and nothing else can fail
}

// listen opens the configured addresses for which [Options] has no listeners. It opens all or none.
func (r *Relay) listen() error {
	var opened []net.Listener
	for _, l := range []struct {
		variable  string
		addresses []string
		listeners *[]net.Listener
		allowed   func(net.Listener) error
	}{
		{"TENDER_LISTEN", r.cfg.Listen, &r.listeners, nil},
		{"TENDER_TLS_LISTEN", r.cfg.TLSListen, &r.tlsListeners, nil},
		{"TENDER_REST_LISTEN", r.cfg.RESTListen, &r.restListeners, nil},
		{"TENDER_ADMIN_LISTEN", config.LoopbackOnly(r.cfg.AdminListen), &r.adminListeners, requireLoopback},
		{"TENDER_ADMIN_LISTEN", config.NonLoopback(r.cfg.AdminListen), &r.adminTLSListeners, nil},
		{"TENDER_PROBE_LISTEN", r.cfg.ProbeListen, &r.probeListeners, nil},
	} {
		if len(*l.listeners) > 0 {
			continue
		}
		listeners, err := listenAll(l.addresses)
		opened = append(opened, listeners...)
		for i := 0; err == nil && l.allowed != nil && i < len(listeners); i++ {
			err = l.allowed(listeners[i])
		}
		if err != nil {
			return errors.Join(fmt.Errorf("%s: %w", l.variable, err), closeAll(opened))
		}
		*l.listeners = listeners
	}
	return nil
}

// listenAll opens all addresses or none.
func listenAll(addresses []string) (listeners []net.Listener, err error) {
	for _, address := range addresses {
		l, err := listen(address)
		if err != nil {
			return nil, errors.Join(err, closeAll(listeners))
		}
		listeners = append(listeners, l)
	}
	return listeners, nil
}

func closeAll(listeners []net.Listener) (err error) {
	for _, l := range listeners {
		err = errors.Join(err, l.Close())
	}
	return err
}

// listen listens on a TCP address, or on a Unix socket if the address is unix:/path. It replaces the socket of a
// process that no longer runs.
func listen(address string) (net.Listener, error) {
	path, isUnix := strings.CutPrefix(address, "unix:")
	if !isUnix {
		return net.Listen("tcp", address)
	}
	path = strings.TrimPrefix(path, "//")
	l, err := net.Listen("unix", path)
	if !errors.Is(err, syscall.EADDRINUSE) {
		return l, err
	}
	// If nothing accepts connections, a process that has ended left the socket.
	if conn, dialErr := net.Dial("unix", path); dialErr == nil {
		return nil, errors.Join(err, conn.Close())
	}
	if removeErr := os.Remove(path); removeErr != nil {
		return nil, fmt.Errorf("listen %s: %w", address, removeErr)
	}
	return net.Listen("unix", path)
}

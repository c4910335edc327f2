package relay

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/gzip" // registers it: origins may compress what they send (B.32)
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream"
	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/downstream/transport"
	"github.com/xdstender/tender/relay/config"
	"github.com/xdstender/tender/relay/tlsfiles"
)

// servers are the servers for clients.
type servers struct {
	streams *downstream.Server
	grpc    []streamServer // the first serves listeners.xds; the second, if any, serves listeners.tls
	names   []string       // of the gRPC services
	rest    *http.Server
	health  *health.Server
	clients *tlsfiles.Server // nil if clients connect in plaintext
}

// A streamServer serves gRPC on listeners. It is a grpc.Server or an adsServer.
type streamServer interface {
	Serve(net.Listener) error
	GracefulStop()
	Stop()
}

// An adsServer serves the streams of xDS by package transport, and all other methods by a gRPC server.
type adsServer struct {
	*transport.Server
	other *grpc.Server
}

// Stop implements streamServer.
func (s adsServer) Stop() {
	s.other.Stop() // ends its calls, which end their streams
	s.Server.Stop()
}

// newServers creates the servers: for gRPC one server, or one for plaintext and one for TLS. Health checks return
// NOT_SERVING at first.
func newServers(
	s *settings, opts Options, creds *config.Credentials, streams *downstream.Server, log *slog.Logger,
) *servers {
	all := &servers{
		streams: streams, rest: newRESTServer(s.rest, streams.REST(), log), health: health.NewServer(), clients: creds.Clients,
	}
	limits := s.grpc
	limits.keepalive.Time = cmp.Or(opts.PingAfter, limits.keepalive.Time)
	limits.keepalive.Timeout = cmp.Or(opts.PingTimeout, limits.keepalive.Timeout)
	kinds := []credentials.TransportCredentials{insecure.NewCredentials()}
	if all.clients != nil {
		secure := credentials.NewTLS(all.clients.Config("h2"))
		if len(s.addresses.tls) == 0 {
			kinds = nil
		}
		kinds = append(kinds, secure)
	}
	for _, kind := range kinds {
		server := newStreamServer(limits, streams, creds, kind)
		healthpb.RegisterHealthServer(server, all.health)
		reflection.Register(server)
		all.names = slices.Collect(maps.Keys(server.GetServiceInfo()))
		if limits.transport == config.TransportADS {
			all.grpc = append(all.grpc, newADSServer(limits, streams, kind, server))
		} else {
			all.grpc = append(all.grpc, server)
		}
	}
	all.setHealth(healthpb.HealthCheckResponse_NOT_SERVING)
	return all
}

// newStreamServer returns a gRPC server for clients that connect with credentials of a kind.
func newStreamServer(
	limits grpcConfig, streams *downstream.Server, creds *config.Credentials, kind credentials.TransportCredentials,
) *grpc.Server {
	bounds := streams.Guard()
	var options []grpc.ServerOption
	if limits.transport == config.TransportADS {
		options = transport.PeerOptions()
	} else {
		options = append(options, grpc.Creds(bounds.Credentials(kind)), grpc.KeepaliveParams(limits.keepalive),
			grpc.ConnectionTimeout(limits.handshakeTimeout))
	}
	options = append(options, grpc.ChainUnaryInterceptor(bounds.UnaryInterceptor),
		grpc.ChainStreamInterceptor(bounds.StreamInterceptor, creds.Authorizer.RefuseReflection),
		grpc.UnknownServiceHandler(refuseMethod(bounds.Counters)))
	options = append(options, refuseCompression(bounds.Counters)...)
	server := NewGRPCServer(limits.maxRequestBytes, guard.MaxStreamsPerConnection, options...)
	streams.Register(server)
	return server
}

// newADSServer returns a server that serves all methods but those of streams by a gRPC server.
func newADSServer(
	limits grpcConfig, streams *downstream.Server, kind credentials.TransportCredentials, other *grpc.Server,
) adsServer {
	return adsServer{other: other, Server: transport.New(transport.Config{
		Guard: streams.Guard(), Credentials: kind, Streams: streams.Methods(), Other: other,
		MaxMessageBytes: limits.maxRequestBytes, MaxStreams: guard.MaxStreamsPerConnection, MaxHeaderBytes: maxHeaderBytes,
		Window: windowBytes, Handshake: limits.handshakeTimeout, Keepalive: limits.keepalive, PingInterval: minPingInterval,
	})}
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
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPingInterval, PermitWithoutStream: true}),
		grpc.KeepaliveParams(pings),
	}, opts...)...)
}

// minPingInterval is the interval of pings below which a client is disconnected.
const minPingInterval = 10 * time.Second

// pings detect clients that disappeared without closing their connection, and keep NAT and load balancer entries alive.
// The kernel closes a connection whose data is not acknowledged within the same timeout (TCP_USER_TIMEOUT, which
// grpc-go sets).
var pings = keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}

// serveStreams serves xDS on a listener, with the gRPC server of this index, until the server stops. It returns nil if
// the server has already stopped.
func (s *servers) serveStreams(server int, l net.Listener) error {
	if err := s.grpc[server].Serve(s.streams.Guard().Listener(l)); !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil
}

var errCompressed = errors.New("compressed requests are not accepted")

// refuseCompression returns the server options that refuse compressed requests. One compressed byte can become a
// thousand bytes in memory, and the limits of grpc-go count compressed bytes. So grpc-go never decompresses a request,
// even if a telemetry exporter registers compressors.
func refuseCompression(counters *guard.Counters) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ChainStreamInterceptor(refuseCompressed(counters)),
		grpc.RPCDecompressor(refuseGzip{}), //nolint:staticcheck // SA1019: precedes interceptors
	}
}

// refuseCompressed returns an interceptor that refuses streams with a grpc-encoding, before a message is read.
func refuseCompressed(counters *guard.Counters) grpc.StreamServerInterceptor {
	return func(server any, rpc grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
		if c := compressionOf(rpc.Context()); c == "" || c == encoding.Identity {
			return handle(server, rpc)
		}
		_ = rpc.SetHeader(metadata.Pairs("grpc-accept-encoding", encoding.Identity)) // the client may have disconnected
		return refuseCall(counters, rpc.Context(), guard.InvalidCompression, errCompressed.Error())
	}
}

// refuseMethod returns a handler of the methods that the relay does not serve, such as those of xDS v2 (R013).
func refuseMethod(counters *guard.Counters) grpc.StreamHandler {
	return func(_ any, rpc grpc.ServerStream) error {
		method, _ := grpc.MethodFromServerStream(rpc)
		return refuseCall(counters, rpc.Context(), guard.InvalidMethod, fmt.Sprintf("the relay does not serve %.256q", method))
	}
}

// refuseCall counts and logs a call that the relay does not implement, and returns its status.
func refuseCall(counters *guard.Counters, ctx context.Context, cause guard.Invalid, message string) error {
	err := status.Error(codes.Unimplemented, message)
	counters.RequestRefused(cause, guard.PeerName(guard.PeerOf(ctx)), "", err)
	return err
}

// compressionOf returns the grpc-encoding header of a stream. grpc-go does not include it in the metadata.
func compressionOf(ctx context.Context) string {
	if s, ok := grpc.ServerTransportStreamFromContext(ctx).(interface{ RecvCompress() string }); ok {
		return s.RecvCompress()
	}
	return ""
}

// refuseGzip is a grpc.Decompressor that refuses gzip.
type refuseGzip struct{}

// Do implements grpc.Decompressor.
func (refuseGzip) Do(io.Reader) ([]byte, error) { return nil, errCompressed }

// Type implements grpc.Decompressor.
func (refuseGzip) Type() string { return gzip.Name }

// restIdle is the idle timeout of REST connections. It is longer than the interval between polls of most clients.
const restIdle = 5 * time.Minute

// restWindow is the HTTP/2 flow-control window of REST connections, in bytes. The quota of buffered requests does not
// count bytes in this window.
const restWindow = 64 << 10

// newRESTServer returns the HTTP server for REST polls. It speaks HTTP/1.1 and HTTP/2, with and without TLS.
func newRESTServer(s restConfig, polls http.Handler, log *slog.Logger) *http.Server {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true) // see serveREST
	return &http.Server{
		Handler:     polls,
		ConnContext: guard.PollContext,
		Protocols:   &protocols,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: guard.MaxStreamsPerConnection, MaxReceiveBufferPerConnection: restWindow,
			MaxReceiveBufferPerStream: restWindow,
		},
		ReadTimeout:    s.readTimeout, // ends once the body was read
		WriteTimeout:   downstream.MaxHold + s.sendTimeout,
		IdleTimeout:    restIdle,
		MaxHeaderBytes: maxHeaderBytes,
		ErrorLog:       slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

// RESTAddrs returns the addresses of the REST listeners.
func (r *Relay) RESTAddrs() []net.Addr { return addrs(r.listeners.rest) }

// serveREST serves REST polls on a listener until the server is shut down, with TLS if TENDER_TLS_CERT is set. TLS must
// be below the listener of the guard, because that listener counts HTTP/2 frames.
func (s *servers) serveREST(l net.Listener) error {
	l = s.streams.Guard().Listener(l)
	if s.clients != nil {
		l = tls.NewListener(l, s.clients.Config("h2", "http/1.1"))
	}
	if err := s.rest.Serve(s.streams.Guard().PollListener(l)); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// stop closes all client streams and polls immediately.
func (s *servers) stop() {
	for _, server := range s.grpc {
		server.Stop()
	}
	_ = s.rest.Close() // its listeners are closed, and nothing else can fail
}

// setHealth sets the gRPC health status of the server and of each registered service.
func (s *servers) setHealth(status healthpb.HealthCheckResponse_ServingStatus) {
	s.health.SetServingStatus("", status)
	for _, service := range s.names {
		s.health.SetServingStatus(service, status)
	}
}

// otherCallsTimeout bounds how long calls other than xDS streams, such as health watches, delay the shutdown.
const otherCallsTimeout = time.Second

// drain closes the streams of clients. At first the relay still accepts clients, because load balancers notice the
// failing health checks with a delay. It then sends GOAWAY, so that clients open no new streams on their connections.
// It closes the open streams one by one, so that not all clients reconnect at once (B.33). Once stopNow is closed, it
// closes them all immediately.
func (s *servers) drain(within time.Duration, stopNow <-chan struct{}) {
	s.health.Shutdown()
	hard := time.AfterFunc(within, s.stop)
	defer hard.Stop()
	select {
	case <-time.After(within / 9):
	case <-stopNow:
	}
	var stopped sync.WaitGroup
	for _, server := range s.grpc {
		stopped.Go(server.GracefulStop)
	}
	stopped.Go(func() { _ = s.rest.Shutdown(context.Background()) }) // stop ends its pending polls
	drained := make(chan struct{})
	stopped.Go(func() {
		select {
		case <-stopNow:
			s.streams.Drain(0)
		case <-drained:
		}
	})
	s.streams.Drain(within * 2 / 3)
	close(drained)
	soft := time.AfterFunc(otherCallsTimeout, s.stop)
	defer soft.Stop()
	stopped.Wait()
}

// listeners are the listeners of a relay, by what they serve.
type listeners struct {
	xds              []net.Listener
	tls              []net.Listener // of TENDER_TLS_LISTEN, while xds is plaintext
	rest             []net.Listener
	admin            []net.Listener // plaintext, on loopback
	adminTLS, probes []net.Listener
}

// A listened is a variable with addresses of the relay, and the listeners on them.
type listened struct {
	variable  string
	addresses []string
	mode      fs.FileMode // of Unix sockets
	listeners *[]net.Listener
	allowed   func(net.Listener) error // returns an error for a listener that may not be used; nil allows all
}

// byAll are the permissions that all users may have.
const byAll fs.FileMode = 0o006

// configured returns the addresses of the configuration.
func (ls *listeners) configured(a addresses) []listened {
	return []listened{
		{"TENDER_LISTEN", a.xds, a.mode, &ls.xds, nil},
		{"TENDER_TLS_LISTEN", a.tls, a.mode, &ls.tls, nil},
		{"TENDER_REST_LISTEN", a.rest, a.mode, &ls.rest, nil},
		{"TENDER_ADMIN_LISTEN", a.admin, a.mode &^ byAll, &ls.admin, requireLoopback},
		{"TENDER_ADMIN_LISTEN", a.adminTLS, a.mode &^ byAll, &ls.adminTLS, nil},
		{"TENDER_PROBE_LISTEN", a.probes, a.mode, &ls.probes, nil},
	}
}

// open opens the configured addresses for which [Options] has no listeners. It opens all or none. The error has one
// line per address that cannot be used.
func (ls *listeners) open(s *settings) error {
	var opened []net.Listener
	var errs []error
	for _, l := range ls.configured(s.addresses) {
		if len(*l.listeners) > 0 {
			continue
		}
		for _, address := range l.addresses {
			listener, err := listen(address, l.mode)
			if err == nil {
				opened, *l.listeners = append(opened, listener), append(*l.listeners, listener)
				if l.allowed != nil {
					err = l.allowed(listener)
				}
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", l.variable, err))
			}
		}
	}
	if len(errs) > 0 {
		return errors.Join(append(errs, closeAll(opened))...)
	}
	return nil
}

func closeAll(listeners []net.Listener) (err error) {
	for _, l := range listeners {
		err = errors.Join(err, l.Close())
	}
	return err
}

// listen listens on a TCP address, or on a Unix socket with a mode if the address is unix:/path. It replaces the socket
// of a process that no longer runs.
func listen(address string, mode fs.FileMode) (net.Listener, error) {
	path, isUnix := strings.CutPrefix(address, "unix:")
	if !isUnix {
		return net.Listen("tcp", address)
	}
	path = strings.TrimPrefix(path, "//")
	l, err := net.Listen("unix", path)
	if errors.Is(err, syscall.EADDRINUSE) {
		// If nothing accepts connections, a process that has ended left the socket.
		if conn, dialErr := net.Dial("unix", path); dialErr == nil {
			return nil, errors.Join(err, conn.Close())
		}
		if removeErr := os.Remove(path); removeErr != nil {
			return nil, fmt.Errorf("listen %s: %w", address, removeErr)
		}
		l, err = net.Listen("unix", path)
	}
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, mode); err != nil { // net.Listen leaves it to the umask
		return nil, errors.Join(fmt.Errorf("listen %s: %w", address, err), l.Close())
	}
	return l, nil
}

// requireLoopback returns an error for a listener that other hosts can reach. The configuration cannot check this for a
// host name, which may resolve to any address.
func requireLoopback(l net.Listener) error {
	if a, ok := l.Addr().(*net.TCPAddr); ok && !a.IP.IsLoopback() {
		return fmt.Errorf("listen %s: not on loopback", a)
	}
	return nil
}

func addrs(listeners []net.Listener) []net.Addr {
	addrs := make([]net.Addr, len(listeners))
	for i, l := range listeners {
		addrs[i] = l.Addr()
	}
	return addrs
}

package relay

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	_ "google.golang.org/grpc/encoding/gzip" // for clients that compress (B.32)
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream"
	"github.com/xdstender/tender/upstream"
)

// Options are what a relay needs that is not configuration.
type Options struct {
	// Logger receives the relay's log. Nil discards it.
	Logger *slog.Logger

	// Version is the relay's own, as origins are told it.
	Version string

	// DialOptions are added to those that connect to the origin.
	DialOptions []grpc.DialOption

	// Listeners are served instead of the addresses of the configuration.
	Listeners []net.Listener
}

// A Relay serves one origin to many clients.
type Relay struct {
	cfg       Config
	log       *slog.Logger
	origin    origin
	groups    *groups
	server    *downstream.Server
	grpc      *grpc.Server
	health    *health.Server
	listeners []net.Listener
}

// An origin keeps views like itself.
type origin interface {
	// mirror keeps the view of w like the origin until ctx ends. The node is whom
	// the origin takes the relay for.
	mirror(ctx context.Context, node *corepb.Node, w *cache.Writer, log *slog.Logger)
	// ready waits until the origin can be reached, or ctx ends.
	ready(ctx context.Context)
	close() error
}

// New returns a relay that listens already and serves once it runs. Errors: no
// origin, one that cannot be used, an address that cannot be listened on.
func New(cfg Config, opts Options) (*Relay, error) {
	if err := cfg.RequireOrigin(); err != nil {
		return nil, err
	}
	r := &Relay{cfg: cfg, log: opts.Logger, listeners: opts.Listeners}
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	var err error
	if r.origin, err = openOrigin(cfg, opts, r.log); err != nil {
		return nil, err
	}
	r.groups = newGroups(cfg, opts.Version, r.origin, r.log)
	if err := r.serve(); err != nil {
		return nil, errors.Join(err, r.origin.close())
	}
	return r, nil
}

// serve makes the gRPC server and opens its addresses.
func (r *Relay) serve() (err error) {
	r.server, err = downstream.New(downstream.Config{
		Views:               r.groups,
		Identifier:          identifier(r.cfg.NodeID),
		AckWait:             r.cfg.AckWait,
		SendStall:           r.cfg.SendStall,
		ColdWait:            r.cfg.ColdWait,
		FirstRequestTimeout: r.cfg.FirstRequestTimeout,
		MassDeleteHold:      r.cfg.MassDeleteHold,
		MaxStreams:          r.cfg.MaxStreams,
		MaxNames:            r.cfg.MaxNames,
		MaxNameBytes:        int(r.cfg.MaxNameBytes),
		MaxTypes:            r.cfg.MaxTypes,
		FullStateTypes:      r.cfg.FullStateTypes,
		WildcardTypes:       r.cfg.WildcardTypes,
		NoEDSAfterCDS:       !r.cfg.EDSAfterCDS,
		ContentVersions:     r.cfg.DeltaVersions == VersionsOfContent,
		Logger:              r.log,
	})
	if err != nil {
		return err
	}
	r.grpc = NewGRPCServer(int(r.cfg.MaxRequestBytes), r.cfg.MaxStreamsPerConnection)
	r.server.Register(r.grpc)
	r.health = health.NewServer()
	r.setHealth(healthpb.HealthCheckResponse_NOT_SERVING)
	healthpb.RegisterHealthServer(r.grpc, r.health)
	reflection.Register(r.grpc)
	if len(r.listeners) > 0 {
		return nil
	}
	for _, address := range r.cfg.Listen {
		l, err := listen(address)
		if err != nil {
			for _, open := range r.listeners {
				err = errors.Join(err, open.Close())
			}
			return err
		}
		r.listeners = append(r.listeners, l)
	}
	return nil
}

// windowBytes is the flow-control window of a client's connection and streams.
// It bounds what clients may send before it is read; it is fixed, since probing
// for a better one costs a ping for each message.
const windowBytes = 1 << 20

// NewGRPCServer returns a gRPC server that suits many long streams of few
// messages, and whose codec [downstream.Server] needs.
func NewGRPCServer(maxRequestBytes, maxStreamsPerConnection int) *grpc.Server {
	return grpc.NewServer(
		grpc.ForceServerCodecV2(wire.Codec{}),
		grpc.MaxRecvMsgSize(maxRequestBytes),
		grpc.MaxConcurrentStreams(uint32(maxStreamsPerConnection)),
		grpc.StaticStreamWindowSize(windowBytes),
		grpc.StaticConnWindowSize(windowBytes),
		// Envoys ping every 30s if they are told to, and must not be sent away for it
		// (B.34).
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
	)
}

// identifier returns a name for this process that no other has (R126).
func identifier(nodeID string) string {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	return nodeID + "#" + hex.EncodeToString(b[:])
}

// listen opens a TCP address, or unix:/path.
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
	// A socket that nobody listens on was left by a process that died.
	if conn, dialErr := net.Dial("unix", path); dialErr == nil {
		return nil, errors.Join(err, conn.Close())
	}
	if removeErr := os.Remove(path); removeErr != nil {
		return nil, fmt.Errorf("listen %s: %w", address, removeErr)
	}
	return net.Listen("unix", path)
}

// Addrs returns the addresses that the relay listens on.
func (r *Relay) Addrs() []net.Addr {
	addrs := make([]net.Addr, len(r.listeners))
	for i, l := range r.listeners {
		addrs[i] = l.Addr()
	}
	return addrs
}

// Streams returns the number of clients' streams.
func (r *Relay) Streams() int { return r.server.Streams() }

// Run serves until ctx ends, then lets the clients go: those that were served
// are told OK, which they take as a reason to connect elsewhere. It returns nil
// once everything has ended, or the error of a listener.
func (r *Relay) Run(ctx context.Context) error {
	// The origin is followed until the last client has left.
	views, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	r.groups.start(views)

	serving, failed := errgroup.WithContext(ctx)
	for _, l := range r.listeners {
		serving.Go(func() error { return r.grpc.Serve(l) }) // until the server stops
	}
	serving.Go(func() error { r.readiness(failed); return nil })
	<-failed.Done()
	r.drain()
	err := serving.Wait()
	stop()
	r.groups.wait()
	return errors.Join(err, r.origin.close())
}

// readiness reports the relay as serving once the origin was reached. Nothing but
// a drain unsets that: a lost origin must not empty a tier that can serve (B.8).
func (r *Relay) readiness(ctx context.Context) {
	r.origin.ready(ctx)
	if ctx.Err() == nil {
		r.setHealth(healthpb.HealthCheckResponse_SERVING)
	}
}

// setHealth answers for the server as a whole, and for the service that probes may
// name.
func (r *Relay) setHealth(status healthpb.HealthCheckResponse_ServingStatus) {
	r.health.SetServingStatus("", status)
	r.health.SetServingStatus(discoverypb.AggregatedDiscoveryService_ServiceDesc.ServiceName, status)
}

// lastCalls is how long calls that are not xDS streams, such as health watches,
// may delay the end.
const lastCalls = time.Second

// drain lets the clients go: first their connections are told that they end, or
// clients would open the next stream on the same one, then the streams end.
func (r *Relay) drain() {
	r.health.Shutdown()
	hard := time.AfterFunc(r.cfg.Drain, r.grpc.Stop)
	defer hard.Stop()
	stopped := make(chan struct{})
	go func() { // awaited below
		defer close(stopped)
		r.grpc.GracefulStop()
	}()
	r.server.Drain()
	soft := time.AfterFunc(lastCalls, r.grpc.Stop)
	defer soft.Stop()
	<-stopped
}

// openOrigin returns the origin that the configuration names.
func openOrigin(cfg Config, opts Options, log *slog.Logger) (origin, error) {
	if dir, ok := strings.CutPrefix(cfg.Origin[0], "file://"); ok {
		dir, err := url.PathUnescape(dir)
		if err != nil {
			return nil, fmt.Errorf("TENDER_ORIGIN=%q: %w", cfg.Origin[0], err)
		}
		files, err := upstream.OpenFiles(upstream.FilesConfig{Dir: dir, MassDeleteHold: cfg.MassDeleteHold, Logger: log})
		if err != nil {
			return nil, fmt.Errorf("TENDER_ORIGIN=%q: %w", cfg.Origin[0], err)
		}
		return filesOrigin{files}, nil
	}
	session, err := upstream.New(upstream.Config{
		Targets:          cfg.Origin,
		Protocol:         protocols[cfg.OriginProtocol],
		DialOptions:      opts.DialOptions,
		Keepalive:        cfg.OriginKeepalive,
		MaxResponseBytes: int(cfg.MaxOriginResponseBytes),
		FullResync:       cfg.Resync == ResyncFull,
		ContentVersions:  cfg.DeltaVersions == VersionsOfContent,
		Linger:           cfg.Linger,
		WildcardLinger:   cfg.WildcardLinger,
		MaxLingering:     cfg.MaxLingering,
		MassDeleteHold:   cfg.MassDeleteHold,
		Prewarm:          cfg.Prewarm,
		Logger:           log,
	})
	if err != nil {
		return nil, fmt.Errorf("TENDER_ORIGIN: %w", err)
	}
	return sessionOrigin{session}, nil
}

// protocols are the values of [Config.OriginProtocol].
var protocols = map[string]upstream.Protocol{
	ProtocolAuto:  upstream.ProtocolAuto,
	ProtocolDelta: upstream.ProtocolDelta,
	ProtocolSotW:  upstream.ProtocolSotW,
}

// sessionOrigin is a control plane.
type sessionOrigin struct{ *upstream.Session }

func (o sessionOrigin) mirror(ctx context.Context, node *corepb.Node, w *cache.Writer, log *slog.Logger) {
	o.Mirror(ctx, node, w, log)
}

func (o sessionOrigin) ready(ctx context.Context) { o.WaitConnected(ctx) }

func (o sessionOrigin) close() error { return o.Close() }

// filesOrigin is a directory. It tells all nodes the same.
type filesOrigin struct{ *upstream.Files }

func (o filesOrigin) mirror(ctx context.Context, _ *corepb.Node, w *cache.Writer, _ *slog.Logger) {
	o.Mirror(ctx, w)
}

func (o filesOrigin) ready(context.Context) {}

func (o filesOrigin) close() error { return nil }

package relay

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/xdstender/tender/downstream"
	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/config"
	"github.com/xdstender/tender/relay/lint"
	"github.com/xdstender/tender/relay/page"
	"github.com/xdstender/tender/relay/telemetry"
	"github.com/xdstender/tender/upstream/reconcile"
)

// Options are settings of a relay that are not configuration. The zero value works.
type Options struct {
	// Logger receives the relay's log. Nil discards it.
	Logger *slog.Logger

	// Level is the level of Logger, which operators may change while the relay runs. Nil means that they may not.
	Level *slog.LevelVar

	// Version is the version of the relay, which it presents to origins.
	Version string

	// Served is called after a burst of new clients was served, as after a restart. It may return memory to the
	// system. Nil does nothing.
	Served func()

	// PingAfter is how long a client connection may be idle before the relay pings it, at least 1s. The relay closes the
	// connection if there is no answer within PingTimeout. Zero means 30s and 10s (B.34).
	PingAfter, PingTimeout time.Duration

	// Spans receives the spans of the relay, in place of the exporter that the OTEL_… variables configure.
	Spans sdktrace.SpanExporter

	// DialOptions are added to the options of connections to origins.
	DialOptions []grpc.DialOption

	// Listeners, RESTListeners and AdminListeners replace the addresses of the configuration.
	Listeners, RESTListeners, AdminListeners []net.Listener

	chain  *chain            // of the relay
	check  reconcile.Checker // of changes that break clients; nil holds none
	tracer *telemetry.Tracer // nil if tracing is off
}

// A Relay serves the resources of its origins to clients.
type Relay struct {
	cfg           Config
	log           *slog.Logger
	level         *slog.LevelVar // nil if it cannot be changed
	levelSet      sync.Mutex     // serializes changes of level
	credentials   *config.Credentials
	chain         *chain
	origins       origins
	groups        *groups
	snapshots     *snapshots
	auditor       *auditor
	linter        *lint.Linter // nil if resources are not checked
	server        *downstream.Server
	servers       []*grpc.Server // the first for listeners; the second, if any, for tlsListeners
	rest          *http.Server
	admin         *admin.Server
	pages         *page.Pages
	history       page.History
	telemetry     *telemetry.Telemetry
	tracer        *telemetry.Tracer // nil if tracing is off
	events        *telemetry.Events // nil if no events are exported
	health        *health.Server
	listeners     []net.Listener
	tlsListeners  []net.Listener // beside listeners in plaintext
	restListeners []net.Listener
	stopNow       chan struct{} // closed by StopNow
	stopNowOnce   sync.Once

	adminListeners, adminTLSListeners, probeListeners []net.Listener

	version, identifier string
	instance            string // of this process: random
	started             time.Time
	ready, draining     atomic.Bool
	originStates        atomic.Pointer[[]originState] // until the relay is ready
}

// New returns a relay that listens; [Relay.Run] serves. The caller must call Run to release resources, if necessary with
// a context that has ended. Errors: no origin, an invalid origin, or an address that cannot be listened on.
func New(cfg Config, opts Options) (*Relay, error) {
	if err := cfg.RequireOrigin(); err != nil {
		return nil, err
	}
	r := &Relay{
		cfg:           cfg,
		log:           opts.Logger,
		level:         opts.Level,
		listeners:     opts.Listeners,
		restListeners: opts.RESTListeners,

		adminListeners: opts.AdminListeners,
		version:        opts.Version,
		identifier:     identifier(cfg.OwnID()),
		instance:       rand.Text(),
		started:        time.Now(),
		stopNow:        make(chan struct{}),
	}
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	for _, renamed := range cfg.Renamings() {
		r.log.Warn("variable set under its former name; the next minor version rejects it",
			slog.String("variable", renamed.Former), slog.String("renamed_to", renamed.Name))
	}
	var err error
	if r.credentials, err = config.OpenCredentials(&r.cfg, r.log); err != nil {
		return nil, err
	}
	if r.tracer, err = telemetry.NewTracer(context.Background(), opts.Spans, r.telemetryConfig()); err != nil {
		return nil, err
	}
	if r.events, err = telemetry.NewEvents(context.Background(), r.telemetryConfig()); err != nil {
		return nil, err
	}
	opts.tracer = r.tracer
	r.linter = r.newLinter()
	opts.check = r.checker()
	r.chain = newChain(r.log)
	opts.chain = r.chain
	if r.origins, err = openOrigins(cfg, opts, r.credentials.Origins, r.log); err != nil {
		return nil, err
	}
	own := cfg.Node(opts.Version)
	if r.snapshots, err = openSnapshots(&r.cfg, own, r.log); err != nil {
		return nil, errors.Join(err, r.origins.close())
	}
	r.groups = newGroups(cfg, own, r.origins, r.snapshots, r.tracer, r.log)
	if len(cfg.AdminListen)+len(opts.AdminListeners) > 0 {
		r.groups.keepRecords()
	}
	r.auditor = &auditor{groups: r.groups, log: r.log}
	if err := r.serve(opts); err != nil {
		r.endTelemetry()
		return nil, errors.Join(err, r.origins.close(), r.snapshots.close())
	}
	r.warnPlaintext()
	return r, nil
}

// serve creates the servers and opens their listeners.
func (r *Relay) serve(opts Options) (err error) {
	r.server, err = downstream.New(downstream.Config{
		Views:               r.groups,
		Identifier:          r.identifier,
		Chain:               r.chain,
		AckWait:             r.cfg.AckWait,
		SendStall:           r.cfg.SendStall,
		ColdWait:            r.cfg.ColdWait,
		FirstRequestTimeout: r.cfg.FirstRequestTimeout,
		ConnectionAge:       r.cfg.ConnectionAge,
		Limits: guard.Limits{
			MaxConnections:     r.cfg.MaxConnections,
			MaxPeerConnections: r.cfg.MaxPeerConnections,
			MaxUnreadBytes:     int(r.cfg.MaxUnreadBytes),
			MaxStreams:         r.cfg.MaxStreams,
			PeerIPv6Prefix:     r.cfg.PeerIPv6Prefix,
			MaxFrameRate:       r.cfg.MaxFrameRate,
			MaxNodeBytes:       int(r.cfg.MaxNodeBytes),
		},
		MaxRequestRate:    r.cfg.MaxRequestRate,
		MaxNames:          r.cfg.MaxNames,
		MaxRequestBytes:   int(r.cfg.MaxRequestBytes),
		GzipRequests:      r.cfg.RequestCompression == CompressionGzip,
		MaxGlobs:          r.cfg.MaxGlobs,
		MaxGroupGlobs:     r.cfg.MaxGroupGlobs,
		MaxNameBytes:      int(r.cfg.MaxNameBytes),
		MaxTypes:          r.cfg.MaxTypes,
		FullStateTypes:    r.cfg.FullStateTypes,
		WildcardTypes:     r.cfg.WildcardTypes,
		NoEDSAfterCDS:     !r.cfg.EDSAfterCDS,
		DynamicParameters: r.cfg.DynamicParameters,
		ContentVersions:   r.cfg.DeltaVersions == VersionsOfContent,
		Loads:             loadsOf(r.cfg, r.origins, r.log),
		SumLoads:          r.cfg.LRS == LRSAggregate,
		ProbeStatus:       r.probed,
		Authorizer:        r.credentials.Authorizer,
		Traces:            r.traces(),
		HerdServed:        opts.Served,
		Logger:            r.log,
	})
	if err != nil {
		return err
	}
	r.groups.observed = r.server.Observed
	r.health = health.NewServer()
	r.addServers(opts)
	r.setHealth(healthpb.HealthCheckResponse_NOT_SERVING)
	r.rest = newRESTServer(r.cfg, r.server, r.log)
	if r.telemetry, err = telemetry.New(context.Background(), r.telemetryConfig()); err != nil {
		return err
	}
	r.pages = page.New(overview{r}.pageConfig())
	r.admin = r.newAdmin()
	return r.listen()
}

// Addrs returns the addresses of the xDS listeners.
func (r *Relay) Addrs() []net.Addr { return addrs(r.listeners) }

func addrs(listeners []net.Listener) []net.Addr {
	addrs := make([]net.Addr, len(listeners))
	for i, l := range listeners {
		addrs[i] = l.Addr()
	}
	return addrs
}

// TLSAddrs returns the addresses of the xDS listeners with TLS, if Addrs are in plaintext.
func (r *Relay) TLSAddrs() []net.Addr { return addrs(r.tlsListeners) }

// Streams returns the number of client streams, including pending polls.
func (r *Relay) Streams() int { return r.server.Streams() }

// Audit returns the results of the drift audit. It is not stable.
func (r *Relay) Audit() AuditStats { return r.auditor.stats() }

// Stats returns the counters of the xDS server. It is not stable, but the metrics made from it are.
func (r *Relay) Stats() downstream.Stats { return r.server.Stats() }

// Run serves until ctx ends, then drains within TENDER_DRAIN: it closes the streams of served clients with OK, so that
// they connect elsewhere. It returns nil once everything has ended, or the error of a listener.
func (r *Relay) Run(ctx context.Context) error {
	// Views are kept in sync until the last client stream is closed.
	views, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	if r.groups.start(views) {
		r.setReady()
	}
	var watching sync.WaitGroup
	watching.Go(func() { r.credentials.Files.Run(views) }) // awaited below
	for _, o := range r.origins {
		watching.Go(func() { o.follow(views) }) // awaited below
	}
	if len(r.AdminAddrs()) > 0 {
		watching.Go(func() { r.history.Run(views, overview{r}.sample) }) // awaited below
	}

	serving, failed := errgroup.WithContext(ctx)
	for _, s := range []struct {
		listeners []net.Listener
		serve     func(net.Listener) error
	}{
		{r.listeners, func(l net.Listener) error { return r.serveStreams(r.servers[0], l) }},
		{r.tlsListeners, func(l net.Listener) error { return r.serveStreams(r.servers[1], l) }},
		{r.restListeners, r.serveREST},
		{r.adminListeners, r.admin.Serve},
		{r.adminTLSListeners, r.admin.ServeTLS},
		{r.probeListeners, r.admin.ServeProbes},
	} {
		for _, l := range s.listeners {
			serving.Go(func() error { return s.serve(l) })
		}
	}
	serving.Go(func() error { originProbes{r}.run(failed); return nil })
	serving.Go(func() error { r.auditor.run(failed); return nil })
	if r.linter != nil {
		serving.Go(func() error { r.linter.Run(failed); return nil })
	}
	serving.Go(func() error { r.snapshots.run(failed, r.groups.saveDecisions); return nil })
	serving.Go(func() error { operations{r}.thawExpired(failed); return nil })
	serving.Go(func() error { watchMemory(failed, readMemory, r.log); return nil })
	<-failed.Done()
	operations{r}.warnFrozen()
	r.drain()
	r.endAdmin()
	err := serving.Wait()
	stop()
	r.groups.wait()
	watching.Wait()
	r.endTelemetry()
	return errors.Join(err, r.origins.close(), r.snapshots.close())
}

func (r *Relay) setReady() {
	if !r.ready.Swap(true) {
		r.setHealth(healthpb.HealthCheckResponse_SERVING)
	}
}

// setHealth sets the gRPC health status of the server and of each registered service.
func (r *Relay) setHealth(status healthpb.HealthCheckResponse_ServingStatus) {
	r.health.SetServingStatus("", status)
	for service := range r.servers[0].GetServiceInfo() {
		r.health.SetServingStatus(service, status)
	}
}

// otherCallsTimeout is how long calls other than xDS streams, such as health watches, may delay the shutdown.
const otherCallsTimeout = time.Second

// StopNow closes all streams of a draining relay at once. If the relay does not drain yet, it does so when it drains.
// It may be called again.
func (r *Relay) StopNow() { r.stopNowOnce.Do(func() { close(r.stopNow) }) }

// drain closes the streams of clients. At first the relay still accepts and serves clients, because load balancers
// notice the failing health checks with a delay. Then it sends GOAWAY, so that clients open no new stream on the
// connections, and closes the streams one by one, so that clients do not all reconnect at once (B.33).
func (r *Relay) drain() {
	r.draining.Store(true)
	r.health.Shutdown()
	hard := time.AfterFunc(r.cfg.Drain, r.stop)
	defer hard.Stop()
	select {
	case <-time.After(r.cfg.Drain / 9):
	case <-r.stopNow:
	}
	var stopped sync.WaitGroup
	for _, server := range r.servers {
		stopped.Go(server.GracefulStop)
	}
	stopped.Go(func() { _ = r.rest.Shutdown(context.Background()) }) // stop ends its pending polls
	drained := make(chan struct{})
	stopped.Go(func() {
		select {
		case <-r.stopNow:
			r.server.Drain(0)
		case <-drained:
		}
	})
	r.server.Drain(r.cfg.Drain * 2 / 3)
	close(drained)
	soft := time.AfterFunc(otherCallsTimeout, r.stop)
	defer soft.Stop()
	stopped.Wait()
}

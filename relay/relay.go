package relay

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/xdstender/tender/downstream"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/config"
	"github.com/xdstender/tender/relay/judge"
	"github.com/xdstender/tender/relay/lint"
	"github.com/xdstender/tender/relay/logqueue"
	"github.com/xdstender/tender/relay/page"
	"github.com/xdstender/tender/relay/telemetry"
	"github.com/xdstender/tender/upstream/reconcile"
)

// Options has the settings of a relay that are not part of [Config]. The zero value is valid.
type Options struct {
	// Logger receives the log records of the relay. If nil, they are discarded.
	Logger *slog.Logger

	// LogQueue is the queue between Logger and its output. The status and metrics show its state. It may be nil, and is
	// not stable.
	LogQueue *logqueue.Queue

	// Level is the level of Logger. Operators can change it while the relay runs. If nil, they cannot.
	Level *slog.LevelVar

	// Version is the version of the relay. The relay sends it to origins in its Node.
	Version string

	// ReleaseMemory collects garbage and returns memory to the operating system, as debug.FreeOSMemory does. The relay
	// calls it at its start, and when no garbage was collected for 10s, or for 30s if that has returned little before. The
	// calls take at most a hundredth of the time. If nil, the Go runtime alone decides how long the memory of a burst is
	// kept.
	ReleaseMemory func()

	// PingAfter is the idle time of a client connection, at least 1s, after which the relay sends an HTTP/2 ping. The
	// relay closes the connection if the client does not respond within PingTimeout. The defaults are 30s and 10s (B.34).
	PingAfter, PingTimeout time.Duration

	// Spans receives the spans of the relay. If nil, the exporter that the OTEL_… variables configure receives them.
	Spans sdktrace.SpanExporter

	// DialOptions are appended to the dial options of connections to origins.
	DialOptions []grpc.DialOption

	// DialPeer connects to the address of a peer (TENDER_PEERS), for TLS. If nil, the relay connects by TCP.
	DialPeer func(ctx context.Context, address string) (net.Conn, error)

	// Listeners, RESTListeners and AdminListeners replace the listeners of TENDER_LISTEN, TENDER_REST_LISTEN and
	// TENDER_ADMIN_LISTEN. Run closes them.
	Listeners, RESTListeners, AdminListeners []net.Listener

	chain  *chain            // the chain of the relay that origins check
	check  reconcile.Checker // finds changes that break clients; nil if TENDER_VALIDATE is not hold
	tracer *telemetry.Tracer // nil if tracing is off
	envoy  *judge.Program    // judges editions; nil without TENDER_CHECK_ENVOY
}

// A Relay caches the resources of its origins and serves them to xDS clients. Its methods may be called from any
// goroutine.
type Relay struct {
	settings    *settings
	table       []Setting // of the configuration
	log         *slog.Logger
	logQueue    *logqueue.Queue // nil if the state of the log is unknown
	credentials *config.Credentials
	chain       *chain
	origins     origins
	groups      *groups
	snapshots   *snapshots
	auditor     *auditor
	probes      *originProbes
	operations  *operations
	rejects     *rejects // nil if origins are not told what clients reject
	tiers       *tierReports
	decisions   *peerRollouts
	linter      *lint.Linter // nil if resources are not checked
	server      *downstream.Server
	servers     *servers
	admin       *admin.Server
	pages       *page.Pages
	history     page.History
	release     func() // Options.ReleaseMemory
	exporters   exporters
	listeners   listeners
	stopNow     chan struct{} // closed by StopNow
	stopNowOnce sync.Once

	version, identifier string
	instance            string // a random ID of this process
	started             time.Time
	ready, draining     atomic.Bool
}

// New opens the listeners, credential files and snapshots of a relay. [Relay.Run] then serves clients. The caller must
// call Run to release these resources, if necessary with a canceled context.
//
// New returns an error if cfg has no origin, if a credential file cannot be used, if another process uses the snapshot
// directory or other users may write to it, or if an address cannot be listened on.
func New(cfg Config, opts Options) (*Relay, error) {
	if err := cfg.RequireOrigin(); err != nil {
		return nil, err
	}
	r := &Relay{
		settings:   settingsOf(&cfg, opts.Version),
		table:      cfg.Table(),
		log:        opts.Logger,
		logQueue:   opts.LogQueue,
		listeners:  listeners{xds: opts.Listeners, rest: opts.RESTListeners, admin: opts.AdminListeners},
		release:    opts.ReleaseMemory,
		version:    opts.Version,
		identifier: identifier(cfg.OwnID()),
		instance:   rand.Text(),
		started:    time.Now(),
		stopNow:    make(chan struct{}),
	}
	r.settings.peers.Dial = opts.DialPeer
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	var err error
	if r.credentials, err = config.OpenCredentials(&cfg, r.log); err != nil {
		return nil, err
	}
	if opts.envoy, err = cfg.OpenEnvoy(r.log); err != nil {
		return nil, err
	}
	r.exporters.readEnvironment(r.log)
	export := r.telemetryConfig()
	if r.exporters.tracer, err = telemetry.NewTracer(context.Background(), opts.Spans, export); err != nil {
		return nil, err
	}
	if r.exporters.events, err = telemetry.NewEvents(context.Background(), export); err != nil {
		return nil, err
	}
	opts.tracer = r.exporters.tracer
	r.linter = r.newLinter()
	opts.check = newChecker(r.settings, r.linter)
	r.chain = newChain(r.log)
	opts.chain = r.chain
	if r.origins, err = openOrigins(r.settings, opts, r.credentials.Origins, r.log); err != nil {
		return nil, err
	}
	if r.snapshots, err = openSnapshots(r.settings, r.log); err != nil {
		return nil, errors.Join(err, r.origins.close())
	}
	r.groups = newGroups(r.settings, r.origins, r.snapshots, r.exporters.tracer, r.instance, r.log)
	if r.hasAdmin(opts) {
		r.groups.keepRecords()
	}
	r.rejects = newRejects(r.groups)
	r.auditor = &auditor{groups: r.groups, log: r.log}
	r.probes = &originProbes{settings: r.settings, origins: r.origins, router: r.groups.router, log: r.log, there: make(chan struct{})}
	r.operations = newOperations(r.groups, opts.Level)
	if err := r.serve(opts); err != nil {
		r.exporters.shutdown()
		return nil, errors.Join(err, r.groups.envoy.close(), r.origins.close(), r.snapshots.close())
	}
	warnPlaintext(&cfg, r.credentials.Clients != nil, r.log)
	return r, nil
}

// hasAdmin reports whether the relay has an address for operators.
func (r *Relay) hasAdmin(opts Options) bool {
	a := &r.settings.addresses
	return len(a.admin)+len(a.adminTLS)+len(opts.AdminListeners) > 0
}

// serve creates the servers and opens their listeners.
func (r *Relay) serve(opts Options) (err error) {
	cfg := r.settings.downstream
	cfg.Views, cfg.Identifier, cfg.Chain, cfg.ProbeStatus = r.groups, r.identifier, r.chain, r.probed
	cfg.Loads, cfg.Authorizer = loadsOf(r.settings, r.origins, r.log), r.credentials.Authorizer
	if limit, known := fileLimit(); known {
		cfg.MaxConnections = connectionsWithin(limit, cfg.MaxConnections, r.log)
	}
	cfg.MaxUnreadBytes = bufferedBytes(readMemory(), r.settings.grpc.maxRequestBytes)
	cfg.Rejected, cfg.Halts = r.rejects.rejected(), r.groups.halts.told
	cfg.Traces = deliveryTraces(r.settings, r.exporters.tracer)
	cfg.Logger = r.log
	if r.server, err = downstream.New(cfg); err != nil {
		return err
	}
	r.groups.observed, r.groups.halts.below.tell = r.server.Observed, r.server.TellHalts
	if r.groups.envoy, err = openLocalEnvoy(opts.envoy, r.groups, r.settings.downstream, r.log); err != nil {
		return err
	}
	r.tiers = &tierReports{r.groups, r.server.Clients}
	r.decisions = newPeerRollouts(r.groups.rollouts, r.peers(), r.instance, r.log)
	if r.rejects != nil {
		r.rejects.rejections = r.server.RejectedResources
	}
	r.servers = newServers(r.settings, opts, r.credentials, r.server, r.log)
	export := r.telemetryConfig()
	export.NoPage = !r.hasAdmin(opts) && len(r.settings.addresses.probes) == 0
	if r.exporters.metrics, err = telemetry.New(context.Background(), export); err != nil {
		return err
	}
	r.pages = page.New(r.pageConfig())
	r.admin = r.newAdmin()
	return r.listeners.open(r.settings)
}

// Addrs returns the addresses of the xDS listeners, including those of Options.Listeners.
func (r *Relay) Addrs() []net.Addr { return addrs(r.listeners.xds) }

// TLSAddrs returns the addresses of TENDER_TLS_LISTEN, which serve TLS while those of Addrs serve plaintext.
func (r *Relay) TLSAddrs() []net.Addr { return addrs(r.listeners.tls) }

// Streams returns the number of open client streams, including pending REST polls.
func (r *Relay) Streams() int { return r.server.Streams() }

// Audit returns the counters of the drift audit. It is not stable.
func (r *Relay) Audit() AuditStats { return r.auditor.stats() }

// Stats returns the counters of the xDS server. It is not stable, but the metrics made from it are.
func (r *Relay) Stats() downstream.Stats { return r.server.Stats() }

// Run serves clients until ctx is canceled. It then drains: within TENDER_DRAIN, it closes the streams of clients with
// status OK, so that the clients reconnect to another server. Run returns nil after all goroutines have ended, or the
// error of a listener. It must be called exactly once.
func (r *Relay) Run(ctx context.Context) error {
	// The views follow their origins until the last client stream is closed.
	views, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	began, restored := time.Now(), r.groups.begin(views)
	var watching sync.WaitGroup
	watching.Go(func() { r.credentials.Files.Run(views) }) // awaited below
	watching.Go(r.groups.envoy.run)                        // awaited below
	for _, o := range r.origins {
		watching.Go(func() { o.follow(views) }) // awaited below
	}
	if len(r.AdminAddrs()) > 0 {
		watching.Go(func() { r.history.Run(views, r.sample) }) // awaited below
	}

	serving, failed := errgroup.WithContext(ctx)
	probing, stopProbes := context.WithCancel(failed)
	defer stopProbes()
	if !restored {
		serving.Go(func() error { r.probes.run(probing, r.setReady); return nil })
		restored = r.takeState(failed, began)
	}
	if restored {
		stopProbes()
		r.setReady()
	}
	r.groups.start()
	for _, s := range []struct {
		listeners []net.Listener
		serve     func(net.Listener) error
	}{
		{r.listeners.xds, func(l net.Listener) error { return r.servers.serveStreams(0, l) }},
		{r.listeners.tls, func(l net.Listener) error { return r.servers.serveStreams(1, l) }},
		{r.listeners.rest, r.servers.serveREST},
		{r.listeners.admin, r.admin.Serve},
		{r.listeners.adminTLS, r.admin.ServeTLS},
		{r.listeners.probes, r.admin.ServeProbes},
	} {
		for _, l := range s.listeners {
			l = r.server.Guard().ReportAccept(l)
			serving.Go(func() error { return s.serve(l) })
		}
	}
	serving.Go(func() error { r.auditor.run(failed); return nil })
	serving.Go(func() error { r.rejects.run(failed); return nil })
	serving.Go(func() error { r.tiers.run(failed); return nil })
	serving.Go(func() error { r.decisions.run(failed); return nil })
	if r.linter != nil {
		serving.Go(func() error { r.linter.Run(failed); return nil })
	}
	serving.Go(func() error { r.snapshots.run(failed, r.groups.saveDecisions); return nil })
	serving.Go(func() error { r.operations.thawExpired(failed); return nil })
	serving.Go(func() error { watchMemory(failed, readMemory, r.release, r.log); return nil })
	<-failed.Done()
	r.operations.warnFrozen()
	r.draining.Store(true)
	r.servers.drain(r.settings.drain, r.stopNow)
	r.endAdmin()
	err := serving.Wait()
	stop()
	r.groups.wait()
	unremoved := r.groups.envoy.close()
	watching.Wait()
	r.exporters.shutdown()
	return errors.Join(err, unremoved, r.origins.close(), r.snapshots.close())
}

// setReady reports the relay as SERVING in health checks. Only a drain reverts that.
func (r *Relay) setReady() {
	if !r.ready.Swap(true) {
		r.log.Info("relay ready")
		r.servers.setHealth(healthpb.HealthCheckResponse_SERVING)
	}
}

// Reload makes the relay read the files of certificates, CAs, tokens and rules now. It reads them every second anyway, and
// then loads what is unchanged for a second. The log has the result. Reload may be called at any time, and returns at
// once.
func (r *Relay) Reload() { r.credentials.Files.Reload() }

// StopNow ends a drain: the relay closes all client streams at once. If it is called before the drain, the drain closes
// them immediately. StopNow may be called more than once.
func (r *Relay) StopNow() { r.stopNowOnce.Do(func() { close(r.stopNow) }) }

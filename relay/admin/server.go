package admin

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/xdstender/tender/relay/authz"
)

// Config has the functions that a server calls for its responses. All fields are required except Rollouts, RolloutDiff,
// Generations, RollbackDiff, Pages, Commands, Action, Tier, Summary, Debug, TLS and Logger.
type Config struct {
	// Ready returns why the relay is not ready, as texts for operators; none if it is ready.
	Ready func() []string

	// Status returns the state of the relay.
	Status func() Status

	// Pending returns the pending changes of a choice. An error made by [Refuse] has its own HTTP code.
	Pending func(context.Context, PendingChoice) (Pending, error)

	// Rollouts returns the state of the rollouts of an origin, or of all origins if the name is empty. RolloutDiff returns
	// their changes. Nil means that rollouts are off. An error made by [Refuse] has its own HTTP code.
	Rollouts    func(origin string) (Rollouts, error)
	RolloutDiff func(context.Context, RolloutChoice) (RolloutDiff, error)

	// Generations returns the kept generations. RollbackDiff returns the changes of a rollback; to is as in RollbackScope.
	// An error made by [Refuse] has its own HTTP code.
	Generations  func(GenerationChoice) (Generations, error)
	RollbackDiff func(ctx context.Context, to string, c RolloutChoice) (RolloutDiff, error)

	// PendingDiff returns what the pending changes change for clients.
	PendingDiff func(context.Context, RolloutChoice) (RolloutDiff, error)

	// ThawDiff returns the changes of a thaw.
	ThawDiff func(context.Context, RolloutChoice) (RolloutDiff, error)

	// Fleet lists clients and resources.
	Fleet Fleet

	// Pages serves GET requests for all other paths. Nil means none.
	Pages http.Handler

	// GRPC has the gRPC services for operators.
	GRPC *grpc.Server

	// Settings returns the configuration, for dumps.
	Settings func() string

	// Commands are the actions of operators.
	Commands []Command

	// Action receives the audit record of each command. It must not block. If it is nil, records are only in the log and
	// in the list of actions.
	Action func(context.Context, Action)

	// Tier has the other relays of the tier; nil refuses requests for the tier. Summary returns the state of this relay
	// for its peers; nil refuses requests of peers.
	Tier    Tier
	Summary func() *TierSummary

	// Snapshot writes the state of the relay for a peer, with Secrets if the peer may take them. If it is nil, peers cannot
	// take it.
	Snapshot func(ctx context.Context, secrets bool, to io.Writer) error

	// Decided returns what rollouts have decided, for peers, and a channel that is closed with the next decision. If it is
	// nil, peers learn nothing.
	Decided func() (*PeerRollouts, <-chan struct{})

	// Metrics serves /metrics.
	Metrics http.Handler

	// Debug adds /debug/pprof.
	Debug bool

	// TLS is for operators on other hosts ([Server.ServeTLS]). Nil means that they cannot connect.
	TLS *TLS

	// Logger receives the errors of connections, at debug level, and a line for each command. Nil discards them.
	Logger *slog.Logger
}

// TLS authenticates operators on other hosts. All fields are required.
type TLS struct {
	// Config requests and verifies a client certificate.
	Config *tls.Config

	// Operator returns the identity of a certificate, or an error if it lacks the permission.
	Operator func(cert *x509.Certificate, may authz.Permission) (identity string, err error)

	// IsNamed reports whether the server's certificate is valid for a host.
	IsNamed func(host string) bool

	// HandshakeFailed reports a failed TLS handshake of an operator.
	HandshakeFailed func(from net.Addr, err error)
}

// Timeouts and the maximum header size of requests.
const (
	readTimeout    = 10 * time.Second
	writeTimeout   = time.Minute
	idleTimeout    = 2 * time.Minute
	maxHeaderBytes = 32 << 10
)

// A Server serves operators and probes.
type Server struct {
	cfg           Config
	admin, probes *http.Server
	routes        []route // of admin
	actions       *actions
	closing       chan struct{} // closed when the server is shut down
}

// A route is a method, a path and their handler.
type route struct {
	method, path string
	handler      http.Handler
	permission
}

// A permission is the permission that a request requires.
type permission struct {
	operator  authz.Permission // [authz.Read], [authz.Act] or [authz.Take]; the zero value is never granted
	peers     bool             // peers may also send it
	forwarded bool             // peers may forward it on behalf of an operator
}

// New returns a server.
func New(cfg Config) *Server {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Server{cfg: cfg, actions: &actions{logger: cfg.Logger, notify: cfg.Action}, closing: make(chan struct{})}
	q, tier := queries{&s.cfg}, tierServer{cfg.Tier, cfg.Summary}
	probes := []route{
		get("/livez", http.HandlerFunc(livez)),
		get("/readyz", http.HandlerFunc(s.readyz)),
		get("/metrics", cfg.Metrics),
	}
	s.routes = slices.Concat(probes, grpcRoutes(cfg.GRPC), []route{
		get("/api/v1/status", serveJSON(func(*http.Request) (any, error) { return cfg.Status(), nil })),
		get("/api/v1/pending", serveJSON(q.pending)),
		get("/api/v1/rollouts", serveJSON(q.rollouts)),
		get("/api/v1/rollout/diff", serveJSON(q.rolloutDiff)),
		get("/api/v1/generations", serveJSON(q.generations)),
		get("/api/v1/rollback/diff", serveJSON(q.rollbackDiff)),
		get("/api/v1/thaw/diff", serveJSON(q.thawDiff)),
		get("/api/v1/pending/diff", serveJSON(q.pendingDiff)),
		forwarded(get("/api/v1/clients", serveJSON(q.clients))),
		forwarded(get("/api/v1/clients/{number}", serveJSON(q.client))),
		get("/api/v1/resources", serveJSON(q.resources)),
		get("/api/v1/history", serveJSON(q.history)),
		get("/api/v1/actions", serveJSON(s.actions.serve)),
		get("/api/v1/tier", serveJSON(tier.status)),
		get("/api/v1/tier/clients", serveJSON(tier.ofRelay(q.clients, clientsPath))),
		get("/api/v1/tier/clients/{number}", serveJSON(tier.ofRelay(q.client, clientsPath))),
		{http.MethodGet, "/api/v1/tier/self", serveJSON(tier.self), permission{operator: authz.Read, peers: true}},
		{http.MethodGet, "/api/v1/tier/snapshot", newSnapshotServer(&s.cfg), permission{operator: authz.Take}},
		{http.MethodGet, RolloutsPath, rolloutsServer{cfg.Decided, s.closing}, permission{operator: authz.Read, peers: true}},
		get("/api/v1/dump", dumper{&s.cfg}),
	})
	if cfg.Pages != nil {
		s.routes = append(s.routes, get("/", cfg.Pages))
	}
	if cfg.Debug {
		s.routes = append(s.routes, debugRoutes()...)
	}
	for _, c := range tier.extend(cfg.Commands) {
		may := permission{operator: authz.Act, forwarded: c.Forwarded}
		if c.Reads {
			may.operator = authz.Read
		}
		s.routes = append(s.routes, route{http.MethodPost, "/api/v1/" + c.Name, s.command(c), may})
	}
	permissions := make(map[string]permission, len(s.routes))
	for _, r := range s.routes {
		permissions[r.method+" "+r.path] = r.permission
	}
	g := &guard{tls: cfg.TLS, permissions: permissions, actions: s.actions, logger: cfg.Logger}
	s.probes = s.newHTTPServer(withHeaders(newMux(probes)))
	s.admin = s.newHTTPServer(withHeaders(g.protect(newMux(s.routes))))
	s.admin.RegisterOnShutdown(sync.OnceFunc(func() { close(s.closing) }))
	if cfg.TLS != nil {
		s.admin.TLSConfig, s.admin.ConnState = cfg.TLS.Config, cfg.TLS.connState
	}
	return s
}

// connState reports the failed handshake of a connection that is closed.
func (t *TLS) connState(conn net.Conn, state http.ConnState) {
	secure, is := conn.(*tls.Conn)
	if !is || state != http.StateClosed || secure.ConnectionState().HandshakeComplete {
		return
	}
	if err := secure.Handshake(); err != nil { // the error of the failed handshake, again
		t.HandshakeFailed(conn.RemoteAddr(), err)
	}
}

// get returns a route for GET requests of operators with the permission to read.
func get(path string, handler http.Handler) route {
	return route{method: http.MethodGet, path: path, handler: handler, permission: permission{operator: authz.Read}}
}

// forwarded returns a route that peers may also forward on behalf of an operator.
func forwarded(r route) route {
	r.forwarded = true
	return r
}

// clientsPath returns the path of the clients of a relay, or of one of them, for a request of the same of the tier.
func clientsPath(r *http.Request) string {
	if number := r.PathValue("number"); number != "" {
		return "/api/v1/clients/" + url.PathEscape(number)
	}
	return "/api/v1/clients"
}

// newMux returns a mux of routes.
func newMux(routes []route) *http.ServeMux {
	mux := http.NewServeMux()
	for _, r := range routes {
		mux.Handle(r.method+" "+r.path, r.handler)
	}
	return mux
}

// newHTTPServer returns a server of HTTP/1.1 and HTTP/2, with and without TLS.
func (s *Server) newHTTPServer(h http.Handler) *http.Server {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler:        h,
		Protocols:      &protocols,
		ReadTimeout:    readTimeout,
		WriteTimeout:   writeTimeout,
		IdleTimeout:    idleTimeout,
		MaxHeaderBytes: maxHeaderBytes,
		ErrorLog:       slog.NewLogLogger(s.cfg.Logger.Handler(), slog.LevelDebug),
	}
}

// Serve serves operators on a listener until the server is closed. It returns nil then.
func (s *Server) Serve(l net.Listener) error { return ignoreClosed(s.admin.Serve(l)) }

// ServeTLS serves operators on other hosts, as Serve does. [Config.TLS] authenticates them by client certificates.
func (s *Server) ServeTLS(l net.Listener) error { return ignoreClosed(s.admin.ServeTLS(l, "", "")) }

// ServeProbes serves probes on a listener until the server is closed. It returns nil then.
func (s *Server) ServeProbes(l net.Listener) error { return ignoreClosed(s.probes.Serve(l)) }

// ignoreClosed returns the error of a server, or nil if the server was closed.
func ignoreClosed(err error) error {
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// Shutdown closes the listeners and waits for the open requests. It returns an error if ctx ends first.
func (s *Server) Shutdown(ctx context.Context) error {
	return errors.Join(s.admin.Shutdown(ctx), s.probes.Shutdown(ctx))
}

// Close closes the server and its open requests.
func (s *Server) Close() error { return errors.Join(s.admin.Close(), s.probes.Close()) }

package admin

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"time"

	"google.golang.org/grpc"

	"github.com/xdstender/tender/relay/authz"
)

// Config says what a server tells. All fields are required, but for Rollouts, RolloutDiff, Pages, Commands, Action,
// Tier, Summary, Debug, TLS and Logger.
type Config struct {
	// Ready returns why the relay is not ready, for people; nothing if it is.
	Ready func() []string

	// Status returns how everything stands.
	Status func() Status

	// Holds returns the removals that are held back.
	Holds func(context.Context) Holds

	// Rollouts returns how the rollout of an origin's changes stands, or of all if the name is empty; RolloutDiff what they
	// change. Nil means that rollouts are off. Of their errors, [Refuse] says the code.
	Rollouts    func(origin string) (Rollouts, error)
	RolloutDiff func(context.Context, RolloutChoice) (RolloutDiff, error)

	// Fleet tells of clients and resources.
	Fleet Fleet

	// Pages serves all paths that are not served otherwise, to GET. Nil means that there are
	// no such pages.
	Pages http.Handler

	// GRPC has the services that operators may call.
	GRPC *grpc.Server

	// Settings returns the configuration, for dumps.
	Settings func() string

	// Commands are what operators may have the relay do.
	Commands []Command

	// Action receives the audit record of each command. Nil means that nobody else wants it.
	Action func(context.Context, Action)

	// Tier has the other relays, and Summary returns what this one tells them. Without a Tier, requests about it are
	// refused; without a Summary, those of peers.
	Tier    Tier
	Summary func() *FleetSummary

	// Metrics serves /metrics.
	Metrics http.Handler

	// Debug adds /debug/pprof, which shows what the process works on.
	Debug bool

	// TLS is for operators on other hosts ([Server.ServeTLS]). Nil means that there are none.
	TLS *TLS

	// Logger receives the errors of connections, at debug level, and a line for each
	// command. Nil discards them.
	Logger *slog.Logger
}

// TLS is how operators on other hosts are spoken to. All fields are required.
type TLS struct {
	// Config asks for a certificate, and verifies it.
	Config *tls.Config

	// Operator returns the identity of a certificate that has a permission, or why it has not.
	Operator func(cert *x509.Certificate, may authz.Permission) (who string, err error)

	// IsNamed reports whether a host is one that the server's certificate is for.
	IsNamed func(host string) bool
}

// Bounds of what a client may hold up.
const (
	readTimeout    = 10 * time.Second
	writeTimeout   = time.Minute
	idleTimeout    = 2 * time.Minute
	maxHeaderBytes = 32 << 10
)

// A Server answers operators and probes.
type Server struct {
	cfg           Config
	admin, probes *http.Server
	routes        []route               // of admin
	permissions   map[string]permission // by pattern
	actions       actions
}

// A route is a method and a path, and what answers there.
type route struct {
	method, path string
	handler      http.Handler
	permission
}

// A permission is what a request needs.
type permission struct {
	operator  authz.Permission // [authz.Read] or [authz.Act]; nobody has the zero value
	peers     bool             // peers may ask too
	forwarded bool             // peers may ask on behalf of an operator
}

// New returns a server.
func New(cfg Config) *Server {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Server{cfg: cfg}
	probes := []route{
		get("/livez", http.HandlerFunc(livez)),
		get("/readyz", http.HandlerFunc(s.readyz)),
		get("/metrics", cfg.Metrics),
	}
	s.routes = slices.Concat(probes, grpcRoutes(cfg.GRPC), []route{
		get("/api/v1/status", answer(func(*http.Request) (any, error) { return cfg.Status(), nil })),
		get("/api/v1/holds", answer(func(r *http.Request) (any, error) { return cfg.Holds(r.Context()), nil })),
		get("/api/v1/rollouts", answer(s.rollouts)),
		get("/api/v1/rollout/diff", answer(s.rolloutDiff)),
		get("/api/v1/clients", answer(s.clients)),
		get("/api/v1/clients/{number}", answer(s.client)),
		get("/api/v1/resources", answer(s.resources)),
		get("/api/v1/history", answer(s.history)),
		get("/api/v1/actions", answer(s.listActions)),
		get("/api/v1/fleet", answer(s.fleetStatus)),
		{http.MethodGet, "/api/v1/fleet/self", answer(s.fleetSelf), permission{operator: authz.Read, peers: true}},
		get("/api/v1/dump", http.HandlerFunc(s.dump)),
	})
	if cfg.Pages != nil {
		s.routes = append(s.routes, get("/", cfg.Pages))
	}
	if cfg.Debug {
		s.routes = append(s.routes, debugRoutes()...)
	}
	for _, c := range s.withFleet(cfg.Commands) {
		may := permission{operator: authz.Act, forwarded: c.Forwarded}
		s.routes = append(s.routes, route{http.MethodPost, "/api/v1/" + c.Name, s.command(c), may})
	}
	s.permissions = make(map[string]permission, len(s.routes))
	for _, r := range s.routes {
		s.permissions[r.method+" "+r.path] = r.permission
	}
	s.probes = s.newHTTPServer(withHeaders(muxOf(probes)))
	s.admin = s.newHTTPServer(withHeaders(s.guard(muxOf(s.routes))))
	if cfg.TLS != nil {
		s.admin.TLSConfig = cfg.TLS.Config
	}
	return s
}

// get returns the route of a page that operators read.
func get(path string, handler http.Handler) route {
	return route{method: http.MethodGet, path: path, handler: handler, permission: permission{operator: authz.Read}}
}

func muxOf(routes []route) *http.ServeMux {
	mux := http.NewServeMux()
	for _, r := range routes {
		mux.Handle(r.method+" "+r.path, r.handler)
	}
	return mux
}

// newHTTPServer returns a server of HTTP/1.1 and HTTP/2, both without TLS too.
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

// Serve serves operators on a listener until the server is closed, which is no error.
func (s *Server) Serve(l net.Listener) error { return ended(s.admin.Serve(l)) }

// ServeTLS is Serve for operators on other hosts, who prove by certificates who they are.
func (s *Server) ServeTLS(l net.Listener) error {
	return ended(s.admin.ServeTLS(l, "", ""))
}

// ServeProbes serves probes on a listener until the server is closed, which is no error.
func (s *Server) ServeProbes(l net.Listener) error { return ended(s.probes.Serve(l)) }

// ended returns why a server ended, if it was not closed.
func ended(err error) error {
	if !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Shutdown takes no more requests, and returns once all are answered, or with an error
// when ctx ends.
func (s *Server) Shutdown(ctx context.Context) error {
	return errors.Join(s.admin.Shutdown(ctx), s.probes.Shutdown(ctx))
}

// Close ends the server, and what it still does.
func (s *Server) Close() error {
	return errors.Join(s.admin.Close(), s.probes.Close())
}

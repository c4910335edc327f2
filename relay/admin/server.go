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
)

// Config says what a server tells. All fields are required, but for Rollouts, RolloutDiff, Pages, Commands, Debug, TLS
// and Logger.
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

	// Operator returns who the holder of a certificate is, for the log, or why it may ask nothing.
	Operator func(*x509.Certificate) (who string, err error)

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
	routes        []route // of admin
}

// A route is a method and a path, and what answers there.
type route struct {
	method, path string
	handler      http.Handler
}

// New returns a server.
func New(cfg Config) *Server {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Server{cfg: cfg}
	probes := []route{
		{http.MethodGet, "/livez", http.HandlerFunc(livez)},
		{http.MethodGet, "/readyz", http.HandlerFunc(s.readyz)},
		{http.MethodGet, "/metrics", cfg.Metrics},
	}
	s.routes = slices.Concat(probes, grpcRoutes(cfg.GRPC), []route{
		{http.MethodGet, "/api/v1/status", answer(func(*http.Request) (any, error) { return cfg.Status(), nil })},
		{http.MethodGet, "/api/v1/holds", answer(func(r *http.Request) (any, error) { return cfg.Holds(r.Context()), nil })},
		{http.MethodGet, "/api/v1/rollouts", answer(s.rollouts)},
		{http.MethodGet, "/api/v1/rollout/diff", answer(s.rolloutDiff)},
		{http.MethodGet, "/api/v1/clients", answer(s.clients)},
		{http.MethodGet, "/api/v1/clients/{number}", answer(s.client)},
		{http.MethodGet, "/api/v1/resources", answer(s.resources)},
		{http.MethodGet, "/api/v1/history", answer(s.history)},
		{http.MethodGet, "/api/v1/dump", http.HandlerFunc(s.dump)},
	})
	if cfg.Pages != nil {
		s.routes = append(s.routes, route{http.MethodGet, "/", cfg.Pages})
	}
	if cfg.Debug {
		s.routes = append(s.routes, debugRoutes()...)
	}
	for _, c := range cfg.Commands {
		s.routes = append(s.routes, route{http.MethodPost, "/api/v1/" + c.Name, s.command(c)})
	}
	s.probes = s.newHTTPServer(withHeaders(muxOf(probes)))
	s.admin = s.newHTTPServer(withHeaders(s.guard(muxOf(s.routes))))
	if cfg.TLS != nil {
		s.admin.TLSConfig = cfg.TLS.Config
	}
	return s
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

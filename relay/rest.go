package relay

import (
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/xdstender/tender/downstream"
)

// restIdle is how long a connection without a poll is kept: longer than most clients
// wait between two.
const restIdle = 5 * time.Minute

// newRESTServer returns a server of polls, over HTTP/1.1 and HTTP/2, both without
// TLS too.
func newRESTServer(cfg Config, server *downstream.Server, log *slog.Logger) *http.Server {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler:        server.REST(),
		ConnState:      server.ConnState,
		Protocols:      &protocols,
		HTTP2:          &http.HTTP2Config{MaxConcurrentStreams: cfg.MaxStreamsPerConnection},
		ReadTimeout:    cfg.FirstRequestTimeout, // until the body was read, then there is none
		WriteTimeout:   downstream.MaxHold + cfg.SendStall,
		IdleTimeout:    restIdle,
		MaxHeaderBytes: maxHeaderBytes,
		ErrorLog:       slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

// RESTAddrs returns the addresses that the relay takes polls on.
func (r *Relay) RESTAddrs() []net.Addr { return addrs(r.restListeners) }

// serveREST serves polls on a listener, with TLS if there is a certificate, until the server is
// shut down.
func (r *Relay) serveREST(l net.Listener) error {
	serve := r.rest.Serve
	if r.credentials.clients != nil {
		serve = func(l net.Listener) error { return r.rest.ServeTLS(l, "", "") }
	}
	if err := serve(r.server.Listener(l)); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// stop ends whatever the servers still do.
func (r *Relay) stop() {
	for _, server := range r.servers {
		server.Stop()
	}
	_ = r.rest.Close() // its listeners are closed, and nothing else can fail
}

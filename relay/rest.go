package relay

import (
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/xdstender/tender/downstream"
	"github.com/xdstender/tender/downstream/guard"
)

// restIdle is how long a connection without a poll is kept: longer than most clients
// wait between two.
const restIdle = 5 * time.Minute

// restWindow is how much of bodies the server holds for a connection of HTTP/2 before it is read, in bytes: what a connection has free.
const restWindow = 64 << 10

// newRESTServer returns a server of polls, over HTTP/1.1 and HTTP/2, both without
// TLS too.
func newRESTServer(cfg Config, server *downstream.Server, log *slog.Logger) *http.Server {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true) // see serveREST
	return &http.Server{
		Handler:     server.REST(),
		ConnContext: guard.PollContext,
		Protocols:   &protocols,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: cfg.MaxStreamsPerConnection, MaxReceiveBufferPerConnection: restWindow, MaxReceiveBufferPerStream: restWindow,
		},
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
// shut down. It encrypts below the server: the frames that the server reads are counted.
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

// stop ends whatever the servers still do.
func (r *Relay) stop() {
	for _, server := range r.servers {
		server.Stop()
	}
	_ = r.rest.Close() // its listeners are closed, and nothing else can fail
}

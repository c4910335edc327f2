package downstream

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/downstream/subscription"
)

// A client has the properties that all subscriptions of a stream or a poll share. It is immutable.
type client struct {
	subscription.Client
	cfg         *Config
	node, group string // for logs
}

// log returns a logger with the client's node and group. It creates a new logger for each line, because a logger takes
// half a KiB and most clients log nothing.
func (c *client) log() *slog.Logger {
	return c.cfg.Logger.With(slog.String("node", c.node), slog.String("group", c.group))
}

// debugEnabled reports whether debug lines are logged.
func (c *client) debugEnabled() bool {
	return c.cfg.Logger.Enabled(context.Background(), slog.LevelDebug)
}

// logStart logs the start of a stream of one type, or of an aggregated stream if typeURL is empty.
func (c *client) logStart(typeURL string) {
	if c.debugEnabled() {
		c.log().Debug("client stream opened", slog.String("type_url", typeURL), slog.Bool("delta", c.Delta))
	}
}

// softwareOf returns the client software that a Node names.
func softwareOf(n *node) subscription.Software {
	return subscription.Software{
		Envoy: n.GetUserAgentName() == "envoy",
		GRPC:  strings.HasPrefix(n.GetUserAgentName(), "gRPC"),
		Relay: n.GetUserAgentName() == "tender",
	}
}

// redactSecretDetail replaces the detail of a NACK of Secrets, which may quote them. No log, status or trace may
// contain it (B.36).
func redactSecretDetail(r *wire.Request) {
	if wire.IsSecret(r.TypeURL) && r.ErrorMessage != "" {
		r.ErrorMessage = fmt.Sprintf("%d bytes that may quote a Secret are not shown", len(r.ErrorMessage))
	}
}

// logNACK logs that a client rejected a response. rejection is nil for a poll.
func (s *Server) logNACK(from *client, r *wire.Request, rejection *subscription.Rejection) {
	if !s.nackLog.Allow() {
		return
	}
	log := from.log()
	if rejection != nil && rejection.TraceID != "" {
		log = log.With(slog.String("trace_id", rejection.TraceID), slog.String("span_id", rejection.SpanID))
	}
	log.LogAttrs(context.Background(), slog.LevelWarn, "client rejected a response",
		slog.String("type_url", r.TypeURL), slog.String("nonce", fmt.Sprintf("%.64s", r.Nonce)),
		slog.Int("code", int(r.ErrorCode)), slog.String("detail", fmt.Sprintf("%.2048s", r.ErrorMessage)),
		s.nackLog.Suppressed())
}

// logBadName logs that a client requested an invalid name.
func (s *Server) logBadName(from *client, typeURL string, b wire.BadName) {
	if s.badNameLog.Allow() {
		from.log().LogAttrs(context.Background(), slog.LevelWarn, "client requested an invalid name",
			slog.String("type_url", typeURL), slog.String("name", b.Name), slog.Any("err", b.Err), s.badNameLog.Suppressed())
	}
}

// logLargeResponse logs a response that exceeds the default message limit of gRPC clients, which then reject it (B.32).
// Such a response could not be split.
func (s *Server) logLargeResponse(to *client, typeURL string, body *wire.Body) {
	if body.Size() > subscription.MaxResponseBytes && s.largeResponseLog.Allow() {
		to.log().LogAttrs(context.Background(), slog.LevelWarn, "response exceeds the default limit of gRPC clients, 4 MiB",
			slog.String("type_url", typeURL), slog.String("version", body.Version()), slog.Int("bytes", body.Size()),
			slog.Int("resources", body.Len()), s.largeResponseLog.Suppressed())
	}
}

// logDeniedName counts and logs a requested name that the client is not authorized for.
func (s *Server) logDeniedName(from *client, err error) {
	if denial, is := guard.DenialOf(err); is {
		s.guard.Counters.Refused("client not authorized for a resource name", denial, from.Watch.Peer(), err,
			slog.String("node", from.node), slog.String("group", from.group))
	}
}

// logSecrets logs the names of the Secrets in a response.
func (s *Server) logSecrets(to *client, g Grant, names []string) {
	if g == nil {
		return
	}
	for _, name := range names {
		to.log().LogAttrs(context.Background(), slog.LevelInfo, "secret sent",
			slog.String("identity", g.Identity()), slog.String("name", name))
	}
}

package downstream

import (
	"context"
	"log/slog"
	"strings"

	"github.com/xdstender/tender/downstream/subscription"
)

// A client is what all subscriptions of a stream or a poll share. It does not change.
type client struct {
	subscription.Client
	cfg         *Config
	node, group string // for logs
	stream      uint64 // its number
}

// log returns a logger with the client's node and group. It is made for each line, as a logger takes half a KiB and most
// clients log nothing.
func (c *client) log() *slog.Logger {
	return c.cfg.Logger.With(slog.String("node", c.node), slog.String("group", c.group))
}

// debugs reports whether debug lines are logged.
func (c *client) debugs() bool {
	return c.cfg.Logger.Enabled(context.Background(), slog.LevelDebug)
}

// began logs that a stream began, of one type, or of all if typeURL is empty.
func (c *client) began(typeURL string) {
	if c.debugs() {
		c.log().Debug("stream began", slog.String("type_url", typeURL), slog.Bool("delta", c.Delta))
	}
}

// softwareOf returns what the relay needs to know of a client's software.
func softwareOf(n *node) subscription.Software {
	return subscription.Software{
		Envoy: n.GetUserAgentName() == "envoy",
		GRPC:  strings.HasPrefix(n.GetUserAgentName(), "gRPC"),
		Relay: n.GetUserAgentName() == "tender",
	}
}

package downstream

import (
	"context"
	"log/slog"

	"github.com/xdstender/tender/cache"
)

// A client is what all subscriptions of one client have in common. It does not change.
type client struct {
	cfg         *Config
	watch       *cache.Watch
	node, group string // for people
	stream      uint64 // its number

	delta  bool
	errors bool // it is known to understand resource_errors (B.39)
}

// log returns a logger that names the client. It is made anew each time: of most clients
// there is nothing to log, and a logger for each would take half a KiB.
func (c *client) log() *slog.Logger {
	return c.cfg.Logger.With(slog.String("node", c.node), slog.String("group", c.group))
}

// debugs reports whether what is of interest only to who looks for a fault is logged.
func (c *client) debugs() bool {
	return c.cfg.Logger.Enabled(context.Background(), slog.LevelDebug)
}

// began logs the begin of a stream of one type, or of all if typeURL is empty.
func (c *client) began(typeURL string) {
	if c.debugs() {
		c.log().Debug("stream began", slog.String("type_url", typeURL), slog.Bool("delta", c.delta))
	}
}

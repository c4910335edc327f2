package files

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/xdstender/tender/upstream"
	"github.com/xdstender/tender/upstream/reconcile"
)

// Config configures a file origin. Dir is required; the zero value of every other field selects its default.
type Config struct {
	// Dir is the directory that contains the files. Required.
	Dir string

	// ColdWait is how long after its start a view accepts reports of clients about their resources (B.7). Zero means
	// 10s.
	ColdWait time.Duration

	// MassDeleteHold is how long suspiciously large removals stay pending (B.15). Zero means 10m.
	MassDeleteHold time.Duration

	// Required reports whether only an operator removes a resource of a type; nil if the files decide about all.
	Required func(typeURL, name string) bool

	// Growth limits what may grow in one change (B.51). What grows more stays pending for MassDeleteHold. The zero value
	// limits nothing.
	Growth reconcile.GrowthLimit

	// HoldExplicit applies MassDeleteHold also to resources that were removed from files that still exist.
	HoldExplicit bool

	// Check finds changes that would break clients; these stay pending (B.46). Nil disables the check.
	Check reconcile.Checker

	// Poll is the interval of reads without an event of the file system. Zero means 10s.
	Poll time.Duration

	// Trace starts the trace of a change of a view. Nil disables tracing.
	Trace func(upstream.Received) upstream.Trace

	// Logger receives the events of the files. Nil discards them.
	Logger *slog.Logger

	disableEvents bool              // only wait for Poll; for tests
	counts        *reconcile.Counts // set by withDefaults
}

// reconcile returns the configuration for decisions about removals.
func (c *Config) reconcile() reconcile.Config {
	return reconcile.Config{
		HoldTime: c.MassDeleteHold, HoldExplicit: c.HoldExplicit, ColdWait: c.ColdWait, Counts: c.counts,
		Check: c.Check, Required: c.Required, Growth: c.Growth, AllResources: true,
		Logger: c.Logger.With(slog.String("dir", c.Dir)),
	}
}

// withDefaults returns the configuration with the default of every unset field, and with new counters.
//
// Errors: Dir is empty, or a duration is negative.
func (c Config) withDefaults() (Config, error) {
	if c.Dir == "" {
		return Config{}, errors.New("open file origin: no directory")
	}
	if c.MassDeleteHold < 0 || c.Poll < 0 {
		return Config{}, fmt.Errorf("open file origin: MassDeleteHold = %v and Poll = %v must not be negative",
			c.MassDeleteHold, c.Poll)
	}
	c.counts = new(reconcile.Counts)
	c.ColdWait = cmp.Or(c.ColdWait, 10*time.Second)
	c.MassDeleteHold = cmp.Or(c.MassDeleteHold, 10*time.Minute)
	c.Poll = cmp.Or(c.Poll, 10*time.Second)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

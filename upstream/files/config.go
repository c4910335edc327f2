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

// Config shapes a file origin. But for Dir, the zero value of each field works.
type Config struct {
	// Dir is the directory that holds the files. Required.
	Dir string

	// ColdWait is for how long what clients of a view say they hold counts, from when the view began (B.7). Zero means 10s.
	ColdWait time.Duration

	// MassDeleteHold is how long removals that are too many to be believed are held back (B.15). Zero means 10m.
	MassDeleteHold time.Duration

	// HoldExplicit holds them back also if the files that had the resources are there, and lack them.
	HoldExplicit bool

	// Check has changes held that break clients (B.46). Nil holds none.
	Check reconcile.Checker

	// Poll is how often the directory is read where no event tells of a change. Zero
	// means 10s.
	Poll time.Duration

	// Trace begins the trace of what a view is told of the directory. Nil if nobody looks.
	Trace func(upstream.Received) upstream.Trace

	// Logger receives what happens to the files. Nil discards it.
	Logger *slog.Logger

	disableEvents bool // of the file system, in tests
	counts   *reconcile.Counts
}

// reconcile returns how removals are decided.
func (c *Config) reconcile() reconcile.Config {
	return reconcile.Config{
		Hold: c.MassDeleteHold, HoldExplicit: c.HoldExplicit, ColdWait: c.ColdWait, Counts: c.counts,
		Check: c.Check, Whole: true,
		Logger: c.Logger.With(slog.String("dir", c.Dir)),
	}
}

func (c Config) withDefaults() (Config, error) {
	if c.Dir == "" {
		return Config{}, errors.New("open file origin: no directory")
	}
	if c.MassDeleteHold < 0 || c.Poll < 0 {
		return Config{}, fmt.Errorf("open file origin: MassDeleteHold = %v and Poll = %v must not be negative", c.MassDeleteHold, c.Poll)
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

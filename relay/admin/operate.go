package admin

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"
	"unicode"

	"github.com/xdstender/tender/relay/humanize"
)

// A Scope selects what a command applies to: an origin, a node group, a type. An empty field selects all.
type Scope struct {
	Origin string `json:"origin,omitempty"`
	Group  string `json:"group,omitempty"` // a key or a name
	Type   string `json:"type,omitempty"`  // a type URL, or a short name such as cds
}

// AuditScope are the arguments of the command audit.
type AuditScope struct {
	Scope
	Why
}

// FreezeScope are the arguments of the commands freeze and thaw.
type FreezeScope struct {
	Origin string `json:"origin,omitempty"` // empty for all

	Why

	// ForSeconds is the time after which a freeze ends by itself; zero is never. Thaw refuses it.
	ForSeconds float64 `json:"for_seconds,omitempty"`

	// DryRun makes thaw return its changes without applying them. Freeze refuses it.
	DryRun bool `json:"dry_run,omitempty"`
}

// Maximum lengths of the reason of a command and of the name of a user.
const (
	MaxReasonBytes = 1000
	maxUserBytes   = 100
)

// Check returns an error with the code 400 for invalid arguments of freeze.
func (s *FreezeScope) Check() error {
	if err := s.Why.Check(); err != nil {
		return err
	}
	if s.ForSeconds != 0 && !(s.ForSeconds >= minFreeze.Seconds() && s.ForSeconds <= maxFreeze.Seconds()) {
		return Refuse(http.StatusBadRequest, fmt.Errorf(
			"for_seconds: %v is not from %v to %v; omit it for a freeze without an end",
			s.ForSeconds, minFreeze.Seconds(), maxFreeze.Seconds()))
	}
	return nil
}

// Check returns an error with the code 400 for an invalid reason or user.
func (w *Why) Check() error {
	switch {
	case len(w.Reason) > MaxReasonBytes || strings.ContainsFunc(w.Reason, unicode.IsControl):
		return Refuse(http.StatusBadRequest, fmt.Errorf("reason: want at most %d bytes in one line", MaxReasonBytes))
	case len(w.User) > maxUserBytes || strings.ContainsFunc(w.User, unicode.IsControl):
		return Refuse(http.StatusBadRequest, fmt.Errorf("user: want at most %d bytes in one line", maxUserBytes))
	}
	return nil
}

// Limits of FreezeScope.ForSeconds.
const (
	minFreeze = time.Second
	maxFreeze = 365 * 24 * time.Hour
)

// Freezes is the response to the commands freeze and thaw: the state after the command.
type Freezes struct {
	Origins []Freeze `json:"origins"`
	DryRun  bool     `json:"dry_run,omitempty"`

	// Diff has the changes of a thaw for a dry run, at most MaxDryRunChanges.
	Diff *RolloutDiff `json:"diff,omitempty"`

	// Warning is why a restart of the relay ends the decision; empty if it does not.
	Warning string `json:"warning,omitempty"`
}

// A Freeze reports whether the distribution of an origin's changes is stopped.
type Freeze struct {
	Origin string    `json:"origin"`
	Frozen bool      `json:"frozen"`
	Freeze *Freezing `json:"freeze,omitempty"` // absent if the origin is not frozen
	Views  int       `json:"views"`            // number of views of the origin

	// Pending is the number of names, over all views, whose content at clients differed from that of the origin before
	// the command.
	Pending int `json:"pending"`
}

// A Freezing describes a freeze: the operator who stopped the distribution of changes, the time and the reason.
type Freezing struct {
	By     string    `json:"by"`
	Reason string    `json:"reason,omitempty"`
	Since  time.Time `json:"since"`
	Until  time.Time `json:"until,omitzero"` // end of the freeze; absent without one

	// SurvivesRestart reports that the freeze is saved in TENDER_SNAPSHOT_DIR.
	SurvivesRestart bool `json:"survives_restart"`

	// Rollback is the earlier generation that clients are served; nil if they are served the state at the start of the
	// freeze.
	Rollback *RolledBack `json:"rollback,omitempty"`
}

// Describe returns a freeze as a sentence without a subject, such as
// "frozen by alice 5m ago, for another 1h55m: bad routes" or "rolled back to 3f2a01c4d9e8 by alice 5m ago: bad routes".
func (f *Freezing) Describe(now time.Time) string {
	state := "frozen"
	if f.Rollback != nil {
		state = "rolled back to " + f.Rollback.Describe()
	}
	text := fmt.Sprintf("%s by %s %s ago", state, f.By, humanize.Seconds(now.Sub(f.Since).Seconds()))
	if !f.Until.IsZero() {
		text += ", for another " + humanize.Seconds(max(f.Until.Sub(now), 0).Seconds())
	}
	if f.Reason != "" {
		text += ": " + f.Reason
	}
	return text
}

// MaxDryRunChanges is the maximum number of changes in the response to a dry run. It limits the responses of peers.
const MaxDryRunChanges = 500

// thawDiff serves the changes of a thaw.
func (qs queries) thawDiff(r *http.Request) (any, error) { return serveDiff(r, qs.cfg.ThawDiff) }

// pendingDiff serves what the pending changes change for clients.
func (qs queries) pendingDiff(r *http.Request) (any, error) { return serveDiff(r, qs.cfg.PendingDiff) }

// serveDiff serves the changes that a request chooses.
func serveDiff(r *http.Request, diff func(context.Context, RolloutChoice) (RolloutDiff, error)) (any, error) {
	p := parametersOf(r)
	c := p.rolloutChoice()
	if err := p.done(); err != nil {
		return nil, err
	}
	return diff(r.Context(), c)
}

// A LogLevel is the argument of the command loglevel. Level is the minimum level that is logged: "debug", "info",
// "warn" or "error".
type LogLevel struct {
	Level string `json:"level"`

	Why
}

// A LogLevelChange is the response to the command loglevel.
type LogLevelChange struct {
	Level  string `json:"level"`
	Before string `json:"before"`
}

package admin

import (
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
	Group  string `json:"group,omitempty"`
	Type   string `json:"type,omitempty"` // a type URL, or a short name such as cds
}

// AuditScope are the arguments of audit.
type AuditScope struct {
	Scope
	Why
}

// Holds is the response to GET /api/v1/holds, and to the commands release and discard, which list what they changed.
type Holds struct {
	Holds []Hold `json:"holds"`

	// Warning is why a decision does not survive a restart of the relay; empty if it does.
	Warning string `json:"warning,omitempty"`
}

// A Hold is a set of changes that the relay does not send to clients: suspect removals, until a second look at the origin or an
// operator confirms them, or changes that break clients, until they no longer do or an operator releases them.
type Hold struct {
	Origin  string `json:"origin"`
	Group   string `json:"group,omitempty"` // empty for a directory, which is the same for all groups
	TypeURL string `json:"type_url"`
	Count   int    `json:"count"` // of resources

	// Names are the first resources by name, at most MaxHoldNames.
	Names []string `json:"names"`

	// Broken reports that clients could not use what is served after the changes (TENDER_VALIDATE=hold). Reasons are why, one
	// for each of Names.
	Broken  bool     `json:"broken,omitempty"`
	Reasons []string `json:"reasons,omitempty"`

	// Since is when the hold began. Until is when the second look begins; it is absent once that has begun.
	Since time.Time `json:"since,omitzero"`
	Until time.Time `json:"until,omitzero"`

	// Reported reports that the relay has only the names, which returning clients reported. The name "*" stands for
	// resources of clients that report only a version.
	Reported bool `json:"reported,omitempty"`

	// Discarded reports that an operator discarded the changes: the resources stay until the origin mentions them.
	Discarded bool `json:"discarded,omitempty"`
}

// MaxHoldNames is how many names a Hold lists.
const MaxHoldNames = 100

// HoldScope are the arguments of release and discard. An empty scope needs All.
type HoldScope struct {
	Scope
	All bool `json:"all,omitempty"`

	// Discarded makes release apply to discarded removals.
	Discarded bool `json:"discarded,omitempty"`

	Why
}

// FreezeScope are the arguments of freeze and thaw.
type FreezeScope struct {
	Origin string `json:"origin,omitempty"` // empty for all

	Why

	// ForSeconds is the time after which a freeze ends by itself; zero is never. Thaw rejects it.
	ForSeconds float64 `json:"for_seconds,omitempty"`

	// DryRun makes thaw change nothing, and return what it would change. Freeze rejects it.
	DryRun bool `json:"dry_run,omitempty"`
}

// MaxReasonBytes bounds the reason of a command, maxUserBytes the name of a user.
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
		return Refuse(http.StatusBadRequest, fmt.Errorf("for_seconds: %v is not from %v to %v; leave it out for a freeze without an end",
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

// Bounds of a freeze that ends by itself.
const (
	minFreeze = time.Second
	maxFreeze = 365 * 24 * time.Hour
)

// Freezes is the response to freeze and thaw: the state after the command.
type Freezes struct {
	Origins []Freeze `json:"origins"`
	DryRun  bool     `json:"dry_run,omitempty"`

	// Diff is what a thaw would change, for a dry run: the first MaxDryRunChanges changes.
	Diff *RolloutDiff `json:"diff,omitempty"`

	// Warning is why the decision does not survive a restart of the relay; empty if it does.
	Warning string `json:"warning,omitempty"`
}

// A Freeze reports whether the distribution of an origin's changes is stopped.
type Freeze struct {
	Origin string    `json:"origin"`
	Frozen bool      `json:"frozen"`
	Freeze *Freezing `json:"freeze,omitempty"` // absent if it is not
	Views  int       `json:"views"`            // of the origin

	// Withheld is the number of names, over all views, for which clients had another content than the origin before
	// the command.
	Withheld int `json:"withheld"`
}

// A Freezing is the operator who stopped the distribution of an origin's changes, the time and the reason.
type Freezing struct {
	By     string    `json:"by"`
	Reason string    `json:"reason,omitempty"`
	Since  time.Time `json:"since"`
	Until  time.Time `json:"until,omitzero"` // when it ends by itself

	// SurvivesRestart reports that the freeze is saved in TENDER_SNAPSHOT_DIR.
	SurvivesRestart bool `json:"survives_restart"`

	// Rollback is the earlier generation that clients are served; nil if they are served what they were when the freeze began.
	Rollback *RolledBack `json:"rollback,omitempty"`
}

// Describe returns a freeze as a sentence without a subject, such as
// "frozen by alice 5m ago, for another 1h55m: bad routes" or "rolled back to 3f2a01c4d9e8 by alice 5m ago: bad routes".
func (f *Freezing) Describe(now time.Time) string {
	what := "frozen"
	if f.Rollback != nil {
		what = "rolled back to " + f.Rollback.Describe()
	}
	text := fmt.Sprintf("%s by %s %s ago", what, f.By, humanize.Seconds(now.Sub(f.Since).Seconds()))
	if !f.Until.IsZero() {
		text += ", for another " + humanize.Seconds(max(f.Until.Sub(now), 0).Seconds())
	}
	if f.Reason != "" {
		text += ": " + f.Reason
	}
	return text
}

// MaxDryRunChanges is how many changes the answer of a dry run lists. It is bounded so that peers can return it.
const MaxDryRunChanges = 500

// thawDiff answers with what a thaw would change.
func (s *Server) thawDiff(r *http.Request) (any, error) {
	p := parametersOf(r)
	c := p.rolloutChoice()
	if err := p.done(); err != nil {
		return nil, err
	}
	return s.cfg.ThawDiff(r.Context(), c)
}

// A LogLevel is the argument of the command loglevel: the lowest level that is logged, "debug", "info", "warn" or
// "error".
type LogLevel struct {
	Level string `json:"level"`

	Why
}

// A LogLevelChange is the response to the command loglevel.
type LogLevelChange struct {
	Level  string `json:"level"`
	Before string `json:"before"`
}

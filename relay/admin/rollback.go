package admin

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"time"
)

// Generations is the answer to GET /api/v1/generations: the configurations that clients were served, as far as they are kept.
type Generations struct {
	Views []ViewGenerations `json:"views"` // by origin and group

	// Earlier is how many generations are kept beside those that are served, over all views, Bytes how many bytes only they
	// hold, and MaxBytes the limit of that (TENDER_MAX_GENERATION_BYTES).
	Earlier  int   `json:"earlier"`
	Bytes    int64 `json:"bytes"`
	MaxBytes int64 `json:"max_bytes"`
}

// ViewGenerations are the generations of what one origin says to one node group.
type ViewGenerations struct {
	Origin      string       `json:"origin"`
	Group       string       `json:"group"`
	Shared      bool         `json:"shared,omitempty"` // of names that groups share
	Total       int          `json:"total"`
	Generations []Generation `json:"generations"` // the newest first
}

// A Generation is the configuration that the clients of a view were served for a time: the resources of the types in
// TENDER_ROLLOUT_TYPES.
type Generation struct {
	Generation string    `json:"generation"` // the digest of its content; empty if there was none
	Since      time.Time `json:"since"`
	Until      time.Time `json:"until,omitzero"` // left out while it is served

	// Compared with the generation before.
	Added   int `json:"added"`
	Changed int `json:"changed"`
	Removed int `json:"removed"`

	Bytes int64 `json:"bytes"` // of the resources that the next generation does not have
}

// A GenerationChoice says which generations are listed.
type GenerationChoice struct {
	Origin, Group string // empty for all
	Limit         int    // of each view
}

// RollbackScope are the arguments of the command rollback.
type RollbackScope struct {
	Origin string `json:"origin,omitempty"` // empty for all

	// To is a generation, as its digest or at least the first MinGeneration digits of it, or a duration such as "10m" for
	// what was served that long ago.
	To string `json:"to"`

	// DryRun has nothing changed: the answer says what would be.
	DryRun bool `json:"dry_run,omitempty"`

	Why // whose Reason is required, but for DryRun
}

// MinGeneration is how many digits name a generation at least.
const MinGeneration = 6

// Bounds of how long ago a rollback returns to.
const (
	minRollback = time.Second
	maxRollback = 365 * 24 * time.Hour
)

var generationDigits = regexp.MustCompile(fmt.Sprintf("^[0-9a-f]{%d,12}$", MinGeneration))

// Check returns why the arguments of rollback cannot be, as a refusal.
func (s *RollbackScope) Check() error {
	if err := s.Why.Check(); err != nil {
		return err
	}
	if s.Reason == "" && !s.DryRun {
		return Refuse(http.StatusBadRequest, errors.New("reason: a rollback needs one"))
	}
	_, _, err := ParseRollback(s.To)
	return err
}

// ParseRollback reads what a rollback returns to: the digits of a generation, or how long ago it was served. Of its error, Refuse
// says the code.
func ParseRollback(to string) (digest string, ago time.Duration, err error) {
	if generationDigits.MatchString(to) {
		return to, 0, nil
	}
	if ago, err = time.ParseDuration(to); err == nil && ago >= minRollback && ago <= maxRollback {
		return "", ago, nil
	}
	return "", 0, Refuse(http.StatusBadRequest, fmt.Errorf(
		"to=%.64q: want a generation, as at least %d digits of tender generations, or a duration from %v to %v such as 10m", to, MinGeneration, minRollback, maxRollback))
}

// Rollbacks is the answer to rollback.
type Rollbacks struct {
	Origins []Rollback `json:"origins"` // those that it is about
	DryRun  bool       `json:"dry_run,omitempty"`

	// Diff is what a rollback would change, for a dry run: the first MaxDryRunChanges changes.
	Diff *RolloutDiff `json:"diff,omitempty"`

	// Warning is why the decision does not survive a restart of the relay; empty if it does.
	Warning string `json:"warning,omitempty"`
}

// A Rollback is what became of one origin.
type Rollback struct {
	Origin    string    `json:"origin"`
	Views     int       `json:"views"`
	Resources int       `json:"resources"` // that clients are served with other content, over all views; or would be
	At        time.Time `json:"at"`        // a time at which the generation was served
	Freeze    *Freezing `json:"freeze,omitempty"`
}

// A RolledBack is the earlier generation that the clients of an origin are served.
type RolledBack struct {
	To string    `json:"to"` // as the operator gave it: a generation, or how long before the command
	At time.Time `json:"at"` // a time at which the generation was served
}

// Describe returns the generation as people are shown it.
func (b *RolledBack) Describe() string {
	if _, ago, err := ParseRollback(b.To); err != nil || ago == 0 {
		return b.To
	}
	return "what was served at " + b.At.Local().Format(time.DateTime)
}

// ErrNoGenerations is the answer to whatever is about generations, if none are kept.
var ErrNoGenerations = Refuse(http.StatusConflict, errors.New("no generations are kept: TENDER_MAX_GENERATION_BYTES is 0"))

// generations answers with the generations of views.
func (s *Server) generations(r *http.Request) (any, error) {
	p := parametersOf(r)
	c := GenerationChoice{Origin: p.text("origin"), Group: p.text("group"), Limit: p.limit()}
	if err := p.done(); err != nil {
		return nil, err
	}
	if s.cfg.Generations == nil {
		return nil, ErrNoGenerations
	}
	return s.cfg.Generations(c)
}

// rollbackDiff answers with what a rollback would change.
func (s *Server) rollbackDiff(r *http.Request) (any, error) {
	p := parametersOf(r)
	to, c := p.text("to"), p.rolloutChoice()
	if err := p.done(); err != nil {
		return nil, err
	}
	if s.cfg.RollbackDiff == nil {
		return nil, ErrNoGenerations
	}
	return s.cfg.RollbackDiff(r.Context(), strings.TrimSpace(to), c)
}

package admin

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"time"
)

// Generations is the response to GET /api/v1/generations: the configurations that clients were served and the relay
// keeps.
type Generations struct {
	Views []ViewGenerations `json:"views"` // by origin and group

	// Earlier is the number of kept generations that are not served, over all views. Bytes is the size of resources that
	// only they contain, and MaxBytes its limit.
	Earlier  int   `json:"earlier"`
	Bytes    int64 `json:"bytes"`
	MaxBytes int64 `json:"max_bytes"`
}

// ViewGenerations are the generations of the view of one origin for one node group.
type ViewGenerations struct {
	Origin      string       `json:"origin"`
	Group       string       `json:"group"`
	Shared      bool         `json:"shared,omitempty"` // the view has names that node groups share
	Total       int          `json:"total"`
	Generations []Generation `json:"generations"` // newest first
}

// A Generation is a configuration that the clients of a view were served: the resources of the types in
// TENDER_ROLLOUT_TYPES.
type Generation struct {
	Generation string    `json:"generation"` // digest of the content; empty without resources
	Since      time.Time `json:"since"`
	Until      time.Time `json:"until,omitzero"` // absent while it is served

	// Numbers of resources that differ from the generation before.
	Added   int `json:"added"`
	Changed int `json:"changed"`
	Removed int `json:"removed"`

	Bytes int64 `json:"bytes"` // size of the resources that the next generation lacks
}

// A GenerationChoice selects the generations of GET /api/v1/generations.
type GenerationChoice struct {
	Origin, Group string // empty for all
	Limit         int    // maximum number of generations of each view
}

// RollbackScope are the arguments of the command rollback.
type RollbackScope struct {
	Origin string `json:"origin,omitempty"` // empty for all

	// To is a generation, as its digest or at least the first MinGeneration digits of it. Or it is a duration such as
	// "10m", for the generation that was served that long ago.
	To string `json:"to"`

	// DryRun returns the changes of a rollback without applying them.
	DryRun bool `json:"dry_run,omitempty"`

	Why // Reason is required unless DryRun is set
}

// MinGeneration is the minimum number of digits that identify a generation.
const MinGeneration = 6

// Limits of the duration in RollbackScope.To.
const (
	minRollback = time.Second
	maxRollback = 365 * 24 * time.Hour
)

var generationDigits = regexp.MustCompile(fmt.Sprintf("^[0-9a-f]{%d,12}$", MinGeneration))

// Check returns an error with the code 400 for invalid arguments of rollback.
func (s *RollbackScope) Check() error {
	if err := s.Why.Check(); err != nil {
		return err
	}
	if s.Reason == "" && !s.DryRun {
		return Refuse(http.StatusBadRequest, errors.New("reason: a rollback requires a reason"))
	}
	_, _, err := ParseRollback(s.To)
	return err
}

// ParseRollback parses the generation of a rollback: its digits, or how long ago it was served. Its error has the code
// 400.
func ParseRollback(to string) (digest string, ago time.Duration, err error) {
	if generationDigits.MatchString(to) {
		return to, 0, nil
	}
	if ago, err = time.ParseDuration(to); err == nil && ago >= minRollback && ago <= maxRollback {
		return "", ago, nil
	}
	return "", 0, Refuse(http.StatusBadRequest, fmt.Errorf(
		"to=%.64q: want a generation (at least %d digits, see tender generations) or a duration from %v to %v such as 10m",
		to, MinGeneration, minRollback, maxRollback))
}

// Rollbacks is the response to the command rollback.
type Rollbacks struct {
	Origins []Rollback `json:"origins"` // the origins of the command
	DryRun  bool       `json:"dry_run,omitempty"`

	// Diff has the changes of a rollback for a dry run, at most MaxDryRunChanges.
	Diff *RolloutDiff `json:"diff,omitempty"`

	// Warning is why a restart of the relay ends the decision; empty if it does not.
	Warning string `json:"warning,omitempty"`
}

// A Rollback is the result of a rollback of one origin.
type Rollback struct {
	Origin    string    `json:"origin"`
	Views     int       `json:"views"`
	Resources int       `json:"resources"` // number of changed resources, over all views
	At        time.Time `json:"at"`        // a time at which the generation was served
	Freeze    *Freezing `json:"freeze,omitempty"`
}

// A RolledBack is the earlier generation that the clients of an origin are served.
type RolledBack struct {
	To string    `json:"to"` // RollbackScope.To of the command
	At time.Time `json:"at"` // a time at which the generation was served
}

// Describe returns the generation in a form for operators.
func (b *RolledBack) Describe() string {
	if _, ago, err := ParseRollback(b.To); err != nil || ago == 0 {
		return b.To
	}
	return "the configuration of " + b.At.Local().Format(time.DateTime)
}

// generations serves the generations of views.
func (qs queries) generations(r *http.Request) (any, error) {
	p := parametersOf(r)
	c := GenerationChoice{Origin: p.text("origin"), Group: p.text("group"), Limit: p.limit()}
	if err := p.done(); err != nil {
		return nil, err
	}
	return qs.cfg.Generations(c)
}

// rollbackDiff serves the changes of a rollback.
func (qs queries) rollbackDiff(r *http.Request) (any, error) {
	p := parametersOf(r)
	to, c := p.text("to"), p.rolloutChoice()
	if err := p.done(); err != nil {
		return nil, err
	}
	return qs.cfg.RollbackDiff(r.Context(), strings.TrimSpace(to), c)
}

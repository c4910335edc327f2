package admin

import (
	"fmt"
	"net/http"
	"strings"
	"time"
	"unicode"

	"github.com/xdstender/tender/relay/humanize"
)

// A Scope says what of a relay a command is about: what an origin says, to a group, of a
// type. An empty field stands for all of them.
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

// Holds is the answer to GET /api/v1/holds, and to the commands release and discard, which
// say what they were about.
type Holds struct {
	Holds []Hold `json:"holds"`

	// Warning is why a decision does not survive a restart of the relay; empty if it does.
	Warning string `json:"warning,omitempty"`
}

// A Hold is a mass of removals that the origin may not have meant, and that clients are not told of before
// a second look, or an operator, confirms them.
type Hold struct {
	Origin  string `json:"origin"`
	Group   string `json:"group,omitempty"` // none of files, which tell all groups the same
	TypeURL string `json:"type_url"`
	Count   int    `json:"count"` // of resources

	// Names are the first of these, in order: at most MaxHoldNames.
	Names []string `json:"names"`

	// Since is when the removals were held back, Until when they are looked at again; it is
	// left out if that has begun.
	Since time.Time `json:"since,omitzero"`
	Until time.Time `json:"until,omitzero"`

	// Reported reports that the relay has never had the resources, and knows their names alone: returning clients
	// report them. The name "*" stands for what clients hold of which they report only a version.
	Reported bool `json:"reported,omitempty"`

	// Discarded reports that an operator had the resources kept, until the origin says
	// something of them itself.
	Discarded bool `json:"discarded,omitempty"`
}

// MaxHoldNames is how many names a Hold lists.
const MaxHoldNames = 100

// HoldScope are the arguments of release and discard. A scope that is empty is all only
// with All.
type HoldScope struct {
	Scope
	All bool `json:"all,omitempty"`

	// Discarded has release be about what was discarded.
	Discarded bool `json:"discarded,omitempty"`

	Why
}

// FreezeScope are the arguments of freeze and thaw.
type FreezeScope struct {
	Origin string `json:"origin,omitempty"` // empty for all

	Why

	// ForSeconds is after how long a freeze ends by itself; zero is never. Thaw has none.
	ForSeconds float64 `json:"for_seconds,omitempty"`
}

// MaxReasonBytes bounds the reason of a freeze, maxUserBytes the name of a user.
const (
	MaxReasonBytes = 1000
	maxUserBytes   = 100
)

// Check returns why the arguments of freeze cannot be, as a refusal.
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

// Check returns why the reason of a command, or the user on whose behalf it is sent, cannot be, as a refusal.
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

// Freezes is the answer to freeze and thaw: how things stand after them.
type Freezes struct {
	Origins []Freeze `json:"origins"`

	// Warning is why the decision does not survive a restart of the relay; empty if it does.
	Warning string `json:"warning,omitempty"`
}

// A Freeze says whether the distribution of an origin's changes is stopped.
type Freeze struct {
	Origin string    `json:"origin"`
	Frozen bool      `json:"frozen"`
	Freeze *Freezing `json:"freeze,omitempty"` // if it is
	Views  int       `json:"views"`            // of the origin

	// Withheld is of how many names, over all views, clients saw something else than the
	// origin said, before the command.
	Withheld int `json:"withheld"`
}

// A Freezing says who stopped the distribution of an origin's changes, when and why.
type Freezing struct {
	By     string    `json:"by"`
	Reason string    `json:"reason,omitempty"`
	Since  time.Time `json:"since"`
	Until  time.Time `json:"until,omitzero"` // when it ends by itself

	// SurvivesRestart reports that it is on the disk, in TENDER_SNAPSHOT_DIR.
	SurvivesRestart bool `json:"survives_restart"`
}

// Describe returns a freeze as a sentence without a subject, such as
// "frozen by alice 5m ago, for another 1h55m: bad routes".
func (f *Freezing) Describe(now time.Time) string {
	text := fmt.Sprintf("frozen by %s %s ago", f.By, humanize.Seconds(now.Sub(f.Since).Seconds()))
	if !f.Until.IsZero() {
		text += ", for another " + humanize.Seconds(max(f.Until.Sub(now), 0).Seconds())
	}
	if f.Reason != "" {
		text += ": " + f.Reason
	}
	return text
}

// A LogLevel is the argument of the command loglevel: the least level that is to be logged,
// "debug", "info", "warn" or "error".
type LogLevel struct {
	Level string `json:"level"`

	Why
}

// A LogLevelChange is the answer to it.
type LogLevelChange struct {
	Level  string `json:"level"`
	Before string `json:"before"`
}

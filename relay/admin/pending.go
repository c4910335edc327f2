package admin

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/cache/wire/schema"
	"github.com/xdstender/tender/relay/humanize"
	"github.com/xdstender/tender/upstream/reconcile"
)

// Reasons of pending changes in addition to those of [reconcile.Reason].
const (
	PendingFrozen     = "frozen"      // an operator froze the origin
	PendingRolledBack = "rolled-back" // an operator rolled the origin back
	PendingStage      = "stage"       // a rollout has not reached all clients
	PendingHalted     = "halted"      // a rollout is halted
)

// PendingReasons has all reasons of pending changes.
var PendingReasons = append(DecidableReasons(), PendingFrozen, PendingRolledBack, PendingStage, PendingHalted)

// DecidableReasons returns the reasons of the changes that the commands pass and drop decide on.
func DecidableReasons() (all []string) {
	for _, reason := range reconcile.Reasons {
		all = append(all, string(reason))
	}
	return all
}

// pendingCommands has, for each reason that pass and drop do not decide on, the commands that do.
var pendingCommands = map[string]string{
	PendingFrozen:     "tender thaw",
	PendingRolledBack: "tender thaw",
	PendingStage:      "tender rollout promote or tender rollout abort",
	PendingHalted:     "tender rollout resume, or wait for another change of the origin",
}

// Ends of the wait of a pending change.
const (
	EndsByDeadline = "deadline" // at Until
	EndsByOperator = "operator"
	EndsByOrigin   = "origin"  // a response of the origin
	EndsByClients  = "clients" // answers of clients
	EndsByCheck    = "check"   // the check of the rollout
)

// Pending is the response to GET /api/v1/pending, and to the command pending: all changes of origins that clients do not
// receive yet, whatever delays them.
type Pending struct {
	Pending []PendingChange `json:"pending"` // by origin, group, type, reason and change
}

// PendingChange is a set of changes of one type that wait for the same reason.
type PendingChange struct {
	Origin  string `json:"origin"`
	Group   string `json:"group,omitempty"` // empty for a directory, whose changes wait for all groups
	Part    string `json:"part,omitempty"`  // of the rollout; empty for other reasons, and for what is in no edition yet
	TypeURL string `json:"type_url"`
	Change  string `json:"change"` // add, change or remove
	Count   int    `json:"count"`  // number of resources

	// Names are the first resources by name, at most MaxPendingNames.
	Names []string `json:"names"`

	// Reason is why the changes wait, as tender pending lists the reasons. Details has, for each of Names, why the change would break
	// clients. Note has a decision in words: the reason of an operator, or the part and the edition of a rollout.
	Reason  string   `json:"reason"`
	Details []string `json:"details,omitempty"`
	Note    string   `json:"note,omitempty"`

	// Since is when the first change began to wait; absent if that was in an earlier process. Ends is what ends the wait:
	// deadline, operator, origin, clients or check. Until is the deadline, if time decides.
	Since time.Time `json:"since,omitzero"`
	Ends  string    `json:"ends"`
	Until time.Time `json:"until,omitzero"`

	// By is who decided that the changes wait: an operator, or "relay".
	By string `json:"by"`

	// Reported reports that the relay has only the names of the resources, which reconnecting clients reported. The name
	// "*" stands for the resources of clients that report only a version.
	Reported bool `json:"reported,omitempty"`
}

// ByRelay is the value of PendingChange.By for a decision of the relay itself.
const ByRelay = "relay"

// MaxPendingNames is the maximum number of names in a PendingChange.
const MaxPendingNames = 100

// A PendingChoice selects pending changes. An empty field selects all.
type PendingChoice struct {
	Scope
	Name          string `json:"name,omitempty"`           // of a resource
	PendingReason string `json:"pending_reason,omitempty"` // as in a PendingChange
}

// PendingScope are the arguments of the commands pass and drop. All is required if the choice is empty.
type PendingScope struct {
	PendingChoice
	All bool `json:"all,omitempty"`

	// DryRun makes the command return the changes to which it would apply, without applying it.
	DryRun bool `json:"dry_run,omitempty"`

	Why
}

// PendingDecision is the response to the commands pass and drop.
type PendingDecision struct {
	Pending []PendingChange `json:"pending"` // to which the command was applied, or would be for a dry run
	DryRun  bool            `json:"dry_run,omitempty"`

	// Skipped are the chosen changes to which the command does not apply.
	Skipped []SkippedPending `json:"skipped,omitempty"`

	// Warning is why a decision does not survive a restart of the relay; empty if it does.
	Warning string `json:"warning,omitempty"`
}

// SkippedPending counts pending changes to which a command does not apply.
type SkippedPending struct {
	Reason string `json:"reason"` // as in a PendingChange
	Count  int    `json:"count"`
	Use    string `json:"use"` // what the operator can do instead
}

// Check replaces a short type name by the type URL, and puts the name in canonical form. It returns an error with the
// code 400 for invalid values.
func (c *PendingChoice) Check() error {
	if long, ok := schema.TypeURLFor(c.Type); ok {
		c.Type = long
	}
	if c.Type != "" && !strings.Contains(c.Type, "/") {
		return Refuse(http.StatusBadRequest, fmt.Errorf("type=%.64s: want a type URL, or a short name such as cds", c.Type))
	}
	name, err := wire.CanonicalName(c.Name)
	if err != nil {
		return Refuse(http.StatusBadRequest, fmt.Errorf("name=%.256s: %w", c.Name, err))
	}
	c.Name = name
	if c.PendingReason != "" && !slices.Contains(PendingReasons, c.PendingReason) {
		return Refuse(http.StatusBadRequest,
			fmt.Errorf("reason %.64q: want %s", c.PendingReason, strings.Join(PendingReasons, ", ")))
	}
	return nil
}

// Check completes the choice, and returns an error with the code 400 for invalid arguments.
func (s *PendingScope) Check() error {
	if err := cmp.Or(s.Why.Check(), s.PendingChoice.Check()); err != nil {
		return err
	}
	use, other := pendingCommands[s.PendingReason]
	switch {
	case s.PendingChoice == (PendingChoice{}) && !s.All:
		return Refuse(http.StatusBadRequest,
			errors.New("name a pending_reason, type, name, group or origin, or set all; GET /api/v1/pending lists the changes"))
	case s.PendingChoice != (PendingChoice{}) && s.All:
		return Refuse(http.StatusBadRequest, errors.New("all: only without a pending_reason, type, name, group and origin"))
	case other:
		return Refuse(http.StatusBadRequest, fmt.Errorf("pending_reason=%s: use %s", s.PendingReason, use))
	}
	return nil
}

// Skip returns how often a command skips changes: it counts those of each reason. It ignores empty rows.
func Skip(rows []PendingChange) (all []SkippedPending) {
	for _, row := range rows {
		at := slices.IndexFunc(all, func(s SkippedPending) bool { return s.Reason == row.Reason })
		if at < 0 {
			at = len(all)
			all = append(all, SkippedPending{Reason: row.Reason, Use: useInstead(row.Reason)})
		}
		all[at].Count += row.Count
	}
	return all
}

// useInstead returns what an operator can do about changes to which a command does not apply.
func useInstead(reason string) string {
	switch reason {
	case string(reconcile.Dropped):
		return "tender pass dropped"
	case string(reconcile.Interval):
		return "tender pass interval, or tender freeze: what waits for an interval cannot be dropped"
	case string(reconcile.Replacement):
		return "tender pass replacement; otherwise they pass with the removal that they wait for"
	}
	return pendingCommands[reason]
}

// pending serves the pending changes.
func (qs queries) pending(r *http.Request) (any, error) {
	p := parametersOf(r)
	c := PendingChoice{
		Scope: Scope{Origin: p.text("origin"), Group: p.text("group"), Type: p.typeURL()},
		Name:  p.text("name"), PendingReason: p.text("reason"),
	}
	if err := p.done(); err != nil {
		return nil, err
	}
	return qs.cfg.Pending(r.Context(), c)
}

// ShownNames returns the first names, with an ellipsis if there are more.
func (c *PendingChange) ShownNames(most int) string {
	text := strings.Join(c.Names[:min(len(c.Names), most)], ", ")
	if c.Count > most {
		text += ", …"
	}
	return text
}

// ShownUntil returns what ends the wait: the time until the deadline, or one of the Ends constants.
func (c *PendingChange) ShownUntil(now time.Time) string {
	if c.Ends != EndsByDeadline {
		return c.Ends
	}
	return "in " + humanize.Seconds(max(c.Until.Sub(now), 0).Seconds())
}

// ShownNote returns the note and the first detail.
func (c *PendingChange) ShownNote() string {
	all := []string{c.Note}
	if len(c.Details) > 0 {
		all = append(all, c.Names[0]+": "+c.Details[0])
	}
	if c.Reported {
		all = append(all, "names only: returning clients reported them")
	}
	return strings.Join(slices.DeleteFunc(all, func(s string) bool { return s == "" }), "; ")
}

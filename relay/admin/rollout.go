package admin

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/xdstender/tender/relay/rollout"
)

// Rollouts is the response to GET /api/v1/rollouts, and to the commands for rollouts, which return the state of the
// origins that they changed.
type Rollouts struct {
	Rollouts []*rollout.Status `json:"rollouts"` // by origin

	// HaltedAbove has, by the name of the origin, the changes that the relay above has halted. Origins without are absent.
	HaltedAbove map[string][]HaltAbove `json:"halted_above,omitempty"`
}

// RolloutScope are the arguments of the commands rollout/promote, rollout/abort, rollout/resume and rollout/undo.
type RolloutScope struct {
	// Origin is the origin; empty selects all origins whose state permits the command.
	Origin string `json:"origin,omitempty"`

	// Part is the name of a part, or the id of its edition; empty selects all parts whose state permits the command, and
	// for undo those that were promoted last, at one time. All refuses it.
	Part string `json:"part,omitempty"`

	// All makes promote serve the newest content of the origin to all clients. Other commands refuse it.
	All bool `json:"all,omitempty"`

	Why // Reason is only for abort and undo
}

// Check returns an error with the code 400 for invalid arguments.
func (s *RolloutScope) Check() error { return s.Why.Check() }

// A RolloutChoice selects the changes that GET /api/v1/rollout/diff lists.
type RolloutChoice struct {
	Origin string // empty for all
	Type   string // a type URL; empty for all
	Name   string // a name, whose contents are returned too; empty for all
	Group  string // a node group; empty for all
	Page
}

// A RolloutDiff is the response to GET /api/v1/rollout/diff: for each origin, the changes of the editions that are being
// rolled out or were rejected. Without an edition, it has the pending changes. Changes are sorted by origin, type, name
// and group.
type RolloutDiff struct {
	Total   int             `json:"total"` // over all pages
	Changes []RolloutChange `json:"changes"`
	Next    string          `json:"next,omitempty"` // the parameter "after" of the next page; absent on the last page

	// Bodies are the contents by SHA256, as in a [ResourceDetail], if a name was given.
	Bodies map[string]json.RawMessage `json:"bodies,omitempty"`
}

// A RolloutChange is a resource of a node group that an edition changes.
type RolloutChange struct {
	Origin  string `json:"origin"`
	Group   string `json:"group"`
	Part    string `json:"part,omitempty"` // to which the change belongs; absent if it is in no edition yet
	TypeURL string `json:"type_url"`
	Name    string `json:"name"`
	AskedAs string `json:"asked_as,omitempty"` // the glob of a collection
	Shared  bool   `json:"shared,omitempty"`   // node groups share the resource

	// Parameters are the dynamic parameters of the upstream subscription to the name.
	Parameters map[string]string `json:"parameters,omitempty"`

	Change string          `json:"change"`           // "added", "changed" or "removed"
	Before *RolloutContent `json:"before,omitempty"` // the last good content; absent if the resource is added
	After  *RolloutContent `json:"after,omitempty"`  // absent if the resource is removed
}

// A RolloutContent is a resource before or after a change.
type RolloutContent struct {
	Version       string `json:"version,omitempty"`        // sent to clients
	OriginVersion string `json:"origin_version,omitempty"` // received from the origin
	Bytes         int    `json:"bytes"`                    // encoded size
	SHA256        string `json:"sha256"`                   // of the content with its type URL
}

// ErrRolloutOff is the response to requests for rollouts if TENDER_ROLLOUT is off.
var ErrRolloutOff = Refuse(http.StatusNotFound, errors.New("TENDER_ROLLOUT is off"))

// rollouts serves the state of rollouts.
func (qs queries) rollouts(r *http.Request) (any, error) {
	p := parametersOf(r)
	origin := p.text("origin")
	if err := p.done(); err != nil {
		return nil, err
	}
	if qs.cfg.Rollouts == nil {
		return nil, ErrRolloutOff
	}
	return qs.cfg.Rollouts(origin)
}

// rolloutChoice returns the parameters of a request for changes.
func (p *parameters) rolloutChoice() RolloutChoice {
	c := RolloutChoice{
		Origin: p.text("origin"), Type: p.typeURL(), Name: p.text("name"), Group: p.text("group"), Page: p.page(),
	}
	if c.Name != "" && c.Type == "" {
		p.fail("type is missing: a name needs a type URL, or a short name such as cds")
	}
	return c
}

// rolloutDiff serves the changes of editions.
func (qs queries) rolloutDiff(r *http.Request) (any, error) {
	p := parametersOf(r)
	c := p.rolloutChoice()
	if err := p.done(); err != nil {
		return nil, err
	}
	if qs.cfg.RolloutDiff == nil {
		return nil, ErrRolloutOff
	}
	return qs.cfg.RolloutDiff(r.Context(), c)
}

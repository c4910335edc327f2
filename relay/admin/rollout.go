package admin

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/xdstender/tender/relay/rollout"
)

// Rollouts is the answer to GET /api/v1/rollouts, and to the commands about rollouts, which answer how the
// origins stand that they were carried out for.
type Rollouts struct {
	Rollouts []*rollout.Status `json:"rollouts"` // by origin
}

// RolloutScope are the arguments of the commands rollout/promote, rollout/abort, rollout/resume and rollout/undo.
type RolloutScope struct {
	// Origin is the origin. If it is empty, the command is carried out for all origins in whose state it can be.
	Origin string `json:"origin,omitempty"`

	// All has promote serve all clients what the origin has now. The other commands do not have it.
	All bool `json:"all,omitempty"`

	// Only abort and undo have a reason.
	Why
}

// Check returns why the arguments of a command about rollouts cannot be, as a refusal.
func (s *RolloutScope) Check() error { return s.Why.Check() }

// A RolloutChoice says which changes GET /api/v1/rollout/diff lists.
type RolloutChoice struct {
	Origin string // empty for all
	Type   string // a type URL; empty for all
	Name   string // with the contents; empty for all, without
	Group  string // of this node group; empty for all
	Page
}

// A RolloutDiff is the answer to GET /api/v1/rollout/diff: what the edition of each origin changes that is on its way, or was
// rejected. If no edition was cut yet, it is what waits for one. Changes are in the order of origins, types, names and groups.
type RolloutDiff struct {
	Total   int             `json:"total"` // over all pages
	Changes []RolloutChange `json:"changes"`
	Next    string          `json:"next,omitempty"` // the parameter after of the next page; left out of the last

	// Bodies are the contents by their SHA256, as those of a [ResourceDetail], if a name was given.
	Bodies map[string]json.RawMessage `json:"bodies,omitempty"`
}

// A RolloutChange is a resource of a node group that an edition changes.
type RolloutChange struct {
	Origin  string `json:"origin"`
	Group   string `json:"group"`
	TypeURL string `json:"type_url"`
	Name    string `json:"name"`
	AskedAs string `json:"asked_as,omitempty"` // the glob of a collection
	Shared  bool   `json:"shared,omitempty"`   // other groups have the same resource

	// Parameters are the dynamic parameters that the name is asked for with.
	Parameters map[string]string `json:"parameters,omitempty"`

	Change string          `json:"change"`           // "added", "changed" or "removed"
	Before *RolloutContent `json:"before,omitempty"` // the last good; none of what is added
	After  *RolloutContent `json:"after,omitempty"`  // none of what is removed
}

// A RolloutContent is a resource before or after a change.
type RolloutContent struct {
	Version       string `json:"version,omitempty"`        // that clients are told
	OriginVersion string `json:"origin_version,omitempty"` // that the origin gave
	Bytes         int    `json:"bytes"`                    // as it is sent
	SHA256        string `json:"sha256"`                   // of the content, with its type
}

// ErrRolloutOff is the answer to whatever is about rollouts, if there are none.
var ErrRolloutOff = Refuse(http.StatusNotFound, errors.New("TENDER_ROLLOUT is off"))

func (s *Server) rollouts(r *http.Request) (any, error) {
	p := parametersOf(r)
	origin := p.text("origin")
	if err := p.done(); err != nil {
		return nil, err
	}
	if s.cfg.Rollouts == nil {
		return nil, ErrRolloutOff
	}
	return s.cfg.Rollouts(origin)
}

func (s *Server) rolloutDiff(r *http.Request) (any, error) {
	p := parametersOf(r)
	c := RolloutChoice{Origin: p.text("origin"), Type: p.typeURL(), Name: p.text("name"), Group: p.text("group"), Page: p.page()}
	if c.Name != "" && c.Type == "" {
		p.refuse("type is missing: a name needs a type URL, or a short name such as cds")
	}
	if err := p.done(); err != nil {
		return nil, err
	}
	if s.cfg.RolloutDiff == nil {
		return nil, ErrRolloutOff
	}
	return s.cfg.RolloutDiff(r.Context(), c)
}

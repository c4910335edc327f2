package admin

import (
	"time"

	"github.com/xdstender/tender/upstream"
)

// Audits is the response to POST /api/v1/audit, whose arguments are a [Scope]. An audit compares each view with what
// its origin serves on a new stream.
type Audits struct {
	Views []ViewAudit `json:"views"` // that ask their origin for anything
}

// AuditTime is the timeout of an audit of all views. Each view that was not compared by then has an error.
const AuditTime = 10 * time.Minute

// A ViewAudit is the result of an audit for one view.
type ViewAudit struct {
	Origin string `json:"origin"`
	Group  string `json:"group"`

	// Error is why the view was not compared. The fields below are then absent.
	Error string `json:"error,omitempty"`

	Target  string      `json:"target,omitempty"` // that was asked
	Seconds float64     `json:"seconds"`
	Types   []TypeAudit `json:"types,omitempty"`
}

// A TypeAudit is the result of an audit for one type.
type TypeAudit struct {
	TypeURL string `json:"type_url"`

	// Equal counts resources that are the same on both sides. Changing counts resources that differ, but changed
	// too recently for the difference to matter.
	Equal    int `json:"equal"`
	Changing int `json:"changing"`

	// The other resources, by difference: the content, only the version, or the side that lacks the resource.
	Content      int `json:"content"`
	Version      int `json:"version"`
	MissingHere  int `json:"missing_here"`
	MissingThere int `json:"missing_there"`

	// Differences are the first of these, by name: at most MaxDifferences.
	Differences []Difference `json:"differences,omitempty"`
}

// Differing counts the resources that are not the same.
func (t *TypeAudit) Differing() int { return t.Content + t.Version + t.MissingHere + t.MissingThere }

// MaxDifferences is how many differences a TypeAudit lists.
const MaxDifferences = 100

// A Difference is a resource of which a view and its origin have different states.
type Difference struct {
	Name string                  `json:"name"`
	Kind upstream.DifferenceKind `json:"kind"` // as the counts of a TypeAudit are called

	// AskedAs is "*", or the glob of a collection; empty if the relay subscribes to the resource by name.
	AskedAs string `json:"asked_as,omitempty"`

	// Here and There are the versions that the origin sent to the view, and to the audit.
	Here  string `json:"here,omitempty"`
	There string `json:"there,omitempty"`

	// Held reports that the removal is held back, or was discarded.
	Held bool `json:"held,omitempty"`
}

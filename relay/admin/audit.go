package admin

import (
	"time"

	"github.com/xdstender/tender/upstream"
)

// Audits is the answer to POST /api/v1/audit, whose arguments are a [Scope]: what views hold
// beside what their origins say on a stream that begins anew.
type Audits struct {
	Views []ViewAudit `json:"views"` // that ask their origin for anything
}

// AuditTime is how long an audit of all views may take. What was not compared by then is
// answered with an error of its view.
const AuditTime = 10 * time.Minute

// A ViewAudit is what was found of a view.
type ViewAudit struct {
	Origin string `json:"origin"`
	Group  string `json:"group"`

	// Error says why nothing is known; then there are no further fields.
	Error string `json:"error,omitempty"`

	Target  string      `json:"target,omitempty"` // that was asked
	Seconds float64     `json:"seconds"`
	Types   []TypeAudit `json:"types,omitempty"`
}

// A TypeAudit is what was found of one type.
type TypeAudit struct {
	TypeURL string `json:"type_url"`

	// Equal counts resources that are the same on both sides, Changing those that are not, but
	// changed so lately that this says nothing.
	Equal    int `json:"equal"`
	Changing int `json:"changing"`

	// The others, by what is different: the bytes, the version alone, or on which side the
	// resource is missing.
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

// A Difference is a resource that a view holds in another way than its origin says it.
type Difference struct {
	Name string                  `json:"name"`
	Kind upstream.DifferenceKind `json:"kind"` // as the counts of a TypeAudit are called

	// AskedAs is "*", or the glob of a collection; empty if the resource is asked for by its name.
	AskedAs string `json:"asked_as,omitempty"`

	// Here and There are the versions that the origin gave to the view, and to the audit.
	Here  string `json:"here,omitempty"`
	There string `json:"there,omitempty"`

	// Held reports that the removal is held back, or was discarded.
	Held bool `json:"held,omitempty"`
}

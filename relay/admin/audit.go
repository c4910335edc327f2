package admin

import (
	"time"

	"github.com/xdstender/tender/upstream"
)

// Audits is the response to POST /api/v1/audit, whose arguments are an [AuditScope]. An audit compares each view with what
// its origin serves on a new stream.
type Audits struct {
	Views []ViewAudit `json:"views"` // views with at least one upstream subscription

	// Skipped has the chosen origins that cannot be audited. If these are all, the audit is an error.
	Skipped []SkippedAudit `json:"skipped,omitempty"`
}

// A SkippedAudit is an origin that cannot be audited.
type SkippedAudit struct {
	Origin string `json:"origin"`
	Reason string `json:"reason"`
}

// AuditTime is the timeout of an audit of all views. A view that was not compared in this time has an error.
const AuditTime = 10 * time.Minute

// A ViewAudit is the result of an audit for one view.
type ViewAudit struct {
	Origin string `json:"origin"`
	Group  string `json:"group"`

	// Error is why the view was not compared. The fields below are then absent.
	Error string `json:"error,omitempty"`

	Target  string      `json:"target,omitempty"` // address of the origin that served the audit
	Seconds float64     `json:"seconds"`
	Types   []TypeAudit `json:"types,omitempty"`
}

// A TypeAudit is the result of an audit for one type.
type TypeAudit struct {
	TypeURL string `json:"type_url"`

	// Equal counts resources that are equal in the view and at the origin. Changing counts resources that differ, but
	// changed too recently to count as a difference.
	Equal    int `json:"equal"`
	Changing int `json:"changing"`

	// Numbers of the other resources by difference: the content, only the version, or a resource that is missing in the
	// view (here) or at the origin (there).
	Content      int `json:"content"`
	Version      int `json:"version"`
	MissingHere  int `json:"missing_here"`
	MissingThere int `json:"missing_there"`

	// Differences are the first of these resources by name, at most MaxDifferences.
	Differences []Difference `json:"differences,omitempty"`
}

// Differing returns the number of resources that differ.
func (t *TypeAudit) Differing() int { return t.Content + t.Version + t.MissingHere + t.MissingThere }

// MaxDifferences is the maximum number of differences in a TypeAudit.
const MaxDifferences = 100

// A Difference is a resource that differs between a view and its origin.
type Difference struct {
	Name string                  `json:"name"`
	Kind upstream.DifferenceKind `json:"kind"` // content, version, missing_here or missing_there, as in a TypeAudit

	// AskedAs is "*", or the glob of a collection; empty if the relay subscribes to the resource by name.
	AskedAs string `json:"asked_as,omitempty"`

	// Here is the version that the origin sent to the view, There the version that it sent to the audit.
	Here  string `json:"here,omitempty"`
	There string `json:"there,omitempty"`

	// Held reports that the change is pending, or that an operator dropped it.
	Held bool `json:"held,omitempty"`
}

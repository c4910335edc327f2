package upstream

import (
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// An Audit is what a view holds beside what its origin says to one who knows nothing.
type Audit struct {
	Target string // of the origin
	Took   time.Duration
	Types  []TypeAudit // by type URL, those that the view asks the origin for; none if nothing
}

// A TypeAudit is what was found of one type.
type TypeAudit struct {
	TypeURL string

	// Equal counts resources that are the same on both sides; Changing those that are not, but
	// changed so lately that this says nothing.
	Equal, Changing int

	Differences []Difference // by name
}

// A Difference is a resource that the view holds in another way than the origin says it.
type Difference struct {
	Name string

	// Glob is what the resource was asked for by: "*", or a collection; empty if by its name.
	Glob string

	Kind DifferenceKind

	// Here and There are the versions that the origin gave, to the view and to the audit.
	Here, There string

	// Held reports that the view knows: the removal is held back, or was discarded.
	Held bool
}

// A DifferenceKind says in what a resource differs.
type DifferenceKind string

// The kinds of differences.
const (
	OtherContent DifferenceKind = "content"       // the origin says other bytes
	OtherVersion DifferenceKind = "version"       // the same bytes, under another version
	MissingHere  DifferenceKind = "missing_here"  // the view does not hold it
	MissingThere DifferenceKind = "missing_there" // the origin does not say it
)

// versionOf returns the version that the origin gave; nothing if it did not.
func versionOf(e *cache.Entry) string {
	if e == nil {
		return ""
	}
	return e.Resource.OriginVersion
}

// resourceOf returns the resource of an entry that may be nil.
func resourceOf(e *cache.Entry) *wire.Resource {
	if e == nil {
		return nil
	}
	return e.Resource
}

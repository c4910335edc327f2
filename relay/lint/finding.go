package lint

import (
	"cmp"
	"slices"
	"strings"

	"github.com/xdstender/tender/cache/wire"
)

// A Kind classifies findings.
type Kind string

// The kinds of findings, the most serious first.
const (
	Undecodable Kind = "undecodable"       // the content is not a valid message of the type
	Missing     Kind = "missing_reference" // the resource refers to a resource that does not exist
	Removed     Kind = "removed_reference" // the resource refers to a resource that the origin has removed
	Invalid     Kind = "invalid"           // a generated validator rejects a value
	Unknown     Kind = "unknown"           // a field or an enum value is unknown to this version of the relay
	Unchecked   Kind = "unchecked"         // the resource is too large, or nested too deeply, to be checked
)

// Kinds are all kinds, the most serious first.
var Kinds = []Kind{Undecodable, Missing, Removed, Invalid, Unknown, Unchecked}

// Breaks reports whether clients of any version cannot use the resource. The other kinds may be caused by different
// versions of client and relay.
func (k Kind) Breaks() bool { return k == Undecodable || k == Missing || k == Removed }

// Text returns the kind in words, such as "missing reference".
func (k Kind) Text() string { return strings.ReplaceAll(string(k), "_", " ") }

// A Finding is a problem of a resource.
type Finding struct {
	TypeURL string // empty in Facts
	Name    string // empty in Facts
	Kind    Kind
	Detail  string // path of the field and reason, for people
}

// Compare orders findings: the most serious first, then by type, name and detail.
func (f Finding) Compare(o Finding) int {
	return cmp.Or(slices.Index(Kinds, f.Kind)-slices.Index(Kinds, o.Kind), cmp.Compare(f.TypeURL, o.TypeURL),
		cmp.Compare(f.Name, o.Name), cmp.Compare(f.Detail, o.Detail))
}

// A Reference identifies a resource to which another one refers.
type Reference struct{ TypeURL, Name string }

// Exempt reports whether a reference is to a cluster that may exist without the origin: clients have it in their bootstrap, or
// request clusters on demand.
func (r Reference) Exempt(onDemand bool, static Patterns) bool {
	return r.TypeURL == wire.ClusterType && (onDemand || static.Match(r.Name))
}

// Facts are the results of checking the content of a resource, without the other resources of its view. They are
// immutable.
type Facts struct {
	// Findings have no type and no name, since resources with equal content share their facts.
	Findings []Finding

	// References are the resources to which this one refers, without duplicates.
	References []Reference

	// OnDemand reports that clients fetch clusters on demand (ODCDS). Clusters without a resource are not a finding then.
	OnDemand bool
}

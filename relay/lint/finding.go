package lint

import (
	"cmp"
	"slices"
	"strings"
)

// A Kind is what is wrong with a resource.
type Kind string

// The kinds of findings, the most serious first.
const (
	Undecodable Kind = "undecodable"       // the bytes are no message of the type
	Missing     Kind = "missing_reference" // it names a resource that does not exist
	Removed     Kind = "removed_reference" // it names a resource that the origin has removed
	Held        Kind = "held_change"       // a change is not distributed, since clients could not use the result
	Invalid     Kind = "invalid"           // a generated validator refuses a value
	Unknown     Kind = "unknown"           // a field or an enum value that this version does not know
	Unchecked   Kind = "unchecked"         // it is too large, or nested too deeply, to be checked
)

// Kinds are all kinds, the most serious first.
var Kinds = []Kind{Undecodable, Missing, Removed, Held, Invalid, Unknown, Unchecked}

// Breaks reports whether a client cannot use the resource as it is. The other kinds may be a matter of versions.
func (k Kind) Breaks() bool { return k == Undecodable || k == Missing || k == Removed }

// Text returns the kind in words.
func (k Kind) Text() string { return strings.ReplaceAll(string(k), "_", " ") }

// A Finding is something that is wrong with a resource.
type Finding struct {
	TypeURL string
	Name    string
	Kind    Kind
	Detail  string // where and why, for people
}

// Compare orders findings: the most serious first, then by type, name and detail.
func (f Finding) Compare(o Finding) int {
	return cmp.Or(slices.Index(Kinds, f.Kind)-slices.Index(Kinds, o.Kind), cmp.Compare(f.TypeURL, o.TypeURL),
		cmp.Compare(f.Name, o.Name), cmp.Compare(f.Detail, o.Detail))
}

// A Reference is a resource that another one names.
type Reference struct{ TypeURL, Name string }

// Facts are what the bytes of a resource say by themselves. They are immutable.
type Facts struct {
	// Findings have no type and no name: equal resources share their facts.
	Findings []Finding

	// References are the resources that this one needs, each once.
	References []Reference

	// OnDemand reports that clients fetch clusters when a request needs them (ODCDS): those need not exist before.
	OnDemand bool
}

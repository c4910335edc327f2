package admin

import (
	"encoding/json"
	"time"
)

// A ResourceQuery says which resources GET /api/v1/resources lists.
type ResourceQuery struct {
	Type     string // a type URL
	Group    string // in the view of this node group
	Contains string // in whose name this is
	Page
}

// Resources is the answer to GET /api/v1/resources: the resources of a type, in the order of
// their names and groups.
type Resources struct {
	TypeURL   string     `json:"type_url"`
	Total     int        `json:"total"` // over all pages
	Resources []Resource `json:"resources"`
	Next      string     `json:"next,omitempty"`
}

// A Resource is what a view has of a name.
type Resource struct {
	Name   string `json:"name"`
	Group  string `json:"group"`
	Origin string `json:"origin"`

	// AskedAs is what the origin was asked: "*", a glob, or nothing if it was the name.
	AskedAs string `json:"asked_as,omitempty"`

	// Exists reports whether there is such a resource; without one, the origin said so.
	Exists        bool   `json:"exists"`
	Version       string `json:"version,omitempty"`        // that clients are told
	OriginVersion string `json:"origin_version,omitempty"` // that the origin gave
	Bytes         int    `json:"bytes,omitempty"`          // as it is sent
	SHA256        string `json:"sha256,omitempty"`         // of the content, with its type

	ExpiresAt time.Time `json:"expires_at,omitzero"` // unless the origin says it again
	GivenUpAt time.Time `json:"given_up_at,omitzero"`

	// Error is what the origin said is wrong with it.
	Error *ResourceError `json:"error,omitempty"`
}

// A ResourceError is what an origin said is wrong with a resource.
type ResourceError struct {
	Code    string `json:"code"` // of gRPC, such as NOT_FOUND
	Message string `json:"message"`
}

// A ResourceChoice says which resource GET /api/v1/resources shows in full.
type ResourceChoice struct {
	Type, Name string
	Group      string // in the view of this node group alone
	YAML       bool   // in place of JSON
	Limit      int    // of holders
}

// A ResourceDetail is the answer to GET /api/v1/resources with a name.
type ResourceDetail struct {
	TypeURL   string     `json:"type_url"`
	Name      string     `json:"name"` // in canonical form
	Resources []Resource `json:"resources"`

	// Bodies are the contents of these by SHA256, as JSON, or each as a string of YAML. What
	// is annotated as sensitive in them is redacted. There is none of a Secret, none of what
	// was given up, and none beyond the first MaxBodies.
	Bodies map[string]json.RawMessage `json:"bodies"`

	// States count the clients that asked for the resource by state, Holders are some of
	// these: who refused it first, then who has not got it, then the others.
	States  map[string]int `json:"states"`
	Holders []Holder       `json:"holders"`
}

// MaxBodies is how many contents of a name are shown.
const MaxBodies = 8

// A Holder is a client that asked for a resource.
type Holder struct {
	Number  uint64   `json:"number"`
	NodeID  string   `json:"node_id"`
	Group   string   `json:"group"`
	State   string   `json:"state"`
	Refusal *Refusal `json:"refusal,omitempty"`
}

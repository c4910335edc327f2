package admin

import (
	"encoding/json"
	"time"
)

// A ResourceQuery selects the resources that GET /api/v1/resources lists.
type ResourceQuery struct {
	Type     string // a type URL
	Group    string // only resources in the view of this node group
	Contains string // only resources whose name contains this text
	Page
}

// Resources is the response to GET /api/v1/resources: the resources of a type, sorted by name and group.
type Resources struct {
	TypeURL   string     `json:"type_url"`
	Total     int        `json:"total"` // over all pages
	Resources []Resource `json:"resources"`
	Next      string     `json:"next,omitempty"`
}

// A Resource is the state of a name in a view.
type Resource struct {
	Name   string `json:"name"`
	Group  string `json:"group"`
	Origin string `json:"origin"`

	// AskedAs is the upstream subscription: "*", a glob, or empty for the name itself.
	AskedAs string `json:"asked_as,omitempty"`

	// Exists reports whether the resource exists. If not, the origin reported that it does not exist.
	Exists        bool   `json:"exists"`
	Version       string `json:"version,omitempty"`        // sent to clients
	OriginVersion string `json:"origin_version,omitempty"` // received from the origin
	Bytes         int    `json:"bytes,omitempty"`          // encoded size
	SHA256        string `json:"sha256,omitempty"`         // of the content with its type URL

	ExpiresAt time.Time `json:"expires_at,omitzero"` // end of its TTL, unless the origin renews it
	GivenUpAt time.Time `json:"given_up_at,omitzero"`

	// Error is the error that the origin sent instead of the resource.
	Error *ResourceError `json:"error,omitempty"`
}

// A ResourceError is an error that an origin sent for a resource.
type ResourceError struct {
	Code    string `json:"code"` // of gRPC, such as NOT_FOUND
	Message string `json:"message"`
}

// A ResourceChoice selects the resource of GET /api/v1/resources with a name.
type ResourceChoice struct {
	Type, Name string
	Group      string // only in the view of this node group
	YAML       bool   // contents as YAML instead of JSON
	Limit      int    // maximum number of holders
}

// A ResourceDetail is the response to GET /api/v1/resources with a name.
type ResourceDetail struct {
	TypeURL   string     `json:"type_url"`
	Name      string     `json:"name"` // in canonical form
	Resources []Resource `json:"resources"`

	// Bodies are the contents by SHA256, as JSON, or as strings of YAML. Fields that Envoy annotates as sensitive are
	// redacted. Secrets, dropped contents, and contents after the first MaxBodies are omitted.
	Bodies map[string]json.RawMessage `json:"bodies"`

	// States counts the clients that subscribed to the resource by state. Holders are some of these clients, in the order
	// rejected, not_sent, sent, accepted.
	States  map[string]int `json:"states"`
	Holders []Holder       `json:"holders"`
}

// MaxBodies is the maximum number of contents in a ResourceDetail.
const MaxBodies = 8

// A Holder is a client that subscribed to a resource.
type Holder struct {
	Number    uint64     `json:"number"`
	NodeID    string     `json:"node_id"`
	Group     string     `json:"group"`
	State     string     `json:"state"`
	Rejection *Rejection `json:"rejection,omitempty"`
}

package admin

import (
	"encoding/json"
	"time"
)

// A Fleet tells of the clients of a relay, and of the resources that it has for them. Its
// methods may be called from any goroutine; of their errors, [Refuse] says the code.
type Fleet interface {
	Clients(ClientQuery) (Clients, error)
	Client(number uint64, q ClientResourceQuery) (ClientDetail, error)
	Resources(ResourceQuery) (Resources, error)
	Resource(ResourceChoice) (ResourceDetail, error)
	History(HistoryChoice) (History, error)
}

// Orders of clients.
const (
	ByLag    = "lag"    // who has lacked something longest first, then those who lack nothing
	ByNumber = "number" // in the order in which they connected
)

// A ClientQuery says which clients GET /api/v1/clients lists.
type ClientQuery struct {
	Type    string // that subscribed to this type URL; of others nothing is said then
	Node    string // whose node id contains this
	Group   string // of this node group
	Refused bool   // that refuse something
	Stalled bool   // that do not read
	Sort    string // ByLag or ByNumber
	Page
}

// A Page is a part of a list.
type Page struct {
	Limit int    // how many are listed at most
	After string // the Next of the page before; empty for the first
}

// Clients is the answer to GET /api/v1/clients.
type Clients struct {
	Totals  ClientTotals `json:"totals"`
	Types   []TypeTotals `json:"types"`
	Clients []Client     `json:"clients"`
	Next    string       `json:"next,omitempty"` // the parameter after of the next page; left out of the last
}

// ClientTotals count clients, over all pages.
type ClientTotals struct {
	Streams    int     `json:"streams"`     // that there are
	Matching   int     `json:"matching"`    // that the query is about
	Lagging    int     `json:"lagging"`     // of these, those that lack something
	Refusing   int     `json:"refusing"`    // of these, those that refuse something
	Stalled    int     `json:"stalled"`     // of these, those that do not read
	LagSeconds float64 `json:"lag_seconds"` // the greatest of these
}

// TypeTotals count the clients that the query is about, by node group and type.
type TypeTotals struct {
	Group      string  `json:"group"`
	TypeURL    string  `json:"type_url"`
	Name       string  `json:"name,omitempty"` // the short name, such as cds
	Clients    int     `json:"clients"`        // that subscribed to the type
	Lagging    int     `json:"lagging"`
	Refusing   int     `json:"refusing"`
	LagSeconds float64 `json:"lag_seconds"`
}

// A Client is a stream of a client. One client may have several.
type Client struct {
	Number    uint64 `json:"number"` // that no other stream of this process has or had
	NodeID    string `json:"node_id"`
	Cluster   string `json:"cluster,omitempty"`
	Locality  string `json:"locality,omitempty"`   // region/zone/sub_zone
	UserAgent string `json:"user_agent,omitempty"` // name/version
	Group     string `json:"group"`
	Address   string `json:"address,omitempty"`
	Identity  string `json:"identity,omitempty"` // by its certificate, where TENDER_AUTHZ or TENDER_SECRETS ask for that
	Variant   string `json:"variant"`            // delta or sotw
	TypeURL   string `json:"type_url,omitempty"` // the only one served; left out of aggregated streams

	Began       time.Time `json:"began"`
	SentBytes   uint64    `json:"sent_bytes"`   // before compression
	UnreadBytes uint64    `json:"unread_bytes"` // of these, those that it has not answered yet

	// StalledSince is since when a send waits for the client to read.
	StalledSince time.Time `json:"stalled_since,omitzero"`

	LagSeconds float64      `json:"lag_seconds"` // the greatest of its types
	Refusing   bool         `json:"refusing"`    // something of some type
	Types      []ClientType `json:"types"`       // in the order of sending
}

// A ClientType says how a client stands with one type.
type ClientType struct {
	TypeURL  string   `json:"type_url"`
	Name     string   `json:"name,omitempty"`
	Wildcard bool     `json:"wildcard"`
	Names    int      `json:"names"` // subscribed to
	Globs    []string `json:"globs,omitempty"`

	// State is the subscription in one line, as the debug log has it: what the client wants, how far it was sent
	// that, and the newest response.
	State string `json:"state,omitempty"`

	// Version and Nonce are those of the newest response, SentAt is when it left; Pending
	// reports that the client has not answered it.
	Version string    `json:"version,omitempty"`
	Nonce   string    `json:"nonce,omitempty"`
	SentAt  time.Time `json:"sent_at,omitzero"`
	Pending bool      `json:"pending"`

	// Accepted is the version that the client accepted last.
	Accepted   string    `json:"accepted,omitempty"`
	AcceptedAt time.Time `json:"accepted_at,omitzero"`

	// LagSeconds is for how long the client has lacked the oldest change that it has not
	// accepted.
	LagSeconds float64 `json:"lag_seconds"`

	// Refusing reports that the newest refusal stands: the client has accepted nothing
	// since, or something that it refused is still what there is.
	Refusing bool     `json:"refusing"`
	Refusal  *Refusal `json:"refusal,omitempty"`
}

// A Refusal is a NACK.
type Refusal struct {
	At      time.Time `json:"at"`
	Version string    `json:"version,omitempty"` // of the response; left out if it was not the newest
	Nonce   string    `json:"nonce"`
	Code    string    `json:"code"` // of gRPC, such as INVALID_ARGUMENT

	// Detail is what the client said, cut off after 2 KiB. Of Secrets, only its length is
	// told: it may quote them.
	Detail string `json:"detail,omitempty"`
}

// A ClientResourceQuery says which resources of a client GET /api/v1/clients/NUMBER lists.
type ClientResourceQuery struct {
	Type  string // of this type URL
	State string // in this state
	Page
}

// A ClientDetail is the answer to GET /api/v1/clients/NUMBER.
type ClientDetail struct {
	Client
	Node json.RawMessage `json:"node,omitempty"` // as JSON of protobuf, without extensions

	// States count all resources that the client asked for by state: not_sent, sent,
	// accepted, refused.
	States    map[string]int   `json:"states"`
	Resources []ClientResource `json:"resources"`
	Next      string           `json:"next,omitempty"`
}

// A ClientResource says how a client stands with a resource.
type ClientResource struct {
	TypeURL string   `json:"type_url"`
	Name    string   `json:"name"`
	Version string   `json:"version,omitempty"` // that the relay has; left out if there is no such resource
	State   string   `json:"state"`             // on the way to the client
	Refusal *Refusal `json:"refusal,omitempty"`
}

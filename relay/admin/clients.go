package admin

import (
	"encoding/json"
	"time"
)

// A Fleet lists the clients of a relay, and the resources that it serves. Its methods may be called from any
// goroutine. An error made by [Refuse] has its own HTTP code.
type Fleet interface {
	Clients(ClientQuery) (Clients, error)
	Client(number uint64, q ClientResourceQuery) (ClientDetail, error)
	Resources(ResourceQuery) (Resources, error)
	Resource(ResourceChoice) (ResourceDetail, error)
	History(HistoryChoice) (History, error)
}

// Orders of clients.
const (
	ByLag    = "lag"    // the longest lag first
	ByNumber = "number" // in the order in which they connected
)

// The states of a client and of a subscription, the most severe first: the first one that holds applies.
const (
	Rejecting = "rejecting" // a NACK still applies
	Stalled   = "stalled"   // the client does not read; only of clients
	Behind    = "behind"    // a change was not sent or not accepted
	Unknown   = "unknown"   // the relay does not know what the client holds, or the origin has not answered
	InSync    = "in-sync"   // the client has accepted everything that it subscribed to and that is served to its group
)

// A ClientQuery selects the clients that GET /api/v1/clients lists. Zero fields select all.
type ClientQuery struct {
	Type     string // clients that subscribed to this type URL; the response omits other types
	ID       string // clients with this node ID
	Node     string // clients whose node ID contains this text
	Cluster  string // clients whose Node has this cluster
	Zone     string // clients whose Node has this locality.zone
	Group    string // clients of the node group with this key or name
	Sync     string // clients in this state; see Client.Sync
	Rejected bool   // clients with a NACK that still applies; see ClientType.Rejecting
	Stalled  bool   // clients that do not read responses
	Relays   bool   // clients that are relays
	Sort     string // ByLag or ByNumber

	NoTotals bool // omit Totals and Types, which need all clients; only with ByNumber
	Page
}

// A Page is a part of a list.
type Page struct {
	Limit int    // maximum number of entries
	After string // Next of the previous page; empty for the first page
}

// Clients is the response to GET /api/v1/clients.
type Clients struct {
	Relay   string       `json:"relay"` // node ID of the relay
	Totals  ClientTotals `json:"totals"`
	Types   []TypeTotals `json:"types"`
	Clients []Client     `json:"clients"`
	Next    string       `json:"next,omitempty"` // the parameter "after" of the next page; absent on the last page
}

// ClientTotals count clients, over all pages.
type ClientTotals struct {
	Streams    int     `json:"streams"`     // all open streams
	Matching   int     `json:"matching"`    // clients that the query selects
	Lagging    int     `json:"lagging"`     // selected clients that have not accepted a change
	Rejecting  int     `json:"rejecting"`   // selected clients with a NACK that still applies
	Stalled    int     `json:"stalled"`     // selected clients that do not read responses
	InSync     int     `json:"in_sync"`     // selected clients whose sync is in-sync
	Unknown    int     `json:"unknown"`     // selected clients whose sync is unknown
	LagSeconds float64 `json:"lag_seconds"` // the maximum over the selected clients

	// Below counts the clients of the selected clients that are relays. Nil if none is a relay.
	Below *TierTotals `json:"below,omitempty"`
}

// TierTotals count the clients of relays below this one, through all tiers.
type TierTotals struct {
	Relays int `json:"relays"` // streams of relays directly below this one
	Silent int `json:"silent"` // of these, whose clients are unknown
	TierCounts
}

// TierCounts count clients of relays below this one by their sync. A relay counts as one of them if it is not in sync, or
// if its own clients are unknown. Stalled clients are behind.
type TierCounts struct {
	Clients   int `json:"clients"`
	InSync    int `json:"in_sync"`
	Behind    int `json:"behind"`
	Rejecting int `json:"rejecting"`
	Unknown   int `json:"unknown"`
	Pending   int `json:"pending"` // changes that wait at the relays; their clients do not have them
}

// Below is what a relay has reported about its clients, and they about theirs.
type Below struct {
	// Known is false if the relay has reported nothing for a minute, or nothing that the relay understands.
	Known bool      `json:"known"`
	At    time.Time `json:"at,omitzero"` // when the newest report arrived

	TierCounts
	Worst []TierClient `json:"worst"` // at most five that are not in sync, the most severe first
}

// A TierClient is a client of a relay below this one, or that relay itself.
type TierClient struct {
	NodeID     string   `json:"node_id"`
	Via        []string `json:"via"` // node IDs of the relays between the relay that reports and the client, the nearest first
	TypeURL    string   `json:"type_url,omitempty"`
	Name       string   `json:"name,omitempty"` // the short name of the type, such as cds
	Sync       string   `json:"sync"`
	LagSeconds float64  `json:"lag_seconds"`
	Detail     string   `json:"detail,omitempty"` // of its NACK; absent for Secrets
}

// TypeTotals count the clients that the query selects, by node group and type.
type TypeTotals struct {
	Group      string  `json:"group"`
	TypeURL    string  `json:"type_url"`
	Name       string  `json:"name,omitempty"` // the short name, such as cds
	Clients    int     `json:"clients"`        // clients that subscribed to the type
	Lagging    int     `json:"lagging"`
	Rejecting  int     `json:"rejecting"`
	LagSeconds float64 `json:"lag_seconds"`

	// Below counts the clients of clients that are relays. Nil if none is a relay.
	Below *TierCounts `json:"below,omitempty"`
}

// A Client is a stream of a client. One client may have several streams.
type Client struct {
	Number    uint64 `json:"number"` // unique among all streams of this process
	NodeID    string `json:"node_id"`
	Cluster   string `json:"cluster,omitempty"`
	Locality  string `json:"locality,omitempty"`   // region/zone/sub_zone
	UserAgent string `json:"user_agent,omitempty"` // name/version
	Group     string `json:"group"`
	GroupName string `json:"group_name"` // as operators read it, such as NAMESPACE=shop; parameters accept it, too
	Address   string `json:"address,omitempty"`
	Identity  string `json:"identity,omitempty"` // from its certificate, if TENDER_AUTHZ or TENDER_SECRETS need it
	Variant   string `json:"variant"`            // delta or sotw
	TypeURL   string `json:"type_url,omitempty"` // the only type served; absent on aggregated streams

	Began       time.Time `json:"began"`
	SentBytes   uint64    `json:"sent_bytes"`   // before compression
	UnreadBytes uint64    `json:"unread_bytes"` // sent without an ACK or NACK

	// StalledSince is the start of a send that waits for the client to read; absent without one.
	StalledSince time.Time `json:"stalled_since,omitzero"`

	// Sync says whether the client has what is served to its group: the first of rejecting, stalled, behind, unknown and
	// in-sync that holds for any of its types. A client without subscriptions is unknown. The sync of a relay is that of the
	// relay and of all clients below it.
	Sync string `json:"sync"`

	// Below has the clients of a client that is a relay; nil if it is none.
	Below *Below `json:"below,omitempty"`

	LagSeconds float64      `json:"lag_seconds"` // the maximum over its types
	Rejecting  bool         `json:"rejecting"`   // a NACK of at least one type still applies
	Types      []ClientType `json:"types"`       // in the order of sending
}

// A ClientType is the state of a client's subscription to one type.
type ClientType struct {
	TypeURL  string   `json:"type_url"`
	Name     string   `json:"name,omitempty"`
	Wildcard bool     `json:"wildcard"`
	Names    int      `json:"names"` // subscribed to
	Globs    []string `json:"globs,omitempty"`

	// Sync says whether the client has what is served to its group: rejecting, behind, unknown or in-sync. That of a relay
	// is also that of all clients below it.
	Sync string `json:"sync"`

	// Below counts the clients of a client that is a relay; nil if it is none.
	Below *TierCounts `json:"below,omitempty"`

	// State is the subscription in one line, as in the debug log: the subscribed names, the positions up to which the
	// client was sent changes, and the newest response.
	State string `json:"state,omitempty"`

	// Version, Nonce and SentAt are of the newest response. Pending reports that its ACK or NACK is missing.
	Version string    `json:"version,omitempty"`
	Nonce   string    `json:"nonce,omitempty"`
	SentAt  time.Time `json:"sent_at,omitzero"`
	Pending bool      `json:"pending"`

	// Accepted is the version that the client accepted last.
	Accepted   string    `json:"accepted,omitempty"`
	AcceptedAt time.Time `json:"accepted_at,omitzero"`

	// LagSeconds is the age of the oldest change that the client has not accepted.
	LagSeconds float64 `json:"lag_seconds"`

	// Rejecting reports that the newest NACK still applies: the client has accepted no response since, or a resource that
	// it rejected is unchanged.
	Rejecting bool       `json:"rejecting"`
	Rejection *Rejection `json:"rejection,omitempty"`
}

// A Rejection is a NACK.
type Rejection struct {
	At      time.Time `json:"at"`
	Version string    `json:"version,omitempty"` // of the response; absent if it was not the newest
	Nonce   string    `json:"nonce"`
	Code    string    `json:"code"` // of gRPC, such as INVALID_ARGUMENT

	// Detail is the error_detail message of the client, cut off after 2 KiB. For Secrets it is only the length, because
	// the message may quote them.
	Detail string `json:"detail,omitempty"`
}

// A ClientResourceQuery selects the resources of a client that GET /api/v1/clients/NUMBER lists.
type ClientResourceQuery struct {
	Type  string // resources of this type URL
	State string // resources in this state, or with NotAccepted in any other than accepted
	Page
}

// NotAccepted is a State of a [ClientResourceQuery]: the resources that differ from what the client accepted.
const NotAccepted = "not_accepted"

// A ClientDetail is the response to GET /api/v1/clients/NUMBER.
type ClientDetail struct {
	Client
	Node json.RawMessage `json:"node,omitempty"` // as protobuf JSON, without extensions

	// States counts all resources that the client subscribed to by state: not_sent, sent, accepted, rejected.
	States    map[string]int   `json:"states"`
	Resources []ClientResource `json:"resources"`
	Next      string           `json:"next,omitempty"`
}

// A ClientResource is the state of a resource at a client.
type ClientResource struct {
	TypeURL   string     `json:"type_url"`
	Name      string     `json:"name"`
	Version   string     `json:"version,omitempty"` // served to the group; absent if the resource does not exist
	State     string     `json:"state"`             // not_sent, sent, accepted or rejected
	Rejection *Rejection `json:"rejection,omitempty"`

	// Sent and Accepted are the versions that the client was sent last, and that it accepted last. A removal is sent and
	// accepted, too.
	Sent     ClientVersion `json:"sent"`
	Accepted ClientVersion `json:"accepted"`
}

// A ClientVersion is a version of a resource at a client. The relay keeps none for each client and resource: it derives
// them from the client's positions and the history of resources (TENDER_HISTORY).
type ClientVersion struct {
	Known   bool   `json:"known"`             // false if the version does not follow from what the relay keeps
	Version string `json:"version,omitempty"` // absent if the client has no version, or if it is unknown
}

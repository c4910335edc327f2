package tier

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/xdstender/tender/cache/wire"
)

// A Sync says whether a client has what it is served.
type Sync string

// The values of a Sync, the most severe first. If several hold, the first applies.
const (
	Rejecting Sync = "rejecting" // a NACK still applies
	Behind    Sync = "behind"    // a change was not sent or not accepted
	Unknown   Sync = "unknown"   // what the client holds is unknown, or what the origin has
	InSync    Sync = "in-sync"   // the client has accepted everything that is served to it
)

// severity has the values of a Sync, the most severe first.
var severity = []Sync{Rejecting, Behind, Unknown, InSync}

// Worst returns the more severe of two states.
func Worst(a, b Sync) Sync {
	if slices.Index(severity, b) < slices.Index(severity, a) {
		return b
	}
	return a
}

// Bounds on a report.
const (
	MaxWorst = 5   // clients by name of a type
	maxText  = 256 // bytes of a node ID and of an error
	maxVia   = 8   // relays between a client and the relay that receives the report
)

// A Report says what clients of a relay have of what the relay serves them. The zero value reports that there is no client.
type Report struct {
	// Nonce is that of the newest response on the stream of the report that the relay had applied before it looked at its
	// clients. It is empty if there was none.
	Nonce string

	All   Counts   // over all types; a client counts by the most severe of its states
	Types []Counts // of types that the protocol defines, each at most once
}

// Of returns the counts of a type; zero if no client subscribes to it.
func (r *Report) Of(typeURL string) Counts {
	for i := range r.Types {
		if r.Types[i].TypeURL == typeURL {
			return r.Types[i]
		}
	}
	return Counts{TypeURL: typeURL}
}

// Type returns the counts of a type, to which the caller adds clients. It returns nil for types that the protocol does not
// define, because clients can invent types.
func (r *Report) Type(typeURL string) *Counts {
	if !wire.Known(typeURL) {
		return nil
	}
	for i := range r.Types {
		if r.Types[i].TypeURL == typeURL {
			return &r.Types[i]
		}
	}
	r.Types = append(r.Types, Counts{TypeURL: typeURL})
	return &r.Types[len(r.Types)-1]
}

// Clone returns a copy whose counts can be changed.
func (r *Report) Clone() Report {
	out := *r
	out.All = r.All.clone()
	out.Types = make([]Counts, len(r.Types))
	for i := range r.Types {
		out.Types[i] = r.Types[i].clone()
	}
	return out
}

// Equal reports whether two reports have the same counts and the same clients in the same states. It ignores nonces, and
// for how long clients have been in their states.
func (r *Report) Equal(other *Report) bool {
	return r.All.equal(&other.All) && slices.EqualFunc(r.Types, other.Types, func(a, b Counts) bool { return a.equal(&b) })
}

// Counts count the clients of a type by their state.
type Counts struct {
	TypeURL string // empty for all types

	InSync, Behind, Rejecting, Unknown int

	// Pending is the number of changes that wait at relays, and that their clients are not served for that reason.
	Pending int

	// Worst has clients that are not in sync, at most MaxWorst, the most severe first.
	Worst []Client
}

// A Client is a client that is not in sync.
type Client struct {
	Node    string   // its node ID; empty for the relay that reports
	Via     []string // node IDs of the relays between the relay that reports and the client, the nearest first
	TypeURL string   // of the state
	Sync    Sync
	Lag     time.Duration // how long the client has lacked the oldest change; zero if there is none, or if that is unknown
	Detail  string        // of the NACK; empty for Secrets

	place int // among the clients of the report that it is from
}

// Clients returns the number of clients.
func (c *Counts) Clients() int { return c.InSync + c.Behind + c.Rejecting + c.Unknown }

// Sync returns the state of the clients as a whole: the most severe of their states. Clients of a relay at which changes
// wait are behind.
func (c *Counts) Sync() Sync {
	switch {
	case c.Rejecting > 0:
		return Rejecting
	case c.Behind+c.Pending > 0:
		return Behind
	case c.Unknown > 0:
		return Unknown
	default:
		return InSync
	}
}

// Add counts a client.
func (c *Counts) Add(client Client) {
	switch client.Sync {
	case Rejecting:
		c.Rejecting++
	case Behind:
		c.Behind++
	case Unknown:
		c.Unknown++
	default:
		c.InSync++
		return
	}
	client.TypeURL = cmp.Or(client.TypeURL, c.TypeURL)
	c.name(client)
}

// Merge adds what a relay below has reported, which is a client with the node ID relay.
func (c *Counts) Merge(below *Counts, relay string) {
	c.InSync += below.InSync
	c.Behind += below.Behind
	c.Rejecting += below.Rejecting
	c.Unknown += below.Unknown
	c.Pending += below.Pending
	for i, client := range below.Worst {
		if client.place = i; client.Node == "" {
			client.Node = relay
		} else if len(client.Via) < maxVia {
			client.Via = append([]string{relay}, client.Via...)
		}
		c.name(client)
	}
}

// HoldBack counts all clients that are in sync, or may be, as behind: the relay has not applied what it was sent.
func (c *Counts) HoldBack() {
	c.Behind += c.InSync + c.Unknown
	c.InSync, c.Unknown = 0, 0
	for i := range c.Worst {
		if c.Worst[i].Sync == Unknown {
			c.Worst[i].Sync = Behind
		}
	}
}

// name adds a client to the worst ones, if it is one of them.
func (c *Counts) name(client Client) {
	client.Node, client.TypeURL, client.Detail = cut(client.Node), cut(client.TypeURL), cut(client.Detail)
	if wire.IsSecret(client.TypeURL) {
		client.Detail = ""
	}
	at, _ := slices.BinarySearchFunc(c.Worst, client, compareClients)
	if at == MaxWorst {
		return
	}
	c.Worst = slices.Insert(c.Worst, at, client)
	c.Worst = c.Worst[:min(len(c.Worst), MaxWorst)]
}

// compareClients orders clients by severity. The first client of each report comes before the second of any, so that the
// clients of one relay cannot displace those of all others.
func compareClients(a, b Client) int {
	return cmp.Or(slices.Index(severity, a.Sync)-slices.Index(severity, b.Sync), a.place-b.place,
		cmp.Compare(b.Lag, a.Lag), cmp.Compare(a.Node, b.Node), slices.Compare(a.Via, b.Via), cmp.Compare(a.TypeURL, b.TypeURL))
}

func (c *Counts) clone() Counts {
	out := *c
	out.Worst = slices.Clone(c.Worst)
	return out
}

func (c *Counts) equal(other *Counts) bool {
	return c.TypeURL == other.TypeURL && c.InSync == other.InSync && c.Behind == other.Behind &&
		c.Rejecting == other.Rejecting && c.Unknown == other.Unknown && c.Pending == other.Pending &&
		slices.EqualFunc(c.Worst, other.Worst, func(a, b Client) bool {
			return a.Node == b.Node && slices.Equal(a.Via, b.Via) && a.TypeURL == b.TypeURL && a.Sync == b.Sync && a.Detail == b.Detail
		})
}

// cut limits a text to maxText bytes of UTF-8.
func cut(text string) string {
	if len(text) > maxText {
		text = text[:maxText]
	}
	return strings.ToValidUTF8(text, "")
}

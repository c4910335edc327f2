package guard

import (
	"cmp"
)

// Limits bound what clients may take. Zero values are replaced by defaults.
type Limits struct {
	// MaxConnections bounds the connections of clients, MaxPeerConnections those of one host,
	// by [Guard.Credentials] and [Guard.PollListener]. Zero means 50,000 and 10,000.
	MaxConnections, MaxPeerConnections int

	// MaxUnreadBytes bounds the memory of the requests of all connections until they are handled, beyond 64 KiB for each
	// connection: incomplete, waiting, decompressed and decoded ones. A fourth of it is the bound for one host. A
	// connection that exceeds it is closed. It needs [Guard.Credentials]. Zero means 1 GiB.
	MaxUnreadBytes int

	// PeerIPv6Prefix is the number of bits of an IPv6 address that identify a host. Zero means 64.
	PeerIPv6Prefix int

	// MaxStreams bounds open streams and held polls. Zero means 50,000.
	MaxStreams int

	// MaxFrameRate bounds the HTTP/2 frames a second of a connection that do not answer a response, with bursts of ten
	// times as many. All connections of one host together may send four times as much, not counting 50 a second of each
	// connection. 2 KiB more count as a frame, a DATA frame, a new stream or a poll as 10, an RST_STREAM as 50. A new
	// connection is 100 of those of its host, with bursts of 50 seconds' worth. What exceeds the rate is read later. It
	// needs [Guard.Credentials]. Zero means 5,000.
	MaxFrameRate int

	// MaxNodeBytes bounds the encoded Node of a client, of which all but its extensions may have 256 KiB and 10,000
	// values. The Nodes that are kept of one peer may have 64 times as many bytes, not counting the first 16 KiB of each.
	// Zero means 1 MiB.
	MaxNodeBytes int
}

// WithDefaults returns the limits with defaults for those that are zero.
func WithDefaults(l Limits) Limits {
	return Limits{
		MaxConnections:     cmp.Or(l.MaxConnections, 50_000),
		MaxPeerConnections: cmp.Or(l.MaxPeerConnections, 10_000),
		MaxUnreadBytes:     cmp.Or(l.MaxUnreadBytes, 1<<30),
		PeerIPv6Prefix:     cmp.Or(l.PeerIPv6Prefix, 64),
		MaxStreams:         cmp.Or(l.MaxStreams, 50_000),
		MaxFrameRate:       cmp.Or(l.MaxFrameRate, 5000),
		MaxNodeBytes:       cmp.Or(l.MaxNodeBytes, 1<<20),
	}
}

// A Limit is a bound on what clients may ask for (B.35). It prints as the variable that
// sets it.
type Limit int

// The limits of a server and of its views.
const (
	LimitStreams     Limit = iota // open streams and held polls
	LimitNames                    // names of a stream
	LimitNameBytes                // length of a name or type URL
	LimitRequest                  // size of a request; gRPC itself tells the client
	LimitTypes                    // types of a view
	LimitGlobs                    // globs of a stream
	LimitGroupGlobs               // globs that the clients of a group follow
	LimitGroups                   // node groups
	LimitPeerGroups               // node groups that one peer has founded
	LimitOriginNames              // names that clients want of an origin

	LimitNodeBytes       // size of a Node
	LimitConnections     // open connections
	LimitPeerConnections // of one peer
	LimitUnread          // bytes of buffered requests
	LimitFrames          // frames a second; counted when a client becomes rate-limited
	limits
)

var limitNames = [limits]string{
	"TENDER_MAX_STREAMS", "TENDER_MAX_NAMES", "TENDER_MAX_NAME_BYTES", "TENDER_MAX_REQUEST_BYTES", "TENDER_MAX_TYPES",
	"TENDER_MAX_GLOBS", "TENDER_MAX_GROUP_GLOBS", "TENDER_MAX_GROUPS", "TENDER_MAX_GROUPS_PER_CLIENT",
	"TENDER_MAX_ORIGIN_NAMES", "TENDER_MAX_NODE_BYTES", "TENDER_MAX_CONNECTIONS", "TENDER_MAX_CONNECTIONS_PER_ADDRESS",
	"TENDER_MAX_BUFFERED_REQUEST_BYTES", "TENDER_MAX_FRAME_RATE",
}

func (l Limit) String() string { return limitNames[l] }

package guard

import (
	"cmp"
)

// Limits bound the resources that clients use. Zero values mean defaults.
type Limits struct {
	// MaxConnections bounds the connections of all clients, MaxPeerConnections those of one host, of which as many may
	// open at once. [Guard.Credentials] and [Guard.PollListener] enforce them. Zero means 50,000 and 10,000.
	MaxConnections, MaxPeerConnections int

	// MaxUnreadBytes bounds the memory of the requests of all connections until they are handled: incomplete, waiting
	// and decoded ones. The first 64 KiB of each connection do not count. The bound for one host is a fourth
	// of it. A connection that exceeds it is closed. [Guard.Credentials] enforces it. Zero means 1 GiB.
	MaxUnreadBytes int

	// MaxStreams bounds open streams and held polls. Zero means 50,000.
	MaxStreams int
}

// MaxStreamsPerConnection bounds the open streams of one connection. An Envoy without ADS opens a stream for the endpoints
// of each cluster. The gRPC server enforces it.
const MaxStreamsPerConnection = 2000

// WithDefaults returns the limits with defaults for those that are zero.
func WithDefaults(l Limits) Limits {
	return Limits{
		MaxConnections:     cmp.Or(l.MaxConnections, 50_000),
		MaxPeerConnections: cmp.Or(l.MaxPeerConnections, 10_000),
		MaxUnreadBytes:     cmp.Or(l.MaxUnreadBytes, 1<<30),
		MaxStreams:         cmp.Or(l.MaxStreams, 50_000),
	}
}

// A Limit is a limit on the resources that clients use (B.35). It prints as the environment variable that sets it, or as
// a word in lower case if it is constant.
type Limit int

// The limits of a server and of its views.
const (
	LimitStreams     Limit = iota // open streams and held polls
	LimitNames                    // names of a stream
	LimitNameBytes                // length of a name or type URL
	LimitRequest                  // size of a request; gRPC itself sends the error
	LimitTypes                    // types of a view
	LimitGlobs                    // globs of a stream
	LimitGroupGlobs               // globs that the clients of a group subscribe to
	LimitGroups                   // node groups
	LimitPeerGroups               // node groups that the clients of one peer created
	LimitOriginNames              // names that clients subscribe to at an origin

	LimitNodeBytes       // size of a Node
	LimitConnections     // open connections
	LimitPeerConnections // of one peer
	LimitUnread          // bytes of buffered requests
	LimitFrames          // frames a second; counted when a client becomes rate-limited
	LimitNameRate        // names a second in requests; counted when a peer becomes rate-limited
	limits
)

var limitNames = [limits]string{
	"TENDER_MAX_STREAMS", "TENDER_MAX_NAMES", "name_bytes", "TENDER_MAX_REQUEST_BYTES", "types", "globs", "group_globs",
	"TENDER_MAX_GROUPS", "TENDER_MAX_GROUPS_PER_CLIENT", "TENDER_MAX_ORIGIN_NAMES", "node_bytes",
	"TENDER_MAX_CONNECTIONS", "TENDER_MAX_CONNECTIONS_PER_ADDRESS",
	"buffered_bytes", "frame_rate", "name_rate",
}

func (l Limit) String() string { return limitNames[l] }

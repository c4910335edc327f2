// Package guard limits the resources that clients use: connections, streams, polls, memory of buffered requests, HTTP/2
// frames, and large Nodes (B.35). All usage is accounted in one [Guard].
//
// # Where to read
//
// A file uses only identifiers that it or a file before it declares:
//
//	limits.go     the configuration, and the names of the limits
//	causes.go     why clients are refused
//	ending.go     errors that end streams
//	log.go        rate-limited log lines
//	counters.go   counters of ended streams; counters, log lines and the last example of each cause
//	budget.go     rate limits of frames, and the cost of each kind of frame
//	slots.go      limits concurrent first responses that may block
//	handshakes.go limits concurrent TLS handshakes
//	account.go    accounts of connections and hosts
//	node.go       bounds of a Node before it is decoded
//	nodes.go      accounts of Nodes while they are decoded or kept
//	names.go      rate limits of the names in requests
//	peer.go       the identity that usage is charged to: the certificate, or else the host
//	guard.go      the composed Guard; the limit of streams and polls
//	failed.go     counts and logs connections that fail before a request
//
// Then come connections. enter.go admits a connection of package transport, and charges it for frames and requests.
// read_unix.go and read_other.go read from a socket without holding a buffer while they wait. A connection of gRPC
// (conn.go) or of polls (poll.go) passes these steps, in this order:
//
//  1. The listener rate-limits new connections of a host (listen.go).
//  2. The handshake, or the listener for polls, counts the connection against the limits for all clients and for its
//     host. A TLS handshake of gRPC computes only during its turn.
//  3. Each read counts frames and the bytes of requests that are not handled yet. Too many frames pause the next read.
//
// The order of these files:
//
//	read_unix.go read_other.go conn.go enter.go listen.go poll.go
//
// # Concurrency properties
//
// All exported methods may be called from any goroutine. The goroutine that reads a connection owns the frame parser
// state. [Account.Hold] and [Account.Release] are atomic and take a lock only beyond 64 KiB for a connection.
//
// There are five locks: connections.mu (connections, hosts and claimed bytes), handshakes.mu (turns), nodes.mu (bytes
// of large Nodes), names.mu (budgets of names) and nodeCache.mu (Nodes of a connection). The only nesting is that
// nodeCache.mu is held while nodes.mu is taken. Nothing blocks while one is held. The package starts no goroutine. Pauses
// end with the stream or connection, the poll's context or the drain.
//
// The package is not a stable API: programs that embed Tender use package relay.
package guard

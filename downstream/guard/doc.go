// Package guard bounds what clients may take of the relay: connections, streams, polls, memory of buffered requests,
// HTTP/2 frames, and large Nodes (B.35). A [Guard] is the only place where clients are charged.
//
// # Where to read
//
// A file uses only what the files before it declare:
//
//	limits.go     the configuration, and the names of the limits
//	ending.go     errors that end streams
//	counters.go   counters of these
//	log.go        rate-limited log lines
//	budget.go     rates of frames, and what each kind of frame costs
//	slots.go      a first response that may block waits for a slot
//	handshakes.go a TLS handshake takes turns with others
//	account.go    what connections and hosts are charged with
//	node.go       the bounds of a Node, before it is decoded
//	nodes.go      what Nodes are charged with for as long as they are kept
//	peer.go       a client is charged as a peer: its certificate, or else its host
//	guard.go      all of that; streams and polls take a share of all streams
//
// Then come connections. read_unix.go and read_other.go read from a socket without holding a buffer. A connection of
// gRPC (conn.go) or of polls (poll.go) passes these stops, in this order:
//
//  1. The listener rate-limits new connections of a host (listen.go).
//  2. The handshake, or the listener for polls, counts the connection against the limits of all and of its host. A TLS
//     handshake of gRPC computes when it has its turn.
//  3. Each read counts frames, which pause the next read when there are too many, and the bytes of requests that are
//     not handled yet.
//
// The order of these files:
//
//	read_unix.go read_other.go conn.go listen.go poll.go
//
// # Concurrency properties
//
// All exported methods may be called from any goroutine. The goroutine that reads a connection owns the position in its
// frames; [Account.Hold] and [Account.Release] are atomic and take a lock only beyond 64 KiB for a connection.
// There are four locks, none of which is held while another is taken, except that nodeCache.mu is held while nodes.mu
// is taken: connections.mu (connections, hosts and claimed bytes), handshakes.mu (turns), nodes.mu (bytes of large
// Nodes), nodeCache.mu (Nodes of a connection). Nothing blocks while one is held. The package starts no goroutine;
// pauses end with the connection,
// the poll's context or the drain.
//
// It is no stable API: programs that embed Tender use package relay.
package guard

// Package guard bounds what clients may take of the relay: connections, streams, polls, memory of buffered requests,
// HTTP/2 frames, and large Nodes (B.35). A [Guard] is the only place where clients are charged.
//
// # Where to read
//
// limits.go has the configuration and the names of the limits, ending.go the errors that end streams, counters.go and
// log.go how they are counted and logged. A client is charged as a peer (peer.go): its certificate, or else its host.
//
// A connection passes these stops, in this order:
//
//  1. The listener rate-limits new connections of a host (listen.go, budget.go).
//  2. The handshake, or the listener for polls, counts the connection against the limits of all and of its host
//     (connections.go).
//  3. Each read counts frames, which pause the next read when there are too many, and the bytes of requests that are
//     not handled yet (account.go; conn.go for gRPC, poll.go for polls over HTTP; read_unix.go for the read itself).
//  4. A stream or a poll takes a share of all streams (guard.go).
//  5. A Node is bounded before it is decoded (node.go), and charged for as long as it is kept (nodes.go).
//  6. A first response that may block waits for a slot (slots.go).
//
// # Concurrency properties
//
// All exported methods may be called from any goroutine. The goroutine that reads a connection owns the position in its
// frames; [Account.Hold] and [Account.Release] are atomic and take a lock only beyond 64 KiB for a connection.
// There are three locks, none of which is held while another is taken, but for nodeCache.mu, which is held while nodes.mu
// is: connections.mu (connections, hosts and claimed bytes), nodes.mu (bytes of large Nodes), nodeCache.mu (Nodes of a
// connection). Nothing blocks while one is held. The package starts no goroutine; pauses end with the connection, the
// poll's context or the drain.
//
// It is no stable API: programs that embed Tender use package relay.
package guard

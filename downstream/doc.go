// Package downstream serves the resources of views to xDS clients: thousands of streams in both variants of the
// protocol, aggregated or of one type, and polls over REST.
//
// # Where to read
//
// The hot path is a stream's turn (turn.go): a change wakes the stream, and a worker flushes it. sender.flush walks
// the stream's subscriptions in make-before-break order, which sendOrder decides (barrier.go). Package subscription holds each of them, without I/O:
// Subscription.Next returns what the client is to be sent, which is what changed or the complete set. Removals that
// must wait for other types come last (Subscription.Removals). A glob is a subscription of its own beside its type's,
// with which it takes turns. A stream of one type has no other type, so nothing on it waits for one (B.26).
//
// A file uses only what the files before it declare, except for the types of fields:
//
//	config.go        the configuration, and the state of a server
//	client.go        what the subscriptions of a client share, and its log lines
//	stream.go        the state of a stream
//	queue.go         streams that wait for their turn, locks, and what wakes a stream
//	counts.go        counters and histograms
//	trace.go         deliveries and changes that are followed to clients
//	authorize.go     names that a client may not request
//	limits.go        names over a limit
//	identity.go      the Node of a client, its group, and the relays that it comes through
//	barrier.go       which type waits for which
//	flush.go         sending what is due
//	drain.go         when streams end by themselves
//	receive.go       requests
//	clients.go       the state of streams for operators
//	observed.go      the state of streams for rollouts
//	turn.go          the life of a stream
//	loads.go         load reports
//	csds.go          the state of clients as CSDS shows it
//	rest_scan.go     the bodies of polls, before they are decoded
//	rest_request.go  polls, and why they are rejected
//	rest_poll.go     a poll as a subscription that is sent one complete set, or waits for it
//	rest.go          the handler of polls
//	server.go        a server, and its gRPC services
//
// Two packages stand below this one: guard bounds what clients take, and has the errors that end streams; loadreport
// serves load reports.
//
// # Concurrency properties
//
// A stream's state is guarded by its lock. Its receiver, which handles requests, and one of the server's few workers,
// which send, take that lock. It is held only for as long as it takes to find out what to send: a send that may block
// has a goroutine of its own. A stream holds no queue of changes: it remembers positions in the view's logs, and reads
// what lies after them when its client is ready. So a slow client costs as much as an idle one, and gets the newest
// state (B.12). Hints tell a stream which names have changed (cache.Watch): a few at most; a stream that has missed one
// reads the logs. These take other locks, and are rare: joining a group, registering interest, logging a refusal, and
// adding a load report.
//
// It is no stable API: programs that embed Tender use package relay.
package downstream

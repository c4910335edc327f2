// Package downstream serves the resources of views to xDS clients: SotW and Delta streams, aggregated or of one type,
// and REST polls. It is built for thousands of streams.
//
// # Where to read
//
// The hot path is the turn of a stream (turn.go). A change wakes the stream, and a worker flushes it. [stream.flush]
// visits the subscriptions of the stream in make-before-break order (barrier.go). Package
// subscription has these subscriptions, without I/O: Subscription.Next returns the next response, with the changes or
// the complete set. Subscription.Removals returns the removals that must wait until other types are sent. A glob has a
// separate subscription; it shares the pending response of its type. A stream of one type never waits for another type
// (B.26).
//
// A file uses only identifiers that it or a file before it declares, except the types of struct fields:
//
//	config.go        configuration and the state of a server
//	client.go        properties that the subscriptions of a client share, and log lines about a client
//	stream.go        the state of a stream
//	queue.go         the queue of streams with something to send, the lock of a stream, and wake-ups
//	counts.go        counters and histograms
//	trace.go         traced deliveries, and changes that are tracked to all clients
//	names.go         names that a client is not authorized for, and names over a limit
//	identity.go      the Node of a client, its group and grant, probes, and chains of relays
//	barrier.go       which types wait for which
//	flush.go         sending of due responses
//	drain.go         streams that the relay ends: drain, maximum connection age, half-closed streams
//	below.go         what relays report about their clients
//	receive.go       requests
//	status.go        stream status for operators and for rollouts
//	rejections.go    the resources that clients reject
//	turn.go          the life of a stream
//	services.go      load reports, and client status for CSDS
//	rest_request.go  the request of a poll, which is scanned before it is decoded, and errors
//	rest_poll.go     the HTTP handler of polls: a held poll, its response, and the history of polls
//	server.go        the server and its gRPC services
//
// This package has four subpackages: guard limits the resources that clients use, and has the errors that end streams;
// loadreport serves load reports; subscription builds responses; transport is a server side of HTTP/2 and gRPC for
// streams of xDS (TENDER_TRANSPORT).
//
// # Concurrency properties
//
// The lock of a stream guards its state. The receiver takes it to handle requests, and one of a few workers to send
// responses. gRPC buffers most responses. A send that may block runs in another goroutine, so that no worker waits for a
// slow client.
//
// A stream has no queue of changes. It stores positions in the logs of the view, and reads the logs from there when its
// client is ready for a response. So a slow client needs no more memory than an idle one, and gets the newest state
// (B.12). Hints ([cache.Watch]) tell a stream which names have changed. They are limited to a few; a stream without
// complete hints reads the logs.
//
// The package is not a stable API: programs that embed Tender use package relay.
package downstream

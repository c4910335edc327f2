// Package downstream serves the resources of views to xDS clients: thousands of streams in both variants of the
// protocol, aggregated or of one type (services.go), and polls over REST (rest.go). server.go has the configuration.
//
// # Where to read
//
// The hot path is a stream's turn (turn.go): a change wakes the stream, and a worker flushes it. stream.flush walks
// the stream's subscriptions in make-before-break order. Package subscription holds each of them, without I/O:
// Subscription.Next returns what the client is to be sent, which is what changed or the complete set. Removals that
// must wait for other types come last (Subscription.Removals); barrier.go says what waits for what. A glob is a
// subscription of its own beside its type's, with which it takes turns. A stream of one type is the same with the type
// given (services.go, B.26): it has no other type, so nothing on it waits for one.
//
// A stream's client is identified by its Node and its connection (identity.go), and authorized (authorize.go). A
// poll is a subscription that is sent one complete set, or waits until there is one that its client lacks (rest_poll.go).
//
// clients.go, csds.go and stats.go report the state of streams to operators, trace.go and fanout.go follow changes to
// clients. leave.go ends streams.
//
// Two packages stand below this one: guard bounds what clients take, and has the errors that end streams; loadreport
// serves load reports (loads.go connects it).
//
// # Concurrency properties
//
// A stream's state belongs to who holds its lock: its receiver, which handles requests,
// or one of the server's few workers, which send (turn.go). Nobody waits for a lock
// that is held for longer than it takes to find out what to send: a send that may
// block has a goroutine of its own. A stream holds no queue of changes:
// it remembers positions in the view's logs, and reads what lies after them when
// its client is ready, so that a slow client costs as much as an idle one and
// gets the newest state (B.12). Of names, hints say which to read (cache.Watch): a few
// at most, and whoever has missed one reads the logs. What locks is rare: joining a group,
// registering interest, logging a refusal, adding a load report.
//
// It is no stable API: programs that embed Tender use package relay.
package downstream

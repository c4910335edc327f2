// Package downstream serves what a view holds to xDS clients, in both variants
// of the protocol, on thousands of streams, aggregated ones and those of one type.
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
// Over REST (rest.go), a poll is a subscription that is sent one complete set, or
// waits until there is one that its client has not (rest_poll.go).
//
// Load reports go the other way (lrs.go): they are passed through, or summed for
// each group (loads.go; the sums, without I/O, are in load.go).
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

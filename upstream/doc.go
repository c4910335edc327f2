// Package upstream is the relay as a client of its origins.
//
// A [Session] is one origin: one HTTP/2 connection to the address in use, shared by all views. [Session.Sync]
// keeps one view like the origin. Its loop has an ADS stream that asks for what clients want, the main stream
// (B.5). Where one type is wanted both by wildcard and by name, a second, the auxiliary stream carries one of
// the two, so that it is always known what belongs to the wildcard.
//
// Streams are Delta. With an origin that does not implement it they are SotW: lists.go and answers.go
// translate, and the rest of the package thinks in Delta.
//
//	demand ─▶ wants ─▶ streams ─▶ DeltaDiscoveryRequest ─▶ origin
//	cache ◀── reconcile ◀─ answers ◀─ DeltaDiscoveryResponse ◀─┘   and an ACK, or a NACK
//
// The loss of an origin never reaches a client: the view goes on being served, and a new stream states what
// the view holds, so that the origin sends the difference (B.15). Package reconcile decides which removals
// reach clients. Package files is a directory as an origin, package loadreport sends load reports, on the
// connection that a session has.
//
// # Reading order
//
//	the origin   config.go stats.go health.go session.go
//	its streams  lists.go (SotW) subscription.go stream.go streams.go
//	wants        set.go linger.go wants.go collection.go
//	answers      control.go comparison.go answers.go
//	the loop     viewsync.go
//	beside it    audit_result.go audit.go (a second sync, by which the first one is judged) probe.go share.go
//
// A file uses only what stands in files before it, but for the fields of a subscription that name its sets.
//
// # Concurrency properties
//
// What a [Session] has is for any goroutine. All that keeps a view belongs to the loop of its sync. For each
// stream there is a receiver, which decodes and hands over, and a sender, so that the loop never waits for an
// origin that does not read. All of them have ended when Sync returns.
//
// It is no stable API: programs that embed Tender use package relay.
package upstream

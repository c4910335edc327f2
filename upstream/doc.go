// Package upstream is the relay as a client of its origins.
//
// A [Session] is one origin: one HTTP/2 connection, shared by all views. Each
// view is kept like its origin by a mirror: one loop that owns all state, with an
// ADS stream that mirrors what clients want, the main stream (B.5). Where one type is
// wanted both by wildcard and by name, a second, the auxiliary stream carries one of
// the two, so that it is always known what belongs to the wildcard.
//
// Streams are Delta. With an origin that does not implement it they are SotW: that
// is translated in sotw.go, and the rest of the package thinks in Delta.
//
//	demand ─▶ mirror ─▶ DeltaDiscoveryRequest ─▶ origin
//	cache ◀── mirror ◀─ DeltaDiscoveryResponse ◀─┘   and an ACK, or a NACK
//
// The loss of an origin never reaches a client: the view goes on being served,
// and a new stream says what the view holds, so that it is told the difference
// (B.15).
//
// Load reports go up beside that (lrs.go), on the same connection: one stream for
// each group whose reports are summed, or one for each client.
//
// An operator's audit (audit.go) is a second mirror of a view of its own, for as long as
// it takes, by which the first one is judged.
//
// # Concurrency properties
//
// A mirror's state belongs to its loop. For each RPC stream there is a receiver,
// which decodes and hands over, and a sender, so that the loop never waits for an
// origin that does not read. All of them have ended when Mirror returns. The same
// holds for ReportLoads, whose loop sends by itself: it has nobody to keep waiting.
//
// It is no stable API: programs that embed Tender use package relay.
package upstream

// Package page serves the status page of a relay: a diagram of the fan-out, rollouts, stale views, rejected
// configuration, clients and resources. The relay renders the HTML, which works without a script.
//
// A page consists of sections. GET /live/PATH sends the changed sections of the page at PATH as server-sent events, and
// the script replaces them.
//
// # Concurrency properties
//
// The methods of [Pages] and [History] may be called from any goroutine. A page that several clients request is
// rendered once a second for all of them.
//
// The package is not a stable API: programs that embed Tender use package relay.
package page

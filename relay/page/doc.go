// Package page serves the status page of a relay: a diagram of the fan-out, rollouts, stale views, rejected
// configuration, clients and resources. The HTML is rendered by the relay and works without a script; the script updates
// it.
//
// A page consists of sections. GET /live/… sends the sections of the page at the same path as server-sent events, when
// they change, and the script replaces them.
//
// # Concurrency properties
//
// The methods of [Pages] and [History] may be called from any goroutine. A page that several clients request is
// rendered once a second for all of them.
//
// The package is not a stable API: programs that embed Tender use package relay.
package page

// Package page serves the status page of a relay: the fan-out as a picture, what is stale and
// what is refused, the clients and the resources. It is HTML made here, which needs no script;
// with one, it follows what happens.
//
// A page is made of sections. GET /live/… sends those of the page at the same path as events,
// each time one of them changes; the script of the page puts them in place.
//
// # Concurrency properties
//
// The methods of [Pages] and [History] may be called from any goroutine. A page that several
// people look at is made once a second for all of them.
//
// It is no stable API: programs that embed Tender use package relay.
package page

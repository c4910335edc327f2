// Package loadreport reports load to an origin (LRS) over the connection of a session.
//
// [Run] reports the total load of a group on a stream of the relay. [Open] opens a stream for the load reports of one
// client.
//
// # Concurrency properties
//
// Run sends on its own goroutine, so a slow origin blocks only Run. It starts one receiver and waits for it. All
// goroutines of Open end with the RPC.
//
// The package is not a stable API: programs that embed Tender use package relay.
package loadreport

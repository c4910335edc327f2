// Package loadreport reports load to an origin (LRS), on the connection that views use.
//
// [Run] reports the sum of a group on a stream of the relay, [Open] passes a client's stream through.
//
// # Concurrency properties
//
// Run sends by itself: it has nobody to keep waiting. It waits for its receiver. Everything that Open starts
// ends with the RPC.
//
// It is no stable API: programs that embed Tender use package relay.
package loadreport

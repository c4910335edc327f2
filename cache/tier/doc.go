// Package tier has what a relay reports to the relay above it about its clients: for each type, how many of them are in
// sync, and the worst of them by name (B.49).
//
// A [Report] includes what relays further below have reported, so that the relay above knows the clients of all tiers
// below it. Its counts and texts are bounded, and it never has words about Secrets. A report is a statement of one client
// about what is below that client: the relay that receives it only shows it.
//
// # Reading order
//
// A file uses only identifiers that it or a file before it declares:
//
//	report.go  counts of clients, and the worst of them
//	encode.go  encodes a report, within its limit
//	decode.go  decodes and checks a report
//
// # Concurrency
//
// A report that others can see is immutable. One that is being built belongs to one goroutine.
//
// The package is not a stable API: programs that embed Tender use package relay.
package tier

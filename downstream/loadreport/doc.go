// Package loadreport serves the load reports (LRS) of clients (R139): it passes each client's stream through to the
// origin, or sums the reports of a node group into one stream (B.29).
//
// # Where to read
//
// A file uses only what the files before it declare:
//
//	check.go    which reports are valid
//	sum.go      the sum of reports, without I/O
//	group.go    node groups whose clients report, and what the origin asks of them
//	message.go  the size of messages
//	stream.go   one client: [Server.Serve], passing through and summing
//
// # Concurrency properties
//
// A stream has two goroutines: the one that calls Serve, which owns its state, and one that receives. Each send has
// another one, since it may block for as long as the peer does not read. All of them end at the latest when the RPC
// does, which is when Serve has returned. groups.mu guards which
// groups report, Group.mu the sum of one; groups.mu is taken first where both are. Nothing blocks while one is held. One goroutine for each group
// reports to the origin; [Server.Wait] waits for all of them.
//
// It is no stable API: programs that embed Tender use package relay.
package loadreport

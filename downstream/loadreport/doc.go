// Package loadreport serves the load reports (LRS) of clients (R139): it passes each client's stream through to the
// origin, or sums the reports of a node group into one stream (B.29).
//
// # Where to read
//
// A file uses only identifiers that it or a file before it declares:
//
//	check.go    which reports are valid
//	sum.go      the sum of reports, without I/O
//	group.go    node groups whose clients report, and the origin's response to them
//	message.go  the size of messages
//	stream.go   the stream of one client: [Server.Serve], forwarding and summing
//
// # Concurrency properties
//
// A stream has two goroutines: the caller of Serve, which owns its state, and one that receives. Each send has another
// one, since it blocks while the peer does not read. All of them end at the latest with the RPC, after Serve has
// returned. One goroutine for each group reports to the origin; [Server.Wait] waits for all of them.
//
// groups.mu guards the set of groups, Group.mu the sum of one. A goroutine that needs both locks groups.mu first. No
// goroutine blocks while it holds one of them.
//
// The package is not a stable API: programs that embed Tender use package relay.
package loadreport

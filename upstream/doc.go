// Package upstream is the relay's xDS client: it subscribes to an origin (a control plane) on behalf of clients.
//
// A [Session] is one origin: one HTTP/2 connection to the active address, shared by all views. [Session.Sync]
// keeps one view in sync with the origin. Its loop runs the main ADS stream, which carries the subscriptions of
// clients (B.5). If clients subscribe to one type both by wildcard and by name, an auxiliary ADS stream carries one
// of the two. So each response is either for the wildcard or for names.
//
// The package is written for Delta xDS. If an origin does not implement Delta, the streams are SotW: sotw.go
// translates the requests, and responses.go the responses.
//
//	demand ─▶ subscriptions ─▶ streams ─▶ DeltaDiscoveryRequest ─▶ origin
//	cache ◀── reconcile ◀─ responses ◀─ DeltaDiscoveryResponse ◀─┘   and an ACK, or a NACK
//
// What the loop does at a time, or after a change, is a task of its agenda. A step does the tasks that are due, in a fixed order.
// Code that changes what a task depends on wakes that task.
//
// Clients do not notice when the origin is unreachable: the relay serves the cached view. A new stream reports the
// cached resource versions, so that the origin sends only the difference (B.15). Package reconcile decides which
// removals reach clients. Package files reads an origin from a directory. Package loadreport sends load reports
// over the connection of a session.
//
// # Reading order
//
// A file uses only identifiers that it or a file before it declares, except the types of struct fields:
//
//	the origin     config.go stats.go health.go addresses.go session.go
//	its streams    agenda.go sotw.go subscription.go stream.go streams.go tiers.go
//	subscriptions  set.go linger.go branches.go subscriptions.go isolation.go collection.go
//	responses      control.go comparison.go verdict.go responses.go
//	the loop       viewsync.go
//	other users    audit.go (compares a view with a second sync) probe.go share.go
//
// # Concurrency properties
//
// The methods of [Session] may be called from any goroutine. The state of a view belongs to the loop of its Sync.
// Each stream has a goroutine that receives and decodes, and one that sends. So the loop does not block on an
// origin that does not read. All of these goroutines have ended when Sync returns.
//
// The package is not a stable API: programs that embed Tender use package relay.
package upstream

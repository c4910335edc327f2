// Package cache holds the resources that the origins of one node group sent, and the subscriptions of its clients.
//
// A [View] has one writer for each origin, the upstream session, and any number of readers, the
// downstream streams. Every response of the origin makes a new immutable [Generation];
// a reader that holds one sees a consistent cut over all types and takes no lock.
// The progress of a stream is a position in the generation's logs, or a position for
// each name: never a queue, never a copy (B.1).
//
//	origin ── Writer.Apply ──▶ Generation{Seq, Type…} ──▶ Set{table, log} ◀── streams read changes after their position
//	                      └──▶ index: watchers of the changed names ──▶ Watch: wake-up, hints
//
// # The two sets of a type
//
// A view keeps two sets of each type. Wildcard has the resources that the origin selected for a wildcard
// subscription. ByName has the resources that were subscribed to by name. The sets are never merged, so a resource
// that was subscribed to by name only cannot appear in the set of a wildcard client (B.5). [Type.Lookup] combines
// both sets for a stream that subscribed to a name.
//
// # From a response to a generation
//
// [Writer.Apply] begins an edit: the next version of one type, in a generation that is not published yet. Three types
// do the work:
//
//   - response finds the names to which each part of the origin's response applies;
//   - setEdit changes one entry of one set: put, putTombstone, putAbsent, putError, clearError, handleDeadline;
//   - setCopier copies the state of names from another view, for shared views.
//
// Publish stores the generation, and those of the cohorts that follow it, and wakes the watches of what changed.
//
// # Reading order
//
// These packages do not depend on views, and each can be read by itself: immutable (tables and logs), fingerprint
// (versions of sets), quota (limits by peer), intern (equal resources), distrust (resources to send in spite of an
// equal version), and fanout (how long a change takes to reach clients).
//
// A file uses only identifiers that it or a file before it declares, except the types of struct fields:
//
//	entry.go            names, and the entry of a name in a set
//	set.go              sets, and which removals are large
//	generation.go       types, and generations that share them
//	index.go            subscriptions of all streams, by type and name
//	view.go             views, and their configuration
//	hint.go             wake-ups and hints of a stream
//	watch.go            subscriptions of one stream
//	writer.go           the state of a writer
//	branch.go           the generations of a writer: those of the rest, which it edits, and those of cohorts
//	edit.go             edits: the next version of a type
//	put.go              a resource, an error or a removal for a name
//	statement.go        what is stated of a name, and what of it may not wait
//	response.go         the parts of a response, and copies of entries
//	cohort.go           cohorts follow the rest
//	publish.go          an edit becomes a generation with a cause, and wakes streams
//	source.go           the state of an origin, and the phases of its wildcard sets
//	reports.go          reports of returning clients about their resources
//	evaluate.go         which removals are withheld because of reports
//	expire.go           timers: TTLs, tombstones, reports
//	new.go              creates views and their writers
//	apply.go            responses of the origin, and copies of generations
//	first.go            the part of a response that waits for nothing, and former states
//	state.go            the difference between two generations
//	demand.go           names and wildcard sets to subscribe to at the origin
//	snapshot.go         snapshots of a source
//	snapshot_restore.go views that begin with a snapshot
//	snapshot_past.go    encoding of former contents
//	snapshot_format.go  encoding of snapshots
//	audit.go            consistency check of a view
//
// # Concurrency properties
//
// Generations, types, sets and entries are immutable. A [Writer] belongs to one goroutine. A [Watch] belongs to one
// goroutine, except its channel, which the writer sends to. The index of interest is guarded by a mutex. Readers take it
// to subscribe, not to read a generation. No code blocks or uses a channel while it holds the mutex. A watch that is
// registered before it loads the generation misses no change: a writer holds the mutex while it publishes a generation
// and looks up the watches to wake, and registering takes it too.
//
// A watch has hints: the names of the stream that changed, which the stream reads without a lock ([Watch.Hinted]). They
// are stored before the generation is, so a reader of a generation has its hints, and perhaps those of the next one. A
// watch keeps a few hints at most. If there are more changes, it drops them, and the stream reads the logs.
//
// The package is not a stable API: programs that embed Tender use package relay.
package cache

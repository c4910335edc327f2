// Package cache holds the resources that the origins of one node group sent, and the subscriptions of its clients.
//
// A [View] has one writer for each origin, the upstream session, and any number of readers, the
// downstream streams. Every response of the origin makes a new immutable [Generation];
// a reader that holds one sees a consistent cut over all types and takes no lock.
// A stream's progress is a position in the generation's logs, or a sequence for
// each name: never a queue, never a copy (B.1).
//
//	origin ── Writer.Apply ──▶ Generation{Seq, Type…} ──▶ Set{table, log} ◀── streams read what lies after their position
//	                      └──▶ index: watchers of what changed ──▶ Watch: wake-up, hints
//
// # The two sets of a type
//
// Of each type a view keeps two sets: Wildcard, the resources that the origin chose for a
// wildcard subscription, and ByName, those that were subscribed to by name. They never
// mix, so a resource that was only ever subscribed to by name cannot leak into a wildcard
// client's set, or be removed from it (B.5). [Type.Lookup] is how a stream that
// subscribed to a name sees both.
//
// # From a response to a generation
//
// [Writer.Apply] begins an edit: the next version of one type in a generation in the making. Three types do the work:
//
//   - response finds the names that each part of the origin's response is for;
//   - setEdit changes one entry of one set: put, keep, putTombstone, putAbsent, putError, clearError, handleDeadline;
//   - copying makes names as another generation has them, for shared views and for thawing.
//
// Publish passes the edit through the gate (closed while the writer is frozen), stores the generation and wakes the
// watches of what changed.
//
// # Reading order
//
// These packages know nothing of views, and can be read each by itself: immutable (tables and logs), fingerprint (versions
// of sets), quota (limits by peer), intern (equal resources), distrust, and fanout (how long a change takes to reach clients).
//
// Each file uses only what the files before it define:
//
//	entry.go            names, and the entry of a name in a set
//	set.go              sets, and which removals are large
//	generation.go       types, and generations that share them
//	trace.go            which change of an origin caused a position
//	index.go            subscriptions of all streams, by type and name
//	deferred.go         intervals between two pushes of a type
//	watch.go            subscriptions of one stream, wake-ups, hints
//	edit.go             the next version of a type, in the making
//	put.go              a resource, an error or a removal for a name
//	gate.go             the newest state, and the states that readers see
//	pass.go             which names of an edit pass the gate
//	edition.go          editions: states that readers may be shown
//	waiting.go          counts of changes that wait for Show
//	publish.go          an edit becomes a generation, and wakes streams
//	reports.go          resources that returning clients have
//	evaluate.go         which removals are withheld because of reports
//	expire.go           timers: TTLs, tombstones, reports
//	writer.go           writers
//	view.go             views, and their configuration
//	show.go             freeze, thaw, rollback, editions for cohorts
//	apply.go            responses of the origin, and copies of generations
//	state.go            the difference between two generations
//	demand.go           names and wildcard sets to subscribe to at the origin
//	snapshot.go         snapshots of a source
//	snapshot_format.go  their encoding
//	audit.go            consistency check of a view
//
// All files know the types View, Watch and Writer. A writer embeds types that do one job each, and an edit reuses the
// memory of its publisher.
//
// # Concurrency properties
//
// Generations, types, sets and entries are immutable. A [Writer] belongs to one
// goroutine. A [Watch] belongs to one goroutine, except its channel, which the
// writer sends to. The index of interest is guarded by a mutex, the only one that
// a reader takes. No code blocks or uses a channel while it holds the mutex. A watch that is registered before it loads
// the generation misses no change: a writer holds the mutex while it publishes a generation and looks up the watches to
// wake, and registering takes it too.
//
// A watch has hints: the names of the stream that changed, which the stream reads without a lock ([Watch.Hinted]). They
// are stored before the generation is, so a reader of a generation has its hints, and perhaps those of the next one. A
// watch keeps a few hints at most. If there are more changes, it drops them, and the stream reads the logs.
//
// The package is not a stable API: programs that embed Tender use package relay.
package cache

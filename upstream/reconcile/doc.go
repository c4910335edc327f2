// Package reconcile decides which removals reach clients: did the origin mean them (B.15)? It also holds changes that
// would break clients (B.46).
//
// A [Set] is the resources that an origin states as a whole: a wildcard set, the names of a type, a
// collection, one type of a directory, or what returning clients report. A [Group] is the sets of
// one view or directory, which keep what they refer to. Every set goes the same way:
//
//	Begin      a new stream: what is held is unmentioned, until the origin mentions it
//	Take       a response is applied, but for the removals that must wait: these are suspect. Changes that break clients are
//	           held, too (B.46)
//	Ask, End   what stays unmentioned is asked for by name, and is suspect if it seems to be gone
//	Infer      or it is suspect at once: a complete list, or a file, lacks it
//	Decide     once the set is complete, suspects are removed, or held if they are too many
//	Operate    an operator decides, or after the deadline a second look at the origin
//
// # Reading order
//
// hold.go, progress.go (is the set complete?), unmentioned.go, removals.go, references.go, set.go, breaking.go,
// take.go, ask.go, decide.go, group.go, reports.go. A file uses only what stands in files before it.
//
// # Concurrency properties
//
// A group and its sets belong to one goroutine, and start none. They do no I/O but for the log, and
// know no clock: callers pass the time. [Counts] may be read by any goroutine.
//
// It is no stable API: programs that embed Tender use package relay.
package reconcile

// Package reconcile decides which removals reach clients: those that the origin intended (B.15). It also holds changes that
// would break clients (B.46).
//
// A [Set] has the resources that an origin states as a whole: a wildcard set, the names of a type, a collection, one type of
// a directory, or the resources that returning clients report. A [Group] has the sets of one view or directory. A resource
// that stays keeps the resources that it refers to. The steps are the same for each set:
//
//	Begin      starts a new stream: all resources are unmentioned until the origin mentions them
//	Take       applies a response, except removals that must wait, which become suspect, and changes that break clients,
//	           which are held (B.46)
//	Ask, End   request unmentioned resources by name, which become suspect if they seem to be removed
//	Infer      makes resources suspect at once that a complete list, or the files of a directory, lack
//	Decide     removes suspects once the set is complete, or holds them if they are too many
//	Operate    carries out the decision of an operator; without one, a second look at the origin decides after a deadline
//
// # Reading order
//
// hold.go, progress.go (is the set complete?), unmentioned.go, removals.go, references.go, set.go, breaking.go,
// take.go, ask.go, decide.go, group.go, reports.go. A file uses only what stands in files before it.
//
// # Concurrency properties
//
// A group and its sets belong to one goroutine, and start none. They do no I/O except logging, and do not read the clock:
// callers pass the time. Any goroutine may read [Counts].
//
// It is no stable API: programs that embed Tender use package relay.
package reconcile

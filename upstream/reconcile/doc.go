// Package reconcile decides which removals reach clients: those that the origin intended (B.15). It also holds changes
// that would break clients (B.46), and those by which a resource, or the number of resources, grows abnormally (B.51).
//
// A [Set] is the resources that an origin states as a whole: a wildcard set, the names of a type, a collection, or one
// type of a directory. The resources that reconnecting clients report are sets, too. A [Group] is the sets of one view
// or directory. While a resource is held, the resources that it refers to stay. The steps are the same for each set:
//
//	Begin         starts a new stream: all resources are unmentioned until the origin mentions them
//	Take          applies a response, except removals that must wait, which become suspected, removals of required
//	              resources, changes that would break clients (B.46), and abnormal growth (B.51), which are held
//	StartQuery    requests unmentioned resources by name
//	FinishQuery   makes the ones without an answer suspected, if the origin answers for another resource
//	Infer         makes resources suspected that a complete list, or the files of a directory, omit
//	Decide        applies the suspected removals once the set is complete, or holds them if they are large
//	Operate       executes the decision of an operator; without one, a second look decides after the hold time
//
// A second look is a request for all resources on new streams without initial_resource_versions. The comparison of content after
// a resume is the same request: see package upstream, which makes both.
//
// # Reading order
//
// A file uses only identifiers that it or a file before it declares, except the types of struct fields:
//
//	state       hold.go progress.go unmentioned.go removals.go references.go keys.go
//	a set       set.go required.go breaking.go growth.go units.go take.go query.go decide.go
//	all sets    group.go
//	reports     reports.go
//
// # Concurrency properties
//
// A group and its sets belong to one goroutine. The package starts no goroutine, and does no I/O except logging. Callers
// pass the time. Any goroutine may read [Counts].
//
// The package is not a stable API: programs that embed Tender use package relay.
package reconcile

// Package history records the last changes of each resource, with the content before and after, and computes a diff on
// request.
//
// The resources are those of the cache, which are immutable; a recorded one stays in memory. A [Journal] is bounded by
// the number of changes of a resource and by bytes in total; it drops the oldest changes first.
//
// # Concurrency
//
// A [Follower] reads the generations of one view, as streams do, on a goroutine that its caller starts; the writer of
// the view only wakes it. The methods of a Journal may be called from any goroutine. They hold its lock for no longer
// than it takes to read the changes of one resource.
//
// The package is not a stable API: programs that embed Tender use package relay.
package history

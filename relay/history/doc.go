// Package history records the last changes of each resource, with the content before and after, and computes a diff on
// request.
//
// A [Journal] refers to the immutable resources of the cache and keeps them in memory. It limits the number of changes
// per resource and the total number of bytes, and drops the oldest changes first.
//
// # Concurrency
//
// A [Follower] reads the generations of one view, as streams do, on a goroutine that its caller starts. It does not
// block the writer of the view. The methods of a Journal may be called from any goroutine.
//
// The package is not a stable API: programs that embed Tender use package relay.
package history

// Package history remembers how resources changed: of each the last changes, with the content
// before and after, from which a diff is made when somebody asks for one.
//
// The resources are the cache's own, which are immutable: to remember one costs that it stays in
// memory. A [Journal] is bounded by changes of one resource and by bytes in all; beyond these it
// forgets the oldest.
//
// # Concurrency
//
// A [Follower] reads the heads of one view, as streams do, on a goroutine that its caller starts. A
// writer of the view does nothing for it but wake it. The methods of a Journal may be called from
// any goroutine; what they do under its lock takes no longer than to look at one resource's
// changes.
//
// It is no stable API: programs that embed Tender use package relay.
package history

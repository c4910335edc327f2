// Package generations keeps the earlier configurations that clients were served, so that an operator can return to one
// (tender rollback). DESIGN.md has the reasons ("Rollback").
//
// A [Line] is the succession of the generations of one source of a view. It holds one immutable [cache.State], and of each
// earlier generation only the resources that differ in the next one. A [Store] has all lines, and drops the oldest
// generations of any line beyond a number of bytes. A [Target] is a generation of a line to return to.
//
// Its methods may be called from any goroutine. The package is not a stable API: programs that embed Tender use package relay.
package generations

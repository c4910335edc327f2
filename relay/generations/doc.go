// Package generations stores earlier generations of the configuration that clients received, so that an operator can
// return to one of them (tender rollback). DESIGN.md explains the design ("Rollback").
//
// A [Line] is the sequence of the generations of one source of a view. It stores one immutable [cache.State]; for each
// earlier generation, it stores only the resources that differ in the next one. A [Store] contains all lines. It limits
// their total size in bytes and drops the oldest generations of all lines first. A [Target] is a generation of a line
// to which an operator returns.
//
// Methods may be called from any goroutine unless their comment says otherwise.
//
// The package is not a stable API: programs that embed Tender use package relay.
package generations

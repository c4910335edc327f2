// Package snapshot keeps snapshots of views in a directory, so that a relay that starts
// again knows what it knew (B.42).
//
// There is one file for each origin and node group, and one with the decisions of operators. It is replaced as a whole, when it
// and its new content are known to be on the disk: whatever happens while it is written,
// there is the old one or the new one. Files are for nobody but their owner (0600), and a
// directory for one process, which holds a lock on it.
//
// # Concurrency properties
//
// Each file of a [Dir] is written to by one goroutine at a time; its Stats may be read by any.
//
// It is no stable API: programs that embed Tender use package relay.
package snapshot

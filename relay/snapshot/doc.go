// Package snapshot stores snapshots of views in a directory, so that a relay serves after a restart what it served
// before (B.42).
//
// There is one file per origin and node group, and one with the decisions of operators. A file is replaced as a whole,
// once its new content is on the disk, so a crash leaves the old file or the new one. Only the owner can read the files
// (0600). A directory belongs to one process, which holds a lock on it.
//
// # Concurrency properties
//
// One goroutine at a time may write a file of a [Dir]. Stats may be called from any goroutine.
//
// The package is not a stable API: programs that embed Tender use package relay.
package snapshot

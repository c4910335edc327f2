// Package snapshot stores snapshots of views in a directory, so that a relay serves the same state after a restart
// (B.42).
//
// There is one file per origin and node group, and decisions.json with the decisions of operators. Files are replaced
// atomically, so that a crash leaves the old or the new file. Only the owner can read the files (mode 0600). A process
// locks its directory.
//
// # Concurrency properties
//
// One goroutine at a time may write a file of a [Dir]. Stats may be called from any goroutine.
//
// The package is not a stable API: programs that embed Tender use package relay.
package snapshot

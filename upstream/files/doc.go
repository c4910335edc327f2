// Package files is an origin that is a directory of resources.
//
// Any number of views are kept like the directory, of which one reader reads for all.
//
// # Reading order
//
// read.go (a directory as it is now), shelf.go (what each file last held), config.go, hold.go (what is served,
// with what seems to be removed and stays), watch.go, reader.go (all of that), local.go (a view whose content
// this process decides), files.go (the directory and its views), control.go and saved.go (operators). A file
// uses only what stands in files before it.
//
// # Concurrency properties
//
// One of the syncs that run, or Follow, has the reader, and reads for all of them; what it finds it publishes.
// Each view belongs to the loop of its sync.
//
// It is no stable API: programs that embed Tender use package relay.
package files

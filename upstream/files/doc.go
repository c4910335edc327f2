// Package files is an origin that is a directory of resources.
//
// Any number of views are kept like the directory, of which one reader reads for all.
//
// # Reading order
//
// A file uses only what the files before it declare:
//
//	read.go     a directory as it is now
//	shelf.go    what each file held when it was last readable
//	config.go   the configuration
//	hold.go     what is served: also resources whose removal is held back
//	watch.go    events of the directory
//	reader.go   all of that
//	local.go    a view whose content this process decides
//	files.go    the directory and its views
//	control.go  what operators do
//	saved.go    what outlives the process
//
// # Concurrency properties
//
// One of the syncs that run, or Follow, has the reader, and reads for all of them; what it finds it publishes.
// Each view belongs to the loop of its sync.
//
// It is no stable API: programs that embed Tender use package relay.
package files

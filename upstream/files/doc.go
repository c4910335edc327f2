// Package files is an origin that reads resources from the files of a directory.
//
// One reader reads the directory for any number of views.
//
// # Reading order
//
// A file uses only identifiers that it or a file before it declares:
//
//	read.go       the current content of a directory
//	filestate.go  the last good content of each file
//	config.go     the configuration
//	hold.go       the served resources, including those whose removal is pending
//	watch.go      events of the directory
//	reader.go     reads the directory and updates the served resources
//	local.go      a view whose content this process decides
//	files.go      the directory and its views
//	control.go    commands of operators
//	saved.go      state that survives a restart
//
// # Concurrency properties
//
// The goroutine of one running sync, or of Follow, owns the reader. It reads the directory for all views and publishes
// the result. Each view belongs to the loop of its sync.
//
// The package is not a stable API: programs that embed Tender use package relay.
package files

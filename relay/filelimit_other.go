//go:build !unix

package relay

// fileLimit reports that the limit of open files is unknown.
func fileLimit() (limit uint64, ok bool) { return 0, false }

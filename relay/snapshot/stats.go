package snapshot

import "sync/atomic"

// A Reason is why a snapshot was not used.
type Reason string

// The reasons.
const (
	Unreadable Reason = "unreadable" // the file system returned an error
	Foreign    Reason = "foreign"    // it is something else
	Version    Reason = "version"    // another version of the relay wrote it
	Damaged    Reason = "damaged"    // it is not as it was written
	Old        Reason = "old"        // older than TENDER_MAX_SNAPSHOT_AGE
	Mismatch   Reason = "mismatch"   // of another origin, Node or group than this relay has
)

var reasons = []Reason{Unreadable, Foreign, Version, Damaged, Old, Mismatch}

// Stats are counters since the directory was opened.
type Stats struct {
	Written  int64 // snapshots
	Failures int64 // snapshots that could not be written

	Restored int64            // views that began with a snapshot
	Rejected map[Reason]int64 // snapshots that were not used, for each reason
}

// stats are what Stats are read from.
type stats struct {
	written, failed, restored atomic.Int64

	rejected [6]atomic.Int64 // by place in reasons
}

// CountRestored counts a view that began with a snapshot.
func (s *stats) CountRestored() { s.restored.Add(1) }

// Stats returns the counters. It may be called by any goroutine.
func (s *stats) Stats() Stats {
	out := Stats{Written: s.written.Load(), Failures: s.failed.Load(), Restored: s.restored.Load(), Rejected: make(map[Reason]int64, len(reasons))}
	for i, r := range reasons {
		out.Rejected[r] = s.rejected[i].Load()
	}
	return out
}

package snapshot

import "sync/atomic"

// A Reason is the reason why a snapshot was rejected.
type Reason string

// Reasons, which are values of a label in metrics.
const (
	Unreadable Reason = "unreadable" // the file system returned an error
	Foreign    Reason = "foreign"    // not a snapshot, or a copy of one
	Version    Reason = "version"    // another version of the relay wrote it
	Damaged    Reason = "damaged"    // the content is corrupt
	Old        Reason = "old"        // older than TENDER_MAX_SNAPSHOT_AGE
	Mismatch   Reason = "mismatch"   // does not match the origins, Node or groups of this relay
)

var reasons = []Reason{Unreadable, Foreign, Version, Damaged, Old, Mismatch}

// Stats are counters since Open.
type Stats struct {
	Written  int64 // written snapshots
	Failures int64 // failed writes

	Restored int64            // views that were restored from a snapshot
	Rejected map[Reason]int64 // rejected snapshots by reason
}

// stats has the counters of a Dir.
type stats struct {
	written, failed, restored atomic.Int64

	rejected [6]atomic.Int64 // by index in reasons
}

// CountRestored counts a view that was restored from a snapshot.
func (s *stats) CountRestored() { s.restored.Add(1) }

// Stats returns the counters. It may be called from any goroutine.
func (s *stats) Stats() Stats {
	out := Stats{
		Written: s.written.Load(), Failures: s.failed.Load(), Restored: s.restored.Load(),
		Rejected: make(map[Reason]int64, len(reasons)),
	}
	for i, r := range reasons {
		out.Rejected[r] = s.rejected[i].Load()
	}
	return out
}

package snapshot

import (
	"errors"
	"sync/atomic"

	"github.com/xdstender/tender/cache"
)

// A Reason is the reason why a snapshot was refused.
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

// reasonOf returns the reason for an error of a snapshot's file.
func reasonOf(err error) Reason {
	switch {
	case errors.Is(err, cache.ErrSnapshotForeign):
		return Foreign
	case errors.Is(err, cache.ErrSnapshotVersion):
		return Version
	case errors.Is(err, cache.ErrSnapshotDamaged):
		return Damaged
	case errors.Is(err, errOld):
		return Old
	default:
		return Unreadable
	}
}

var reasons = []Reason{Unreadable, Foreign, Version, Damaged, Old, Mismatch}

// Stats are counters since Open, and the state of the directory.
type Stats struct {
	Fault string // why the directory is not usable; empty if it is

	Written  int64 // written snapshots
	Failures int64 // failed writes

	Restored int64            // views that were restored from a snapshot
	Refused  map[Reason]int64 // refused snapshots by reason
}

// stats has the counters of a Dir.
type stats struct {
	written, failed, restored atomic.Int64

	refused [6]atomic.Int64 // by index in reasons
}

// CountRestored counts a view that was restored from a snapshot.
func (s *stats) CountRestored() { s.restored.Add(1) }

// Stats returns the counters, and the state of the directory. It does not call the file system.
func (d *Dir) Stats() Stats {
	s := &d.stats
	out := Stats{
		Written: s.written.Load(), Failures: s.failed.Load(), Restored: s.restored.Load(),
		Refused: make(map[Reason]int64, len(reasons)),
	}
	if f := d.disk.fault.Load(); f != nil {
		out.Fault = f.err.Error()
	}
	for i, r := range reasons {
		out.Refused[r] = s.refused[i].Load()
	}
	return out
}

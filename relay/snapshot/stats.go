package snapshot

import (
	"sync/atomic"
	"time"
)

// A Reason says why a snapshot was not used.
type Reason string

// The reasons.
const (
	Unreadable Reason = "unreadable" // the file system says so
	Foreign    Reason = "foreign"    // it is something else
	Version    Reason = "version"    // another version of the relay wrote it
	Damaged    Reason = "damaged"    // it is not as it was written
	Old        Reason = "old"        // older than TENDER_MAX_SNAPSHOT_AGE
	Mismatch   Reason = "mismatch"   // of another origin, Node or group than this relay has
)

var reasons = []Reason{Unreadable, Foreign, Version, Damaged, Old, Mismatch}

// Stats are counters and levels since the directory was opened.
type Stats struct {
	Written  int64         // snapshots
	Failures int64         // snapshots that could not be written
	Bytes    int64         // of the snapshots written
	Time     time.Duration // that they took, up to being on the disk

	LastBytes int64         // of the last one
	LastTime  time.Duration // that it took
	Last      time.Time     // when it was taken; zero if there is none

	Restored int64            // views that began with a snapshot
	Rejected map[Reason]int64 // snapshots that were not used, for each reason
}

// stats are what Stats are read from.
type stats struct {
	written, failed, bytes, time, lastBytes, lastTime, restored atomic.Int64

	last     atomic.Pointer[time.Time]
	rejected [6]atomic.Int64 // by place in reasons
}

func (s *stats) wrote(size int64, took time.Duration, taken time.Time) {
	s.written.Add(1)
	s.bytes.Add(size)
	s.time.Add(int64(took))
	s.lastBytes.Store(size)
	s.lastTime.Store(int64(took))
	s.last.Store(&taken)
}

// CountRestored counts a view that began with a snapshot.
func (s *stats) CountRestored() { s.restored.Add(1) }

// Stats returns the counters. It may be called by any goroutine.
func (s *stats) Stats() Stats {
	out := Stats{
		Written: s.written.Load(), Failures: s.failed.Load(), Bytes: s.bytes.Load(), Time: time.Duration(s.time.Load()),
		LastBytes: s.lastBytes.Load(), LastTime: time.Duration(s.lastTime.Load()),
		Restored: s.restored.Load(), Rejected: make(map[Reason]int64, len(reasons)),
	}
	if at := s.last.Load(); at != nil {
		out.Last = *at
	}
	for i, r := range reasons {
		out.Rejected[r] = s.rejected[i].Load()
	}
	return out
}

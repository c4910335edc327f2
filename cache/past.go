package cache

import (
	"slices"
	"time"

	"github.com/xdstender/tender/cache/wire"
)

// RevertMemory is how long a reversion is remembered: the return of a resource, or of a set, to content that it had
// before. A client may have applied a part of the content between, refused it, and still report the version of the
// content that is back (envoy#12592).
const RevertMemory = time.Hour

const (
	// maxFormer is how many former contents of a resource are remembered. A return to an older one is not noticed.
	maxFormer = 10

	// maxFormerSums is the same for the sets that a type's members have been.
	maxFormerSums = 256

	// maxRecentRemovals is how many removals of a type are remembered for RevertMemory.
	maxRecentRemovals = 1024
)

// A past is what an entry remembers of the contents before the present one. It is immutable, and nil for a resource
// that never changed.
type past struct {
	former   [maxFormer]uint32 // marks, the newest first; 0 is none
	reverted time.Time         // when the present content came back; zero if it is none of the former ones
}

// absentMark is the mark of a resource that does not exist.
const absentMark = 2

// mark stands for a content, as the version source tells contents apart. Two contents with one mark cost a resend.
func (e *Entry) mark() uint32 {
	if !e.Present() {
		return absentMark
	}
	return uint32(e.Leaf.lo) | 1
}

// recordPast gives an entry, which is not published yet, the past of the entry that it replaces.
func (e *Entry) recordPast(old *Entry) {
	from, to := old.mark(), e.mark()
	if from == to {
		e.past = old.past
		return
	}
	p := &past{former: [maxFormer]uint32{from}}
	n := 1
	if old.past != nil {
		for _, m := range old.past.former {
			switch {
			case m == to:
				p.reverted = time.Now()
			case m != 0 && m != from && n < maxFormer:
				p.former[n] = m
				n++
			}
		}
	}
	e.past = p
}

// Reverted returns when the resource returned to its present content; the zero time if that is longer ago than
// RevertMemory, or if it never did.
func (e *Entry) Reverted() time.Time {
	if e.past == nil {
		return time.Time{}
	}
	return recent(e.past.reverted)
}

// Reverted returns the position at which the set of all resources that are present returned to its present content;
// zero if that is longer ago than RevertMemory, or if it never did.
func (s *Set) Reverted() Seq {
	if recent(s.reverted).IsZero() {
		return 0
	}
	return s.revertedAt
}

func recent(at time.Time) time.Time {
	if at.IsZero() || time.Since(at) > RevertMemory {
		return time.Time{}
	}
	return at
}

// recordSum records that readers saw the set with another sum before the head at a position.
func (s *Set) recordSum(before Sum, at Seq) {
	if s.sum == before {
		return
	}
	was, is := uint32(before.lo)|1, uint32(s.sum.lo)|1
	if len(s.former) >= 2*maxFormerSums {
		s.former = slices.Clone(s.former[len(s.former)-maxFormerSums+1:])
	}
	s.former = append(s.former, was) // the array is shared with older heads, as that of the log is
	s.reverted = time.Time{}
	if slices.Contains(s.former[max(len(s.former)-maxFormerSums, 0):], is) {
		s.reverted, s.revertedAt = time.Now(), at
	}
}

// A pastRemoval is the removal of a member. It outlives the tombstone.
type pastRemoval struct {
	name string
	past *past // of the tombstone
	at   time.Time
}

// remembersRemovals reports whether removals of the members of a type are remembered: Envoy holds these types by
// wildcard, and may have applied a resource that it never reported.
func remembersRemovals(key string) bool {
	return key == wire.ListenerType || key == wire.ClusterType || key == wire.ScopedRouteType
}

// rememberRemoval records the removal of a member.
func (s *Set) rememberRemoval(tomb *Entry) {
	now := time.Now()
	for len(s.recentRemovals) >= maxRecentRemovals || len(s.recentRemovals) > 0 && now.Sub(s.recentRemovals[0].at) > RevertMemory {
		s.recentRemovals = s.recentRemovals[1:] // the array is shared with older heads
	}
	s.recentRemovals = append(s.recentRemovals, pastRemoval{tomb.Name.text, tomb.past, now})
}

// recallPast gives an entry, which is not published yet, the past of a member of that name that was removed.
func (s *Set) recallPast(e *Entry) {
	for _, b := range slices.Backward(s.recentRemovals) {
		if b.name == e.Name.text {
			e.recordPast(&Entry{past: b.past})
			return
		}
	}
}

// RecentRemovals returns the names of members that were removed within RevertMemory. Some may be there again.
func (s *Set) RecentRemovals() (names []string) {
	for _, b := range s.recentRemovals {
		if !recent(b.at).IsZero() {
			names = append(names, b.name)
		}
	}
	return names
}

package cache

import (
	"cmp"
	"slices"
	"time"

	"github.com/xdstender/tender/cache/fingerprint"
	"github.com/xdstender/tender/cache/wire"
)

// An Entry is the state of one name in a set. It is immutable.
type Entry struct {
	Name *Name

	// Seq is the position of the last change that a client has to be sent: of
	// content, or of existence.
	Seq Seq

	// Resource is nil if the name does not exist at the origin.
	Resource *wire.Resource

	// Prior is the last content of a removed resource. It is kept in the set of names, and
	// of Clusters and ClusterLoadAssignments: a full-state response may have to
	// hold it a little longer (B.7, B.11).
	Prior *wire.Resource

	// Leaf is what the resource, or the prior one, adds to the sum of its set.
	Leaf fingerprint.Sum

	// Err is the error of the resource, in a set of errors.
	Err *wire.ResourceError

	// Expired reports that the resource was removed because its time to live was over.
	Expired bool

	// yields is for entries of the set of names: readers see an entry of the wildcard set in its place, if there is
	// one. What is present yields only for a while (apply.lags).
	yields bool

	epoch uint32 // upstream connection on which the origin reported that the name does not exist

	born     Seq // when the resource came to be, the last time that it did
	replaced Seq // of the present entry that this removal replaced
	since    Seq // when subscribers to the name began to see this content

	formerLeaf fingerprint.Sum // what the entry before the change at Seq added to the sum of the set
	formerSeq  Seq             // the position of that; noSeq if it is not known

	// What few entries have, so that the others are small.
	equivalent *[]string // further versions that the origin gave the same content, newest last
	life       *life     // nil if it is without end, and always was
	alarm      *alarm    // nil if nothing was ever to be done about the entry at some time
	past       *past     // nil if the content never changed
}

// A life is how long a resource lives. It is immutable.
type life struct {
	deadline       time.Time // when it expires unless the origin renews it; zero is never
	renewed        Seq       // when the deadline was last renewed, the content being the same
	contentDropped time.Time // when the content was
}

var endless life

// lives returns how long the entry's resource lives.
func (e *Entry) lives() *life { return cmp.Or(e.life, &endless) }

// ownLife returns the same for an entry that is not published yet, for writing.
func (e *Entry) ownLife() *life {
	l := *e.lives()
	e.life = &l
	return e.life
}

// setDeadline gives an entry that is not published yet its deadline.
func (e *Entry) setDeadline(deadline time.Time) {
	if !deadline.IsZero() || e.life != nil {
		e.ownLife().deadline = deadline
	}
}

// maxEquivalent is how many versions of the same content an entry remembers
// beside its present one (B.2: four in all).
const maxEquivalent = 3

// Present reports whether the resource exists.
func (e *Entry) Present() bool { return e != nil && e.Resource != nil }

// seq returns the position of the last change that a client has to be sent, 0 if there was none.
func (e *Entry) seq() Seq {
	if e == nil {
		return 0
	}
	return e.Seq
}

// shows reports whether a client that has the entry would learn nothing from r but another version.
func (e *Entry) shows(r *wire.Resource) bool {
	return e.Present() && e.Resource.Name == r.Name && e.Resource.SameContent(r)
}

// Born returns since when the resource, or the prior one, was there: a reader of
// the whole set that stands before that has never seen it. Of an error, it is since
// when the resource is denied, or fails otherwise.
func (e *Entry) Born() Seq { return e.born }

// ContentDroppedAt returns when the content of the resource was dropped; zero if it is there.
func (e *Entry) ContentDroppedAt() time.Time { return e.lives().contentDropped }

// Deadline returns when the resource expires unless the origin renews it; the zero time is never.
func (e *Entry) Deadline() time.Time { return e.lives().deadline }

// Expires reports whether the resource has a deadline.
func (e *Entry) Expires() bool { return !e.Deadline().IsZero() }

// Renewed returns when the resource's time to live was last renewed, its content being the same.
func (e *Entry) Renewed() Seq { return e.lives().renewed }

// HasVersion reports whether a client that holds the resource at this version
// holds this content.
func (e *Entry) HasVersion(version string) bool {
	return e.Resource.Version == version || slices.Contains(e.otherVersions(), version)
}

// Versions returns under how many versions clients may have this content.
func (e *Entry) Versions() int { return 1 + len(e.otherVersions()) }

// counts returns what the entry adds to the sum of its set.
func (e *Entry) counts() fingerprint.Sum {
	if !e.Present() {
		return fingerprint.Sum{}
	}
	return e.Leaf
}

// SumSince returns sum, which is that of names as they were at p, this one among them, as it is with the entry; not ok if more than one
// change was made since, or if it is not known.
func (e *Entry) SumSince(p Seq, sum fingerprint.Sum) (_ fingerprint.Sum, ok bool) {
	switch {
	case e == nil || e.yields:
		return sum, false
	case e.Seq <= p:
		return sum, true
	default:
		return sum.Sub(e.formerLeaf).Add(e.counts()), e.formerSeq <= p
	}
}

// Life returns for how long the resource lives on; zero is without end.
func (e *Entry) Life(now time.Time) time.Duration {
	if !e.Expires() {
		return 0
	}
	return max(e.Deadline().Sub(now), time.Millisecond)
}

// withVersion returns the entry with the same content under a new version.
func (e *Entry) withVersion(r *wire.Resource) *Entry {
	c := *e
	c.Resource = r
	c.addVersion(e.Resource.Version)
	return &c
}

// addVersionsOf adds to an entry that is not published yet the versions that another one has
// for the same content.
func (e *Entry) addVersionsOf(o *Entry) {
	for _, v := range append(slices.Clone(o.otherVersions()), o.Resource.Version) {
		if !e.HasVersion(v) {
			e.addVersion(v)
		}
	}
}

// addVersion adds to an entry that is not published yet a version of the same content.
func (e *Entry) addVersion(version string) {
	versions := append(slices.Clone(e.otherVersions()), version)
	versions = versions[max(len(versions)-maxEquivalent, 0):]
	e.equivalent = &versions
}

// otherVersions returns the versions of the content beside the present one.
func (e *Entry) otherVersions() []string {
	if e.equivalent == nil {
		return nil
	}
	return *e.equivalent
}

// RevertMemory is how long a reversion is remembered: the return of a resource, or of a set, to content that it had
// before. A client may have applied a part of the content between, refused it, and still report the version of the
// content that is back (envoy#12592).
const RevertMemory = time.Hour

const (
	// maxFormer is how many former contents of a resource are remembered. A return to an older one is not noticed.
	maxFormer = 10

	// maxFormerSums is the same for the former states of a wildcard set.
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
	return e.Leaf.Mark()
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

func recent(at time.Time) time.Time {
	if at.IsZero() || time.Since(at) > RevertMemory {
		return time.Time{}
	}
	return at
}

// An alarm is when the writer must act on an entry. All versions of the entry share
// it, and it belongs to the writer.
type alarm struct {
	due    time.Time // zero is never
	queued time.Time // when the writer will look, at the latest when it is due
	yields time.Time // until when the entry yields to the wildcard set, if it does
}

// A deadline is when the writer has to act on an entry.
type deadline struct {
	at   time.Time
	key  string // type URL or collection
	kind Kind
	name *Name
}

// deadlines is a heap, the next one first. It may be out of date: the entry
// decides.
type deadlines []deadline

func (d deadlines) Len() int { return len(d) }

func (d deadlines) Less(i, j int) bool { return d[i].at.Before(d[j].at) }

func (d deadlines) Swap(i, j int) { d[i], d[j] = d[j], d[i] }

func (d *deadlines) Push(x any) { *d = append(*d, x.(deadline)) }

func (d *deadlines) Pop() any {
	old := *d
	last := old[len(old)-1]
	*d = old[:len(old)-1]
	return last
}

// awaited reports whether a deadline of an entry still stands.
func (e *Entry) awaited(at time.Time) bool {
	return e.Present() && e.alarm != nil && e.alarm.queued.Equal(at)
}

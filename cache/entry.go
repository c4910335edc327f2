package cache

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"

	"github.com/xdstender/tender/cache/fingerprint"
	"github.com/xdstender/tender/cache/quota"
	"github.com/xdstender/tender/cache/wire"
)

// An Entry is the state of one name in a set. It is immutable once it is published, except for the timer, which the
// writer owns.
type Entry struct {
	Name *Name

	// Seq is the position of the last change that clients must be sent: of the content, or whether the resource
	// exists.
	Seq Seq

	// Resource is nil if the resource does not exist at the origin.
	Resource *wire.Resource

	// Prior is the last content of a removed resource. It is kept in the set of names, and for Clusters and
	// ClusterLoadAssignments: a full-state response may have to contain the resource a little longer (B.7, B.11).
	Prior *wire.Resource

	// Leaf is the summand of the resource, or of the prior one, in the fingerprint of its set.
	Leaf fingerprint.Sum

	// Err is the error of the resource. Only entries in sets of errors have one.
	Err *wire.ResourceError

	// Expired reports that the resource was removed because its TTL ended.
	Expired bool

	// shadowed is set only in the set of names: an entry of the same name in the wildcard set takes precedence. An entry
	// with a resource is shadowed for maxShadowed at most (see mayBeOlder).
	shadowed bool

	epoch uint32 // of a removal: number of the upstream connection on which the origin sent it

	created      Seq // when the resource was last created
	replacedSeq  Seq // Seq of the entry that this removal replaced
	visibleSince Seq // when subscribers to the name began to see this content, in either set

	formerLeaf fingerprint.Sum // summand of the entry before the change at Seq
	formerSeq  Seq             // Seq of that entry; noSeq if it is unknown

	// Pointers, since most entries have none of these.
	equivalent *[]string // other versions that the origin gave the same content, newest last
	ttl        *lifetime // nil if the resource never had a TTL and its content was never dropped
	timer      *timer    // nil if there never was one
	past       *past     // nil if the content never changed
}

// A lifetime is the time until which a resource and its content are valid. It is immutable.
type lifetime struct {
	deadline       time.Time // when the resource expires unless the origin renews it; zero means never
	renewed        Seq       // when the deadline was last renewed without a change of content
	contentDropped time.Time // when the content was dropped; zero if it was not
}

var noLifetime lifetime

// lifetime returns the lifetime of the resource, never nil.
func (e *Entry) lifetime() *lifetime { return cmp.Or(e.ttl, &noLifetime) }

// mutableLifetime returns a copy of the lifetime that may be changed until the entry is published.
func (e *Entry) mutableLifetime() *lifetime {
	l := *e.lifetime()
	e.ttl = &l
	return e.ttl
}

// setDeadline sets the deadline of an entry that is not published yet.
func (e *Entry) setDeadline(deadline time.Time) {
	if !deadline.IsZero() || e.ttl != nil {
		e.mutableLifetime().deadline = deadline
	}
}

// maxEquivalent is the maximum number of other versions of the same content that an entry keeps (B.2: four in all).
const maxEquivalent = 3

// Present reports whether the resource exists.
func (e *Entry) Present() bool { return e != nil && e.Resource != nil }

// seq returns Seq, 0 for a nil entry.
func (e *Entry) seq() Seq {
	if e == nil {
		return 0
	}
	return e.Seq
}

// hasContentOf reports whether the entry has a resource that equals r, except perhaps for the version and the TTL.
func (e *Entry) hasContentOf(r *wire.Resource) bool {
	return e.Present() && e.Resource.Name == r.Name && e.Resource.SameContent(r)
}

// hasStateOf reports whether the entry is that of a resource, and of the same variant of it. r may be nil.
func (e *Entry) hasStateOf(r *wire.Resource) bool {
	return r != nil && e.Present() && e.Resource.Key() == r.Key() && e.Resource.SameContent(r)
}

// Created returns when the resource, or the prior one, was created: a reader of the whole set at an earlier position
// has never seen it. For an error, it returns since when the resource is denied, or fails for other reasons.
func (e *Entry) Created() Seq { return e.created }

// ContentDroppedAt returns when the content of the resource was dropped; zero if it was not.
func (e *Entry) ContentDroppedAt() time.Time { return e.lifetime().contentDropped }

// Deadline returns when the resource expires unless the origin renews it; zero means never.
func (e *Entry) Deadline() time.Time { return e.lifetime().deadline }

// Expires reports whether the resource has a deadline.
func (e *Entry) Expires() bool { return !e.Deadline().IsZero() }

// Renewed returns the position at which the TTL of the resource was last renewed without a change of content.
func (e *Entry) Renewed() Seq { return e.lifetime().renewed }

// HasVersion reports whether a client that has the resource in this version has the same content.
func (e *Entry) HasVersion(version string) bool {
	return e.Resource.Version == version || slices.Contains(e.otherVersions(), version)
}

// Versions returns the number of versions under which clients may have this content.
func (e *Entry) Versions() int { return 1 + len(e.otherVersions()) }

// leaf returns the summand of the entry in the fingerprint of its set: zero if the resource does not exist.
func (e *Entry) leaf() fingerprint.Sum {
	if !e.Present() {
		return fingerprint.Sum{}
	}
	return e.Leaf
}

// SumSince updates a sum of resources, which included the state of this name at p, to the state of the entry. It is
// not ok if the name changed more than once since, or if the change is unknown.
func (e *Entry) SumSince(p Seq, sum fingerprint.Sum) (_ fingerprint.Sum, ok bool) {
	switch {
	case e == nil || e.shadowed:
		return sum, false
	case e.Seq <= p:
		return sum, true
	default:
		return sum.Sub(e.formerLeaf).Add(e.leaf()), e.formerSeq <= p
	}
}

// RemainingTTL returns how long the resource is still valid; zero if it does not expire.
func (e *Entry) RemainingTTL(now time.Time) time.Duration {
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

// addVersionsOf adds the versions of another entry with the same content to an entry that is not published yet.
func (e *Entry) addVersionsOf(o *Entry) {
	for _, v := range append(slices.Clone(o.otherVersions()), o.Resource.Version) {
		if !e.HasVersion(v) {
			e.addVersion(v)
		}
	}
}

// addVersion adds a version of the same content to an entry that is not published yet.
func (e *Entry) addVersion(version string) {
	versions := append(slices.Clone(e.otherVersions()), version)
	versions = versions[max(len(versions)-maxEquivalent, 0):]
	e.equivalent = &versions
}

// otherVersions returns the versions of the content other than the present one.
func (e *Entry) otherVersions() []string {
	if e.equivalent == nil {
		return nil
	}
	return *e.equivalent
}

// RevertMemory is how long a view records that a resource or a set was reverted to earlier content. A client may have
// applied a part of the later content, sent a NACK, and still report the version of the earlier content, which is now
// served again (envoy#12592).
const RevertMemory = time.Hour

const (
	// maxFormer is how many former contents of a resource are recorded. A revert to an older one is not detected.
	maxFormer = 10

	// maxFormerSums is how many former states of a wildcard set are recorded.
	maxFormerSums = 256

	// maxRecentRemovals is how many removals of a type are recorded, for RevertMemory at most.
	maxRecentRemovals = 1024
)

// A past records the contents of a resource before the present one. It is immutable, and nil for a resource that
// never changed.
type past struct {
	former   [maxFormer]uint32 // marks, the newest first; 0 is none
	reverted time.Time         // when the resource was reverted to its present content; zero if that content is new
}

// absentMark is the mark of a resource that does not exist.
const absentMark = 2

// mark returns a short hash of the content. A collision causes an unnecessary response.
func (e *Entry) mark() uint32 {
	if !e.Present() {
		return absentMark
	}
	return e.Leaf.Mark()
}

// recordPast sets the past of an entry that is not published yet, given the entry that it replaces.
func (e *Entry) recordPast(old *Entry) {
	from, to := old.mark(), e.mark()
	if from == to {
		e.past = cmp.Or(e.past, old.past)
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

// Reverted returns when the resource was reverted to its present content; zero if it never was, or if that is longer
// ago than RevertMemory.
func (e *Entry) Reverted() time.Time {
	if e.past == nil {
		return time.Time{}
	}
	return recent(e.past.reverted)
}

// recent returns a time, but zero if it is longer ago than RevertMemory.
func recent(at time.Time) time.Time {
	if at.IsZero() || time.Since(at) > RevertMemory {
		return time.Time{}
	}
	return at
}

// A timer fires when the writer must act on an entry: expire it, drop its content, or stop shadowing it. All versions
// of the entry share one timer, which the writer owns.
type timer struct {
	due           time.Time // zero means never
	queued        time.Time // time of the entry's item in the heap of the branch; not after due
	shadowedUntil time.Time // valid if the entry is shadowed
}

// A deadline is an item of a heap of timers.
type deadline struct {
	at   time.Time
	key  string // type URL or collection
	kind Kind
	name *Name
}

// deadlines is a heap, the earliest first. Items of removed or changed entries stay in it; hasQueuedTimer detects
// them.
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

// hasQueuedTimer reports whether the entry still needs a deadline that was queued for it.
func (e *Entry) hasQueuedTimer(at time.Time) bool {
	return e.Present() && e.timer != nil && e.timer.queued.Equal(at)
}

// A Name is the interned name of a resource that a stream subscribes to or that a set has. There is one Name for each
// text of a type, so pointers can be compared, and a stream keeps eight bytes for each of its names.
type Name struct {
	// Set at creation.
	text   string
	id     uint32 // of the name in the tables of the type; may be reused after the release
	source int    // number of the source that answers for the name

	// Atomic. asked is the request for the name on the open upstream connection; nil if there was none.
	asked atomic.Pointer[originRequest]

	// Owned by the writer of the source. askedAt is the position of the view when the name was last requested.
	askedAt Seq

	// Guarded by index.mu.
	watchers  *watchers    // nil if no stream subscribes to the name
	moving    bool         // used by startMove
	chargedTo *quota.Share // of the subscribed peer that is charged for the name; nil if none is
	entries   int          // number of entries in the sets of all views
	queued    bool         // source.demand contains the name
	tracked   bool         // the session has an upstream subscription to the name, perhaps a lingering one
	stale     bool         // the origin's response is no longer valid: the next subscriber causes a new request
	refetch   bool         // the session must request the name again
	released  bool         // removed from the index: a new subscription to the text gets another Name
	restored  bool         // tracked since a snapshot was restored, without a response of the origin yet
}

// String returns the text of the name.
func (n *Name) String() string { return n.text }

// Compare orders names by their ids. The order is arbitrary but stable, and cheap to compute.
func (n *Name) Compare(o *Name) int { return int(int64(n.id) - int64(o.id)) }

// Asked returns when the name was requested on the open upstream connection; zero if it was not.
func (n *Name) Asked() time.Time {
	if q := n.asked.Load(); q != nil {
		return q.at
	}
	return time.Time{}
}

// An originRequest is one request to an origin, for one or more names.
type originRequest struct {
	at       time.Time                 // set at creation
	answered atomic.Pointer[time.Time] // when the origin first responded for one of the names; nil if it has not
}

// answered records that the origin responded for the name.
func (n *Name) answered(now time.Time) {
	if q := n.asked.Load(); q != nil && q.answered.Load() == nil {
		at := now // a copy, so that only the first answer allocates
		q.answered.CompareAndSwap(nil, &at)
	}
}

// RequestAnswered returns when the origin first responded for any name in the request that contained this one, on the
// open connection; zero if it has not.
func (n *Name) RequestAnswered() time.Time {
	if q := n.asked.Load(); q != nil {
		if at := q.answered.Load(); at != nil {
			return *at
		}
	}
	return time.Time{}
}

// A Seq numbers the changes of a view, over all its types. As a position of a reader, it stands for all changes up to
// it.
type Seq uint64

// cacheable reports whether the content of an entry may be cached. An entry without a resource is cacheable.
func cacheable(e *Entry) bool {
	return !e.Present() || mayKeep(e.Resource)
}

// mayKeep reports whether the content of a resource may be cached.
func mayKeep(r *wire.Resource) bool { return !r.DoNotCache && !r.Unresolved() && !r.ContentDropped() }

func resourceOf(e *Entry) *wire.Resource {
	if e == nil {
		return nil
	}
	return e.Resource
}

package cache

import (
	"cmp"
	"iter"
	"slices"
	"sort"
	"time"

	"github.com/xdstender/tender/cache/wire"
)

// A Seq numbers the changes of a view, over all its types. It is also a position:
// everything up to there.
type Seq uint64

// An Entry is what a set knows of one name. It is immutable.
type Entry struct {
	Name *Name

	// Seq is when a client that knows the name had to be told last: a change of
	// content, or of existence.
	Seq Seq

	// Resource is nil if the origin said that the name does not exist.
	Resource *wire.Resource

	// Prior is what a resource was that is gone. It is kept of what was named, and
	// of Clusters and ClusterLoadAssignments: a full-state response may have to
	// hold it a little longer (B.7, B.11).
	Prior *wire.Resource

	// Leaf is what the resource, or the prior one, adds to the sum of its set.
	Leaf Sum

	// Err is, among the errors, what the origin said is wrong with the resource.
	Err *wire.ResourceError

	// Expired reports that the resource is gone because its time was up.
	Expired bool

	// yields is for what was said by name: readers see a member in its place, if there is
	// one. What is present yields only for a while (apply.lags).
	yields bool

	epoch uint32 // upstream connection in which the absence was said

	born     Seq // when the resource came to be, the last time that it did
	replaced Seq // of the present entry that this removal replaced
	since    Seq // when those who named the name began to see what the entry shows them

	// What few entries have, so that the others are small.
	equivalent *[]string // further versions that the origin gave the same content, newest last
	life       *life     // nil if it is without end, and always was
	alarm      *alarm    // nil if nothing was ever to be done about the entry at some time
	past       *past     // nil if the content never changed
}

// A life says how long a resource lives. It is immutable.
type life struct {
	deadline       time.Time // when it expires unless the origin says it again; zero is never
	renewed        Seq       // when that was last said anew, the content being the same
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

// seq returns when a client had to be told last, 0 if it never had.
func (e *Entry) seq() Seq {
	if e == nil {
		return 0
	}
	return e.Seq
}

// shows reports whether those who see the entry would learn nothing from r but
// another version.
func (e *Entry) shows(r *wire.Resource) bool {
	return e.Present() && e.Resource.Name == r.Name && e.Resource.SameContent(r)
}

// Born returns since when the resource, or the prior one, was there: a reader of
// the whole set that stands before that has never seen it. Of an error, it is since
// when the resource is denied, or fails otherwise.
func (e *Entry) Born() Seq { return e.born }

// ContentDroppedAt returns when the content of the resource was given up, if it was.
func (e *Entry) ContentDroppedAt() time.Time { return e.lives().contentDropped }

// Deadline returns when the resource expires unless the origin says it again; the zero
// time is never.
func (e *Entry) Deadline() time.Time { return e.lives().deadline }

// Expires reports whether the resource has a deadline.
func (e *Entry) Expires() bool { return !e.Deadline().IsZero() }

// Renewed returns when the resource's time to live was last said anew, its content being
// the same.
func (e *Entry) Renewed() Seq { return e.lives().renewed }

// HasVersion reports whether a client that holds the resource at this version
// holds this content.
func (e *Entry) HasVersion(version string) bool {
	return e.Resource.Version == version || slices.Contains(e.otherVersions(), version)
}

// Versions returns under how many versions clients may have this content.
func (e *Entry) Versions() int { return 1 + len(e.otherVersions()) }

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

// A Set is one of a type's two sets: its entries, and the log that says in which
// order they last changed. A name that changes again moves to the log's end, so
// to ask what changed since a position costs the number of changes and not of
// resources.
type Set struct {
	table    table
	log      []logged // by seq; entries that changed again are dead
	renewals []logged // likewise, of times to live said anew
	live     int      // entries in table, absent ones included

	aliased bool // some resource was received under an alias
	limited bool // some resource was to expire

	count          int    // resources present
	bytes          int64  // of these
	ttls           int    // of these, those that expire
	contentDropped int    // of these, those whose content was given up
	sum            Sum    // of the resources present
	system         string // system_version_info of the last response
	last           Seq    // of the newest change
	lastRemoval    Seq    // of the newest removal
	floor          Seq    // of the newest removal that the set no longer remembers

	renewed Seq // of the newest renewal

	contentDroppedAt time.Time // when content was last given up

	recentRemovals []pastRemoval // of the last hour, the newest last
	former         []uint32      // marks of the sums that readers saw before, the newest last
	reverted       time.Time     // when the present sum came back; zero if it is none of the former ones

	revertedAt Seq // of the head with which it came back
}

type logged struct {
	name *Name
	seq  Seq
}

// Get returns the set's entry for a name, nil if there is none.
func (s *Set) Get(n *Name) *Entry {
	if e := s.table.get(n.id); e != nil && e.Name == n {
		return e
	}
	return nil
}

// Since returns the entries that changed after p, oldest change first.
func (s *Set) Since(p Seq) iter.Seq[*Entry] {
	return func(yield func(*Entry) bool) {
		for _, l := range s.log[s.after(p):] {
			if e := s.at(l); e != nil && !yield(e) {
				return
			}
		}
	}
}

// RenewedSince returns the entries whose time to live was said anew after p, oldest
// renewal first.
func (s *Set) RenewedSince(p Seq) iter.Seq[*Entry] {
	return func(yield func(*Entry) bool) {
		if s.renewed <= p {
			return
		}
		at := sort.Search(len(s.renewals), func(i int) bool { return s.renewals[i].seq > p })
		for _, l := range s.renewals[at:] {
			if e := s.Get(l.name); e != nil && e.Renewed() == l.seq && !yield(e) {
				return
			}
		}
	}
}

// ChangedSince returns at most how many entries changed after p.
func (s *Set) ChangedSince(p Seq) int { return len(s.log) - s.after(p) }

// Count returns the number of resources present.
func (s *Set) Count() int { return s.count }

// Bytes returns how many bytes the resources present have as they are sent. Views share
// what they hold of equal ones.
func (s *Set) Bytes() int64 { return s.bytes }

// Aliased reports whether the set may hold one resource under several names.
func (s *Set) Aliased() bool { return s.aliased }

// Align returns the newest position at or before p at which something changed.
// Readers at positions that align to the same one have the same to read.
func (s *Set) Align(p Seq) Seq {
	if at := s.after(p); at > 0 {
		return s.log[at-1].seq
	}
	return 0
}

// TTLs returns how many of the resources present expire.
func (s *Set) TTLs() int { return s.ttls }

// Renewed returns the position of the newest renewal of a resource's time to live.
func (s *Set) Renewed() Seq { return s.renewed }

// Limited reports whether any of the resources that the set has ever held was to
// expire: a client may have lost it without a word (C31).
func (s *Set) Limited() bool { return s.limited }

// Bare returns of how many of the resources present the content was given up.
func (s *Set) ContentDropped() int { return s.contentDropped }

// ContentDroppedAt returns when the content of a resource was last given up.
func (s *Set) LastContentDrop() time.Time { return s.contentDroppedAt }

// Sum identifies the content of the resources present.
func (s *Set) Sum() Sum { return s.sum }

// System returns the origin's own version of the set, for people (R091).
func (s *Set) System() string { return s.system }

// Last returns the position of the newest change.
func (s *Set) Last() Seq { return s.last }

// LastRemoval returns the position of the newest removal.
func (s *Set) LastRemoval() Seq { return s.lastRemoval }

// Floor returns the newest removal that the set has forgotten: a reader at an
// earlier position cannot learn from the log what was removed (B.11).
func (s *Set) Floor() Seq { return s.floor }

func (s *Set) after(p Seq) int {
	if s.last <= p {
		return len(s.log)
	}
	return sort.Search(len(s.log), func(i int) bool { return s.log[i].seq > p })
}

// at returns the entry that a place in the log stands for, nil if it is dead.
func (s *Set) at(l logged) *Entry {
	if e := s.Get(l.name); e != nil && e.Seq == l.seq {
		return e
	}
	return nil
}

// put records a changed entry. The log's array is shared with older heads: they
// see only their own length of it, and nobody but the one writer appends.
func (s *Set) put(by *txn, e *Entry) {
	by.note(e.Name)
	old := s.Get(e.Name)
	if old == nil {
		s.live++
	} else {
		e.recordPast(old)
	}
	s.limited = s.limited || e.Expires()
	s.account(old, e)
	s.table = s.table.set(by, e.Name.id, e)
	if old == nil || old.Seq != e.Seq {
		s.log = append(s.log, logged{e.Name, e.Seq})
		s.last = e.Seq
		if !e.Present() {
			s.lastRemoval = e.Seq
		}
	}
	if renewed := e.Renewed(); renewed > s.renewed {
		s.renewals = append(s.renewals, logged{e.Name, renewed})
		s.renewed = renewed
	}
}

// drop forgets an entry. If that was a removal that readers behind it have not
// seen, the caller raises the floor.
func (s *Set) drop(by *txn, e *Entry) {
	by.note(e.Name)
	s.live--
	s.account(e, nil)
	s.table = s.table.set(by, e.Name.id, nil)
}

func (s *Set) account(old, e *Entry) {
	if old.Present() {
		s.tally(old, -1)
		s.sum = s.sum.Sub(old.Leaf)
	}
	if e.Present() {
		s.tally(e, 1)
		s.sum = s.sum.Add(e.Leaf)
	}
}

func (s *Set) tally(e *Entry, by int) {
	s.count += by
	s.bytes += int64(by * e.Resource.Size())
	if e.Expires() {
		s.ttls += by
	}
	if e.Resource.ContentDropped() {
		s.contentDropped += by
	}
}

// compact rewrites the logs of which more than half is dead. Its cost is shared by
// the changes that killed the entries.
func (s *Set) compact() {
	const slack = 64
	if len(s.log) > 2*s.live+slack {
		s.log = s.alive(s.log, func(e *Entry) Seq { return e.Seq })
	}
	if len(s.renewals) > 2*s.live+slack {
		s.renewals = s.alive(s.renewals, (*Entry).Renewed)
	}
}

// alive returns a log without its dead entries, those that stand there again later.
func (s *Set) alive(log []logged, seq func(*Entry) Seq) []logged {
	out := make([]logged, 0, s.live+s.live/2)
	for _, l := range log {
		if e := s.Get(l.name); e != nil && seq(e) == l.seq {
			out = append(out, l)
		}
	}
	return out
}

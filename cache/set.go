package cache

import (
	"iter"
	"slices"
	"time"

	"github.com/xdstender/tender/cache/fingerprint"
	"github.com/xdstender/tender/cache/immutable"
	"github.com/xdstender/tender/cache/wire"
)

// A txn is one series of changes to the sets of a type. It must not be used after one of the sets was published.
type txn struct {
	edit      immutable.Edit
	recording bool
	touched   []*Name // names whose entries were put or dropped, if recording; may contain duplicates
}

func (x *txn) touch(n *Name) {
	if x.recording {
		x.touched = append(x.touched, n)
	}
}

// A setLog has the names of a set in the order in which their entries changed.
type setLog = immutable.Log[*Name, Seq]

// A Set is one of a type's two sets: its entries, and the log of the order in which they last changed. The cost of
// reading the changes since a position depends on the number of changes, not of resources. A published set is
// immutable.
type Set struct {
	table    immutable.Table[Entry] // by the ids of names
	log      setLog                 // of changes
	renewals setLog                 // of renewed times to live
	totals

	aliased  bool // some entry contains, or contained, a resource of another name
	limited  bool // some entry has, or had, a TTL
	unsteady bool // the summand of some entry changed without a change of its Seq

	system      string // system_version_info of the last response of the origin
	last        Seq    // of the newest change
	lastRemoval Seq    // of the newest removal
	floor       Seq    // of the newest removal whose tombstone was dropped

	renewed Seq // of the newest renewal

	awaited immutable.Map[struct{}] // names that the origin has and that are not applied yet, see Writer.Await

	contentDroppedAt time.Time // when content was last dropped

	setHistory
}

// totals are sums over the entries of a set.
type totals struct {
	live           int             // entries in table, absent ones included
	count          int             // resources present
	bytes          int64           // of these
	ttls           int             // of these, those that expire
	contentDropped int             // of these, those whose content was dropped
	sum            fingerprint.Sum // of the resources present
}

// Get returns the set's entry for a name, nil if there is none.
func (s *Set) Get(n *Name) *Entry {
	if e := s.table.Get(n.id); e != nil && e.Name == n {
		return e
	}
	return nil
}

// Since returns the entries that changed after p, oldest change first.
func (s *Set) Since(p Seq) iter.Seq[*Entry] {
	return func(yield func(*Entry) bool) {
		for _, c := range s.log[s.log.After(p):] {
			if e := s.Get(c.Key); e != nil && e.Seq == c.At && !yield(e) {
				return
			}
		}
	}
}

// RenewedSince returns the entries whose time to live was renewed after p, oldest
// renewal first.
func (s *Set) RenewedSince(p Seq) iter.Seq[*Entry] {
	return func(yield func(*Entry) bool) {
		for _, c := range s.renewals[s.renewals.After(p):] {
			if e := s.Get(c.Key); e != nil && e.Renewed() == c.At && !yield(e) {
				return
			}
		}
	}
}

// Awaits reports whether the origin has a resource that the set does not have yet (Writer.Await).
func (s *Set) Awaits(name string) bool { return s.awaited.Get(name) != nil }

// AwaitsAny reports whether the set awaits any resource.
func (s *Set) AwaitsAny() bool { return s.awaited.Len() > 0 }

// endAwait records that the set does not await a resource any longer, and reports whether it did.
func (s *Set) endAwait(name string) bool {
	if !s.Awaits(name) {
		return false
	}
	s.awaited.Delete(name)
	return true
}

// ChangedSince returns an upper bound for the number of entries that changed after p.
func (s *Set) ChangedSince(p Seq) int { return len(s.log) - s.log.After(p) }

// Count returns the number of resources present.
func (s *Set) Count() int { return s.count }

// Bytes returns the encoded size of the resources present. Views share the memory of equal ones.
func (s *Set) Bytes() int64 { return s.bytes }

// Aliased reports whether the set may have one resource under several names.
func (s *Set) Aliased() bool { return s.aliased }

// Align returns the newest position at or before p at which an entry changed. Readers at positions that align to the
// same one need the same changes.
func (s *Set) Align(p Seq) Seq {
	if at := s.log.After(p); at > 0 {
		return s.log[at-1].At
	}
	return 0
}

// TTLs returns how many of the resources present expire.
func (s *Set) TTLs() int { return s.ttls }

// Renewed returns the position of the newest renewal of a resource's time to live.
func (s *Set) Renewed() Seq { return s.renewed }

// Limited reports whether any resource that the set has ever had had a TTL: a client may have removed it without a
// response (C31).
func (s *Set) Limited() bool { return s.limited }

// ContentDropped returns the number of resources present whose content was dropped.
func (s *Set) ContentDropped() int { return s.contentDropped }

// LastContentDrop returns when the content of a resource was last dropped.
func (s *Set) LastContentDrop() time.Time { return s.contentDroppedAt }

// Sum returns the fingerprint of the resources present.
func (s *Set) Sum() fingerprint.Sum { return s.sum }

// System returns the origin's own version of the set, which is only shown (R091).
func (s *Set) System() string { return s.system }

// Last returns the position of the newest change.
func (s *Set) Last() Seq { return s.last }

// LastRemoval returns the position of the newest removal.
func (s *Set) LastRemoval() Seq { return s.lastRemoval }

// Floor returns the position of the newest removal whose tombstone was dropped: the log does not have all removals
// for a reader at an earlier position (B.11).
func (s *Set) Floor() Seq { return s.floor }

// put stores an entry, and appends its name to the logs if its Seq, or its renewal, is a new one.
func (s *Set) put(by *txn, e *Entry) {
	by.touch(e.Name)
	old := s.Get(e.Name)
	if e.formerSeq = noSeq; old != nil {
		e.recordPast(old)
		s.recordFormer(old, e)
	}
	s.limited = s.limited || e.Expires()
	if e.Present() {
		s.endAwait(e.Name.text)
	}
	s.replace(old, e)
	s.table = s.table.Set(&by.edit, e.Name.id, e)
	if old == nil || old.Seq != e.Seq {
		s.log.Append(e.Name, e.Seq)
		s.last = e.Seq
		if !e.Present() {
			s.lastRemoval = e.Seq
		}
	}
	if renewed := e.Renewed(); renewed > s.renewed {
		s.renewals.Append(e.Name, renewed)
		s.renewed = renewed
	}
}

// recordFormer records the summand of the entry that an entry replaces, for SumSince.
func (s *Set) recordFormer(old, e *Entry) {
	switch {
	case old.shadowed:
		return // readers may have seen another one
	case old.Seq != e.Seq:
		e.formerLeaf, e.formerSeq = old.leaf(), old.Seq
		return
	}
	e.formerLeaf, e.formerSeq = old.formerLeaf, old.formerSeq
	s.unsteady = s.unsteady || old.leaf() != e.leaf()
}

// drop removes an entry. If it is a tombstone that readers at earlier positions have not seen, the caller raises the
// floor.
func (s *Set) drop(by *txn, e *Entry) {
	by.touch(e.Name)
	s.endAwait(e.Name.text)
	s.replace(e, nil)
	s.table = s.table.Set(&by.edit, e.Name.id, nil)
}

// replace counts an entry in the place of an older one. Either may be nil.
func (t *totals) replace(old, e *Entry) {
	t.add(old, -1)
	t.add(e, 1)
	if old.Present() {
		t.sum = t.sum.Sub(old.Leaf)
	}
	if e.Present() {
		t.sum = t.sum.Add(e.Leaf)
	}
}

func (t *totals) add(e *Entry, by int) {
	if e == nil {
		return
	}
	t.live += by
	if !e.Present() {
		return
	}
	t.count += by
	t.bytes += int64(by * e.Resource.Size())
	if e.Expires() {
		t.ttls += by
	}
	if e.Resource.ContentDropped() {
		t.contentDropped += by
	}
}

// compact drops dead items from the logs if they are more than half.
func (s *Set) compact() {
	s.log.Compact(s.live, func(c immutable.Change[*Name, Seq]) bool {
		e := s.Get(c.Key)
		return e != nil && e.Seq == c.At
	})
	s.renewals.Compact(s.live, func(c immutable.Change[*Name, Seq]) bool {
		e := s.Get(c.Key)
		return e != nil && e.Renewed() == c.At
	})
}

// A setHistory has former states of a set, up to [RevertMemory] ago. Arrays are shared with older generations, which
// see only their own length of them.
type setHistory struct {
	recentRemovals []pastRemoval // the newest last
	former         []uint32      // marks of the sums that readers saw before, the newest last
	reverted       time.Time     // when the set was reverted to its present sum; zero if that sum is new
	revertedAt     Seq           // of the generation in which it was reverted
}

// Reverted returns the position at which the set was reverted to its present content; zero if it never was, or if that
// is longer ago than RevertMemory.
func (s *setHistory) Reverted() Seq {
	if recent(s.reverted).IsZero() {
		return 0
	}
	return s.revertedAt
}

// HadVersion reports whether a version is the version of the set, now or in one of the recorded former states.
func (s *Set) HadVersion(version string) bool {
	sum, ok := fingerprint.Parse(version)
	return ok && (sum == s.sum || slices.Contains(s.former, sum.Mark()))
}

// recordSum records the sum that the set had before the generation at a position.
func (s *setHistory) recordSum(before, now fingerprint.Sum, at Seq) {
	if now == before {
		return
	}
	oldMark, newMark := before.Mark(), now.Mark()
	if len(s.former) >= 2*maxFormerSums {
		s.former = slices.Clone(s.former[len(s.former)-maxFormerSums+1:])
	}
	s.former = append(s.former, oldMark)
	s.reverted = time.Time{}
	if slices.Contains(s.former[max(len(s.former)-maxFormerSums, 0):], newMark) {
		s.reverted, s.revertedAt = time.Now(), at
	}
}

// A pastRemoval is a removal from the wildcard set. It is kept for longer than the tombstone.
type pastRemoval struct {
	name string
	past *past // of the tombstone
	at   time.Time
}

// recordRemoval records a removal from the wildcard set.
func (s *setHistory) recordRemoval(tomb *Entry) {
	now := time.Now()
	outdated := func() bool { return now.Sub(s.recentRemovals[0].at) > RevertMemory }
	for len(s.recentRemovals) >= maxRecentRemovals || len(s.recentRemovals) > 0 && outdated() {
		s.recentRemovals = s.recentRemovals[1:]
	}
	s.recentRemovals = append(s.recentRemovals, pastRemoval{tomb.Name.text, tomb.past, now})
}

// recallPast sets the past of an entry that is not published yet from the recorded removal of its name, if any.
func (s *setHistory) recallPast(e *Entry) {
	for _, b := range slices.Backward(s.recentRemovals) {
		if b.name == e.Name.text {
			e.recordPast(&Entry{past: b.past})
			return
		}
	}
}

// RecentRemovals returns the names of resources that were removed within RevertMemory. Some may exist again.
func (s *setHistory) RecentRemovals() (names []string) {
	for _, b := range s.recentRemovals {
		if !recent(b.at).IsZero() {
			names = append(names, b.name)
		}
	}
	return names
}

// noSeq is after all positions.
const noSeq = ^Seq(0)

// Former returns the position of the entry that this one replaced, and whether the resource existed then. known is false
// if there was none, or if readers may have seen another one.
func (e *Entry) Former() (at Seq, existed, known bool) {
	return e.formerSeq, e.formerLeaf != (fingerprint.Sum{}), e.formerSeq != noSeq && e.formerSeq != 0
}

// FirstAfter returns the position of the oldest change after p, even if the same name changed again since; noSeq if
// there is none.
func (s *Set) FirstAfter(p Seq) Seq {
	if at := s.log.After(p); at < len(s.log) {
		return s.log[at].At
	}
	return noSeq
}

// More than largeNames removals that are also more than largeFraction of a set are large (B.15).
const (
	largeNames    = 10
	largeFraction = 0.1
)

// LargeRemoval reports whether the removals from a set of a type are so many that the origin may have lost its state:
// all resources, or more than half, or more than ten and more than a tenth. size is the number of resources before the
// response, and added the number of resources that the same response added.
//
// Additions of types whose resources exclude one another ([wire.HasKeys]) are subtracted from the removals: if the removal of a
// listener were held, Envoy would reject its renamed successor on the same address. For types whose removals are data, no number
// is large.
func LargeRemoval(typeURL string, removed, size, added int) bool {
	switch {
	case RemovalsAreData(typeURL):
		return false
	case wire.HasKeys(typeURL):
		removed -= added
	}
	many := removed > largeNames && float64(removed) > largeFraction*float64(size)
	return removed > 0 && (removed >= size || 2*removed > size || many)
}

// RemovalsAreData reports whether resources of a type are regularly added and removed, as endpoints are. Unknown
// types, such as Istio's addresses, count as such.
func RemovalsAreData(typeURL string) bool {
	return wire.IsEndpoints(typeURL) || !wire.Known(typeURL)
}

package subscription

import (
	"slices"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/fingerprint"
)

// sums compute the fingerprint of all that a client sees of a type. SotW versions are made from it (B.2).
type sums struct{ visible }

// sum returns the fingerprint of all that the client sees of the type.
func (v visible) sum() fingerprint.Sum { return sums{v}.cached() }

// cached returns the sum from nameSum if that can hold it, and computes it otherwise.
func (v sums) cached() fingerprint.Sum {
	if !v.cacheable() {
		return v.compute()
	}
	if cached := &v.nameSum; !cached.known || cached.at != v.g.Seq {
		*cached = nameSum{known: true, sum: v.compute(), at: v.g.Seq}
	}
	return v.nameSum.sum
}

// cacheable reports whether nameSum is the sum of all that the client sees: a SotW client that subscribes to names
// only.
func (v sums) cacheable() bool {
	return !v.Delta && v.parent == nil && v.wildcard == nil && len(v.globs) == 0 && v.t.SumsByName()
}

// update brings nameSum up to the generation by the names that the view hints at. It invalidates nameSum if the hints
// do not cover all changes.
func (v sums) update() {
	cached := &v.nameSum
	cached.known = cached.known && cached.scanned == v.scannedUpTo && cached.at <= v.g.Seq && v.cacheable()
	if !cached.known {
		return
	}
	var room [8]*cache.Name
	hinted, known := v.Watch.Hinted(v.Key, cached.at, room[:0])
	slices.SortFunc(hinted, (*cache.Name).Compare)
	for _, n := range slices.Compact(hinted) {
		if _, subscribed := v.find(n); subscribed && known {
			cached.sum, known = v.t.ByName.Get(n).SumSince(cached.at, cached.sum)
		}
	}
	cached.known, cached.at = known, v.g.Seq
}

// compute sums over all that the client sees.
func (v sums) compute() (sum fingerprint.Sum) {
	if len(v.globs) > 0 && (v.wildcard != nil || len(v.names) > 0) {
		return v.collect(setBuilder{sumOnly: true}).sum // a resource that is visible twice counts once
	}
	for _, glob := range v.globs { // no two globs match the same resource
		sum = sum.Add(sums{glob.visibleAt(v.g)}.wildcardSum())
	}
	if v.wildcard != nil {
		sum = sum.Add(v.wildcardSum())
	}
	var seen map[string]struct{}
	if v.t.ByName.Aliased() {
		seen = make(map[string]struct{})
	}
	for _, n := range v.names {
		e, _ := v.entryOf(n)
		sum = sum.Sub(v.memberLeaf(n.name)) // the entry by name counts instead
		switch {
		case !e.Present():
		case seen == nil:
			sum = sum.Add(e.Leaf)
		default:
			sum = sum.Add(v.aliasedLeaf(e, seen))
		}
	}
	return sum
}

// wildcardSum returns the sum of the wildcard set without the resources that are hidden from the client.
func (v sums) wildcardSum() fingerprint.Sum {
	sum := v.t.Wildcard.Sum()
	for e := range v.withheldMembers() {
		sum = sum.Sub(e.Leaf)
	}
	return sum
}

// aliasedLeaf returns what an entry by name adds to the sum. It returns zero if another entry of the same resource was
// counted, and subtracts the resource's entry in the wildcard set (R092). It adds the resource to seen.
func (v sums) aliasedLeaf(e *cache.Entry, seen map[string]struct{}) (leaf fingerprint.Sum) {
	r := e.Resource
	if _, counted := seen[r.Key()]; counted {
		return leaf
	}
	seen[r.Key()] = struct{}{}
	if r.Name == e.Name.String() || v.wildcard == nil {
		return e.Leaf
	}
	own := v.Watch.Find(v.Key, []string{r.Name})[0]
	if _, named := v.find(own); named {
		return e.Leaf
	}
	return e.Leaf.Sub(v.memberLeaf(own))
}

// memberLeaf returns what a name adds to the sum of the wildcard set that the client sees.
func (v sums) memberLeaf(n *cache.Name) (leaf fingerprint.Sum) {
	if v.wildcard == nil || n == nil {
		return leaf
	}
	if m := v.t.Wildcard.Get(n); m.Present() && !v.withheld(m) {
		return m.Leaf
	}
	return leaf
}

// trust decides whether an equal version proves that a client holds the current content (B.3).
//
// A client that applies part of a response and rejects it still reports its former version (envoy#12592). If the origin
// returns to that version, an equal version proves nothing. The content is therefore sent during [cache.RevertMemory].
// The same holds for resources of a rejected edition, which another relay may have sent to the client.
type trust struct{ visible }

// trustsVersion reports whether the version of a resource that the client reported can be trusted. The origin must not
// reuse versions for other content, and the resource must not have expired at the client (B.3, C31).
func (v trust) trustsVersion(from *cache.Source, e *cache.Entry) bool {
	expires := v.sendsTTLs && e.Expires()
	unique := !from.Reused || v.Settings.ContentVersions
	return !expires && unique && e.Reverted().IsZero() && !v.distrusts(e.Name.String())
}

// doubts returns why the version of the whole set proves nothing. The position tells when a resource in it last
// returned to former content. The revision is that of the view's distrust, if any resource was part of a rejected
// edition. Both are zero if the version can be trusted.
func (v trust) doubts() (reverted cache.Seq, distrust uint64) {
	revision := v.Watch.View().Distrust.Revision()
	if revision != 0 && v.distrustsAny() {
		distrust = revision
	}
	return v.reverted(), distrust
}

// distrustsAny reports whether the client subscribes to anything that was part of a rejected edition.
func (v trust) distrustsAny() bool {
	for part := range v.wildcards() {
		if v.Watch.View().Distrust.HasType(part.Key) {
			return true
		}
	}
	return slices.ContainsFunc(v.names, func(n subscribed) bool { return v.distrusts(n.name.String()) })
}

// reverted returns the position at which a visible resource last returned to former content, as far as the cache
// remembers; zero if none did. A name has an entry in each set, and these revert at different times. The position of
// its newest visible change therefore counts.
func (v trust) reverted() (at cache.Seq) {
	for part := range v.wildcards() {
		at = max(at, v.g.Type(part.Key).Wildcard.Reverted())
	}
	for _, n := range v.names {
		if e, seq := v.entryOf(n); e != nil && !e.Reverted().IsZero() {
			at = max(at, seq)
		}
	}
	return at
}

package subscription

import (
	"iter"
	"slices"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/fingerprint"
	"github.com/xdstender/tender/cache/wire"
)

// A shown is a subscription at one generation: what of that its client is to see.
type shown struct {
	*Subscription
	g *cache.Generation
	t *cache.Type // that of the subscription, in g
}

// in returns the subscription at a generation.
func (s *Subscription) in(g *cache.Generation) shown { return shown{s, g, g.Type(s.Key)} }

// see returns what the client is shown of a name that it subscribed to, and when that changed last. A resource that
// the origin denies now is kept from a client that does not have it (R137).
func (v shown) see(n subscribed) (*cache.Entry, cache.Seq) {
	e, seq := v.t.Lookup(n.name)
	if failed := v.t.Errors(cache.ByName); e.Present() && n.sent == 0 && failed.Last() > 0 && !v.returning() {
		if err := failed.Get(n.name); err != nil && err.Err.Denied() {
			return nil, 0
		}
	}
	return e, seq
}

// withheld reports whether a resource of the wildcard set is kept from the client: the origin denied it before the
// client began to follow the set (R137).
func (v shown) withheld(member *cache.Entry) bool {
	errs := v.t.Errors(cache.Wildcard)
	if errs.Last() == 0 || v.returning() {
		return false
	}
	err := errs.Get(member.Name)
	return err != nil && err.Err.Denied() && (v.sendAll || err.Created() <= v.wildcardSince)
}

// withheldMembers yields the resources of the wildcard set that are kept from the client.
func (v shown) withheldMembers() iter.Seq[*cache.Entry] {
	return func(yield func(*cache.Entry) bool) {
		for err := range v.t.Errors(cache.Wildcard).Since(0) {
			if e := v.t.Wildcard.Get(err.Name); e.Present() && v.withheld(e) && !yield(e) {
				return
			}
		}
	}
}

// withholds reports whether any resource of the wildcard set is kept from the client.
func (v shown) withholds() bool {
	for range v.withheldMembers() {
		return true
	}
	return false
}

// shows reports whether the client sees a resource by its name or by the wildcard, and not only by a glob.
func (v shown) shows(n *cache.Name) bool {
	if at, named := v.find(n); named {
		e, _ := v.see(v.names[at])
		return e.Present()
	}
	if n == nil || v.wildcard == nil {
		return false
	}
	member := v.t.Wildcard.Get(n)
	return member.Present() && !v.withheld(member)
}

// showsElsewhere reports whether the client still sees a resource that is removed from this subscription, by another
// one: a glob is another set than the wildcard set of the type, and may be another origin's.
func (v shown) showsElsewhere(name string) bool {
	if p := v.parent; p != nil {
		return p.in(v.g).shows(v.Watch.Find(p.Key, []string{name})[0])
	}
	if len(v.globs) == 0 {
		return false
	}
	glob, _ := wire.GlobOf(name)
	g := v.globs.find(glob)
	return g != nil && g.in(v.g).shows(v.Watch.Find(g.Key, []string{name})[0])
}

// showsAlias reports whether the client sees a resource by what it subscribed to: by an alias, or by its own name in
// the wildcard set (R092).
func (v shown) showsAlias(name string) bool {
	if !v.t.ByName.Aliased() {
		return false
	}
	if v.wildcard != nil {
		if n := v.Watch.Find(v.Key, []string{name})[0]; n != nil && v.t.Wildcard.Get(n).Present() {
			return true
		}
	}
	return v.namesAlias(v.t, name)
}

// anySince reports whether a resource of the wildcard set that the client did not name was added or changed, or was
// removed, after a position.
func (v shown) anySince(p cache.Seq, present bool) bool {
	for e := range v.t.Wildcard.Since(p) {
		if _, named := v.find(e.Name); !named && e.Present() == present {
			return true
		}
	}
	return false
}

// ttlOf returns the TTL of a resource that the client is sent; zero if it does not expire, or if the client is not
// sent TTLs (R104). It is what is left, not what the origin once gave (R108).
func (v shown) ttlOf(e *cache.Entry) time.Duration {
	if !v.sendsTTLs || !e.Expires() {
		return 0
	}
	return e.RemainingTTL(time.Now())
}

// ttlsDue reports whether the client may have to be sent new TTLs.
func (v shown) ttlsDue() bool {
	return v.sendsTTLs &&
		(v.t.Wildcard.Renewed() > v.ttlsSentUpTo[cache.Wildcard] || v.t.ByName.Renewed() > v.ttlsSentUpTo[cache.ByName])
}

// mayReappear reports whether a resource is gone only because it expired, and the client asks for it now: then its
// absence is no answer. The origin is asked again, and until it answers nothing is known. A client that holds the
// resource is sent its removal if the origin is not connected (R107).
func (v shown) mayReappear(e *cache.Entry, n subscribed) bool {
	if !e.Expired || n.sent != 0 {
		return false
	}
	_, holds := v.initialVersions[n.name.String()]
	return v.g.From(n.name).Connected || !holds && v.initialVersion == ""
}

// mayBeNewer reports whether a returning Delta client may hold a resource, absent here, that came to be after its
// origin was frozen (B.7).
func (v shown) mayBeNewer(n subscribed) bool {
	_, holds := v.initialVersions[n.name.String()]
	return holds && n.sent == 0 && !v.g.From(n.name).Frozen.IsZero()
}

// askAgain asks the origin again for the content of a resource that it did not allow to keep (R125).
func (v shown) askAgain(e *cache.Entry) {
	if v.g.From(e.Name).Connected {
		v.Watch.Refetch(v.Key, e.Name, e.ContentDroppedAt())
	}
}

// askAgainForAll is askAgain for the wildcard set.
func (v shown) askAgainForAll() {
	if v.g.WildcardSource(v.Key).Connected {
		v.Watch.Refetch(v.Key, nil, v.t.Wildcard.LastContentDrop())
	}
}

// unsendable reports whether a resource that the client never had cannot be sent now: its content was dropped.
func unsendable(n subscribed, e *cache.Entry) bool { return n.sent == 0 && e.Resource.ContentDropped() }

// contentDropped reports whether the set holds a resource whose content was dropped and that the client must not
// lose. The origin is asked for it (R125).
func (v shown) contentDropped() (dropped bool) {
	for part := range v.wildcards() {
		if members := part.in(v.g); members.t.Wildcard.ContentDropped() > 0 {
			members.askAgainForAll()
			dropped = true
		}
	}
	if v.t.ByName.ContentDropped()+v.t.Wildcard.ContentDropped() == 0 {
		return dropped
	}
	for _, n := range v.names {
		if e, _ := v.see(n); e.Present() && e.Resource.ContentDropped() && e.Resource.HasBody() && n.sent != 0 {
			v.askAgain(e)
			dropped = true
		}
	}
	return dropped
}

// sum identifies all that the client sees of the type (B.2).
func (v shown) sum() fingerprint.Sum {
	if !v.sumsNames() {
		return v.wholeSum()
	}
	if of := &v.nameSum; !of.known || of.at != v.g.Seq {
		*of = nameSum{known: true, sum: v.wholeSum(), at: v.g.Seq}
	}
	return v.nameSum.sum
}

// sumsNames reports whether nameSum can be the sum.
func (v shown) sumsNames() bool {
	return !v.Delta && v.parent == nil && v.wildcard == nil && len(v.globs) == 0 && v.t.SumsByName()
}

// followSum brings nameSum up to the generation by what the hints tell, if that is all that has changed.
func (v shown) followSum() {
	of := &v.nameSum
	if of.known = of.known && of.scanned == v.scannedUpTo && of.at <= v.g.Seq && v.sumsNames(); !of.known {
		return
	}
	var room [8]*cache.Name
	hinted, known := v.Watch.Hinted(v.Key, of.at, room[:0])
	slices.SortFunc(hinted, (*cache.Name).Compare)
	for _, n := range slices.Compact(hinted) {
		if _, wanted := v.find(n); wanted && known {
			of.sum, known = v.t.ByName.Get(n).SumSince(of.at, of.sum)
		}
	}
	of.known, of.at = known, v.g.Seq
}

// wholeSum is sum, made of all that the client sees.
func (v shown) wholeSum() (sum fingerprint.Sum) {
	if len(v.globs) > 0 && (v.wildcard != nil || len(v.names) > 0) {
		return v.collect(setBuilder{sumOnly: true}).sum // what is seen twice counts once
	}
	for _, glob := range v.globs { // no two of which match the same resource
		sum = sum.Add(glob.in(v.g).wildcardSum())
	}
	if v.wildcard != nil {
		sum = sum.Add(v.wildcardSum())
	}
	var seen map[string]struct{}
	if v.t.ByName.Aliased() {
		seen = make(map[string]struct{})
	}
	for _, n := range v.names {
		e, _ := v.see(n)
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

// wildcardSum identifies what the client sees of the wildcard set.
func (v shown) wildcardSum() fingerprint.Sum {
	sum := v.t.Wildcard.Sum()
	for e := range v.withheldMembers() {
		sum = sum.Sub(e.Leaf)
	}
	return sum
}

// aliasedLeaf returns what an entry by name adds to the sum: nothing if another entry of the same resource did, and
// without what the resource adds as part of the wildcard set (R092).
func (v shown) aliasedLeaf(e *cache.Entry, seen map[string]struct{}) (leaf fingerprint.Sum) {
	r := e.Resource
	if _, twice := seen[r.Key()]; twice {
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

// memberLeaf returns what the client sees of a name in the sum of the wildcard set.
func (v shown) memberLeaf(n *cache.Name) (leaf fingerprint.Sum) {
	if v.wildcard == nil || n == nil {
		return leaf
	}
	if m := v.t.Wildcard.Get(n); m.Present() && !v.withheld(m) {
		return m.Leaf
	}
	return leaf
}

// collect adds all that the client sees to a set.
func (v shown) collect(b setBuilder) *setBuilder {
	b.seen = make(map[string]struct{})
	b.addNames(v)
	for part := range v.wildcards() {
		b.addMembers(part.in(v.g), v)
	}
	return &b
}

// A setBuilder collects a complete set, each resource once.
type setBuilder struct {
	union   bool // with resources that are gone and that the client was sent
	sumOnly bool // only the sum is of interest: of all that is seen, whether or not it can be sent

	resources []*wire.Resource
	ttls      []time.Duration     // of each
	seen      map[string]struct{} // keys; nil if none can occur twice
	endpoints []string            // that changed clusters need
	sum       fingerprint.Sum
}

// addNames adds what the client named, and, in a union or if the origin has to confirm the removal, what it was sent
// and is gone.
func (b *setBuilder) addNames(v shown) {
	for _, n := range v.names {
		e, seq := v.see(n)
		switch keeps := n.sent != 0 && seq > n.sent && (b.union || !v.absent(e)) && !b.sumOnly; {
		case e.Present():
			b.add(v, e.Resource, e, seq > n.sent)
		case e != nil && e.Prior != nil && keeps:
			b.add(v, e.Prior, e, false)
		}
	}
}

// addMembers adds the resources of a wildcard set that the client did not name, and in a union those that it was sent
// and are gone.
func (b *setBuilder) addMembers(members, of shown) {
	for e := range members.t.Wildcard.Since(0) {
		if _, named := members.find(e.Name); named {
			continue
		}
		switch {
		case e.Present():
			if !members.withheld(e) {
				b.add(of, e.Resource, e, e.Seq > members.sentUpTo)
			}
		case b.union && members.keepsInUnion(e):
			b.add(of, e.Prior, e, false)
		}
	}
}

// keepsInUnion reports whether a union holds a resource that is gone from the wildcard set: the client was sent it.
func (v shown) keepsInUnion(e *cache.Entry) bool {
	return !e.Present() && e.Prior != nil && v.hadMember(e)
}

// add adds what an entry holds, or held last.
func (b *setBuilder) add(v shown, r *wire.Resource, e *cache.Entry, changed bool) {
	if _, twice := b.seen[r.Key()]; twice || r.ContentDropped() && !b.sumOnly {
		return
	}
	if b.seen != nil {
		b.seen[r.Key()] = struct{}{}
	}
	if b.sum = b.sum.Add(e.Leaf); b.sumOnly {
		return
	}
	b.resources, b.ttls = append(b.resources, r), append(b.ttls, v.ttlOf(e))
	if changed && r.EDSName != "" {
		b.endpoints = append(b.endpoints, r.EDSName)
	}
}

// body returns the set as the body of a response.
func (b *setBuilder) body(v shown, wrap wire.Wrap) *wire.Body {
	body := wire.NewSotWBody(v.TypeURL, b.sum.Version(v.t.System()), wrap)
	body.Grow(len(b.resources))
	for i, r := range b.resources {
		body.Add(r, b.ttls[i])
	}
	return body
}

// names returns the names of the resources in the set.
func (b *setBuilder) names() []string {
	names := make([]string, len(b.resources))
	for i, r := range b.resources {
		names[i] = r.Name
	}
	return names
}

// trusts reports whether the version of a resource that the client reported may be trusted. The origin's versions have
// to distinguish its contents, and the resource must not have expired at the client (B.3, C31).
//
// A client applies a response in part, refuses it, and still reports the version that it had (envoy#12592). If the
// content returns to that version, an equal version proves nothing, so for [cache.RevertMemory] the content is sent. So is
// a resource that was part of a rejected edition, which another relay may have shown the client.
func (v shown) trusts(from *cache.Source, e *cache.Entry) bool {
	expires := v.sendsTTLs && e.Expires()
	return !expires && (!from.Reused || v.Settings.ContentVersions) && e.Reverted().IsZero() && !v.distrusts(e.Name.String())
}

// distrusts reports whether a resource was part of a rejected edition ([cache.View.Distrust]).
func (v shown) distrusts(name string) bool { return v.Watch.View().Distrust.Has(v.Key, name) }

// doubts returns why the version of all that the client sees proves nothing, as trusts does for one resource: when any of
// that last returned to former content, and the revision of the view's distrust if any of it was part of a rejected edition.
// Both are zero if nothing is wrong with the version.
func (v shown) doubts() (reverted cache.Seq, distrust uint64) {
	revision := v.Watch.View().Distrust.Revision()
	if revision != 0 && v.distrustsAny() {
		distrust = revision
	}
	return v.reverted(), distrust
}

// distrustsAny reports whether the client subscribes to anything that was part of a rejected edition.
func (v shown) distrustsAny() bool {
	for part := range v.wildcards() {
		if v.Watch.View().Distrust.HasType(part.Key) {
			return true
		}
	}
	return slices.ContainsFunc(v.names, func(n subscribed) bool { return v.distrusts(n.name.String()) })
}

// absent reports whether the client may be told that a name does not exist: the origin said so on the open connection
// ([cache.Generation.Absent]), or what the view has is the last good state instead of a rejected edition.
func (v shown) absent(e *cache.Entry) bool {
	return v.g.Absent(e) || e != nil && !e.Present() && v.distrusts(e.Name.String())
}

// reverted returns the position at which what the client sees last returned to content that it had before, as far as
// that is remembered; zero if it did not. A name has an entry in each set, which revert at different times, so it counts
// when readers last saw it change.
func (v shown) reverted() (at cache.Seq) {
	for part := range v.wildcards() {
		at = max(at, v.g.Type(part.Key).Wildcard.Reverted())
	}
	for _, n := range v.names {
		if e, seq := v.see(n); e != nil && !e.Reverted().IsZero() {
			at = max(at, seq)
		}
	}
	return at
}

// settledEnough reports whether enough is known of a wildcard set to answer this client (B.7): if it may hold some of
// it, all, or all that was last known.
func (s *Subscription) settledEnough(t *cache.Type) bool {
	if s.initialVersion != "" && !s.holdsSet {
		return t.Phase == cache.Confirmed || t.Covered
	}
	return t.Phase >= cache.Settled
}

// mayHaveExpired reports whether resources that the client was sent may have expired there: then the same set again
// is news (C31).
func (v shown) mayHaveExpired() bool {
	return v.sendsTTLs && (v.t.Wildcard.Limited() || v.t.ByName.Limited() ||
		slices.ContainsFunc(v.globs, func(glob *Subscription) bool { return v.g.Type(glob.Key).Wildcard.Limited() }))
}

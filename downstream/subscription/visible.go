package subscription

import (
	"iter"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// A visible is a subscription at one generation of the view. It decides which resources of that generation the client
// may see.
type visible struct {
	*Subscription
	g *cache.Generation
	t *cache.Type // g.Type(Key)
}

// visibleAt returns the subscription at a generation.
func (s *Subscription) visibleAt(g *cache.Generation) visible { return visible{s, g, g.Type(s.Key)} }

// entryOf returns the entry that the client may see of a subscribed name, and the position of its newest change. A
// resource that the origin denies now is hidden from a client that does not have it (R137).
func (v visible) entryOf(n subscribed) (*cache.Entry, cache.Seq) {
	e, seq := v.t.Lookup(n.name)
	if failed := v.t.Errors(cache.ByName); e.Present() && n.sent == 0 && failed.Last() > 0 && !v.mayHoldMore() {
		if err := failed.Get(n.name); err != nil && err.Err.Denied() {
			return nil, 0
		}
	}
	return e, seq
}

// withheld reports whether a resource of the wildcard set is hidden from the client: the origin denied it before the
// client was sent the set (R137).
func (v visible) withheld(member *cache.Entry) bool {
	errs := v.t.Errors(cache.Wildcard)
	if errs.Last() == 0 || v.mayHoldMore() {
		return false
	}
	err := errs.Get(member.Name)
	return err != nil && err.Err.Denied() && (v.sendAll || err.Created() <= v.wildcardSince)
}

// withheldMembers yields the resources of the wildcard set that are hidden from the client.
func (v visible) withheldMembers() iter.Seq[*cache.Entry] {
	return func(yield func(*cache.Entry) bool) {
		for err := range v.t.Errors(cache.Wildcard).Since(0) {
			if e := v.t.Wildcard.Get(err.Name); e.Present() && v.withheld(e) && !yield(e) {
				return
			}
		}
	}
}

// withholdsAny reports whether any resource of the wildcard set is hidden from the client.
func (v visible) withholdsAny() bool {
	for range v.withheldMembers() {
		return true
	}
	return false
}

// isVisible reports whether the client sees a resource by its name or in the wildcard set of the type, and not only by
// a glob.
func (v visible) isVisible(n *cache.Name) bool {
	if at, named := v.find(n); named {
		e, _ := v.entryOf(v.names[at])
		return e.Present()
	}
	if n == nil || v.wildcard == nil {
		return false
	}
	member := v.t.Wildcard.Get(n)
	return member.Present() && !v.withheld(member)
}

// visibleElsewhere reports whether the client still sees a resource, which was removed from this subscription, by
// another subscription. The set of a glob is separate from the wildcard set of the type and may have another origin.
func (v visible) visibleElsewhere(name string) bool {
	other := v.parent
	if other == nil && len(v.globs) > 0 {
		glob, _ := wire.GlobOf(name)
		other = v.globs.find(glob)
	}
	return other != nil && other.visibleAt(v.g).isVisible(v.Watch.Find(other.Key, []string{name})[0])
}

// visibleUnderAlias reports whether the client sees a resource by an alias that it subscribed to, or by the resource's
// own name in the wildcard set (R092).
func (v visible) visibleUnderAlias(name string) bool {
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

// anyChangedSince reports whether any resource of the wildcard set changed after a position. It ignores resources that
// the client subscribed to by name. With present, only additions and updates count; otherwise only removals.
func (v visible) anyChangedSince(p cache.Seq, present bool) bool {
	for e := range v.t.Wildcard.Since(p) {
		if _, named := v.find(e.Name); !named && e.Present() == present {
			return true
		}
	}
	return false
}

// ttlOf returns the remaining TTL of a resource (R108). It returns zero if the resource does not expire or the client
// is not sent TTLs (R104).
func (v visible) ttlOf(e *cache.Entry) time.Duration {
	if !v.sendsTTLs || !e.Expires() {
		return 0
	}
	return e.RemainingTTL(time.Now())
}

// ttlsDue reports whether new TTLs may be due to the client.
func (v visible) ttlsDue() bool {
	return v.sendsTTLs &&
		(v.t.Wildcard.Renewed() > v.ttlsSentUpTo[cache.Wildcard] || v.t.ByName.Renewed() > v.ttlsSentUpTo[cache.ByName])
}

// mayReappear reports whether a resource that the client subscribes to now is absent only because it expired. The
// origin is asked for it again, and its absence is unconfirmed until the origin answers. A client that holds the
// resource is sent its removal if the origin is not connected (R107).
func (v visible) mayReappear(e *cache.Entry, n subscribed) bool {
	if !e.Expired || n.sent != 0 {
		return false
	}
	_, holds := v.initialVersions[n.name.String()]
	return v.g.From(n.name).Connected || !holds && v.initialVersion == ""
}

// holdsAwaited reports whether a returning Delta client may hold a resource, absent here, that the origin has and the view awaits
// (cache.Writer.Await).
func (v visible) holdsAwaited(n subscribed) bool {
	_, holds := v.initialVersions[n.name.String()]
	return holds && n.sent == 0 && v.t.ByName.Awaits(n.name.String())
}

// distrusts reports whether a resource was part of a rejected edition ([cache.View.Distrust]).
func (v visible) distrusts(name string) bool { return v.Watch.View().Distrust.Has(v.Key, name) }

// confirmedAbsent reports whether a removal of a resource may be sent: the origin reported its absence on the open
// connection or it was frozen ([cache.Generation.Absent]), or the view serves the last good state instead of a rejected
// edition.
func (v visible) confirmedAbsent(e *cache.Entry) bool {
	return v.g.Absent(e) || e != nil && !e.Present() && v.distrusts(e.Name.String())
}

// silenceWait is how long the relay waits for the answer for a name once the origin has answered for other names of the
// same request.
const silenceWait = 15 * time.Second

// recheckWait is the first wait before checking a name again whose existence at the origin is unknown.
const recheckWait = 5 * time.Second

// assumedAbsentAt returns when a missing answer of the origin for a name means that the resource does not exist. Either
// the confirmed wildcard set lacks it, or the origin has answered for other names of the request (B.15). Otherwise it
// returns when to check again.
func (v visible) assumedAbsentAt(n *cache.Name, now time.Time) (at time.Time) {
	from, asked := v.g.From(n), n.Asked()
	if !from.Connected {
		return Forever // the stream is woken
	}
	if answered := n.RequestAnswered(); !answered.IsZero() {
		at = answered.Add(silenceWait)
	}
	_, xdstp := wire.GlobOf(n.String())
	if v.t.Phase == cache.Confirmed && from == v.g.WildcardSource(v.Key) && !xdstp && !asked.IsZero() {
		at = Earlier(at, later(asked, from.Since).Add(v.Settings.confirmWait()))
	}
	if at.IsZero() {
		at = now.Add(max(recheckWait, now.Sub(v.since)))
	}
	return at
}

// settledEnough reports whether enough of the wildcard set of the type, or of a glob, is known to answer this client
// (B.7). A client that may hold part of the set needs the confirmed set, the frozen or the last known one. If the view
// has served the version that the client reports, the client holds nothing else.
func (v visible) settledEnough(key string) bool {
	t := v.g.Type(key)
	if v.initialVersion != "" && !v.holdsSet && !v.reportsFormerSet(t) {
		return t.Phase == cache.Confirmed || t.Presumed || v.g.SetFrozen(key)
	}
	return t.Phase >= cache.Settled
}

// reportsFormerSet reports whether the version that a client with only a wildcard reports is one that the view has had.
func (s *Subscription) reportsFormerSet(t *cache.Type) bool {
	return s.wildcard != nil && len(s.names)+len(s.globs) == 0 && t.Wildcard.HadVersion(s.initialVersion)
}

// unsendable reports whether a resource cannot be sent now: the client never had it, and its content was dropped.
func unsendable(n subscribed, e *cache.Entry) bool { return n.sent == 0 && e.Resource.ContentDropped() }

// refetch asks the origin again for the content of a resource, which the origin did not allow the relay to keep (R125).
func (v visible) refetch(e *cache.Entry) {
	if v.g.From(e.Name).Connected {
		v.Watch.Refetch(v.Key, e.Name, e.ContentDroppedAt())
	}
}

// refetchWildcard asks the origin again for the content of the wildcard set (R125).
func (v visible) refetchWildcard() {
	if v.g.WildcardSource(v.Key).Connected {
		v.Watch.Refetch(v.Key, nil, v.t.Wildcard.LastContentDrop())
	}
}

// refetchDropped asks the origin for dropped content that a complete set must have, since the client would delete the
// resource otherwise (R125). It reports whether any is missing. With all, content of names that the client was not sent
// yet counts too.
func (v visible) refetchDropped(all bool) (dropped bool) {
	for part := range v.wildcards() {
		if members := part.visibleAt(v.g); members.t.Wildcard.ContentDropped() > 0 {
			members.refetchWildcard()
			dropped = true
		}
	}
	if v.t.ByName.ContentDropped()+v.t.Wildcard.ContentDropped() == 0 {
		return dropped
	}
	for _, n := range v.names {
		e, _ := v.entryOf(n)
		if e.Present() && e.Resource.ContentDropped() && e.Resource.HasBody() && (all || n.sent != 0) {
			v.refetch(e)
			dropped = true
		}
	}
	return dropped
}

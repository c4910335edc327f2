package upstream

import (
	"cmp"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/upstream/reconcile"
)

// batchWait is how long changed demand waits for more, to be one request (B.5).
const batchWait = 5 * time.Millisecond

// Wants are what clients want of an origin, as subscriptions on its streams.
type subscriptions struct {
	streams
	subs  map[string]*subscription
	group *reconcile.Group // the sets that are held

	linger         *lingering
	lingeringGlobs int
	agenda         agenda
	keptNames      map[string][]string // names that an operator had kept of collections that are not followed yet, by key

	batchAt   time.Time // when changed demand is sent
	batchSize int       // names waiting for that
}

func (v *subscriptions) sub(typeURL string) *subscription {
	s := v.subs[typeURL]
	if s == nil {
		s = &subscription{typeURL: typeURL, names: make(map[*cache.Name]struct{})}
		s.members = v.newSet(s, typeURL, wire.Wildcard, cache.Wildcard)
		s.byName = v.newSet(s, typeURL, "", cache.ByName)
		s.byName.Asker = s.members.Set
		v.subs[typeURL] = s
	}
	return s
}

// newSet returns a set, which the origin is asked for as a whole by a name; none if it is asked for each name.
func (v *subscriptions) newSet(s *subscription, key, whole string, kind cache.Kind) *set {
	held := &set{view: &v.streams, sub: s, key: key, kind: kind}
	held.Set = v.group.NewSet(s.typeURL, whole, held)
	return held
}

// inOrder returns the subscriptions in the order in which types are sent, so that
// an origin hears of clusters first.
func (v *subscriptions) ordered() []*subscription {
	return slices.SortedFunc(maps.Values(v.subs), func(a, b *subscription) int {
		return cmp.Or(wire.Rank(a.typeURL)-wire.Rank(b.typeURL), cmp.Compare(a.typeURL, b.typeURL))
	})
}

// sets yields all sets of a view.
func (v *subscriptions) sets(yield func(*set) bool) {
	for _, sub := range v.ordered() {
		for s := range sub.sets {
			if !yield(s) {
				return
			}
		}
	}
}

// find returns the set of which something was reported; nil if the view does not follow it.
func (v *subscriptions) find(of cache.ReportedSet) *set {
	typeURL, glob, isCollection := cache.SplitCollection(of.Key)
	s := v.subs[typeURL]
	switch {
	case s == nil:
		return nil
	case !isCollection && of.Kind == cache.ByName:
		return s.byName
	case !isCollection:
		return s.members
	}
	if c := s.collections[glob]; c != nil {
		return c.set
	}
	return nil
}

func (v *subscriptions) demandMembers(s *subscription, d cache.Demand, now time.Time) {
	if !d.Wanted {
		if d.Restored {
			v.subscribeMembers(s, now)
		}
		s.wanted, s.lingerUntil = false, now.Add(jitter(v.cfg.WildcardLinger))
		return
	}
	s.wanted, s.lingerUntil = true, time.Time{}
	if s.wildcardRole == noStream {
		v.addRequester(s, d)
	}
	v.subscribeMembers(s, now)
	if d.Refetch {
		v.refetchMembers(s, now)
	}
}

func (v *subscriptions) demandName(s *subscription, d cache.Demand, now time.Time) {
	if d.Wanted {
		v.linger.remove(d.Name)
		if _, have := s.names[d.Name]; !have {
			v.addRequester(s, d)
		}
		v.addName(s, d.Name, d.Refetch)
		return
	}
	v.addName(s, d.Name, false) // if it was restored: others are
	size := 0
	if e := v.w.Generation().Type(d.TypeURL).ByName.Get(d.Name); e.Present() {
		size = e.Resource.Size()
	}
	v.linger.add(d.Name, lingeringName{s, now.Add(jitter(v.cfg.Linger)), size})
}

// wantMembers subscribes to the wildcard of a type. That is the first request of the type on
// its stream, or a new stream is opened for it: so every origin knows its form, and nothing
// that the origin still says of names is taken for a member.
func (v *subscriptions) subscribeMembers(s *subscription, now time.Time) {
	if s.wildcardRole != noStream {
		return
	}
	v.assignStreams(s, true)
	switch l := &v.byRole[s.wildcardRole]; {
	case !l.open:
	case l.requested[s.typeURL]:
		v.reopenFor(s)
	default:
		s.members.beginStream(nil, now)
		v.request(l, s, s.subscribeWildcard(), now)
	}
}

// askMembersAgain has the origin say all members once more: what it said was not to
// be kept (R125). They are given up for that: to name the wildcard where the legacy
// form of it was used goes on with that, and is not answered. Nobody says of what went
// meanwhile, or was about to be said to be gone, that it did: it is looked for (B.15).
//
// To a SotW origin an empty list means all only if it opens the type, and not every server
// knows "*": that takes new streams (R048, R051).
func (v *subscriptions) refetchMembers(s *subscription, now time.Time) {
	switch l := &v.byRole[s.wildcardRole]; {
	case !l.open:
	case l.sotw != nil && wire.LegacyWildcard(s.typeURL):
		v.reopen()
	default:
		v.endQueries(s.members, now)
		s.members.Restart(nil, now)
		v.request(l, s, s.unsubscribeWildcard(), now)
		r := s.subscribeWildcard()
		r.ResourceNamesSubscribe = []string{wire.Wildcard}
		v.request(l, s, r, now)
	}
}

func (v *subscriptions) addName(s *subscription, n *cache.Name, again bool) {
	if _, have := s.names[n]; have {
		if again {
			s.refetch = append(s.refetch, n)
			v.batchSize++
		}
		return
	}
	s.names[n] = struct{}{}
	v.assignStreams(s, s.wildcardRole != noStream)
	s.added = append(s.added, n)
	v.batchSize++
}

// expire gives up what has lingered long enough.
func (v *subscriptions) expireLingering(now time.Time) (next time.Time) {
	expired, next := v.linger.expired(now, v.w.RetainsUnused())
	for s, names := range expired {
		kept := v.w.Forget(s.typeURL, names)
		for _, n := range names {
			if !slices.Contains(kept, n) { // a kept one is in demand, and will be reported
				delete(s.names, n)
				s.removed = append(s.removed, n)
			}
		}
		v.batchSize += len(s.removed)
		v.batchAt = now
	}
	return reconcile.Earlier(next, v.expireMembers(now))
}

// expireMembers gives up the members of types that nobody has wanted for long enough.
func (v *subscriptions) expireMembers(now time.Time) (next time.Time) {
	for _, s := range v.subs {
		if s.wanted || s.prewarm || s.wildcardRole == noStream || s.lingerUntil.IsZero() {
			continue
		}
		if now.Before(s.lingerUntil) {
			next = reconcile.Earlier(next, s.lingerUntil)
			continue
		}
		if v.w.RetainsUnused() {
			continue // those who come back are to find what there was
		}
		s.lingerUntil = time.Time{}
		if !v.w.ForgetWildcard(s.typeURL) {
			continue // wanted again, and about to be reported
		}
		v.endQueries(s.members, now)
		l := &v.byRole[s.wildcardRole]
		v.assignStreams(s, false)
		if l.open {
			v.request(l, s, s.unsubscribeWildcard(), now)
		}
		v.dropIfUnused(s)
	}
	return next
}

// forget drops the subscription of a type that the protocol does not know and of which nothing is wanted: there may be as many as
// clients make up.
func (v *subscriptions) dropIfUnused(s *subscription) {
	if s.wildcardRole == noStream && s.namesRole == noStream && len(s.added)+len(s.refetch)+len(s.removed) == 0 && !s.wanted && !s.prewarm && !wire.Known(s.typeURL) {
		v.group.Drop(s.members.Set)
		v.group.Drop(s.byName.Set)
		delete(v.subs, s.typeURL)
	}
}

// flush sends changes of the names that are wanted, but for those that have to wait.
func (v *subscriptions) flush(now time.Time) {
	v.batchAt, v.batchSize = time.Time{}, 0
	for _, s := range v.ordered() {
		waiting := len(s.added) + len(s.refetch) + len(s.removed)
		if waiting == 0 {
			continue
		}
		if l := &v.byRole[s.namesRole]; l.open {
			if at := s.sendAt(l.sotw, now); now.Before(at) {
				v.batchAt, v.batchSize = reconcile.Earlier(v.batchAt, at), v.batchSize+waiting
				continue
			}
			reqs, asked := s.changes()
			for i, r := range reqs {
				v.request(l, s, r, now)
				if i < len(reqs)-1 && len(r.GetResourceNamesUnsubscribe()) > 0 {
					l.flush(v.node, now) // what is given up to be asked for again is not one change
				}
			}
			v.w.Asked(asked, now)
		}
		s.added, s.refetch, s.removed, s.changedSince = nil, nil, nil, time.Time{} // a stream that opens later states all names
		v.assignStreams(s, s.wildcardRole != noStream)
		v.dropIfUnused(s)
	}
}

// place assigns the wildcard and the names of a type to the streams. If one of them moves to
// the other stream, both streams are replaced: on an open stream, a response does not tell
// whether it is for the wildcard or for names.
func (v *subscriptions) assignStreams(s *subscription, members bool) {
	if !s.assignStreams(members) {
		return
	}
	s.members.Rest()
	if v.byRole[main].open {
		v.reopenFor(s)
	}
}

func (v *subscriptions) reopenFor(s *subscription) {
	v.log.Info("reopening upstream streams for a changed subscription", slog.String("type_url", s.typeURL))
	v.reopen()
}

// resolve asks by name for what the origin has not mentioned on a new stream, and finds out what is gone (B.15).
// It returns when to look again.
func (v *subscriptions) queryMissing(s *set, now time.Time) (next time.Time) {
	if !v.byRole[s.role()].open {
		return time.Time{}
	}
	on := &v.byRole[s.queryRole()]
	due, next := s.Due(now)
	if due {
		names := s.Ask(s.sub.wantedNames(), now)
		v.log.Info("asking by name for resources that the origin no longer mentions",
			slog.String("type_url", s.TypeURL), slog.Int("suspects", len(names)))
		v.change(on, s.sub, names, nil, now)
	}
	if !s.Asking() || !on.open {
		return next // nobody was asked, so silence means nothing
	}
	over, next := s.End(s.sub.wantedNames, now)
	if over {
		v.endQueries(s, now)
	}
	return next
}

// rest ends all doubt about a set: it unsubscribes from all that was asked for by name, but for what clients
// named.
func (v *subscriptions) endQueries(s *set, now time.Time) {
	names := s.sub.withoutWanted(s.Asked())
	s.Rest()
	v.change(&v.byRole[s.queryRole()], s.sub, nil, names, now)
}

// asks notes on whose behalf the next request of a type is made.
func (v *subscriptions) addRequester(s *subscription, d cache.Demand) {
	if v.cfg.Requested != nil && d.By != nil && len(s.requesters) < maxRequesters {
		s.requesters = append(s.requesters, d)
	}
}

// maxAskers is how many of the clients are remembered for whom a type is asked for.
const maxRequesters = 8

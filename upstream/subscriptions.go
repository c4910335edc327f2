package upstream

import (
	"log/slog"
	"slices"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/upstream/reconcile"
)

// batchWait is how long a change in demand waits, so that one request carries several changes (B.5).
const batchWait = 5 * time.Millisecond

// A keptName is a name whose removal an operator dropped before a restart.
type keptName struct {
	name string
	hold *reconcile.Hold
}

// subscriptions are the subscriptions of a view to its origin. They belong to the loop of the view sync.
type subscriptions struct {
	streams
	group *reconcile.Group // all sets, for decisions about removals

	linger         *lingering
	lingeringGlobs int // unused collections
	// names whose removal an operator dropped, of collections without a subscription yet, by collection key
	keptNames map[string][]keptName

	batchSize int // names in the unsent changes

	checks checks
}

// checks perform what is due for a set, and return when to call them again. They depend on responses, too.
type checks struct {
	members    func(s *subscription, now time.Time) (next time.Time)
	collection func(c *collection, now time.Time) (next time.Time)
}

// sub returns the subscription of a branch to a type, and creates it if needed.
func (v *subscriptions) sub(b *branch, typeURL string) *subscription {
	s := b.subs[typeURL]
	if s == nil {
		s = &subscription{branch: b, typeURL: typeURL, names: make(map[*cache.Name]struct{})}
		s.members = v.newSet(s, typeURL, wire.Wildcard, cache.Wildcard)
		s.byName = v.newSet(s, typeURL, "", cache.ByName)
		s.byName.QueriesFor = s.members.Set
		s.check = v.agenda.newTask(rankCheck, typeURL, func(now time.Time) time.Time { return v.checks.members(s, now) })
		s.check.members = true
		b.subs[typeURL] = s
	}
	return s
}

// newSet returns a new set. whole is the name that subscribes to the whole set; empty for resources subscribed to by
// name.
func (v *subscriptions) newSet(s *subscription, key, whole string, kind cache.Kind) *set {
	held := &set{view: &v.streams, sub: s, key: key, kind: kind}
	held.Set = v.group.NewSet(s.typeURL, whole, held)
	return held
}

// ordered returns the subscriptions in the order in which xDS sends types, clusters first.
func (v *subscriptions) ordered() []*subscription {
	if len(v.isolated) == 0 {
		return v.trunk.ordered()
	}
	var all []*subscription
	for b := range v.branches {
		all = append(all, b.ordered()...)
	}
	slices.SortStableFunc(all, compareTypes)
	return all
}

// sets yields all sets of the view.
func (v *subscriptions) sets(yield func(*set) bool) {
	for _, sub := range v.ordered() {
		for s := range sub.sets {
			if !yield(s) {
				return
			}
		}
	}
}

// find returns the set that a client report is about; nil if there is no subscription to it.
func (v *subscriptions) find(of cache.ReportedSet) *set {
	typeURL, glob, isCollection := cache.SplitCollection(of.Key)
	var s *subscription
	for b := range v.branches {
		if s = b.subs[typeURL]; s != nil && (isCollection || of.Kind == cache.ByName || s.wildcardRole != noStream) {
			break
		}
	}
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

// empty reports whether the view has no member of a wildcard set or collection.
func (v *subscriptions) empty(key string) bool {
	return v.w.Generation().Type(key).Wildcard.Count() == 0
}

// present reports whether the view has a resource of a name.
func (v *subscriptions) present(typeURL string, n *cache.Name) bool {
	return v.w.Generation().Type(typeURL).ByName.Get(n).Present()
}

// demandMembers handles a change in the demand of clients for the wildcard of a type.
func (v *subscriptions) demandMembers(s *subscription, d cache.Demand, now time.Time) {
	if !d.Wanted {
		if d.Restored {
			v.subscribeMembers(s, now)
		}
		s.wanted, s.lingerUntil = false, now
		if s.branch == v.trunk || !v.empty(s.typeURL) {
			s.lingerUntil = now.Add(jitter(WildcardLinger(v.cfg.Linger)))
		}
		v.agenda.linger.schedule(s.lingerUntil)
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

// demandName handles a change in the demand of clients for a name. An unused name lingers.
func (v *subscriptions) demandName(s *subscription, d cache.Demand, now time.Time) {
	v.agenda.linger.wake() // another name may be the next to expire, or the limits may be exceeded
	if d.Wanted {
		v.linger.remove(d.Name)
		if _, have := s.names[d.Name]; !have {
			v.addRequester(s, d)
		}
		v.addName(s, d.Name, d.Refetch)
		return
	}
	v.addName(s, d.Name, false) // has an effect only for a name that a snapshot restored
	if s.branch != v.trunk && !v.present(s.typeURL, d.Name) && !v.pending.RetainsUnused() {
		v.forget(s.typeURL, []*cache.Name{d.Name})
		return
	}
	size := 0
	if e := v.w.Generation().Type(d.TypeURL).ByName.Get(d.Name); e.Present() {
		size = e.Resource.Size()
	}
	v.linger.add(d.Name, lingeringName{s.typeURL, now.Add(jitter(v.cfg.Linger)), size})
}

// subscribeMembers subscribes to the wildcard of a type. This must be the first request of the type on its stream.
// Otherwise the relay opens a new stream: every origin supports the form of a first request, and the relay cannot
// mistake a late response to names for one to the wildcard.
func (v *subscriptions) subscribeMembers(s *subscription, now time.Time) {
	if s.wildcardRole != noStream {
		return
	}
	v.assignStreams(s, true)
	s.requestedAt = now
	switch l := s.stream(s.wildcardRole); {
	case !l.open:
		l.early = append(l.early, part{sub: s, wildcard: true})
	case l.requested[s.typeURL]:
		l.early = append(l.early, part{sub: s, wildcard: true})
		v.reopenFor(s)
	default:
		s.members.beginStream(nil, now)
		s.check.wake()
		v.request(l, s, s.subscribeWildcard(), now)
	}
}

// refetchMembers makes the origin send all members again, since the content of some was dropped (R125). The relay
// unsubscribes from the wildcard and subscribes again, because an origin does not respond to "*" after the legacy form.
// The origin does not report removals between the two requests, so the relay queries unmentioned members (B.15).
//
// For a SotW origin, an empty list is a wildcard only in the first request of a type, and not every server supports
// "*". So the relay opens new streams (R048, R051).
func (v *subscriptions) refetchMembers(s *subscription, now time.Time) {
	switch l := s.stream(s.wildcardRole); {
	case !l.open:
	case l.sotw != nil && wire.LegacyWildcard(s.typeURL):
		s.branch.reopen()
	default:
		v.endQueries(s.members, now)
		s.members.Restart(nil, now)
		s.check.wake()
		v.request(l, s, s.unsubscribeWildcard(), now)
		r := s.subscribeWildcard()
		r.ResourceNamesSubscribe = []string{wire.Wildcard}
		v.request(l, s, r, now)
	}
}

// addName subscribes to a name with the next batch. If the name is subscribed to and again is set, the batch requests
// it again.
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
	if l := s.stream(s.namesRole); !l.open {
		l.noteEarlyName(s, n)
	}
}

// expireLingering unsubscribes from names and wildcards that have lingered long enough. It returns when to call it
// again.
func (v *subscriptions) expireLingering(now time.Time) (next time.Time) {
	expired, next := v.linger.expired(now, v.pending.RetainsUnused())
	for typeURL, names := range expired {
		v.forget(typeURL, names)
	}
	if next.IsZero() && v.linger.names.Len() > 0 {
		next = now.Add(frozenLinger)
	}
	return reconcile.Earlier(next, v.expireMembers(now))
}

// forget unsubscribes from unused names of a type with the next batch.
func (v *subscriptions) forget(typeURL string, names []*cache.Name) {
	v.agenda.list.wake()
	kept := v.pending.Forget(typeURL, names)
	for b := range v.branches {
		s := b.subs[typeURL]
		if s == nil {
			continue
		}
		for _, n := range names {
			_, have := s.names[n]
			if have && !slices.Contains(kept, n) { // a client uses a kept name again: the demand is about to arrive
				delete(s.names, n)
				s.removed = append(s.removed, n)
			}
		}
		v.batchSize += len(s.removed)
	}
	v.agenda.batch.wake()
}

// expireMembers unsubscribes from wildcards that have been unused long enough.
func (v *subscriptions) expireMembers(now time.Time) (next time.Time) {
	for _, s := range v.ordered() {
		if s.wanted || s.prewarm || s.wildcardRole == noStream || s.lingerUntil.IsZero() {
			continue
		}
		if now.Before(s.lingerUntil) {
			next = reconcile.Earlier(next, s.lingerUntil)
			continue
		}
		if v.pending.RetainsUnused() {
			next = reconcile.Earlier(next, now.Add(frozenLinger))
			continue // so that returning clients find their resources
		}
		s.lingerUntil = time.Time{}
		v.agenda.list.wake()
		if !v.pending.ForgetWildcard(s.typeURL) {
			continue // a client uses it again: the demand is about to arrive
		}
		v.endQueries(s.members, now)
		l := s.stream(s.wildcardRole)
		v.assignStreams(s, false)
		if l.open {
			v.request(l, s, s.unsubscribeWildcard(), now)
		}
		v.dropIfUnused(s)
	}
	return next
}

// dropIfUnused deletes an empty subscription of an isolated branch, or to a type outside the protocol: clients may
// invent any number of types.
func (v *subscriptions) dropIfUnused(s *subscription) {
	carried := s.wildcardRole != noStream || s.namesRole != noStream
	unsent := len(s.added)+len(s.refetch)+len(s.removed) > 0
	if carried || unsent || s.wanted || s.prewarm || s.branch == v.trunk && wire.Known(s.typeURL) {
		return
	}
	if s.branch.subs[s.typeURL] != s { // dropped before, and the branch may have another one now
		return
	}
	v.group.Drop(s.members.Set)
	v.group.Drop(s.byName.Set)
	delete(s.branch.subs, s.typeURL)
	s.check.cancel()
	v.agenda.decisions.wake()
}

// flush sends the unsent changes of names, except changes on SotW streams that must wait longer. It returns when to send these.
func (v *subscriptions) flush(now time.Time) (next time.Time) {
	v.batchSize = 0
	for _, s := range v.ordered() {
		waiting := len(s.added) + len(s.refetch) + len(s.removed)
		if waiting == 0 {
			continue
		}
		if l := s.stream(s.namesRole); l.open {
			if at := s.sendAt(l.sotw, now); now.Before(at) {
				next, v.batchSize = reconcile.Earlier(next, at), v.batchSize+waiting
				continue
			}
			reqs, asked := s.changes()
			for i, r := range reqs {
				v.request(l, s, r, now)
				if i < len(reqs)-1 && len(r.GetResourceNamesUnsubscribe()) > 0 {
					// separate requests: a name that is removed and added in one request is unchanged
					l.flush(v.node, now)
				}
			}
			v.w.Asked(l.withoutRefused(s.typeURL, asked), now)
		}
		// The changes were sent. Without an open stream they are not needed: a new stream subscribes to all names.
		s.added, s.refetch, s.removed, s.changedSince = nil, nil, nil, time.Time{}
		v.assignStreams(s, s.wildcardRole != noStream)
		v.dropIfUnused(s)
	}
	return next
}

// assignStreams assigns the wildcard and the names of a type to the streams. If one of them moves to the other stream,
// both streams are replaced: on an open stream, the relay cannot determine if a response is for the wildcard or for
// names.
func (v *subscriptions) assignStreams(s *subscription, members bool) {
	v.agenda.streams.wake() // one may be needed, or not any more
	if !s.assignStreams(members) {
		return
	}
	s.members.ClearUnmentioned()
	if s.stream(main).open {
		v.reopenFor(s)
	}
}

// reopenFor reopens the streams because the subscription to a type cannot change on an open stream.
func (v *subscriptions) reopenFor(s *subscription) {
	v.log.Info("reopening upstream streams for a changed subscription", slog.String("type_url", s.typeURL))
	s.branch.reopen()
}

// queryMissing queries by name the resources that the origin has not mentioned on a new stream, and evaluates the
// answers (B.15). It returns when to call it again.
func (v *subscriptions) queryMissing(s *set, now time.Time) (next time.Time) {
	if !s.stream().open {
		return time.Time{}
	}
	on := s.sub.stream(s.queryRole())
	due, next := s.QueryDue(now)
	if due {
		names := s.StartQuery(s.sub.wantedNames(), now)
		v.agenda.streams.wake()
		v.log.Info("querying unmentioned resources by name",
			slog.String("type_url", s.TypeURL), slog.Int("suspects", len(names)))
		v.change(on, s.sub, names, nil, now)
	}
	if !s.Querying() || !on.open {
		return next // no query was sent, so silence is no response
	}
	over, next := s.FinishQuery(s.sub.wantedNames, now)
	if over {
		v.endQueries(s, now)
	}
	return next
}

// endQueries ends the search for missing resources of a set. It unsubscribes from the names that were queried, except
// those that clients subscribe to.
func (v *subscriptions) endQueries(s *set, now time.Time) {
	names := s.sub.withoutWanted(s.Queried())
	s.ClearUnmentioned()
	v.agenda.streams.wake() // the query may have been the only use of one
	v.change(s.sub.stream(s.queryRole()), s.sub, nil, names, now)
}

// addRequester records a client whose demand causes the next request of a type, for Config.Requested.
func (v *subscriptions) addRequester(s *subscription, d cache.Demand) {
	if v.cfg.Requested != nil && d.By != nil && len(s.requesters) < maxRequesters {
		s.requesters = append(s.requesters, d)
	}
}

// maxRequesters is the maximum number of clients that addRequester records per type for the next request.
const maxRequesters = 8

package upstream

import (
	"context"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/pending"
	"github.com/xdstender/tender/upstream/reconcile"
)

// Share keeps w in sync with the shared view from until ctx ends. Many views may share one view, so that the relay
// requests resources once that are the same for all nodes (R130). It subscribes only to resources that clients of w
// subscribe to.
//
// The control applies edits to w; nil disables edits. Operators control removals and freezes at the shared view.
//
// An unused subscription is kept for linger. If w was restored from a snapshot, Share also subscribes to the restored
// resources, which linger from then on.
func Share(ctx context.Context, from *cache.View, list *pending.List, control *Control, linger time.Duration) {
	w := list.Writer()
	w.AwaitReports(time.Now().Add(math.MaxInt64)) // the shared view evaluates client reports
	s := newShare(from, list)
	s.linger, s.trimsUnchanged = linger, !w.Source().Restored.IsZero()
	defer s.close()
	var calls <-chan func(Controlled)
	if control != nil {
		defer control.End()
		control.Begin(s)
		calls = control.Calls()
	}
	s.follow(time.Now())
	for {
		if control != nil {
			control.recordWaiting(list)
		}
		select {
		case <-w.Demand():
			s.demand(time.Now())
		case <-s.watch.C:
		case <-s.pending.Wake():
		case <-s.timer():
		case call := <-calls:
			call(s)
		case <-ctx.Done():
			return
		}
		s.follow(time.Now())
	}
}

// A share keeps one view in sync with a shared view. It starts no goroutine. Only the loop of Share may use it.
type share struct {
	from    *cache.View // the shared view
	pending *pending.List
	w       *cache.Writer // that of pending
	watch   *cache.Watch  // subscriptions of w in from

	types     map[string]*sharedType   // by type URL or collection
	edition   uint64                   // revision of from at the last call of follow
	due       map[*sharedType]struct{} // types to copy even if from has not changed
	lingering map[*sharedType]struct{} // types with an unused subscription
	source    cache.Source             // source of from at the last call of follow
	// name in from by name in w, for which w lacks the time of the request to the origin
	unasked        map[*cache.Name]*cache.Name
	next           time.Time     // when to call follow without an event; zero if nothing expires
	linger         time.Duration // see Share
	trimAt         time.Time     // when to call Trim next
	trimsUnchanged bool          // call Trim also without changes: time confirms names that the origin does not mention
}

// A sharedType is the subscription to one type or one collection of the shared view.
type sharedType struct {
	key         string                      // type URL or collection
	since       time.Time                   // when w began to follow it
	followed    cache.Seq                   // sequence number in from up to which w has the changes
	names       map[*cache.Name]*cache.Name // name in from by name in w
	fromNames   map[*cache.Name]struct{}    // the values of names
	pending     map[*cache.Name]struct{}    // names in from that may receive content without a change of the set
	unwanted    map[*cache.Name]time.Time   // unused names in w, with the end of their linger time
	lingerUntil time.Time                   // of an unused wildcard or collection; zero while it is used
	wildcard    *cache.WildcardWatch        // nil without a subscription to all resources
	restored    bool                        // w may have members of a snapshot that the shared view lacks
}

// newShare returns a share without subscriptions. The caller must call close.
func newShare(from *cache.View, list *pending.List) *share {
	return &share{
		from: from, pending: list, w: list.Writer(), watch: from.Watch(),
		types:     make(map[string]*sharedType),
		due:       make(map[*sharedType]struct{}),
		lingering: make(map[*sharedType]struct{}),
		unasked:   make(map[*cache.Name]*cache.Name),
	}
}

// List implements Controlled.
func (s *share) List() *pending.List { return s.pending }

// Operate implements Controlled. Removals are pending at the shared view; only what waits for an interval is pending here.
func (s *share) Operate(c reconcile.Command) []reconcile.Hold { return c.OperateList(s.pending) }

// Report implements Controlled. It does nothing: the shared view tells the origin.
func (s *share) Report([]Rejection) {}

// Keep implements Controlled. It does nothing, since removals are dropped at the shared view.
func (s *share) Keep([]reconcile.Hold) {}

// timer returns a channel that receives at next; nil if next is zero.
func (s *share) timer() <-chan time.Time {
	if s.next.IsZero() {
		return nil
	}
	return time.After(timerDelay(s.next))
}

// typ returns the subscription to a type or collection, and creates it if needed.
func (s *share) typ(key string) *sharedType {
	t := s.types[key]
	if t == nil {
		t = &sharedType{
			key:       key,
			since:     time.Now(),
			names:     make(map[*cache.Name]*cache.Name),
			fromNames: make(map[*cache.Name]struct{}),
			pending:   make(map[*cache.Name]struct{}),
			unwanted:  make(map[*cache.Name]time.Time),
		}
		s.types[key] = t
	}
	return t
}

// demand handles the changes in the demand of clients of w since the last call. Unused subscriptions linger.
func (s *share) demand(now time.Time) {
	for _, d := range s.w.TakeDemand() {
		t := s.typ(d.TypeURL)
		s.due[t] = struct{}{}
		switch have := t.names[d.Name]; {
		case d.Name == nil:
			s.demandMembers(t, d, now)
		case d.Wanted && have == nil:
			s.subscribe(t, d)
		case d.Wanted && d.Refetch:
			s.watch.Refetch(t.key, have, now)
			s.w.Asked([]*cache.Name{d.Name}, now)
			t.pending[have] = struct{}{} // if the resource is unchanged, the set does not change
		case !d.Wanted:
			if have == nil { // restored from a snapshot
				s.subscribe(t, d)
			}
			t.unwanted[d.Name] = now.Add(s.linger)
			s.forget(t, now)
		}
		if d.Wanted {
			delete(t.unwanted, d.Name)
		}
	}
}

// subscribe subscribes to a name in the shared view.
func (s *share) subscribe(t *sharedType, d cache.Demand) {
	s.watch.SetSubscriber(d.By)
	n := s.watch.Subscribe(t.key, []string{d.Name.String()})[0]
	t.names[d.Name], t.fromNames[n], t.pending[n] = n, struct{}{}, struct{}{}
	s.unasked[d.Name] = n
}

// forget unsubscribes from names and wildcards of a type that have lingered long enough. It keeps resources whose
// newest state waits, so that returning clients find them.
func (s *share) forget(t *sharedType, now time.Time) {
	if !t.lingerUntil.IsZero() && !now.Before(t.lingerUntil) && !s.pending.WithholdsAny(t.key) {
		t.lingerUntil = time.Time{}
		if s.pending.ForgetWildcard(t.key) { // otherwise it is wanted again: the demand is about to arrive
			s.watch.UnsubscribeAll(t.wildcard)
			delete(s.types, t.key)
			delete(s.due, t)
		}
	}
	for n, until := range t.unwanted {
		if !now.Before(until) && !s.pending.Withholds(t.key, n) {
			s.forgetName(t, n)
		}
	}
	if len(t.unwanted) > 0 || !t.lingerUntil.IsZero() {
		s.lingering[t] = struct{}{}
	} else {
		delete(s.lingering, t)
	}
}

// forgetName unsubscribes from a name, unless it is wanted again: then the demand is about to arrive.
func (s *share) forgetName(t *sharedType, n *cache.Name) {
	delete(t.unwanted, n)
	if len(s.pending.Forget(t.key, []*cache.Name{n})) > 0 {
		return
	}
	have := t.names[n]
	s.watch.Unsubscribe(t.key, []*cache.Name{have})
	delete(t.names, n)
	delete(t.fromNames, have)
	delete(t.pending, have)
	delete(s.unasked, n)
	if len(t.names) == 0 && t.wildcard == nil {
		delete(s.types, t.key)
		delete(s.due, t)
	}
}

// demandMembers handles a change in the demand for a wildcard or a collection.
func (s *share) demandMembers(t *sharedType, d cache.Demand, now time.Time) {
	if (d.Wanted || d.Restored) && t.wildcard == nil {
		t.wildcard, t.followed, t.restored = s.watch.SubscribeAll(t.key), 0, d.Restored
	} else if d.Wanted && d.Refetch {
		s.watch.Refetch(t.key, nil, now)
	}
	switch {
	case d.Wanted:
		t.lingerUntil = time.Time{}
	case t.wildcard != nil:
		t.lingerUntil = now.Add(s.linger)
		s.forget(t, now)
	}
}

// markAsked copies the request times of names without a response from the shared view, if the origin is connected.
func (s *share) markAsked(now time.Time) {
	defer clear(s.unasked)
	for name, n := range s.unasked {
		if !name.Asked().IsZero() || !s.from.Generation().From(n).Connected {
			continue
		}
		at := n.Asked()
		if at.IsZero() {
			at = now // the relay is about to send the request
		}
		s.w.Asked([]*cache.Name{name}, at)
	}
}

// follow copies the changes of the shared view and the types in due, then the request times. In the other order, a name
// that was requested long ago but is not copied yet would count as nonexistent.
func (s *share) follow(now time.Time) {
	g := s.from.Generation()
	s.followSource(g)
	for typ := range g.ChangedSince(s.edition) {
		if t := s.types[typ.URL]; t != nil {
			s.due[t] = struct{}{}
		}
	}
	for of, first := range s.w.Reported() {
		if t := s.types[of.Key]; t != nil && !first.IsZero() {
			s.due[t] = struct{}{}
		}
	}
	s.edition = g.Revision
	for t := range s.lingering {
		s.forget(t, now)
	}
	for t := range s.due {
		if t.wildcard != nil {
			s.followMembers(g, t)
		} else {
			s.followNames(g, t)
		}
	}
	clear(s.due)
	s.markAsked(now)
	if !now.Before(s.trimAt) {
		s.w.Trim(now)
		s.trimAt = now.Add(TrimEvery)
	}
	s.next = reconcile.Earlier(s.pending.Step(now), reconcile.Earlier(s.pending.Expire(now), s.nextLinger(now)))
	if s.trimsUnchanged {
		s.next = reconcile.Earlier(s.next, s.trimAt)
	}
}

// nextLinger returns when the next linger time ends; zero if there is none. It omits times in the past, which belong to
// withheld resources: forget checks these on every call of follow.
func (s *share) nextLinger(now time.Time) (next time.Time) {
	for t := range s.lingering {
		next = reconcile.Earlier(next, futureOrZero(t.lingerUntil, now))
		for _, until := range t.unwanted {
			next = reconcile.Earlier(next, futureOrZero(until, now))
		}
	}
	return next
}

// futureOrZero returns t if it is after now, otherwise the zero time.
func futureOrZero(t, now time.Time) time.Time {
	if t.After(now) {
		return t
	}
	return time.Time{}
}

// followSource copies the source of the shared view. All names have the same source. After a change, the request times
// of all names are copied again.
func (s *share) followSource(g *cache.Generation) {
	if from := *g.First(); from != s.source {
		s.pending.SetSource(from)
		s.source = from
		for _, t := range s.types {
			maps.Copy(s.unasked, t.names)
		}
	}
}

// followMembers copies the changes of a wildcard set or collection.
func (s *share) followMembers(g *cache.Generation, t *sharedType) {
	typ := g.Type(t.key)
	var names []*cache.Name
	changedNames(typ, cache.Wildcard, t.followed, func(n *cache.Name) { names = append(names, n) })
	if names = append(names, s.restoredContent(t, &typ.Wildcard)...); len(names) > 0 {
		s.copyNames(cache.Wildcard, g, t, names)
	}
	t.followed = g.Seq
	t.wildcard.Passed(g.Seq)
	s.followPhase(typ, t)
	s.w.DelegateReports(cache.ReportedSet{Key: t.key, Kind: cache.Wildcard}, s.watch)
}

// followPhase copies the phase of a wildcard set or collection. A restored set is more complete than a set of the shared
// view that is not confirmed yet, so its phase does not decrease, and restored members stay until then.
func (s *share) followPhase(is *cache.Type, t *sharedType) {
	phase, mine := is.Phase, s.w.Generation().Type(t.key)
	switch {
	case !t.restored:
	case phase == cache.Confirmed:
		s.removeRestored(is, mine)
		t.restored = false
	default:
		phase = max(phase, mine.Phase)
	}
	s.pending.SetPhase(t.key, phase)
}

// removeRestored removes members that a snapshot restored, also as waiting additions, and that the shared view lacks. The shared view must be
// complete.
func (s *share) removeRestored(is, mine *cache.Type) {
	var removed []string
	lacks := func(name string) bool {
		n := s.from.Find(is.URL, []string{name})[0]
		return n == nil || !is.Wildcard.Get(n).Present()
	}
	for e := range mine.Wildcard.Since(0) {
		if name := e.Name.String(); e.Present() && lacks(name) {
			removed = append(removed, name)
		}
	}
	for name := range s.pending.Added(is.URL) {
		if lacks(name) {
			removed = append(removed, name)
		}
	}
	if len(removed) > 0 {
		s.pending.Apply(cache.Wildcard, wire.Update{TypeURL: mine.URL, Removed: removed})
	}
}

// restoredContent returns members whose content w has dropped and the shared view contains. If the content returns to
// the shared view, its set does not change, so changedNames does not yield these members.
func (s *share) restoredContent(t *sharedType, from *cache.Set) (names []*cache.Name) {
	mine := &s.w.View().Generation().Type(t.key).Wildcard
	if mine.ContentDropped() == 0 {
		return nil
	}
	var texts []string
	for e := range mine.Since(0) {
		if e.Present() && e.Resource.ContentDropped() {
			texts = append(texts, e.Name.String())
		}
	}
	return slices.DeleteFunc(s.from.Find(t.key, texts), func(n *cache.Name) bool {
		if n == nil {
			return true
		}
		e := from.Get(n)
		return !e.Present() || e.Resource.ContentDropped()
	})
}

// followNames copies the changes of the names of a type.
func (s *share) followNames(g *cache.Generation, t *sharedType) {
	typ := g.Type(t.key)
	changed := make(map[*cache.Name]struct{})
	changedNames(typ, cache.ByName, t.followed, func(n *cache.Name) {
		if _, mine := t.fromNames[n]; mine {
			changed[n] = struct{}{}
		}
	})
	for n := range t.pending {
		if typ.ByName.Get(n) != nil || typ.Errors(cache.ByName).Get(n) != nil {
			changed[n] = struct{}{}
		}
	}
	if len(changed) > 0 {
		s.copyNames(cache.ByName, g, t, slices.Collect(maps.Keys(changed)))
	}
	t.followed = g.Seq
	for n := range changed {
		if e := typ.ByName.Get(n); e.Present() && !e.Resource.ContentDropped() {
			delete(t.pending, n)
		} else {
			t.pending[n] = struct{}{}
		}
	}
	s.w.DelegateReports(cache.ReportedSet{Key: t.key, Kind: cache.ByName}, s.watch)
}

// copyNames copies names of a type, with the cause of their change in the shared view. What was received before w
// followed the type concerns w only now: it has no cause.
func (s *share) copyNames(kind cache.Kind, g *cache.Generation, t *sharedType, names []*cache.Name) {
	cause := s.from.Cause(g.Type(t.key).Set(kind).FirstAfter(t.followed))
	if cause.Received.Before(t.since) {
		cause = cache.Cause{}
	}
	s.pending.SetCause(cause)
	s.pending.Copy(kind, s.from, g, t.key, names)
	s.pending.SetCause(cache.Cause{})
}

// changedNames yields the names with a change, a renewal or an error after p.
func changedNames(t *cache.Type, kind cache.Kind, p cache.Seq, yield func(*cache.Name)) {
	set := t.Set(kind)
	for e := range set.Since(p) {
		yield(e.Name)
	}
	for e := range set.RenewedSince(p) {
		yield(e.Name)
	}
	for e := range t.Errors(kind).Since(p) {
		yield(e.Name)
	}
}

// close ends all subscriptions in the shared view and marks w as disconnected.
func (s *share) close() {
	for _, t := range s.types {
		if t.wildcard != nil {
			s.watch.UnsubscribeAll(t.wildcard)
		}
		for _, n := range t.names {
			s.watch.Unsubscribe(t.key, []*cache.Name{n})
		}
	}
	s.watch.Close()
	s.pending.SetConnected(false)
	s.pending.Close()
}

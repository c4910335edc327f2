package upstream

import (
	"context"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/upstream/reconcile"
)

// Share keeps part of a view like another view, of which many may take part, until
// ctx ends: what has a name that means the same to every node need be asked for
// only once (R130). It asks the other view for what is demanded of w, and for nothing
// else.
//
// The control edits w; nil edits nothing. What operators decide about removals and freezes belongs to the other view.
//
// What no client wants any more is kept for linger. A snapshot may have been restored to w: what it holds is asked for, too,
// and lingers from now on.
func Share(ctx context.Context, from *cache.View, w *cache.Writer, control *Control, linger time.Duration) {
	w.AwaitReports(time.Now().Add(math.MaxInt64)) // the other view decides
	s := newShare(from, w)
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
		select {
		case <-w.Demand():
			s.demand(time.Now())
		case <-s.watch.C:
		case <-s.timer():
		case call := <-calls:
			call(s)
		case <-ctx.Done():
			return
		}
		s.follow(time.Now())
	}
}

// A share is one view's part in another. All of it belongs to its loop.
type share struct {
	from  *cache.View
	w     *cache.Writer
	watch *cache.Watch // of from

	types          map[string]*sharedType      // by type URL or collection
	edition        uint64                      // of from, up to which it was followed
	due            map[*sharedType]struct{}    // to be followed whatever has changed
	lingering      map[*sharedType]struct{}    // those with something that no client wants any more
	source         cache.Source                // how the other view's source did when it was looked at last
	unasked        map[*cache.Name]*cache.Name // of from, by that of w, that are not known yet as asked for
	next           time.Time                   // when something expires or has lingered for long enough
	linger         time.Duration
	trimAt         time.Time
	trimsUnchanged bool // also if nothing changes: names that the origin does not mention are confirmed by time
}

// A sharedType is what is taken of one type, or of one collection.
type sharedType struct {
	key         string
	followed    cache.Seq                   // up to where from was looked at
	names       map[*cache.Name]*cache.Name // of from, by that of w
	fromNames   map[*cache.Name]struct{}    // those of from
	pending     map[*cache.Name]struct{}    // of these, those of which something may be said without a change
	unwanted    map[*cache.Name]time.Time   // of w, that no client wants any more, and until when they linger
	lingerUntil time.Time                   // until when the collection lingers, which no client wants any more; zero if one does
	wildcard    *cache.WildcardWatch        // of a collection
}

func newShare(from *cache.View, w *cache.Writer) *share {
	return &share{from: from, w: w, watch: from.Watch(), types: make(map[string]*sharedType), due: make(map[*sharedType]struct{}),
		lingering: make(map[*sharedType]struct{}),
		unasked:   make(map[*cache.Name]*cache.Name)}
}

// Writer implements Controlled.
func (s *share) Writer() *cache.Writer { return s.w }

// Operate implements Controlled: removals are held back by the other view.
func (s *share) Operate(reconcile.Command) []reconcile.Hold { return nil }

// Keep implements Controlled: removals are kept by the other view.
func (s *share) Keep([]reconcile.Hold) {}

func (s *share) timer() <-chan time.Time {
	if s.next.IsZero() {
		return nil
	}
	return time.After(timerDelay(s.next))
}

func (s *share) typ(key string) *sharedType {
	t := s.types[key]
	if t == nil {
		t = &sharedType{
			key:       key,
			names:     make(map[*cache.Name]*cache.Name),
			fromNames: make(map[*cache.Name]struct{}),
			pending:   make(map[*cache.Name]struct{}),

			unwanted: make(map[*cache.Name]time.Time),
		}
		s.types[key] = t
	}
	return t
}

// demand passes on what clients began or ceased to want. What nobody wants any more
// lingers in the other view.
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
			t.pending[have] = struct{}{} // what it is once more is no change
		case !d.Wanted:
			if have == nil { // restored
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

// subscribe asks the other view for a name.
func (s *share) subscribe(t *sharedType, d cache.Demand) {
	s.watch.SetSubscriber(d.By)
	n := s.watch.Subscribe(t.key, []string{d.Name.String()})[0]
	t.names[d.Name], t.fromNames[n], t.pending[n] = n, struct{}{}, struct{}{}
	s.unasked[d.Name] = n
}

// forget gives up what no client wants and has lingered. Those who come back are to find what there was, so what a gate withholds stays until it
// does not.
func (s *share) forget(t *sharedType, now time.Time) {
	if !t.lingerUntil.IsZero() && !now.Before(t.lingerUntil) && !s.w.WithholdsWildcard(t.key) {
		t.lingerUntil = time.Time{}
		if s.w.ForgetWildcard(t.key) { // else it is wanted again, and about to be reported
			s.watch.UnsubscribeAll(t.wildcard)
			delete(s.types, t.key)
			delete(s.due, t)
		}
	}
	for n, until := range t.unwanted {
		if !now.Before(until) && !s.w.Withholds(n) {
			s.forgetName(t, n)
		}
	}
	if len(t.unwanted) > 0 || !t.lingerUntil.IsZero() {
		s.lingering[t] = struct{}{}
	} else {
		delete(s.lingering, t)
	}
}

// forgetName gives up a name, unless it is wanted again, and about to be reported.
func (s *share) forgetName(t *sharedType, n *cache.Name) {
	delete(t.unwanted, n)
	if len(s.w.Forget(t.key, []*cache.Name{n})) > 0 {
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

func (s *share) demandMembers(t *sharedType, d cache.Demand, now time.Time) {
	if (d.Wanted || d.Restored) && t.wildcard == nil {
		t.wildcard, t.followed = s.watch.SubscribeAll(t.key), 0
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

// ask records that the origin has been asked, if it can be, for what was never
// answered.
func (s *share) markAsked(now time.Time) {
	defer clear(s.unasked)
	for name, n := range s.unasked {
		if !name.Asked().IsZero() || !s.from.Generation().From(n).Connected {
			continue
		}
		at := n.Asked()
		if at.IsZero() {
			at = now // it is about to be
		}
		s.w.Asked([]*cache.Name{name}, at)
	}
}

// follow takes over what the other view has learnt: of the types that changed, and of
// those of which something else was demanded; and only then when it asked, for what was
// asked for long ago and is not here would be taken for what is not there.
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
	s.next = reconcile.Earlier(s.w.Expire(now), s.nextLinger(now))
	if s.trimsUnchanged {
		s.next = reconcile.Earlier(s.next, s.trimAt)
	}
}

// lingers returns when something has lingered for long enough; zero if nothing lingers. What is withheld is looked at whenever
// something changes.
func (s *share) nextLinger(now time.Time) (next time.Time) {
	for t := range s.lingering {
		next = reconcile.Earlier(next, futureOrZero(t.lingerUntil, now))
		for _, until := range t.unwanted {
			next = reconcile.Earlier(next, futureOrZero(until, now))
		}
	}
	return next
}

// after returns a time if it is after now, else zero.
func futureOrZero(t, now time.Time) time.Time {
	if t.After(now) {
		return t
	}
	return time.Time{}
}

// stand takes over how the origin stands. All names come from one source.
func (s *share) followSource(g *cache.Generation) {
	if from := *g.First(); from != s.source {
		s.w.SetSource(from)
		s.source = from
		for _, t := range s.types {
			maps.Copy(s.unasked, t.names)
		}
	}
}

func (s *share) followMembers(g *cache.Generation, t *sharedType) {
	typ := g.Type(t.key)
	var names []*cache.Name
	changedNames(typ, cache.Wildcard, t.followed, func(n *cache.Name) { names = append(names, n) })
	if names = append(names, s.restoredContent(t, &typ.Wildcard)...); len(names) > 0 {
		s.copyNames(cache.Wildcard, g, t, names)
	}
	t.followed = g.Seq
	t.wildcard.Passed(g.Seq)
	if mine := s.w.Generation().Type(t.key); !mine.Restored || typ.Phase == cache.Confirmed { // else what was restored is more complete
		if mine.Restored {
			s.removeRestored(typ, mine)
		}
		s.w.SetPhase(t.key, typ.Phase)
	}
	s.w.DelegateReports(cache.ReportedSet{Key: t.key, Kind: cache.Wildcard}, s.watch)
}

// removeRestored removes members that a snapshot held and that the other view, which is complete, lacks.
func (s *share) removeRestored(is, mine *cache.Type) {
	var gone []string
	for e := range mine.Wildcard.Since(0) {
		if n := s.from.Find(is.URL, []string{e.Name.String()})[0]; e.Present() && (n == nil || !is.Wildcard.Get(n).Present()) {
			gone = append(gone, e.Name.String())
		}
	}
	if len(gone) > 0 {
		s.w.Apply(cache.Wildcard, wire.Update{TypeURL: mine.URL, Removed: gone})
	}
}

// restored returns members whose content was given up and that have it in the other
// view, where it came without being a change.
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

func (s *share) followNames(g *cache.Generation, t *sharedType) {
	typ := g.Type(t.key)
	told := make(map[*cache.Name]struct{})
	changedNames(typ, cache.ByName, t.followed, func(n *cache.Name) {
		if _, mine := t.fromNames[n]; mine {
			told[n] = struct{}{}
		}
	})
	for n := range t.pending {
		if typ.ByName.Get(n) != nil || typ.Errors(cache.ByName).Get(n) != nil {
			told[n] = struct{}{}
		}
	}
	if len(told) > 0 {
		s.copyNames(cache.ByName, g, t, slices.Collect(maps.Keys(told)))
	}
	t.followed = g.Seq
	for n := range told {
		if e := typ.ByName.Get(n); e.Present() && !e.Resource.ContentDropped() {
			delete(t.pending, n)
		} else {
			t.pending[n] = struct{}{}
		}
	}
	s.w.DelegateReports(cache.ReportedSet{Key: t.key, Kind: cache.ByName}, s.watch)
}

// copy takes over names of a type, for the reason for which the other view did.
func (s *share) copyNames(kind cache.Kind, g *cache.Generation, t *sharedType, names []*cache.Name) {
	set := &g.Type(t.key).Wildcard
	if kind == cache.ByName {
		set = &g.Type(t.key).ByName
	}
	s.w.SetCause(s.from.Cause(set.FirstAfter(t.followed)))
	s.w.Copy(kind, g, t.key, names)
	s.w.SetCause(cache.Cause{})
}

// changed yields the names of which something was said after p.
func changedNames(t *cache.Type, kind cache.Kind, p cache.Seq, yield func(*cache.Name)) {
	set := &t.Wildcard
	if kind == cache.ByName {
		set = &t.ByName
	}
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
	s.w.SetConnected(false)
}

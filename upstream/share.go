package upstream

import (
	"context"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/xdstender/tender/cache"
)

// Share keeps part of a view like another view, of which many may take part, until
// ctx ends: what has a name that means the same to every node need be asked for
// only once (R130). It asks the other view for what is demanded of w, and for nothing
// else.
func Share(ctx context.Context, from *cache.View, w *cache.Writer) {
	w.AwaitReports(time.Now().Add(math.MaxInt64)) // the other view decides
	s := newShare(from, w)
	defer s.close()
	s.follow(time.Now())
	for {
		select {
		case <-w.Demand():
			s.demand(time.Now())
		case <-s.watch.C:
		case <-s.timer():
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

	types   map[string]*sharedType      // by type URL or collection
	edition uint64                      // of from, up to which it was followed
	due     map[*sharedType]struct{}    // to be followed whatever has changed
	stood   cache.Source                // how the other view's source did when it was looked at last
	asks    map[*cache.Name]*cache.Name // of from, by that of w, that are not known yet as asked for
	next    time.Time                   // when something expires
	trimAt  time.Time
}

// A sharedType is what is taken of one type, or of one collection.
type sharedType struct {
	key      string
	seen     cache.Seq                   // up to where from was looked at
	names    map[*cache.Name]*cache.Name // of from, by that of w
	mine     map[*cache.Name]struct{}    // those of from
	pending  map[*cache.Name]struct{}    // of these, those of which something may be said without a change
	wildcard *cache.WildcardWatch        // of a collection
}

func newShare(from *cache.View, w *cache.Writer) *share {
	return &share{from: from, w: w, watch: from.Watch(), types: make(map[string]*sharedType), due: make(map[*sharedType]struct{}),
		asks: make(map[*cache.Name]*cache.Name)}
}

func (s *share) timer() <-chan time.Time {
	if s.next.IsZero() {
		return nil
	}
	return time.After(until(s.next))
}

func (s *share) typ(key string) *sharedType {
	t := s.types[key]
	if t == nil {
		t = &sharedType{
			key:     key,
			names:   make(map[*cache.Name]*cache.Name),
			mine:    make(map[*cache.Name]struct{}),
			pending: make(map[*cache.Name]struct{}),
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
			s.watch.SetSubscriber(d.By)
			n := s.watch.Subscribe(t.key, []string{d.Name.String()})[0]
			t.names[d.Name], t.mine[n], t.pending[n] = n, struct{}{}, struct{}{}
			s.asks[d.Name] = n
		case d.Wanted && d.Refetch:
			s.watch.Refetch(t.key, have, now)
			s.w.Asked([]*cache.Name{d.Name}, now)
			t.pending[have] = struct{}{} // what it is once more is no change
		case !d.Wanted && have != nil && len(s.w.Forget(t.key, []*cache.Name{d.Name})) == 0:
			s.watch.Unsubscribe(t.key, []*cache.Name{have})
			delete(t.names, d.Name)
			delete(t.mine, have)
			delete(t.pending, have)
			delete(s.asks, d.Name)
			if len(t.names) == 0 && t.wildcard == nil {
				delete(s.types, t.key)
				delete(s.due, t)
			}
		}
	}
}

func (s *share) demandMembers(t *sharedType, d cache.Demand, now time.Time) {
	switch {
	case d.Wanted && t.wildcard == nil:
		t.wildcard, t.seen = s.watch.SubscribeAll(t.key), 0
	case d.Wanted && d.Refetch:
		s.watch.Refetch(t.key, nil, now)
	case !d.Wanted && t.wildcard != nil && s.w.ForgetMembers(t.key):
		s.watch.UnsubscribeAll(t.wildcard)
		delete(s.types, t.key)
		delete(s.due, t)
	}
}

// ask records that the origin has been asked, if it can be, for what was never
// answered.
func (s *share) ask(now time.Time) {
	defer clear(s.asks)
	for name, n := range s.asks {
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
	s.stand(g)
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
	for t := range s.due {
		if t.wildcard != nil {
			s.followMembers(g, t)
		} else {
			s.followNames(g, t)
		}
	}
	clear(s.due)
	s.ask(now)
	if !now.Before(s.trimAt) {
		s.w.Trim(now)
		s.trimAt = now.Add(TrimEvery)
	}
	s.next = s.w.Expire(now)
}

// stand takes over how the origin stands. All names come from one source.
func (s *share) stand(g *cache.Generation) {
	if from := *g.First(); from != s.stood {
		s.w.SetSource(from)
		s.stood = from
		for _, t := range s.types {
			maps.Copy(s.asks, t.names)
		}
	}
}

func (s *share) followMembers(g *cache.Generation, t *sharedType) {
	typ := g.Type(t.key)
	var names []*cache.Name
	changed(typ, cache.Wildcard, t.seen, func(n *cache.Name) { names = append(names, n) })
	if names = append(names, s.restored(t, &typ.Wildcard)...); len(names) > 0 {
		s.copy(cache.Wildcard, g, t, names)
	}
	t.seen = g.Seq
	t.wildcard.Passed(g.Seq)
	s.w.SetPhase(t.key, typ.Phase)
	s.w.DelegateReports(cache.ReportedSet{Key: t.key, Kind: cache.Wildcard}, s.watch)
}

// restored returns members whose content was given up and that have it in the other
// view, where it came without being a change.
func (s *share) restored(t *sharedType, from *cache.Set) (names []*cache.Name) {
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
	changed(typ, cache.ByName, t.seen, func(n *cache.Name) {
		if _, mine := t.mine[n]; mine {
			told[n] = struct{}{}
		}
	})
	for n := range t.pending {
		if typ.ByName.Get(n) != nil || typ.Errors(cache.ByName).Get(n) != nil {
			told[n] = struct{}{}
		}
	}
	if len(told) > 0 {
		s.copy(cache.ByName, g, t, slices.Collect(maps.Keys(told)))
	}
	t.seen = g.Seq
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
func (s *share) copy(kind cache.Kind, g *cache.Generation, t *sharedType, names []*cache.Name) {
	set := &g.Type(t.key).Wildcard
	if kind == cache.ByName {
		set = &g.Type(t.key).ByName
	}
	s.w.SetCause(s.from.Cause(set.FirstAfter(t.seen)))
	s.w.Copy(kind, g, t.key, names)
	s.w.SetCause(cache.Cause{})
}

// changed yields the names of which something was said after p.
func changed(t *cache.Type, kind cache.Kind, p cache.Seq, yield func(*cache.Name)) {
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

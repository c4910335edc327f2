package upstream

import (
	"iter"
	"log/slog"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/upstream/reconcile"
)

// A set is one of the sets of a subscription as the view holds it: the wildcard set, what is asked for by
// name, or a collection.
type set struct {
	*reconcile.Set
	view *viewSync
	sub  *subscription
	key  string // in the view
	kind cache.Kind
}

// newSet returns a set, which the origin is asked for as a whole by a name; none if it is asked for each name.
func (v *viewSync) newSet(s *subscription, key, whole string, kind cache.Kind) *set {
	held := &set{view: v, sub: s, key: key, kind: kind}
	held.Set = v.group.NewSet(s.typeURL, whole, held)
	return held
}

// role returns which stream carries the set.
func (s *set) role() role {
	if s == s.sub.members {
		return s.sub.wildcard
	}
	return s.sub.named
}

// asksOn returns on which stream the origin is asked by name for what it has not mentioned: not on that of the
// wildcard, which does not tell what an answer is to.
func (s *set) asksOn() role {
	if s == s.sub.members {
		return s.sub.wildcard.other()
	}
	return s.sub.named
}

// in returns the set in a generation.
func (s *set) in(g *cache.Generation) *cache.Set {
	t := g.Type(s.key)
	if s.kind == cache.ByName {
		return &t.ByName
	}
	return &t.Wildcard
}

// entries yields what the set holds.
func (s *set) entries(yield func(*cache.Entry) bool) {
	held := s.in(s.view.w.Generation())
	if s.kind == cache.Wildcard {
		for e := range held.Since(0) {
			if e.Present() && !yield(e) {
				return
			}
		}
		return
	}
	for n := range s.sub.names { // others may be of another origin
		if e := held.Get(n); e.Present() && !yield(e) {
			return
		}
	}
}

// Get implements reconcile.Content.
func (s *set) Get(name string) *wire.Resource {
	n := s.view.w.View().Find(s.key, []string{name})[0]
	if n == nil {
		return nil
	}
	if e := s.in(s.view.w.Generation()).Get(n); e.Present() {
		return e.Resource
	}
	return nil
}

// Names implements reconcile.Content. A resource that was asked for by an alias has both names.
func (s *set) Names() iter.Seq[string] {
	return func(yield func(string) bool) {
		for e := range s.entries {
			name := e.Name.String()
			if !yield(name) || name != e.Resource.Name && !yield(e.Resource.Name) {
				return
			}
		}
	}
}

// Count implements reconcile.Content.
func (s *set) Count() (n int) {
	if s.kind == cache.Wildcard {
		return s.in(s.view.w.Generation()).Count()
	}
	for range s.entries {
		n++
	}
	return n
}

// Complete implements reconcile.Content.
func (s *set) Complete() (at time.Time, ok bool) {
	r := s.role()
	if r == nowhere || !s.view.lines[r].open {
		return time.Time{}, false
	}
	return s.Progress.Complete(s.view.lines[r].openedAt, s.view.cfg.ColdWait), true
}

// Remove implements reconcile.Content.
func (s *set) Remove(r *reconcile.Removals) {
	system := s.in(s.view.w.Generation()).System()
	s.view.w.Apply(s.kind, wire.Update{TypeURL: s.key, SystemVersion: system, Resources: r.Emptied, Removed: r.Names, Errors: r.Reasons})
}

// begin notes that the set is about to be stated on a new stream. Told is what the origin is told that is
// held; nil if it is told nothing, or does not look at it.
func (s *set) begin(told map[string]string, now time.Time) {
	held := func(yield func(string, bool) bool) {
		for e := range s.entries {
			_, is := told[e.Resource.Name]
			is = is || told != nil && s == s.sub.members // of which it is told all that can be said
			name := e.Name.String()
			if !yield(name, is) || name != e.Resource.Name && !yield(e.Resource.Name, is) {
				return
			}
		}
	}
	restored := s.kind == cache.Wildcard && s.view.w.Generation().Type(s.key).Restored
	s.Begin(held, s.view.mayResume(&s.view.lines[s.role()]), told != nil && restored, now)
}

// take applies what an origin states of a set, but for the removals that must wait.
func (v *viewSync) take(s *set, u wire.Update, now time.Time) cache.Change {
	c, ignores := s.Take(u, now, func(u wire.Update) cache.Change { return v.w.Apply(s.kind, u) })
	if s.Confirmed(now) {
		v.reports.Stated(cache.ReportedSet{Key: s.key, Kind: s.kind}, u.Gone())
	}
	if ignores {
		v.ignoresVersions(now)
	}
	return c
}

// resolve asks by name for what the origin has not mentioned on a new stream, and finds out what is gone (B.15).
// It returns when to look again.
func (v *viewSync) resolve(s *set, now time.Time) (next time.Time) {
	if r := s.role(); r == nowhere || !v.lines[r].open {
		return time.Time{}
	}
	on := &v.lines[s.asksOn()]
	due, next := s.Due(now)
	if due {
		names := s.Ask(s.sub.wantedNames(), now)
		v.log.Info("asking by name for resources that the origin no longer mentions",
			slog.String("type_url", s.TypeURL), slog.Int("suspects", len(names)))
		if on.open {
			v.change(on, s.sub, names, nil, now)
		}
	}
	if !s.Asking() || !on.open {
		return next // nobody was asked, so silence means nothing
	}
	over, next := s.End(s.sub.wantedNames, now)
	if over {
		v.rest(s, now)
	}
	return next
}

// rest ends all doubt about a set: it unsubscribes from all that was asked for by name, but for what clients
// named.
func (v *viewSync) rest(s *set, now time.Time) {
	names := s.sub.unwanted(s.Asked())
	if s.Rest(); len(names) > 0 {
		if on := &v.lines[s.asksOn()]; on.open {
			v.change(on, s.sub, nil, names, now)
		}
	}
}

// change subscribes to names on a stream, and unsubscribes from others.
func (v *viewSync) change(l *adsStream, s *subscription, subscribe, unsubscribe []string, now time.Time) {
	for _, r := range s.requests(subscribe, unsubscribe) {
		v.request(l, r, now)
	}
}

// newReports returns what decides about what returning clients report.
func (v *viewSync) newReports(cfg reconcile.Config) *reconcile.Reports {
	return reconcile.NewReports(v.w, reconcile.ReportsConfig{
		Config: cfg, Quiet: min(v.cfg.ColdWait, reconcile.ConfirmMax), Again: v.resync,
		Complete: func(of cache.ReportedSet) (at, asked time.Time) {
			s := v.find(of)
			if s == nil {
				return time.Time{}, time.Time{}
			}
			if at, ok := s.Complete(); ok {
				return at, v.lines[s.role()].openedAt
			}
			return time.Time{}, time.Time{}
		},
	})
}

// find returns the set of which something was reported; nil if the view does not follow it.
func (v *viewSync) find(of cache.ReportedSet) *set {
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

// sets yields all sets of a view.
func (v *viewSync) sets(yield func(*set) bool) {
	for _, sub := range v.inOrder() {
		for s := range sub.sets {
			if !yield(s) {
				return
			}
		}
	}
}

// sets yields the sets of a subscription.
func (s *subscription) sets(yield func(*set) bool) {
	if !yield(s.members) || !yield(s.byName) {
		return
	}
	for _, c := range s.collections {
		if !yield(c.set) {
			return
		}
	}
}

// Writer implements Controlled.
func (v *viewSync) Writer() *cache.Writer { return v.w }

// Deciders implements Controlled.
func (v *viewSync) Deciders() []Decider { return []Decider{v.group, v.reports} }

// Keep implements Controlled.
func (v *viewSync) Keep(discarded []reconcile.Hold) {
	for _, hold := range discarded {
		for _, name := range hold.Names {
			s, kept := v.sub(hold.TypeURL), false
			for _, of := range []*set{s.members, s.byName} {
				kept = of.keepHeld(name) || kept
			}
			if !kept { // clients may report it
				v.reports.Keep(hold.TypeURL, name)
			}
			if glob, is := wire.GlobOf(name); is {
				key := cache.Collection(hold.TypeURL, glob)
				v.keeping[key] = append(v.keeping[key], name)
			}
		}
	}
}

// keepHeld keeps a name if the set holds it, and reports whether it does.
func (s *set) keepHeld(name string) (is bool) {
	if is = s.Get(name) != nil; is {
		s.Keep(name)
	}
	return is
}

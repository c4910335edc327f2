package upstream

import (
	"iter"
	"log/slog"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// A guarded set is one of the sets of a subscription, with what decides about removals from it.
type guarded struct {
	sub      *subscription
	key      string // in the view
	kind     cache.Kind
	role     role // of the stream that carries it
	learn    *learning
	removals *removals
	foreign  *heldNames // held from another target than the one that is connected

	// asked are names that the relay asks for on the stream that carries the set, to see whether they are gone. That they are is
	// then an answer, and not a removal that the origin makes.
	asked map[string]struct{}

	collection *collection // nil if it is none
}

// doubts returns the members that may be gone: a new stream has not mentioned them yet, and the origin is not trusted to say of
// itself that they are gone. It returns until when they are in doubt at the latest, if the origin says nothing.
func (v *viewSync) doubts(g guarded, now time.Time) (names map[string]struct{}, until time.Time) {
	trust := v.comparison.at.IsZero() // of an origin that is told what is held, not before content was compared
	switch {
	case g.collection != nil:
		return g.collection.doubts(trust, now)
	case g.kind == cache.Wildcard:
		return g.sub.sweep.doubts(trust, now)
	}
	return nil, time.Time{}
}

// guards returns the sets of a subscription, but for its collections.
func (s *subscription) guards() [2]guarded {
	var asked map[string]struct{}
	if s.sweepsOn(s.named) {
		asked = s.sweep.suspects
	}
	return [2]guarded{
		{s, s.typeURL, cache.Wildcard, s.wildcard, &s.learn, &s.removals[cache.Wildcard], &s.foreign[cache.Wildcard], nil, nil},
		{s, s.typeURL, cache.ByName, s.named, &s.learnNames, &s.removals[cache.ByName], &s.foreign[cache.ByName], asked, nil},
	}
}

// guard returns the set of a collection.
func (c *collection) guard() guarded {
	var asked map[string]struct{}
	if !c.doubt.askedAt.IsZero() {
		asked = c.doubt.marked
	}
	return guarded{c.sub, c.key, cache.Wildcard, c.sub.named, &c.learn, &c.removals, &c.foreign, asked, c}
}

// all returns the sets of a subscription.
func (s *subscription) all() []guarded {
	guards := s.guards()
	all := guards[:]
	for _, c := range s.collections {
		all = append(all, c.guard())
	}
	return all
}

// guards returns all sets of which a removal may be held back.
func (v *viewSync) guards() (all []guarded) {
	for _, s := range v.inOrder() {
		all = append(all, s.all()...)
	}
	return all
}

// take applies what an origin said of a set, but for the removals that must wait.
func (v *viewSync) take(g guarded, u wire.Update, now time.Time) cache.Change {
	g.foreign.drop(u)
	s := v.screening(g, now)
	u = g.removals.screen(u, s)
	c := g.removals.grow(u, s, func() cache.Change { return v.w.Apply(g.kind, u) })
	if s.confirmed {
		v.reported.stated(cache.ReportedSet{Key: g.key, Kind: g.kind}, u.RemovedNames())
	}
	v.recount(g.removals)
	return c
}

// screening returns what is to be known of a set to decide about removals from it.
func (v *viewSync) screening(g guarded, now time.Time) screening {
	at, open := v.confirmedAt(g)
	return screening{
		confirmed:    open && !now.Before(at),
		holdExplicit: v.cfg.HoldExplicit,
		has:          func(name string) *wire.Resource { return v.held(g, name) },
		needed:       v.needed(g, false, now),
		mayBeNeeded:  v.needed(g, true, now),
		asked:        g.asked,
		wait:         v.cfg.MassDeleteHold,
		now:          now,
	}
}

// needed returns whether a name of a set is needed by what stays, and if doubtful is set, by what may be gone and may be held then.
func (v *viewSync) needed(g guarded, doubtful bool, now time.Time) func(name string) bool {
	var is func(name string) bool // made when it is called first: most responses remove nothing
	return func(name string) bool {
		if is == nil {
			is = needed(g.sub.typeURL, func(typeURL string) []*wire.Resource { return v.staying(typeURL, doubtful, now) }, v.names(g))
		}
		return is(name)
	}
}

// confirmedAt returns when all of a set was said on the stream that carries it, if nothing comes until then, and whether that is
// open.
func (v *viewSync) confirmedAt(g guarded) (at time.Time, open bool) {
	if g.role == nowhere || !v.lines[g.role].open {
		return time.Time{}, false
	}
	return g.learn.confirmed(v.lines[g.role].openedAt, v.cfg.ColdWait), true
}

// setOf returns what the view holds of a set.
func (v *viewSync) setOf(g guarded) *cache.Set {
	t := v.w.Generation().Type(g.key)
	if g.kind == cache.ByName {
		return &t.ByName
	}
	return &t.Wildcard
}

// held returns what a set holds by a name; nil if nothing.
func (v *viewSync) held(g guarded, name string) *wire.Resource {
	n := v.w.View().Find(g.key, []string{name})[0]
	if n == nil {
		return nil
	}
	if e := v.setOf(g).Get(n); e.Present() {
		return e.Resource
	}
	return nil
}

// names yields those of the resources that a set holds.
func (v *viewSync) names(g guarded) iter.Seq[string] {
	return func(yield func(string) bool) {
		for e := range v.setOf(g).Since(0) {
			if e.Present() && !yield(e.Name.String()) {
				return
			}
		}
	}
}

// count returns how many resources a set holds.
func (v *viewSync) count(g guarded) (n int) {
	set := v.setOf(g)
	if g.kind == cache.Wildcard {
		return set.Count()
	}
	for name := range g.sub.names { // others may be of another origin
		if set.Get(name).Present() {
			n++
		}
	}
	return n
}

// staying returns the resources of a type that are there although the origin seems to have removed them, and if doubtful is set,
// those that it may have removed too.
func (v *viewSync) staying(typeURL string, doubtful bool, now time.Time) (resources []*wire.Resource) {
	s := v.subs[typeURL]
	if s == nil {
		return nil
	}
	for _, g := range s.all() {
		staying := g.removals.staying()
		if doubtful {
			doubted, _ := v.doubts(g, now)
			for name := range doubted {
				put(&staying, name, struct{}{})
			}
		}
		for name := range staying {
			if r := v.held(g, name); r != nil {
				resources = append(resources, r)
			}
		}
	}
	return resources
}

// needers are the types of resources that name those of a type.
var needers = map[string][]string{
	wire.EndpointType:        {wire.ClusterType},
	wire.RouteType:           {wire.ListenerType, wire.ScopedRouteType},
	wire.SecretType:          {wire.ClusterType, wire.ListenerType},
	wire.ExtensionConfigType: {wire.ListenerType, wire.RouteType},
}

// needed returns whether one of names of a type is needed by something that stays although its origin seems to have removed it:
// such a resource is served, and what it refers to must be. It refers to the names that are a string somewhere in it. What it
// returns looks at all of that once, when it is called first.
func needed(typeURL string, staying func(typeURL string) []*wire.Resource, names iter.Seq[string]) func(name string) bool {
	var found map[string]struct{}
	return func(name string) bool {
		if found == nil {
			found = make(map[string]struct{})
			var by []*wire.Resource
			for _, needer := range needers[typeURL] {
				by = append(by, staying(needer)...)
			}
			if len(by) > 0 {
				findStrings(by, names, found)
			}
		}
		_, is := found[name]
		return is
	}
}

// findStrings adds those of names to found that are a string in resources. A string is preceded by its length, of which it takes
// one byte or, from 128 on, two.
func findStrings(in []*wire.Resource, names iter.Seq[string], found map[string]struct{}) {
	all := make(map[string]struct{})
	var lengths [1 << 14]bool
	for name := range names {
		if len(name) < len(lengths) {
			all[name], lengths[len(name)] = struct{}{}, true
		}
	}
	for _, r := range in {
		value := r.Value()
		for i := range value {
			n, at := int(value[i]), i+1
			if n >= 128 && at < len(value) {
				n, at = n&127|int(value[at])<<7, at+1
			}
			if n >= len(lengths) || !lengths[n] || at+n > len(value) {
				continue
			}
			if _, is := all[string(value[at:at+n])]; is {
				found[string(value[at:at+n])] = struct{}{}
			}
		}
	}
}

// decide decides what can be decided about removals from a set. It returns when to look again.
func (v *viewSync) decide(g guarded, now time.Time) (next time.Time) {
	if g.removals.none() {
		return time.Time{}
	}
	s := v.screening(g, now)
	if v.carryOut(g, g.removals.judge(g.sub.typeURL, v.count(g), s)) {
		next = now // for what waited for it
	}
	if !s.confirmed {
		at, _ := v.confirmedAt(g)
		next = earlier(next, at)
	}
	look, at := g.removals.due(now)
	if look {
		v.resync()
	}
	return earlier(earlier(next, at), g.removals.alarm(g.sub.typeURL, v.log, now))
}

// carryOut removes what was decided to be removed, and logs what was decided. It reports whether that was anything.
func (m *viewSync) carryOut(g guarded, v verdict) (removed bool) {
	typeURL, n := slog.String("type_url", g.sub.typeURL), len(v.removed)+len(v.emptied)
	if v.held > 0 {
		m.session.counters.held.Add(int64(v.held))
		m.log.Error("the origin seems to have lost resources: their removal is held back",
			typeURL, slog.Int("held", len(g.removals.held)), slog.Duration("hold", m.cfg.MassDeleteHold))
	}
	if n > 0 {
		m.w.Apply(g.kind, wire.Update{TypeURL: g.key, SystemVersion: m.setOf(g).System(), Resources: v.emptied, Removed: v.removed, Errors: v.reasons})
		m.session.counters.applied.Add(int64(n))
	}
	switch {
	case v.released > 0:
		m.log.Warn("removals that were held back were released: the resources are removed", typeURL, slog.Int("removed", n))
	case n > 0:
		m.log.Info("removed resources that the origin no longer has", typeURL, slog.Int("removed", n))
	}
	if m.recount(g.removals); m.stays == 0 {
		m.confirm()
	}
	return n > 0
}

// recount counts the removals from a set that are held back, and all that stays.
func (v *viewSync) recount(r *removals) {
	r.count(&v.session.counters.holding)
	stays := len(r.held) + len(r.suspects) + len(r.kept)
	v.stays += stays - r.stays
	r.stays = stays
}

// drop forgets what is held back of a set that nobody wants any more.
func (v *viewSync) drop(r *removals) {
	*r = removals{counted: r.counted, stays: r.stays}
	v.recount(r)
}

// writer implements controlled.
func (v *viewSync) writer() *cache.Writer { return v.w }

// dockets implements controlled.
func (v *viewSync) dockets() (all []docket) {
	for _, g := range v.guards() {
		all = append(all, docket{g.removals, func() []Hold { return v.holds(g) }, func(chosen []Hold, keep bool, now time.Time) {
			v.decided(g, chosen, keep, now)
		}})
	}
	return append(all, v.reported.dockets()...)
}

// holds returns what is held back, and what was kept, of a set.
func (v *viewSync) holds(g guarded) []Hold {
	if g.removals.none() {
		return nil
	}
	return g.removals.holds(g.sub.typeURL, v.undecidedUntil(g, time.Now()))
}

// decided carries out what an operator decided on removals from a set, of which there is no more doubt then.
func (v *viewSync) decided(g guarded, chosen []Hold, keep bool, now time.Time) {
	for _, hold := range chosen {
		if keep {
			v.session.counters.discarded.Add(int64(len(hold.Names)))
			v.log.Warn("removals that were held back were discarded: the resources stay until the origin says something of them",
				slog.String("type_url", g.sub.typeURL), slog.Int("kept", len(hold.Names)))
		}
		for _, name := range hold.Names {
			if g.kind == cache.Wildcard && g.key == g.sub.typeURL {
				g.sub.sweep.clear(name)
			}
		}
	}
	v.decide(g, now)
}

// undecidedUntil returns when the suspects of a set are decided: when the set is confirmed, and nothing that is held back
// needs them.
func (v *viewSync) undecidedUntil(g guarded, now time.Time) (until time.Time) {
	until, open := v.confirmedAt(g)
	if !open {
		return time.Time{}
	}
	for _, needer := range needers[g.sub.typeURL] {
		if s := v.subs[needer]; s != nil {
			for _, g := range s.all() {
				_, doubted := v.doubts(g, now)
				until = later(until, later(g.removals.until, doubted))
			}
		}
	}
	return until
}

// keep implements controlled.
func (v *viewSync) keep(discarded []Hold) {
	for _, hold := range discarded {
		for _, name := range hold.Names {
			kept := false
			for _, g := range v.sub(hold.TypeURL).guards() {
				kept = v.keepOf(g, name) || kept
			}
			if !kept { // clients may report it
				v.reported.keep(hold.TypeURL, name)
			}
			if glob, is := wire.GlobOf(name); is {
				put(&v.keeping, cache.Collection(hold.TypeURL, glob), append(v.keeping[cache.Collection(hold.TypeURL, glob)], name))
			}
		}
	}
}

// keepOf keeps a name if a set holds it, and reports whether it does.
func (v *viewSync) keepOf(g guarded, name string) (is bool) {
	if is = v.held(g, name) != nil; is {
		put(&g.removals.kept, name, removal{})
		v.recount(g.removals)
	}
	return is
}

package upstream

import (
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// A collection is a subscription to a glob: to the origin it is a name, to the view a
// set of members (R132). Whatever the origin says of a name that the glob matches
// belongs to it, so it can share a stream with names.
type collection struct {
	sub   *subscription
	glob  string
	key   string    // of the view
	until time.Time // when lingering ends; zero while a client wants it
	learn learning  // what is known of the members
	doubt doubt     // what a resync has not mentioned again

	removals removals

	foreign heldNames // held from another target than the one that is connected

	// Of the mirror's agenda.
	at    time.Time // when to look; zero if it is not in there
	place int
}

// restate prepares for a new stream: it adds what is held to the versions that the
// origin is told, but for what it had not mentioned itself.
func (c *collection) restate(g *cache.Generation, versions map[string]string) {
	old, t := c.doubt.marked, g.Type(c.key)
	c.learn, c.doubt = learning{}, doubt{told: make(heldNames), marked: namesIn(&t.Wildcard)}
	if t.Phase != cache.Confirmed && !t.Restored {
		return
	}
	for e := range t.Wildcard.Since(0) {
		if !e.Present() || !sayable(e.Resource) {
			continue
		}
		_, doubtful := old[e.Resource.Name]
		_, foreign := c.foreign[e.Resource.Name]
		if !doubtful && !foreign {
			versions[e.Resource.Name] = heldVersion(e.Resource)
			c.doubt.told[e.Resource.Name] = struct{}{}
			delete(c.doubt.marked, e.Resource.Name)
		}
	}
}

// doubts returns the members that may be gone, and until when that is not known at the latest.
func (c *collection) doubts(trust bool, now time.Time) (names map[string]struct{}, until time.Time) {
	d := &c.doubt
	if until = d.began.Add(confirmMax); !trust && len(d.told) > 0 && now.Before(until) {
		names = maps.Clone(d.told)
		for name := range d.marked {
			put(&names, name, struct{}{})
		}
		return names, until
	}
	switch {
	case len(d.marked) == 0:
		return nil, time.Time{}
	case !d.askedAt.IsZero():
		return d.marked, d.askedAt.Add(sweepQuiet)
	}
	return d.marked, d.began.Add(2 * sweepQuiet)
}

// trust begins to wait for what the origin says on a new stream. Unless it was told
// what is held, and can be expected to look at it, all of that is in doubt.
func (v *viewSync) trust(s *subscription, told bool, now time.Time) {
	for _, c := range s.collections {
		if c.doubt.began = now; !told {
			c.doubt.distrust(now)
		} else if v.w.Generation().Type(c.key).Restored {
			c.learn.told = now
		}
		v.agenda.put(c, now)
	}
}

// heard takes what an origin said of the members.
func (v *viewSync) heard(c *collection, u wire.Update, change cache.Change, now time.Time) {
	c.learn.heard(now, change.New > 0, v.cfg.ColdWait)
	if c.doubt.heard(u, change.Same > 0, now) {
		v.ignoresVersions(now)
	}
	v.agenda.put(c, now)
}

// look does what it is time for with a collection, and returns when to look again if
// nothing happens.
func (v *viewSync) look(c *collection, now time.Time) (next time.Time) {
	if v.expired(c, now) {
		return time.Time{}
	}
	next = earlier(v.learnedOf(c.key, &c.learn, c.doubt.none(), now), v.decide(c.guard(), now))
	return earlier(earlier(next, v.resolve(c.sub, c, now)), c.until)
}

// resolve asks for members in doubt by name, once the origin has been quiet for a
// while, and after as long again lets them go. It returns when to look again.
func (v *viewSync) resolve(s *subscription, c *collection, now time.Time) (next time.Time) {
	d, l := &c.doubt, &v.lines[s.named]
	if len(d.marked)+len(d.asked) == 0 || !l.open {
		return time.Time{}
	}
	if d.askedAt.IsZero() {
		if next = d.began.Add(sweepQuiet); c.learn.last.After(d.began) {
			next = c.learn.last.Add(sweepQuiet)
		}
		if now.Before(next) {
			return next
		}
		d.asked, d.askedAt = slices.Sorted(maps.Keys(d.marked)), now
		v.log.Info("the origin no longer mentions resources that it had: asking for them by name",
			slog.String("type_url", s.typeURL), slog.Int("suspects", len(d.asked)))
		v.change(l, s, d.asked, nil, now)
	}
	if next = d.askedAt.Add(sweepQuiet); len(d.marked) > 0 && now.Before(next) {
		return next
	}
	v.change(l, s, nil, s.unwanted(d.asked), now)
	d.asked, d.askedAt = nil, time.Time{}
	clear(d.marked)
	return time.Time{}
}

// unlearn forgets the timing of the responses of a stream that has ended: the silence
// of a lost origin completes nothing.
func (s *subscription) unlearn(r role) {
	for _, g := range s.all() {
		if g.role == r {
			*g.learn = learning{}
		}
	}
}

// demandCollection takes over that clients began or ceased to want a glob, or want to
// have it all again, since it was not to be kept (R125). It returns whether the origin
// has to be asked for it.
func (v *viewSync) demandCollection(s *subscription, glob string, d cache.Demand, now time.Time) (ask bool) {
	c := s.collections[glob]
	switch {
	case !d.Wanted && c == nil && d.Restored:
		v.letLinger(v.follow(s, glob, d.TypeURL), now)
		return true
	case !d.Wanted && c != nil:
		v.letLinger(c, now)
		return false
	case !d.Wanted:
		return false
	case c != nil:
		v.unlinger(c)
		return d.Refetch
	}
	v.follow(s, glob, d.TypeURL)
	return true
}

// follow begins to follow a glob.
func (v *viewSync) follow(s *subscription, glob, key string) *collection {
	if s.collections == nil {
		s.collections = make(map[string]*collection)
	}
	c := &collection{sub: s, glob: glob, key: key}
	s.collections[glob] = c
	v.place(s, s.wildcard != nowhere)
	for _, name := range v.keeping[key] {
		v.keepOf(c.guard(), name)
	}
	delete(v.keeping, key)
	return c
}

// maxLingeringGlobs bounds the globs that linger: a client may go through any number of
// them. One that is too many is given up at once.
const maxLingeringGlobs = 1000

// frozenLinger is how often a glob that has lingered long enough is looked at while the
// view is frozen.
const frozenLinger = time.Minute

// letLinger notes that no client wants a glob any more.
func (v *viewSync) letLinger(c *collection, now time.Time) {
	v.unlinger(c)
	if c.until = now; v.lingeringGlobs < maxLingeringGlobs {
		c.until = now.Add(jitter(v.cfg.WildcardLinger))
	}
	v.lingeringGlobs++
	v.agenda.put(c, c.until)
}

// unlinger undoes letLinger.
func (v *viewSync) unlinger(c *collection) {
	if !c.until.IsZero() {
		c.until = time.Time{}
		v.lingeringGlobs--
	}
}

// expired gives up a glob that has lingered long enough, and reports whether it did.
func (v *viewSync) expired(c *collection, now time.Time) bool {
	if c.until.IsZero() || now.Before(c.until) {
		return false
	}
	if v.w.Frozen() && v.lingeringGlobs <= maxLingeringGlobs {
		c.until = now.Add(frozenLinger) // those who come back are to find what there was
		return false
	}
	v.unlinger(c)
	if !v.w.ForgetMembers(c.key) {
		return false // wanted again, and about to be reported
	}
	s := c.sub
	delete(s.collections, c.glob)
	v.agenda.drop(c)
	v.drop(&c.removals)
	if l := &v.lines[s.named]; l.open {
		v.change(l, s, nil, append(s.unwanted(c.doubt.asked), c.glob), now)
	}
	v.place(s, s.wildcard != nowhere)
	return true
}

// applyCollections gives each collection its part of an update, and returns the
// update without the names of the globs themselves.
func (v *viewSync) applyCollections(s *subscription, u wire.Update, now time.Time) wire.Update {
	if len(s.collections) == 0 {
		return u
	}
	named := u
	named.Removed = nil
	var empty []*collection
	for _, name := range u.Removed {
		if c := s.collections[name]; c != nil {
			empty = append(empty, c)
		} else {
			named.Removed = append(named.Removed, name)
		}
	}
	for _, e := range u.Errors {
		if c := s.collections[e.Name]; c != nil && e.NotFound() {
			empty = append(empty, c)
		}
	}
	for key, p := range parts(named, s.collectionOf) {
		_, glob, _ := cache.SplitCollection(key)
		of := s.collections[glob]
		change := v.take(of.guard(), *p, now)
		if p.Fails(glob) {
			continue // which says nothing about what there is
		}
		v.heard(of, *p, change, now)
	}
	for _, c := range empty {
		v.emptied(c, u, now)
	}
	return named
}

// collectionOf returns the key of the collection that a name belongs to, or is the glob of; nothing if it is not followed.
func (s *subscription) collectionOf(name string) (key string) {
	glob, ok := wire.GlobOf(name)
	if !ok {
		glob = name // what is said of the glob itself
	}
	if c := s.collections[glob]; c != nil {
		key = c.key
	}
	return key
}

// parts returns what an update says of collections, by key, but for those of which it says nothing. KeyOf returns that of the
// collection that a name belongs to; nothing if it is not followed.
func parts(u wire.Update, keyOf func(name string) (key string)) map[string]*wire.Update {
	out := make(map[string]*wire.Update)
	part := func(name string) *wire.Update {
		key := keyOf(name)
		if out[key] == nil && key != "" {
			out[key] = &wire.Update{TypeURL: key, SystemVersion: u.SystemVersion, ControlPlane: u.ControlPlane}
		}
		return out[key]
	}
	for _, r := range u.Resources {
		if p := part(r.Name); p != nil {
			p.Resources = append(p.Resources, r)
		}
	}
	for _, name := range u.Removed {
		if p := part(name); p != nil {
			p.Removed = append(p.Removed, name)
		}
	}
	for _, v := range u.RemovedVariants {
		if p := part(v.Name); p != nil {
			p.RemovedVariants = append(p.RemovedVariants, v)
		}
	}
	for _, e := range u.Errors {
		if p := part(e.Name); p != nil {
			p.Errors = append(p.Errors, e)
		}
	}
	return out
}

// emptied takes the origin's word that a glob matches nothing: then nothing more is to
// be waited for.
func (v *viewSync) emptied(c *collection, u wire.Update, now time.Time) {
	u = wire.Update{TypeURL: c.key, SystemVersion: u.SystemVersion, ControlPlane: u.ControlPlane}
	for e := range v.w.Generation().Type(c.key).Wildcard.Since(0) {
		if e.Present() {
			u.Removed = append(u.Removed, e.Resource.Name)
		}
	}
	v.heard(c, u, v.take(c.guard(), u, now), now)
	v.setPhase(c.key, cache.Confirmed, now)
}

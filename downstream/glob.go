package downstream

import (
	"slices"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// splitGlobs returns the names and the globs among texts.
func splitGlobs(texts []string) (names, globs []string) {
	if !slices.ContainsFunc(texts, wire.Glob) {
		return texts, nil
	}
	for _, text := range texts {
		if wire.Glob(text) {
			globs = append(globs, text)
		} else {
			names = append(names, text)
		}
	}
	return names, globs
}

// addGlobs subscribes to globs. One that is named again is answered again, in full
// (R084). What the client said it holds counts only in its first request.
func (s *subscription) addGlobs(globs []string, first bool, now time.Time) {
	for _, text := range globs {
		g := s.findGlob(text)
		if g == nil {
			g = s.newGlob(text, now)
			s.globs = append(s.globs, g)
		}
		if !first {
			g.fresh, g.sent, g.known, g.knownN = true, 0, nil, 0
		}
		s.until = now // see add
	}
}

// newGlob subscribes to a glob. What the client says it holds of it is no longer the
// type's own affair, but for what it also named.
func (s *subscription) newGlob(text string, now time.Time) *subscription {
	s.explicit = true
	g := &subscription{
		traits: s.traits, conversation: s.conversation,
		key: cache.Collection(s.typeURL, text), glob: text, parent: s,
		delta: s.delta, wrap: s.wrap, ttl: s.ttl, errors: s.errors, forgetful: s.forgetful,
		watch: s.watch, cfg: s.cfg, log: s.log,
		begun: true, explicit: true, since: now,
	}
	if g.wrap != wire.Bare {
		g.wrap = wire.WrapEveryone // or a SotW client would not learn the names (B.19)
	}
	for name, version := range s.known {
		if of, ok := wire.GlobOf(name); ok && of == text {
			if g.known == nil {
				g.known = make(map[string]string)
			}
			g.known[name] = version
			if _, named := s.find(s.watch.Find(s.key, []string{name})[0]); !named {
				delete(s.known, name)
			}
		}
	}
	g.knownN = len(g.known)
	g.subscribeAll()
	return g
}

// dropGlobs ends the subscriptions to the globs among texts, and returns the rest.
func (s *subscription) dropGlobs(texts []string) (rest []string) {
	if len(s.globs) == 0 {
		return texts
	}
	for _, text := range texts {
		if g := s.findGlob(text); g != nil {
			g.close()
			s.globs = slices.DeleteFunc(s.globs, func(have *subscription) bool { return have == g })
			continue
		}
		rest = append(rest, text)
	}
	return rest
}

// replaceGlobs makes the globs among texts those of the subscription, and returns the
// rest.
func (s *subscription) replaceGlobs(texts []string, now time.Time) (rest []string) {
	rest, globs := splitGlobs(texts)
	for _, g := range slices.Clone(s.globs) {
		if !slices.Contains(globs, g.glob) {
			s.dropGlobs([]string{g.glob})
		}
	}
	for _, text := range globs {
		if s.findGlob(text) == nil {
			s.globs = append(s.globs, s.newGlob(text, now))
		}
	}
	return rest
}

func (s *subscription) findGlob(text string) *subscription {
	for _, g := range s.globs {
		if g.glob == text {
			return g
		}
	}
	return nil
}

// matchesNothing tells a client whose glob is empty: by its name (R132).
func (s *subscription) matchesNothing(w *writer) {
	if s.glob != "" && w.typ.Members.Count() == 0 {
		w.remove(s.glob)
	}
}

// shows reports whether the client sees a resource other than by a glob.
func (s *subscription) shows(t *cache.Type, n *cache.Name) bool {
	if _, named := s.find(n); named {
		e, _ := t.Lookup(n)
		return e.Present()
	}
	return n != nil && s.wildcard != nil && t.Members.Get(n).Present()
}

// keeps reports whether the client goes on seeing a resource, which is gone from what
// it subscribed to, by what else it subscribed to: a glob is another set than the
// wildcard of the type, and may be another origin's.
func (s *subscription) keeps(h *cache.Head, name string) bool {
	if p := s.parent; p != nil {
		return p.shows(h.Type(p.key), s.watch.Find(p.key, []string{name})[0])
	}
	if len(s.globs) == 0 {
		return false
	}
	glob, _ := wire.GlobOf(name)
	g := s.findGlob(glob)
	return g != nil && g.shows(h.Type(g.key), s.watch.Find(g.key, []string{name})[0])
}

// addedBy returns what a glob adds to the sum of what the client sees (B.2).
func (s *subscription) addedBy(h *cache.Head, g *subscription) cache.Sum {
	t, own := h.Type(g.key), h.Type(s.key)
	sum := t.Members.Sum()
	if s.wildcard == nil && len(s.names) == 0 {
		return sum
	}
	var names []string
	var leaves []cache.Sum
	for e := range t.Members.Since(0) {
		if e.Present() {
			names, leaves = append(names, e.Name.String()), append(leaves, e.Leaf)
		}
	}
	for i, n := range s.watch.Find(s.key, names) {
		if s.shows(own, n) {
			sum = sum.Sub(leaves[i])
		}
	}
	return sum
}

// unsettledUntil returns until when a complete SotW set waits for what its globs stand
// for, as it does for names: an origin may know nothing of globs, and say nothing. A
// glob that is added to a set that the client has holds nothing back.
func (s *subscription) unsettledUntil(h *cache.Head) (until time.Time) {
	if s.synced {
		return time.Time{}
	}
	for _, g := range s.globs {
		if h.Type(g.key).Phase >= s.neededPhase() {
			continue
		}
		from, asked := h.MembersFrom(g.key), g.since
		switch {
		case !from.Connected && s.version != "":
			return forever
		case from.Connected && from.Since.After(asked):
			asked = from.Since // it is asked anew on each connection
		}
		wait := asked.Add(resolveWait)
		if s.version != "" && !from.Heard {
			wait = wait.Add(coldMargin)
		}
		if wait.After(until) {
			until = wait
		}
	}
	return until
}

// memberOf returns the subscription to members that a resource, which the client did not
// name, would be one of; nil if there is none.
func (s *subscription) memberOf(name string) *subscription {
	if glob, ok := wire.GlobOf(name); ok {
		if g := s.findGlob(glob); g != nil {
			return g
		}
	}
	if s.wildcard != nil {
		return s
	}
	return nil
}

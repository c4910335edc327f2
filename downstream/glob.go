package downstream

import (
	"cmp"
	"iter"
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

// sortedSet returns texts in order, each once, in their place.
func sortedSet(texts []string) []string {
	slices.Sort(texts)
	return slices.Compact(texts)
}

// addGlobs subscribes to globs. One that is named again is answered again, in full
// (R084). What the client said it holds counts only in its first request.
func (s *subscription) addGlobs(globs []string, first bool, now time.Time) {
	began := make(map[string]*subscription)
	for _, text := range globs {
		if s.findGlob(text) == nil {
			began[text] = s.newGlob(text, now)
		}
	}
	s.moveInitialVersions(began)
	for _, text := range globs {
		if glob := s.findGlob(text); !first {
			glob.sendAll, glob.sentUpTo, glob.initialVersions, glob.initialCount, glob.idle = true, 0, nil, 0, false
		}
		s.ackDeadline = now // see add
	}
}

// newGlob subscribes to a glob.
func (s *subscription) newGlob(text string, now time.Time) *subscription {
	s.explicit = true
	glob := &subscription{
		Traits: s.Traits, conversation: s.conversation, client: s.client,
		key: cache.Collection(s.TypeURL, text), glob: text, parent: s,
		wrap: s.wrap, sendsTTLs: s.sendsTTLs,
		started: true, explicit: true, namesSince: now,
	}
	if glob.wrap != wire.Bare {
		glob.wrap = wire.WrapEveryone // or a SotW client would not learn the names (B.19)
	}
	glob.subscribeAll()
	at, _ := s.searchGlob(text)
	s.globs = slices.Insert(s.globs, at, glob)
	return glob
}

// handOver gives globs that were just subscribed to what the client says it holds of
// them: that is no longer the type's own affair, but for what it also named.
func (s *subscription) moveInitialVersions(globs map[string]*subscription) {
	if len(globs) == 0 {
		return
	}
	var texts []string
	for text, version := range s.initialVersions {
		glob, _ := wire.GlobOf(text)
		if g := globs[glob]; g != nil {
			if g.initialVersions == nil {
				g.initialVersions = make(map[string]string)
			}
			g.initialVersions[text] = version
			g.initialCount++
			texts = append(texts, text)
		}
	}
	for i, n := range s.watch.Find(s.key, texts) {
		if _, named := s.find(n); !named {
			delete(s.initialVersions, texts[i])
		}
	}
	for _, g := range globs {
		g.reportMembers(nil)
	}
}

// dropGlobs ends the subscriptions to the globs among texts, and returns the rest.
func (s *subscription) dropGlobs(texts []string) (rest []string) {
	if len(s.globs) == 0 {
		return texts
	}
	for _, text := range texts {
		if at, have := s.searchGlob(text); have {
			s.globs[at].close()
			s.globs = slices.Delete(s.globs, at, at+1)
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
	globs = sortedSet(globs)
	s.globs = slices.DeleteFunc(s.globs, func(glob *subscription) bool {
		_, listed := slices.BinarySearch(globs, glob.glob)
		if !listed {
			glob.close()
		}
		return !listed
	})
	for _, text := range globs {
		if s.findGlob(text) == nil {
			s.newGlob(text, now)
		}
	}
	return rest
}

// searchGlob returns where a glob stands among the subscribed, or would.
func (s *subscription) searchGlob(text string) (at int, have bool) {
	return slices.BinarySearchFunc(s.globs, text, func(glob *subscription, text string) int { return cmp.Compare(glob.glob, text) })
}

func (s *subscription) findGlob(text string) *subscription {
	if at, have := s.searchGlob(text); have {
		return s.globs[at]
	}
	return nil
}

// followed yields the subscriptions to members: to those of the type, and to each glob.
func (s *subscription) followed() iter.Seq[*subscription] {
	return func(yield func(*subscription) bool) {
		if s.wildcard != nil && !yield(s) {
			return
		}
		for _, glob := range s.globs {
			if !yield(glob) {
				return
			}
		}
	}
}

// apart returns the globs that are served on their own: a complete SotW set holds what
// they match, all else is answered for each.
func (s *subscription) separateGlobs() []*subscription {
	if !s.delta && s.FullState {
		return nil
	}
	return s.globs
}

// inTurn yields the type's own subscription and its globs, which share one outstanding
// response: first what comes after the one that was sent something last, so that none
// keeps the others waiting, however much there is to say of it. What rests is left out.
func (s *subscription) parts() iter.Seq[*subscription] {
	return func(yield func(*subscription) bool) {
		globs := s.separateGlobs()
		if len(globs) == 0 {
			yield(s)
			return
		}
		first, n := s.nextPart, 1+len(globs)
		for i := range n {
			at := (first + i) % n
			part := s
			if at > 0 {
				part = globs[at-1]
			}
			if part.idle {
				continue
			}
			said := s.nonce
			if !yield(part) {
				return
			}
			if s.nonce != said {
				s.nextPart = at + 1
			}
		}
	}
}

// rest leaves globs alone of which the client knows everything, until something changes.
func (s *subscription) settleGlobs(g *cache.Generation) {
	for _, glob := range s.separateGlobs() {
		glob.idle = glob.idle || !glob.behind(g.Type(glob.key))
	}
}

// matchesNothing tells a client whose glob is empty: by its name (R132).
func (s *subscription) removeEmptyGlob(w *writer) {
	if s.glob != "" && w.typ.Wildcard.Count() == 0 {
		w.remove(s.glob)
	}
}

// shows reports whether the client sees a resource other than by a glob.
func (s *subscription) showsDirectly(t *cache.Type, n *cache.Name) bool {
	if at, named := s.find(n); named {
		e, _ := s.see(t, s.names[at])
		return e.Present()
	}
	if n == nil || s.wildcard == nil {
		return false
	}
	member := t.Wildcard.Get(n)
	return member.Present() && !s.withheld(t, member)
}

// keeps reports whether the client goes on seeing a resource, which is gone from what
// it subscribed to, by what else it subscribed to: a glob is another set than the
// wildcard of the type, and may be another origin's.
func (s *subscription) visibleElsewhere(h *cache.Generation, name string) bool {
	if p := s.parent; p != nil {
		return p.showsDirectly(h.Type(p.key), s.watch.Find(p.key, []string{name})[0])
	}
	if len(s.globs) == 0 {
		return false
	}
	glob, _ := wire.GlobOf(name)
	g := s.findGlob(glob)
	return g != nil && g.showsDirectly(h.Type(g.key), s.watch.Find(g.key, []string{name})[0])
}

// unsettledUntil returns until when a complete SotW set waits for what its globs stand
// for, as it does for names: an origin may know nothing of globs, and say nothing. A
// glob that is added to a set that the client has holds nothing back.
func (s *subscription) globsResolvedBy(g *cache.Generation) (until time.Time) {
	if s.holdsSet {
		return time.Time{}
	}
	for _, glob := range s.globs {
		if s.settledEnough(g.Type(glob.key)) {
			continue
		}
		from, asked := g.WildcardSource(glob.key), glob.namesSince
		switch {
		case !from.Connected && s.initialVersion != "":
			return forever
		case from.Connected && from.Since.After(asked):
			asked = from.Since // it is asked anew on each connection
		}
		wait := asked.Add(resolveWait)
		if s.initialVersion != "" && !from.Heard {
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

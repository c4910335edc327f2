package downstream

import (
	"slices"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// addGlobs subscribes to the globs among texts, and returns the rest. One that is
// named again is answered again (R084).
func (s *subscription) addGlobs(texts []string) (rest []string) {
	if !slices.ContainsFunc(texts, wire.Glob) {
		return texts
	}
	for _, text := range texts {
		if !wire.Glob(text) {
			rest = append(rest, text)
			continue
		}
		if g := s.findGlob(text); g != nil {
			g.fresh, g.sent, g.knownN, g.failures.whole = true, 0, 0, true
			continue
		}
		s.globs = append(s.globs, s.newGlob(text))
	}
	return rest
}

// newGlob subscribes to a glob. What the client says it holds of it is no longer the
// type's own affair.
func (s *subscription) newGlob(text string) *subscription {
	s.explicit = true
	g := &subscription{
		traits: s.traits, conversation: s.conversation,
		key: cache.Collection(s.typeURL, text), glob: text, parent: s,
		delta: s.delta, wrap: s.wrap, ttl: s.ttl, errors: s.errors, forgetful: s.forgetful,
		watch: s.watch, cfg: s.cfg, log: s.log,
		begun: true, explicit: true,
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
			delete(s.known, name)
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
func (s *subscription) replaceGlobs(texts []string) (rest []string) {
	for _, g := range slices.Clone(s.globs) {
		if !slices.Contains(texts, g.glob) {
			s.dropGlobs([]string{g.glob})
		}
	}
	for _, text := range texts {
		switch {
		case !wire.Glob(text):
			rest = append(rest, text)
		case s.findGlob(text) == nil:
			s.globs = append(s.globs, s.newGlob(text))
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

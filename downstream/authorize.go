package downstream

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream/guard"
)

// An Authorizer says which nodes a client may be, and what it may ask for then (B.36, B.37). Its
// methods may be called from any goroutine.
type Authorizer interface {
	// Authorize returns what a peer may ask for that says it is n, which is nobody's once it has returned. The error, of [Denies],
	// is what the client is told if it may not be.
	Authorize(p guard.Peer, n *node) (Grant, error)

	// Changed returns a channel that is closed once Authorize may return another grant than before, or
	// none. Nil if that never happens.
	Changed() <-chan struct{}
}

// A Grant is what a client may ask for. It does not change.
type Grant interface {
	// Identity says for the log who the client is.
	Identity() string

	// Type returns an error, of [Denies], if the client may not ask for a type.
	Type(typeURL string) error

	// LimitsNames reports whether Name has to be asked about the names of a type.
	LimitsNames(typeURL string) bool

	// Name returns an error, of [Denies], if the client may not ask for a name of a type,
	// which may be the wildcard. Names are canonical and without parameters.
	Name(typeURL, name string) error
}

// authorize returns what a peer may ask for that says it is n; nil if that is anything.
func (c *Config) authorize(p guard.Peer, n *node) (Grant, error) {
	if c.Authorizer == nil {
		return nil, nil
	}
	return c.Authorizer.Authorize(p, n)
}

// reauthorize returns what a peer may ask for now, as the node that was kept.
func (s *Server) reauthorize(ctx context.Context, from guard.Peer, kept *guard.KeptNode) (grant Grant, err error) {
	err = s.guard.WithKept(ctx, from, kept, func(n *node) (err error) {
		grant, err = s.cfg.authorize(from, n)
		return err
	})
	return grant, err
}

// regranted returns a channel that is closed once grants may have to be renewed.
func (c *Config) regranted() <-chan struct{} {
	if c.Authorizer == nil {
		return nil
	}
	return c.Authorizer.Changed()
}

// checkType returns an error if the client may not ask for a type.
func (s *stream) checkType(typeURL string) error {
	if s.grant == nil {
		return nil
	}
	return s.grant.Type(typeURL)
}

// grantAnew gives the client another grant. The error ends the stream.
func (s *stream) grantAnew(grant Grant) error {
	s.grant = grant
	for _, sub := range s.subs {
		if err := s.checkType(sub.typeURL); err != nil {
			return err
		}
		if err := s.regrantNames(sub); err != nil {
			return err
		}
	}
	return nil
}

// limits reports whether there may be names of a type that are denied.
func (s *stream) limits(sub *subscription) bool {
	return s.grant != nil && (s.grant.LimitsNames(sub.typeURL) || len(sub.denied) > 0)
}

// restrict takes names out of a request that the client may not ask for: on an aggregated
// stream nobody answers for them, so that one name does not take all else from the client; a stream of
// one type ends (B.36).
func (s *stream) restrict(sub *subscription, r *wire.Request) error {
	if !s.limits(sub) {
		return nil
	}
	var denied []string
	allowed := func(text string) bool { return s.checkName(sub, text) == nil }
	r.Subscribe = slices.DeleteFunc(r.Subscribe, func(text string) bool {
		if allowed(text) {
			return false
		}
		denied = append(denied, text)
		return true
	})
	maps.DeleteFunc(r.InitialVersions, func(text, _ string) bool { return !allowed(text) })
	if !s.delta {
		maps.DeleteFunc(sub.denied, func(text string, _ struct{}) bool { return !slices.Contains(denied, text) })
	}
	for _, text := range r.Unsubscribe {
		delete(sub.denied, text)
	}
	return s.deny(sub, denied)
}

// checkName returns an error if the client may not ask for a name, which may come with
// parameters.
func (s *stream) checkName(sub *subscription, text string) error {
	return s.grant.Name(sub.typeURL, wire.PlainName(text))
}

// deny takes note of names that the client may not ask for. The error ends the stream.
func (s *stream) deny(sub *subscription, names []string) error {
	for _, text := range names {
		if _, again := sub.denied[text]; again {
			continue
		}
		err := s.checkName(sub, text)
		if s.typeURL != "" {
			return err
		}
		if sub.denied == nil {
			sub.denied = make(map[string]struct{})
		}
		if s.held() < s.cfg.MaxNames {
			sub.denied[text] = struct{}{}
		}
		sub.explicit = true // to ask for what one may not have is not to ask for everything
		s.server.logDeniedName(s.client, err)
	}
	return nil
}

// regrantNames has a subscription lose what the client may ask for no longer, and get
// what it asked for in vain before.
func (s *stream) regrantNames(sub *subscription) error {
	if !s.limits(sub) {
		return nil
	}
	allowed := func(text string) bool { return s.checkName(sub, text) == nil }
	var given []string
	maps.DeleteFunc(sub.denied, func(text string, _ struct{}) bool {
		if !allowed(text) {
			return false
		}
		given = append(given, text)
		return true
	})
	if err := s.deny(sub, sub.withdraw(allowed)); err != nil {
		return err
	}
	if len(given) > 0 {
		sub.give(given)
	}
	return nil
}

// withdraw ends the subscriptions to what is not allowed, and returns them. The client is told
// nothing: what it has is not gone.
func (s *subscription) withdraw(allowed func(text string) bool) (texts []string) {
	if s.wildcard != nil && !allowed(wire.Wildcard) {
		s.unsubscribeAll()
		texts = append(texts, wire.Wildcard)
	}
	for _, glob := range s.globs {
		if !allowed(glob.glob) {
			texts = append(texts, glob.glob)
		}
	}
	s.dropGlobs(texts)
	var gone []*cache.Name
	s.names = slices.DeleteFunc(s.names, func(n subscribed) bool {
		text := n.name.String()
		if allowed(text) {
			return false
		}
		gone, texts = append(gone, n.name), append(texts, text)
		delete(s.variants, n.name)
		delete(s.failures.unasked, n.name)
		delete(s.known, text)
		return true
	})
	s.watch.Unsubscribe(s.key, gone)
	return texts
}

// give subscribes to what was denied before.
func (s *subscription) give(texts []string) {
	names, globs := splitGlobs(texts)
	now := time.Now()
	if len(names) > 0 {
		s.add(names, false, now)
	}
	s.addGlobs(globs, false, now)
}

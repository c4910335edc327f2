package downstream

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/downstream/subscription"
)

// reauthorize returns the grant of a peer with a kept Node under the current rules.
func (s *Server) reauthorize(ctx context.Context, from guard.Peer, kept *guard.KeptNode) (grant Grant, err error) {
	err = s.guard.WithKept(ctx, from, kept, func(n *node) (err error) {
		grant, err = s.cfg.authorize(from, n)
		return err
	})
	return grant, err
}

// checkType returns an error if the client may not request a type.
func (s identification) checkType(typeURL string) error {
	if s.grant == nil {
		return nil
	}
	return s.grant.Type(typeURL)
}

// setGrant replaces the grant of the client. It unsubscribes from names that the new grant denies, and subscribes to
// names that only the previous grant denied. The error ends the stream.
func (s identification) setGrant(grant Grant) error {
	s.grant = grant
	for _, sub := range s.subs {
		if err := s.checkType(sub.TypeURL); err != nil {
			return err
		}
		if err := s.reauthorizeNames(sub); err != nil {
			return err
		}
	}
	return nil
}

// restrictsNames reports whether names of the subscription must be checked.
func (s identification) restrictsNames(sub *subscription.Subscription) bool {
	return s.grant != nil && (s.grant.RestrictsNames(sub.TypeURL) || len(sub.Denied) > 0)
}

// removeDenied removes denied names from a request. A denied name ends a stream of one type. An aggregated stream
// continues, and the name is not answered, so that the client keeps all other resources (B.36).
func (s identification) removeDenied(sub *subscription.Subscription, r *wire.Request) error {
	if !s.restrictsNames(sub) {
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
		maps.DeleteFunc(sub.Denied, func(text string, _ struct{}) bool { return !slices.Contains(denied, text) })
	}
	for _, text := range r.Unsubscribe {
		delete(sub.Denied, text)
	}
	return s.recordDenied(sub, denied)
}

// checkName returns an error if the client may not request a name, which may have parameters.
func (s identification) checkName(sub *subscription.Subscription, text string) error {
	return s.grant.Name(sub.TypeURL, wire.PlainName(text))
}

// recordDenied records denied names, to subscribe to them when the rules allow them. The error ends the stream.
func (s identification) recordDenied(sub *subscription.Subscription, names []string) error {
	for _, text := range names {
		if _, denied := sub.Denied[text]; denied {
			continue
		}
		err := s.checkName(sub, text)
		if s.typeURL != "" {
			return err
		}
		if sub.Denied == nil {
			sub.Denied = make(map[string]struct{})
		}
		if s.nameCount() < s.cfg.MaxNames {
			sub.Denied[strings.Clone(text)] = struct{}{} // a part of a larger string would keep all of it in memory
		}
		sub.MarkExplicit() // otherwise a subscription without names would mean the wildcard
		s.server.logDeniedName(s.client, err)
	}
	return nil
}

// reauthorizeNames removes names from a subscription that are now denied, and adds names that were denied before.
func (s identification) reauthorizeNames(sub *subscription.Subscription) error {
	if !s.restrictsNames(sub) {
		return nil
	}
	allowed := func(text string) bool { return s.checkName(sub, text) == nil }
	var granted []string
	maps.DeleteFunc(sub.Denied, func(text string, _ struct{}) bool {
		if !allowed(text) {
			return false
		}
		granted = append(granted, text)
		return true
	})
	if err := s.recordDenied(sub, sub.Revoke(allowed)); err != nil {
		return err
	}
	if len(granted) > 0 {
		sub.Grant(granted, time.Now())
	}
	return nil
}

package subscription

import (
	"maps"
	"slices"
	"time"

	"github.com/xdstender/tender/cache"
)

// An AtGeneration is a subscription at one generation. It reports the progress of the subscription, for the order in
// which a stream sends types (B.11), and the state of its resources.
type AtGeneration struct{ visible }

// At returns the subscription at a generation.
func (s *Subscription) At(g *cache.Generation) AtGeneration { return AtGeneration{s.visibleAt(g)} }

// Behind reports whether something may be due to the client.
func (s AtGeneration) Behind() bool {
	return s.wildcard != nil && (s.t.Wildcard.Last() > min(s.sentUpTo, s.removedUpTo) || len(s.initialVersions) > 0) ||
		len(s.names) > 0 && s.t.Last() > s.scannedUpTo ||
		s.sendAll || s.due() > 0 ||
		s.ttlsDue() || s.errors.behind(s.t) || s.globsBehind()
}

// globsBehind is Behind for globs whose resources are part of the complete set.
func (s AtGeneration) globsBehind() bool {
	return s.sendsSets() && slices.ContainsFunc(s.globs, func(glob *Subscription) bool {
		return glob.At(s.Watch.Generation()).Behind()
	})
}

// AllRemovalsSent reports whether the client was sent all delayed removals.
func (s AtGeneration) AllRemovalsSent() bool {
	members := s.wildcard == nil || s.t.Wildcard.LastRemoval() <= s.removedUpTo
	return !s.sendsSets() && members && len(s.initialVersions)+s.due() == 0 && s.t.Failed() == 0
}

// ReturningUnserved reports whether a returning client holds resources of the type and was sent nothing on this stream.
func (s *Subscription) ReturningUnserved() bool { return s.scannedUpTo == 0 && s.Returning() }

// BehindCut reports whether the type is clusters or a dependent type, and has changes that the client was not sent.
func (s AtGeneration) BehindCut() bool {
	if !s.Order.InvolvesClusters() {
		return false
	}
	for part := range s.wildcards() {
		if t := s.g.Type(part.Key); t.Phase >= cache.Settled && t.Wildcard.Last() > part.sentUpTo {
			return true
		}
	}
	return len(s.names) > 0 && s.t.Last() > s.scannedUpTo
}

// Unsent reports whether the type or its globs have additions or updates that the client was not sent. upTo is the
// position up to which it was sent changes.
func (s AtGeneration) Unsent() (unsent bool, upTo cache.Seq) {
	unsent, upTo = s.unsent()
	for _, glob := range s.globs {
		if glob.idle {
			continue
		}
		some, sent := glob.At(s.g).unsent()
		unsent, upTo = unsent || some, min(upTo, sent)
	}
	return unsent, upTo
}

func (s AtGeneration) unsent() (unsent bool, upTo cache.Seq) {
	upTo = s.scannedUpTo
	if s.wildcard != nil {
		upTo = s.sentUpTo
		unsent = s.anyChangedSince(s.sentUpTo, true)
	}
	if len(s.names) == 0 {
		return unsent, upTo
	}
	for _, n := range s.names {
		e, seq := s.entryOf(n)
		unsent = unsent || e.Present() && seq > n.sent
	}
	return unsent, min(upTo, s.scannedUpTo)
}

// ResourceDue reports whether a resource is due to the client: the generation has it, or it was requested from the
// origin less than AckWait ago. A change that waits for unsent clusters is not due. text is its name. n is nil if the cache has no such
// name. subscribed reports whether the client subscribed to it.
func (s AtGeneration) ResourceDue(text string, n *cache.Name, unsent Referrers, now time.Time) (due, subscribed bool) {
	if at, named := s.find(n); named {
		return s.nameDue(s.names[at], unsent, now), true
	}
	by := s.wildcardOf(text)
	if by == nil {
		return false, false
	}
	if n == nil {
		return false, true
	}
	e := s.g.Type(by.Key).Wildcard.Get(n)
	if e.Present() && unsent.delay(text, e.Seq) {
		return false, true
	}
	return e.Present() && !e.Resource.ContentDropped() && (e.Seq > by.sentUpTo || slices.Contains(by.resend, text)), true
}

// nameDue is ResourceDue for a name that the client subscribed to.
func (s AtGeneration) nameDue(n subscribed, unsent Referrers, now time.Time) bool {
	e, seq := s.t.Lookup(n.name)
	if e != nil {
		waits := n.sent != 0 && unsent.delay(n.name.String(), seq)
		return e.Present() && !e.Resource.ContentDropped() && seq > n.sent && !waits
	}
	asked := n.name.Asked()
	if asked.IsZero() {
		asked = s.since // the request to the origin is about to be sent
	}
	return s.g.From(n.name).Connected && now.Before(asked.Add(s.Settings.AckWait))
}

// Resend marks resources to be sent again, even if unchanged (B.16).
func (s AtGeneration) Resend(names []string) {
	for i, n := range s.Watch.Find(s.Key, names) {
		if at, ok := s.find(n); ok {
			if e, _ := s.t.Lookup(n); e.Present() && s.names[at].sent != 0 {
				s.names[at].sent = 0
				s.pendingNames = append(s.pendingNames, n)
			}
		} else if by := s.wildcardOf(names[i]); by != nil && !by.sendAll {
			by.resend, by.idle = append(by.resend, names[i]), false
		}
	}
}

// HasEndpointsOf reports whether the client was sent endpoints of clusters, and they exist.
func (s AtGeneration) HasEndpointsOf(clusters Referrers) bool {
	for _, r := range clusters {
		for texts := range slices.Chunk(slices.Collect(maps.Keys(r.names)), 64) { // one of the first is usual
			for i, n := range s.Watch.Find(s.Key, texts) {
				if at, named := s.find(n); named {
					if e, _ := s.t.Lookup(n); e.Present() && s.names[at].sent != 0 {
						return true
					}
				} else if by := s.wildcardOf(texts[i]); by != nil && n != nil && !by.sendAll && s.g.Type(by.Key).Wildcard.Get(n).Present() {
					return true
				}
			}
		}
	}
	return false
}

// Answerable reports whether the cache has anything that the client could be sent.
func (s AtGeneration) Answerable() bool {
	t := s.t
	return s.wildcard != nil && t.Phase >= cache.Settled && (!s.sendsSets() || t.Wildcard.ContentDropped() == 0) ||
		slices.ContainsFunc(s.globs, func(glob *Subscription) bool { return glob.At(s.g).Answerable() }) ||
		slices.ContainsFunc(s.names, func(n subscribed) bool {
			e, _ := t.Lookup(n.name)
			return e.Present() && !e.Resource.ContentDropped() || t.Errors(cache.ByName).Get(n.name) != nil
		})
}

// Sources yields the origins of the client's names, globs and wildcard. It may yield an origin more than once.
func (s AtGeneration) Sources() func(func(*cache.Source) bool) {
	return func(yield func(*cache.Source) bool) {
		for part := range s.wildcards() {
			if !yield(s.g.WildcardSource(part.Key)) {
				return
			}
		}
		for _, n := range s.names {
			if !yield(s.g.From(n.name)) {
				return
			}
		}
	}
}

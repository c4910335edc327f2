package subscription

import (
	"slices"
	"time"

	"github.com/xdstender/tender/cache"
)

// An At is a subscription at one generation: how far it is, for the order in which a stream sends types (B.11), and what
// became of its resources.
type At struct{ visible }

// At returns the subscription at a generation.
func (s *Subscription) At(g *cache.Generation) At { return At{s.visibleAt(g)} }

// Behind reports whether something may be due to the client.
func (s At) Behind() bool {
	return s.wildcard != nil && (s.t.Wildcard.Last() > min(s.sentUpTo, s.removedUpTo) || len(s.initialVersions) > 0) ||
		len(s.names) > 0 && s.t.Last() > s.scannedUpTo ||
		s.sendAll || s.due() > 0 ||
		s.ttlsDue() || s.errors.behind(s.t) || s.globsBehind()
}

// globsBehind is Behind for the globs whose resources are in the complete set.
func (s At) globsBehind() bool {
	return s.sendsSets() && slices.ContainsFunc(s.globs, func(glob *Subscription) bool {
		return glob.At(s.Watch.Generation().Sendable(s.TypeURL)).Behind()
	})
}

// RemovalsSent reports whether no removal that has to wait is due to the client.
func (s At) RemovalsSent() bool {
	members := s.wildcard == nil || s.t.Wildcard.LastRemoval() <= s.removedUpTo
	return s.Delta && members && len(s.initialVersions)+s.due() == 0 && s.t.Failed() == 0
}

// HeldByFreeze reports whether the client is sent nothing of the type until its origin is thawed.
func (s At) HeldByFreeze() bool { return s.sendsSets() && sets{visible: s.visible}.heldByFreeze() }

// Opening reports whether the client returns with resources of the type and was sent nothing of it on this stream.
func (s *Subscription) Opening() bool { return s.scannedUpTo == 0 && s.Returns() }

// BehindCut reports whether clusters or a dependent type changed in a generation after what the client was sent of them.
func (s At) BehindCut() bool {
	if !s.followsCut() {
		return false
	}
	for part := range s.wildcards() {
		if t := s.g.Type(part.Key); t.Phase >= cache.Settled && t.Wildcard.Last() > part.sentUpTo {
			return true
		}
	}
	return len(s.names) > 0 && s.t.Last() > s.scannedUpTo
}

// Unsent reports whether resources were added or changed that the client was not sent, and the position up to which it
// was, of the type and its globs.
func (s At) Unsent() (unsent bool, upTo cache.Seq) {
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

func (s At) unsent() (unsent bool, upTo cache.Seq) {
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

// Owes reports whether the client is to be sent a resource, whose name is n unless that is nil: the generation holds it,
// or the origin was asked for it a moment ago. It also reports whether the client subscribed to the resource.
func (s At) Owes(text string, n *cache.Name, now time.Time) (owes, subscribed bool) {
	if at, named := s.find(n); named {
		return s.owesName(s.names[at], now), true
	}
	by := s.wildcardOf(text)
	if by == nil {
		return false, false
	}
	if n == nil {
		return false, true
	}
	e := s.g.Type(by.Key).Wildcard.Get(n)
	return e.Present() && !e.Resource.ContentDropped() && (e.Seq > by.sentUpTo || slices.Contains(by.resend, text)), true
}

// owesName is Owes for a name that the client subscribed to.
func (s At) owesName(n subscribed, now time.Time) bool {
	e, seq := s.t.Lookup(n.name)
	if e != nil {
		return e.Present() && !e.Resource.ContentDropped() && seq > n.sent
	}
	asked := n.name.Asked()
	if asked.IsZero() {
		asked = s.since // the origin is about to be asked
	}
	return s.g.From(n.name).Connected && now.Before(asked.Add(s.Settings.AckWait))
}

// Resend has resources sent again, changed or not (B.16).
func (s At) Resend(names []string) {
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

// Answerable reports whether something is known that the client could be sent.
func (s At) Answerable() bool {
	t := s.t
	return s.wildcard != nil && t.Phase >= cache.Settled && (!s.sendsSets() || t.Wildcard.ContentDropped() == 0) ||
		slices.ContainsFunc(s.globs, func(glob *Subscription) bool { return glob.At(s.g).Answerable() }) ||
		slices.ContainsFunc(s.names, func(n subscribed) bool {
			e, _ := t.Lookup(n.name)
			return e.Present() && !e.Resource.ContentDropped() || t.Errors(cache.ByName).Get(n.name) != nil
		})
}

// Sources yields the origins that answer for what the client asked for, some more than once.
func (s At) Sources() func(func(*cache.Source) bool) {
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

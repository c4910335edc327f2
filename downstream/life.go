package downstream

import (
	"slices"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// positions are those in the renewals of a type's two sets.
type positions [cache.ByName + 1]cache.Seq

// life returns for how long the client is told that a resource lives; zero is without
// end, or nothing for this client (R104). It is what is left, not what the origin
// once gave (R108).
func (s *subscription) ttlOf(e *cache.Entry) time.Duration {
	if !s.sendsTTLs || !e.Expires() {
		return 0
	}
	return e.Life(time.Now())
}

// lives reports whether there may be something to tell of how long resources live.
func (s *subscription) ttlsDue(t *cache.Type) bool {
	return s.sendsTTLs && (t.Wildcard.Renewed() > s.ttlsSentUpTo[cache.Wildcard] || t.ByName.Renewed() > s.ttlsSentUpTo[cache.ByName])
}

// renew tells of resources that the client has for how long they live now, since the
// origin has said so anew (R105).
func (s *subscription) addRenewals(w *writer) {
	if !s.ttlsDue(w.typ) {
		return
	}
	for kind := range s.ttlsSentUpTo {
		for e := range s.renewals(w.typ, cache.Kind(kind)) {
			if w.full(e) {
				return
			}
			s.addTTL(w, e)
			s.ttlsSentUpTo[kind] = e.Renewed()
		}
		s.ttlsSentUpTo[kind] = w.head.Seq
	}
}

// renewals yields the entries of a set that the client has been sent and that live on
// since it was told last.
func (s *subscription) renewals(t *cache.Type, kind cache.Kind) func(func(*cache.Entry) bool) {
	set := &t.Wildcard
	if kind == cache.ByName {
		set = &t.ByName
	}
	return func(yield func(*cache.Entry) bool) {
		for e := range set.RenewedSince(s.ttlsSentUpTo[kind]) {
			if e.Present() && s.isSent(t, kind, e) && !yield(e) {
				return
			}
		}
	}
}

// isSent reports whether what the client was sent last of a name is this entry of a set.
func (s *subscription) isSent(t *cache.Type, kind cache.Kind, e *cache.Entry) bool {
	at, named := s.find(e.Name)
	if !named {
		return kind == cache.Wildcard && s.wildcard != nil && e.Seq <= s.sentUpTo
	}
	seen, seq := t.Lookup(e.Name)
	return seen == e && seq <= s.names[at].sent
}

// renewal reports whether a complete set is due only for the time that what is in it
// lives (R111).
func (s *subscription) renewalDue(g *cache.Generation, t *cache.Type) (due bool) {
	if !s.sendsTTLs {
		return false
	}
	for kind := range s.ttlsSentUpTo {
		for range s.renewals(t, cache.Kind(kind)) {
			return true
		}
	}
	return slices.ContainsFunc(s.globs, func(glob *subscription) bool { return glob.renewalDue(g, g.Type(glob.key)) })
}

// beat tells how long a resource lives: by a heartbeat to one who is known to have
// accepted this very version, otherwise with the resource itself (R109, R111). To an
// Envoy, a virtual host without content is one that does not exist (R095).
func (s *subscription) addTTL(w *writer, e *cache.Entry) {
	switch {
	case s.heartbeatSuffices(e):
		if !w.alreadyEmitted(e.Resource.Key()) {
			w.ensureBody().Heartbeat(e.Resource, s.ttlOf(e))
		}
	case e.Resource.Released():
		s.resendLater(w, e)
	default:
		w.add(e)
	}
}

// knowsBy reports whether a heartbeat is enough for the client to know how long a
// resource lives.
func (s *subscription) heartbeatSuffices(e *cache.Entry) bool {
	accepted := !s.nackedAny && !s.pending && e.Versions() == 1
	return s.delta && accepted && e.Expires() && e.Resource.Constraints == nil && s.TypeURL != wire.VirtualHostType
}

// mayReturn reports whether a resource is gone only because its time was up, and the
// client asks for it now: then that is no answer. The origin is asked again, and until
// it has answered nothing is known; but one who holds it is told if the origin is not
// there to ask (R107).
func (s *subscription) mayReappear(g *cache.Generation, e *cache.Entry, n subscribed) bool {
	if !e.Expired || n.sent != 0 {
		return false
	}
	_, holds := s.initialVersions[n.name.String()]
	return g.From(n.name).Connected || !holds && s.initialVersion == ""
}

// mayHaveLost reports whether resources that the client was sent may have expired
// there: then the same set again is news (C31).
func (s *subscription) mayHaveExpired(g *cache.Generation) bool {
	t := g.Type(s.key)
	return s.sendsTTLs && (t.Wildcard.Limited() || t.ByName.Limited() ||
		slices.ContainsFunc(s.globs, func(glob *subscription) bool { return g.Type(glob.key).Wildcard.Limited() }))
}

// owe has a resource sent once its content is here again (R125).
func (s *subscription) resendLater(w *writer, e *cache.Entry) {
	at, named := s.find(e.Name)
	if !named {
		s.resend = append(s.resend, e.Name.String())
		s.askMembersAgain(w.head, w.typ)
		return
	}
	s.names[at].sent = 0
	s.pendingNames = append(s.pendingNames, e.Name)
	s.askAgain(w.head, e)
}

package downstream

import (
	"time"

	"github.com/xdstender/tender/cache"
)

// life returns for how long the client is told that a resource lives; zero is without
// end, or nothing for this client (R104). It is what is left, not what the origin
// once gave (R108).
func (s *subscription) life(e *cache.Entry) time.Duration {
	if !s.ttl || e.Deadline.IsZero() {
		return 0
	}
	return e.Life(time.Now())
}

// renew tells of resources that the client has for how long they live now, since the
// origin has said so anew (R105).
func (s *subscription) renew(w *writer) {
	if !s.ttl || w.typ.Renewed() <= s.renewed {
		return
	}
	for e := range s.renewals(w.typ) {
		s.beat(w, e)
	}
	s.renewed = w.head.Seq
}

// renewals yields the entries that the client has been sent and that live on since it
// was told last.
func (s *subscription) renewals(t *cache.Type) func(func(*cache.Entry) bool) {
	return func(yield func(*cache.Entry) bool) {
		for _, set := range []*cache.Set{&t.Members, &t.Named} {
			for e := range set.RenewedSince(s.renewed) {
				if s.sees(t, set, e) && !yield(e) {
					return
				}
			}
		}
	}
}

// sees reports whether what the client was sent last of a name is this entry of a set.
func (s *subscription) sees(t *cache.Type, set *cache.Set, e *cache.Entry) bool {
	if !e.Present() {
		return false
	}
	at, named := s.find(e.Name)
	if !named {
		return s.wildcard != nil && set == &t.Members && e.Seq <= s.sent
	}
	seen, seq := t.Lookup(e.Name)
	return seen == e && seq <= s.names[at].sent
}

// renewal reports whether a complete set is due only for the time that what is in it
// lives (R111).
func (s *subscription) renewal(h *cache.Head, t *cache.Type) (due bool) {
	if !s.ttl {
		return false
	}
	for range s.renewals(t) {
		return true
	}
	for _, g := range s.globs {
		for range g.renewals(h.Type(g.key)) {
			return true
		}
	}
	return false
}

// beat tells how long a resource lives: by a heartbeat to one who is known to have
// accepted this very version, otherwise with the resource itself (R109, R111).
func (s *subscription) beat(w *writer, e *cache.Entry) {
	accepted := !s.refused && !s.pending && e.Versions() == 1
	switch {
	case e.Resource.Released():
		// Whoever asks for it is told.
	case !s.delta || !accepted || e.Deadline.IsZero() || e.Resource.Constraints != nil:
		w.add(e)
	case !w.twice(e.Resource.Key()):
		w.begin().Heartbeat(e.Resource, s.life(e))
	}
}

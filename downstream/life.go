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
		if s.wildcard != nil {
			for e := range t.Members.RenewedSince(s.renewed) {
				if _, named := s.find(e.Name); !named && e.Present() && e.Seq <= s.sent && !yield(e) {
					return
				}
			}
		}
		for _, set := range []*cache.Set{&t.Members, &t.Named} {
			for e := range set.RenewedSince(s.renewed) {
				at, named := s.find(e.Name)
				seen, seq := t.Lookup(e.Name)
				if named && seen == e && e.Present() && seq <= s.names[at].sent && !yield(e) {
					return
				}
			}
		}
	}
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
	case s.delta && accepted && !e.Deadline.IsZero() && e.Resource.Constraints == nil:
		if !w.twice(e.Resource.Key()) {
			w.begin().Heartbeat(e.Resource, s.life(e))
		}
	case e.Resource.Released():
		s.owe(w, e)
	default:
		w.add(e)
	}
}

// owe has a resource sent once its content is here again (R125).
func (s *subscription) owe(w *writer, e *cache.Entry) {
	at, named := s.find(e.Name)
	if !named {
		s.again = append(s.again, e.Name.String())
		s.askMembersAgain(w.head, w.typ)
		return
	}
	s.names[at].sent = 0
	s.owing = append(s.owing, e.Name)
	s.askAgain(w.head, e)
}

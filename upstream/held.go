package upstream

import (
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// alarmEvery is how often it is said again that removals are held back.
const alarmEvery = 5 * time.Minute

// heldBack is a mass of inferred deletions that waits for a second look, or for an
// operator. Its zero value holds nothing.
type heldBack struct {
	held      map[string]struct{} // nil if nothing is held back
	heldSince time.Time
	heldUntil time.Time // when to look again; zero if that has begun
	returned  bool      // some of what was held back is there again
	alarmAt   time.Time // when to say once more that something is

	// kept is what an operator had kept. It counts as there, for as long as the origin
	// says nothing of it itself.
	kept map[string]struct{}
}

// review takes out of what is held back, and of what is kept, that which the origin has
// decided itself. If it mentions all that is held, there is nothing left to look at again.
func (h *heldBack) review(u wire.Update) {
	if len(h.held)+len(h.kept) == 0 {
		return
	}
	held := len(h.held)
	for _, r := range u.Resources {
		if _, ok := h.held[r.Name]; ok {
			delete(h.held, r.Name)
			h.returned = true
		}
		delete(h.kept, r.Name)
	}
	for name := range u.Gone() {
		delete(h.held, name)
		delete(h.kept, name)
	}
	if held > 0 && len(h.held) == 0 {
		h.hold(nil, time.Time{}, 0)
	}
}

// hold keeps deletions back for a while; nil ends that.
func (h *heldBack) hold(deleted map[string]struct{}, now time.Time, wait time.Duration) {
	h.held, h.returned = deleted, false
	h.heldSince, h.heldUntil, h.alarmAt = time.Time{}, time.Time{}, time.Time{}
	if deleted != nil {
		h.heldSince, h.heldUntil, h.alarmAt = now, now.Add(wait), now.Add(alarmEvery)
	}
}

// again reports whether the second look found just what is held back.
func (h *heldBack) again(deleted map[string]struct{}) bool {
	return h.held != nil && !h.returned && maps.Equal(h.held, deleted)
}

// doubtful takes out of what seems to be gone that which an operator had kept.
func (h *heldBack) doubtful(gone map[string]struct{}) {
	for name := range h.kept {
		delete(gone, name)
	}
}

// all returns what is held back, and what is kept, of a type.
func (h *heldBack) all(typeURL string) (holds []Hold) {
	if len(h.held) > 0 {
		holds = append(holds, Hold{TypeURL: typeURL, Names: slices.Sorted(maps.Keys(h.held)), Since: h.heldSince, Until: h.heldUntil})
	}
	if len(h.kept) > 0 {
		holds = append(holds, Hold{TypeURL: typeURL, Names: slices.Sorted(maps.Keys(h.kept)), Discarded: true})
	}
	return holds
}

// take ends the holds of a choice and returns them.
func (h *heldBack) take(typeURL string, of HoldChoice) (taken []Hold) {
	for _, hold := range h.all(typeURL) {
		switch {
		case hold.Discarded != of.Discarded:
			continue
		case hold.Discarded:
			h.kept = nil
		default:
			h.hold(nil, time.Time{}, 0)
		}
		taken = append(taken, hold)
	}
	return taken
}

// heldOf returns what is held back of a subscription's sets.
func (s *subscription) heldOf() map[cache.Kind]*heldBack {
	return map[cache.Kind]*heldBack{cache.Members: &s.sweep.heldBack, cache.Named: &s.absent}
}

// holds implements holder.
func (m *mirror) holds() (holds []Hold) {
	for _, s := range m.inOrder() {
		holds = append(holds, s.sweep.all(s.typeURL)...)
		holds = append(holds, s.absent.all(s.typeURL)...)
	}
	return holds
}

// release implements holder.
func (m *mirror) release(of HoldChoice, _ time.Time) (released []Hold) {
	for _, s := range slices.Backward(m.inOrder()) { // what refers to it goes before a cluster
		for _, kind := range []cache.Kind{cache.Members, cache.Named} {
			h := s.heldOf()[kind]
			if !of.takes(s.typeURL) {
				continue
			}
			for _, hold := range h.take(s.typeURL, of) {
				s.sweep.decided(hold.Names)
				m.w.Apply(kind, wire.Update{TypeURL: s.typeURL, SystemVersion: m.systemOf(kind, s.typeURL), Removed: hold.Names})
				m.session.counters.applied.Add(int64(len(hold.Names)))
				m.log.Warn("removals that were held back were released: the resources are removed",
					slog.String("type_url", s.typeURL), slog.Int("removed", len(hold.Names)))
				released = append(released, hold)
			}
		}
	}
	return released
}

func (m *mirror) systemOf(kind cache.Kind, typeURL string) string {
	t := m.w.Head().Type(typeURL)
	if kind == cache.Named {
		return t.Named.System()
	}
	return t.Members.System()
}

// discard implements holder.
func (m *mirror) discard(of HoldChoice, _ time.Time) (discarded []Hold) {
	for _, s := range m.inOrder() {
		for _, h := range s.heldOf() {
			if !of.takes(s.typeURL) {
				continue
			}
			for _, hold := range h.take(s.typeURL, of) {
				s.sweep.decided(hold.Names)
				h.keep(hold.Names)
				m.session.counters.discarded.Add(int64(len(hold.Names)))
				m.log.Warn("removals that were held back were discarded: the resources stay until the origin says something of them",
					slog.String("type_url", s.typeURL), slog.Int("kept", len(hold.Names)))
				discarded = append(discarded, hold)
			}
		}
	}
	return discarded
}

func (h *heldBack) keep(names []string) {
	if h.kept == nil {
		h.kept = make(map[string]struct{})
	}
	for _, name := range names {
		h.kept[name] = struct{}{}
	}
}

// keep implements controlled.
func (m *mirror) keep(discarded []Hold) {
	for _, hold := range discarded {
		t := m.w.Head().Type(hold.TypeURL)
		for kind, set := range map[cache.Kind]*cache.Set{cache.Members: &t.Members, cache.Named: &t.Named} {
			var there []string
			for i, n := range m.w.View().Find(hold.TypeURL, hold.Names) {
				if n != nil && set.Get(n).Present() {
					there = append(there, hold.Names[i])
				}
			}
			if len(there) > 0 {
				m.sub(hold.TypeURL).heldOf()[kind].keep(there)
			}
		}
	}
}

// decided ends the doubt about members.
func (s *sweep) decided(names []string) {
	for _, name := range names {
		s.clear(name)
	}
}

// held forces the second look once a hold is over, and says now and then that there is
// one. It returns when to look again.
func (m *mirror) held(s *subscription, now time.Time) (next time.Time) {
	for _, h := range []*heldBack{&s.sweep.heldBack, &s.absent} {
		if h.held == nil {
			continue
		}
		if !now.Before(h.alarmAt) {
			h.alarmAt = now.Add(alarmEvery)
			m.log.Warn("removals are still held back: tender release makes them, tender discard keeps the resources",
				slog.String("type_url", s.typeURL), slog.Int("held", len(h.held)), slog.Time("since", h.heldSince))
		}
		next = earlier(next, h.alarmAt)
		switch {
		case h.heldUntil.IsZero():
		case now.Before(h.heldUntil):
			next = earlier(next, h.heldUntil)
		default:
			h.heldUntil = time.Time{}
			m.resync()
		}
	}
	return next
}

// freeze implements controlled.
func (m *mirror) freeze(frozen bool) {
	if frozen {
		m.w.Freeze()
		return
	}
	m.w.Thaw()
}

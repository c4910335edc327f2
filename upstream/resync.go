package upstream

import (
	"log/slog"
	"slices"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/xdstender/tender/cache"
)

// met notes who speaks for the origin. Another instance may not hold what the
// relay said it holds, so it is asked for everything, once (B.15).
func (m *mirror) met(l *line, identifier string, now time.Time) {
	if identifier == "" || identifier == m.identifier {
		return
	}
	if m.identifier != "" && l.versions && m.resyncAt.IsZero() {
		m.resyncAt = now.Add(confirmQuiet)
		m.log.Info("another instance answers for the origin: it will be asked for everything once",
			slog.String("control_plane", identifier), slog.Duration("in", confirmQuiet))
	}
	m.identifier = identifier
}

// resume goes on from what a snapshot says of the origin, if the view was restored
// from one (B.42).
func (m *mirror) resume(from cache.Source) {
	m.source, m.identifier = slices.Index(m.cfg.Targets, from.Target), from.Identifier
}

// estrange notes that another target has answered than the one that what is held came
// from.
func (m *mirror) estrange() {
	m.source, m.ignores = m.target, false
	for _, s := range m.subs {
		s.estrange(m.w.Head())
	}
	m.w.SetTarget("")
}

// ignoresVersions records that the origin resent what it was told is held: of no type does it say what is gone (B.15).
func (m *mirror) ignoresVersions(now time.Time) {
	m.ignores = true
	for _, s := range m.subs {
		s.sweep.distrust(now)
		for _, c := range s.collections {
			if now.Sub(c.doubt.began) <= confirmMax {
				c.doubt.distrust()
				m.agenda.put(c, now)
			}
		}
	}
}

// vouch records, once nothing is held from another target any more, that all has the
// versions of the one that is connected: a snapshot says so too.
func (m *mirror) vouch() {
	target := m.cfg.Targets[m.source]
	if m.w.Source().Target == target {
		return
	}
	for _, s := range m.subs {
		if s.estranged() {
			return
		}
	}
	m.w.SetTarget(target)
}

// mayResume reports whether a new stream may say what is held. In SotW it cannot.
func (m *mirror) mayResume(l *line) bool {
	return l.sotw == nil && !m.cfg.FullResync && !l.full && m.source == m.target
}

// resync opens the streams anew and asks for everything.
func (m *mirror) resync() {
	m.resyncAt = time.Time{}
	for r := range m.lines {
		m.lines[r].full = true
	}
	m.reopen()
}

// reopen ends the streams, to open them anew at once.
func (m *mirror) reopen() {
	for r := range m.lines {
		m.lines[r].replace()
	}
}

// replace ends a stream for the sake of a new one, which states all that is wanted. What the
// origin still says on the old one is not looked at.
func (l *line) replace() {
	if l.stream != nil {
		l.open, l.replaced = false, true
		l.cancel(errResync)
	}
}

// place assigns the wildcard and the names of a type to the streams. If one of them moves to
// the other stream, both streams are replaced: on an open stream, a response does not tell
// whether it is for the wildcard or for names.
func (m *mirror) place(s *subscription, members bool) {
	if !s.place(members) {
		return
	}
	s.sweep.finish()
	s.unlearn(main)
	s.unlearn(auxiliary)
	if m.lines[main].open {
		m.reopenFor(s)
	}
}

func (m *mirror) reopenFor(s *subscription) {
	m.log.Info("reopening upstream streams for a changed subscription", slog.String("type_url", s.typeURL))
	m.reopen()
}

// sweep looks for members that went while the relay did not follow them (B.15).
func (m *mirror) sweep(s *subscription, now time.Time) (next time.Time) {
	if s.wildcard == nowhere || !m.lines[s.wildcard].open {
		return time.Time{}
	}
	t := m.w.Head().Type(s.typeURL)
	on := &m.lines[s.wildcard.other()]
	due, next := s.sweep.suspect(now)
	if due {
		names := s.sweep.ask(t, s.names, now)
		m.log.Info("the origin no longer mentions resources that it had: asking for them by name",
			slog.String("type_url", s.typeURL), slog.Int("suspects", len(s.sweep.suspects)))
		if on.open {
			m.subscribe(on, s, names, now)
		}
	}
	if !s.sweep.asking() || !on.open {
		return next // nobody was asked, so silence means nothing
	}
	over, gone, unproven, at := s.sweep.verdict(s.wantedNames, now)
	if over {
		m.letGo(s, now)
		s.foreign[cache.Members] = nil
		m.infer(s.guards()[cache.Members], gone, unproven, now)
	}
	return at
}

func (m *mirror) subscribe(l *line, s *subscription, names []string, now time.Time) {
	for len(names) > 0 {
		r := &discoverypb.DeltaDiscoveryRequest{TypeUrl: s.typeURL}
		r.ResourceNamesSubscribe, names = cut(names)
		m.request(l, r, now)
	}
}

// letGo ends a sweep: it unsubscribes from all that was asked for, but for what
// clients named.
func (m *mirror) letGo(s *subscription, now time.Time) {
	l := &m.lines[s.wildcard.other()]
	names := s.unwanted(s.sweep.names)
	s.sweep.finish()
	if l.open {
		m.unsubscribe(l, s, names, now)
	}
}

func (m *mirror) unsubscribe(l *line, s *subscription, names []string, now time.Time) {
	for len(names) > 0 {
		r := &discoverypb.DeltaDiscoveryRequest{TypeUrl: s.typeURL}
		r.ResourceNamesUnsubscribe, names = cut(names)
		m.request(l, r, now)
	}
}

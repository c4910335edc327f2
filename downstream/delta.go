package downstream

import (
	"maps"
	"slices"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// removals returns the removals that had to wait until what referred to the
// resources was sent (B.11). Delta only: a SotW client is told by the next full
// set, or not at all.
func (s *subscription) removals(g *cache.Generation, t *cache.Type) *Response {
	w := s.newWriter(g, t)
	if s.wildcard != nil && !s.sendAll && t.Phase >= cache.Settled {
		from := s.removedUpTo
		for e := range t.Wildcard.Since(from) {
			if w.full(nil) {
				break // the rest follows the answer (B.32)
			}
			if _, named := s.find(e.Name); !named && !e.Present() {
				w.removeMember(e)
			}
			s.removedUpTo = max(s.removedUpTo, e.Seq)
		}
		if !w.reply.Cut {
			s.removedUpTo = max(s.removedUpTo, g.Seq)
		}
	}
	s.pendingNames = slices.DeleteFunc(s.pendingNames, func(n *cache.Name) bool { return !w.full(nil) && s.removeName(w, g, n) })
	return w.result()
}

// removalsTold reports whether the client is owed no removal that has to wait.
func (s *subscription) removalsSent(t *cache.Type) bool {
	members := s.wildcard == nil || t.Wildcard.LastRemoval() <= s.removedUpTo
	return s.delta && members && len(s.pendingNames)+len(s.initialVersions)+len(s.resend)+len(s.unsubscribeReplies) == 0 && t.Failed() == 0
}

// remove tells that a name is gone whose removal had to wait, and reports whether
// nothing is owed for it any more.
func (s *subscription) removeName(w *writer, g *cache.Generation, n *cache.Name) (done bool) {
	at, ok := s.find(n)
	if !ok {
		return true
	}
	e, seq := w.typ.Lookup(n)
	if e.Present() || seq <= s.names[at].sent || !g.Absent(e) || s.mayReappear(g, e, s.names[at]) {
		return false
	}
	w.removeEntry(e, s.names[at].sent != 0)
	s.names[at].sent = seq
	return true
}

// isBack reports whether what an origin does not mention counts as gone: on its first connection, on which the set was
// confirmed, and once it has been back for a while on others; if not, it returns when to look again.
func (s *subscription) originSettled(from *cache.Source, now time.Time) (back bool, until time.Time) {
	switch {
	case !from.Connected || !from.Frozen.IsZero():
		return false, time.Time{} // of one that is frozen, what it has made since is not known here
	case from.Lost.IsZero():
		return true, time.Time{}
	}
	until = from.Since.Add(s.cfg.confirmWait())
	return !now.Before(until), until
}

// confirmWait is how long an origin that is back takes at most to say all that it has, if it goes on as it should: as long as
// a set takes to be confirmed (B.7).
func (c *Config) confirmWait() time.Duration { return min(c.ColdWait, time.Minute) }

// reportMembers has the view know what a returning client with a wildcard holds beside what it asks for by name: where the view
// has nothing of before, that is its last known set (B.7). The view then says what of it the client may be told is gone. It is
// called before the client subscribes: some origins answer at once.
func (s *subscription) reportMembers(asked []string) {
	if len(s.initialVersions) == 0 {
		return
	}
	named := make(map[string]struct{}, len(asked))
	for _, text := range asked {
		named[text] = struct{}{}
	}
	names := make([]string, 0, len(s.initialVersions))
	for text := range s.initialVersions {
		_, own := named[text]
		glob, _ := wire.GlobOf(text)
		if _, ofGlob := named[glob]; !own && !ofGlob {
			names = append(names, text)
		}
	}
	if len(names) > 0 {
		s.report = s.watch.Report(s.key, cache.Wildcard, names, len(names))
	}
}

// reportNames is reportMembers for names that the client asks for, and that the view has never heard of.
func (s *subscription) reportNames() {
	var names []string
	for n := range s.unansweredNames {
		names = append(names, n.String())
	}
	if len(names) > 0 {
		s.report = s.watch.Report(s.key, cache.ByName, names, s.initialCount)
	}
}

// forgotten returns the removal of what a returning client says it holds and the origin no longer has (R086), but for what
// the view withholds. It returns when to look again.
func (s *subscription) removeStale(g *cache.Generation, t *cache.Type, now time.Time) (r *Response, until time.Time) {
	if len(s.initialVersions) == 0 {
		return nil, time.Time{}
	}
	w := s.newWriter(g, t)
	until = s.removeStaleMembers(w, now)
	until = earlier(until, s.removeStaleNames(w, now))
	return w.result(), until
}

// forgottenMembers is forgotten for a client with a wildcard. What it holds is known to be gone only once the set is
// confirmed. What came to be while the relay was without its origin is unknown too, so the origin has to be back for a
// while (R068).
func (s *subscription) removeStaleMembers(w *writer, now time.Time) (until time.Time) {
	if s.wildcard == nil || s.sendAll || w.typ.Phase < cache.Confirmed {
		return time.Time{}
	}
	if back, until := s.originSettled(w.head.WildcardSource(s.key), now); !back {
		return until
	}
	unknown := s.staleMembers(w.typ)
	gone := s.report.Told(unknown)
	for _, text := range gone {
		if w.full(nil) {
			return time.Time{} // the rest follows the answer (B.32)
		}
		delete(s.initialVersions, text)
		w.remove(text)
	}
	if len(gone) > 0 {
		s.removeEmptyGlob(w)
	}
	if len(s.names) == 0 && len(gone) == len(unknown) {
		s.initialVersions = nil
	}
	return time.Time{} // what is withheld yet, the view wakes the stream for
}

// silenceWait is how long an origin that has answered for other names of a request is waited for.
const silenceWait = 15 * time.Second

// lookAgain is when it is first looked again at names of which nothing shows whether the origin has them.
const lookAgain = 5 * time.Second

// unheardOf returns the names that a returning client holds and of which the relay knows nothing. Names beside a
// wildcard, and those of VHDS, may be asked for on demand: the origin may take its time, and a wildcard need not have
// them.
func (s *subscription) namesWithoutAnswer() (unheard map[*cache.Name]struct{}) {
	if len(s.initialVersions) == 0 || s.wildcard != nil || s.TypeURL == wire.VirtualHostType {
		return nil
	}
	t := s.watch.Generation().Type(s.key)
	for _, n := range s.names {
		if _, holds := s.initialVersions[n.name.String()]; !holds {
			continue
		}
		if e, _ := t.Lookup(n.name); e == nil {
			if unheard == nil {
				unheard = make(map[*cache.Name]struct{})
			}
			unheard[n.name] = struct{}{}
		}
	}
	return unheard
}

// forgottenNames is forgotten for names that the client subscribed to and of which the origin says nothing: many
// origins never say that a name does not exist to who they have not told of it.
func (s *subscription) removeStaleNames(w *writer, now time.Time) (until time.Time) {
	if len(s.unansweredNames) == 0 {
		return time.Time{}
	}
	var gone []*cache.Name
	maps.DeleteFunc(s.unansweredNames, func(n *cache.Name, _ struct{}) bool {
		_, subscribed := s.find(n)
		_, holds := s.initialVersions[n.String()]
		e, _ := w.typ.Lookup(n)
		if !subscribed || !holds || e != nil || s.wildcard != nil {
			return true
		}
		switch at := s.absentFrom(w.head, w.typ, n, now); {
		case at.Equal(forever):
		case now.Before(at):
			until = earlier(until, at)
		default:
			gone = append(gone, n)
		}
		return false
	})
	slices.SortFunc(gone, (*cache.Name).Compare)
	for _, name := range s.report.Told(names(gone)) {
		if w.full(nil) {
			return earlier(until, now.Add(s.cfg.AckWait)) // the rest follows the answer (B.32)
		}
		delete(s.initialVersions, name)
		w.remove(name)
	}
	return until
}

// silentUntil returns when the silence of the origin on a name means that there is no such resource: the confirmed
// wildcard lacks it, or the origin has answered for other names of the request (B.15). If neither is so yet, it returns
// when to look again.
func (s *subscription) absentFrom(g *cache.Generation, t *cache.Type, n *cache.Name, now time.Time) (at time.Time) {
	from, asked := g.From(n), n.Asked()
	if !from.Connected || !from.Frozen.IsZero() {
		return forever // the stream is woken
	}
	if answered := n.RequestAnswered(); !answered.IsZero() {
		at = answered.Add(silenceWait)
	}
	_, xdstp := wire.GlobOf(n.String())
	if t.Phase == cache.Confirmed && from == g.WildcardSource(s.key) && !xdstp && !asked.IsZero() {
		at = earlier(at, later(asked, from.Since).Add(s.cfg.confirmWait()))
	}
	if at.IsZero() {
		at = now.Add(max(lookAgain, now.Sub(s.namesSince)))
	}
	return at
}

func names(of []*cache.Name) []string {
	texts := make([]string, len(of))
	for i, n := range of {
		texts[i] = n.String()
	}
	return texts
}

// unknown returns what the client says it holds and the members have not; names
// that it subscribed to are answered as such.
func (s *subscription) staleMembers(t *cache.Type) (gone []string) {
	texts := slices.Sorted(maps.Keys(s.initialVersions))
	for i, n := range s.watch.Find(s.key, texts) {
		if _, named := s.find(n); !named && (n == nil || !t.Wildcard.Get(n).Present()) {
			gone = append(gone, texts[i])
		}
	}
	return gone
}

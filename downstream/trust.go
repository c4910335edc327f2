package downstream

import (
	"cmp"
	"hash/maphash"
	"slices"
	"strings"
	"sync"
	"weak"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/downstream/guard"
)

// The functions of this file answer one question: may the version that a returning client reports be trusted? (B.3)
// Whether the version is that of the present content is asked elsewhere.
//
// A client applies a response in part, refuses it, and still reports the version that it had (envoy#12592). If the
// content returns to that version, an equal version proves nothing, so for [cache.RevertMemory] the content is sent.

// trustsResource reports whether the version of one resource may be trusted. The origin's versions have to
// distinguish its contents, and the resource must not have expired at the client (C31).
func (s *subscription) trustsResource(from *cache.Source, e *cache.Entry) bool {
	expires := s.ttl && e.Expires()
	return !expires && (!from.Reused || s.cfg.ContentVersions) && e.Reverted().IsZero()
}

// trustsSet reports whether the version of a set may be trusted.
func (s *subscription) trustsSet(g *cache.Generation) bool { return s.reverted(g) == 0 }

// reverted returns the position at which what the client sees last returned to content that it had before, of what is
// remembered; zero if it did not. Of names, there is no history but that of each.
//
// A name has an entry in each set, which revert at different times, so it counts when readers last saw it change.
func (s *subscription) reverted(g *cache.Generation) (at cache.Seq) {
	t := g.Type(s.key)
	for glob := range s.followed() {
		at = max(at, g.Type(glob.key).Wildcard.Reverted())
	}
	for _, n := range s.names {
		if e, seq := s.see(t, n); e != nil && !e.Reverted().IsZero() {
			at = max(at, seq)
		}
	}
	return at
}

// suspect adds to what a returning Delta client holds the members that were removed lately: it may have applied one
// in a response that it refused, and then it does not report it.
func (s *subscription) suspect() {
	if s.wildcard == nil || s.knownN == 0 {
		return
	}
	members := &s.watch.Generation().Type(s.key).Wildcard
	buried := members.Buried()
	for i, n := range s.watch.Find(s.key, buried) {
		if _, reported := s.known[buried[i]]; !reported && (n == nil || !members.Get(n).Present()) {
			s.known[buried[i]] = ""
		}
	}
}

// maxPolls bounds a pollMemory. One that is full forgets all, which costs each client whose set has reverted one more
// response.
const maxPolls = 10_000

// A pollMemory remembers which polls were answered with which sets. A REST client has no stream that would remember it,
// and reports the same version in each poll.
type pollMemory struct {
	mu   sync.Mutex
	last map[pollKey][4]answered // guarded by mu; clients that cannot be told apart may hold different sets
}

// A pollKey identifies the polls of one client for the same names.
type pollKey struct {
	peer, node, typeURL string
	view                weak.Pointer[cache.View]
	names               uint64 // a hash of them
}

var namesSeed = maphash.MakeSeed()

// answered is a set that a poll was answered with, and the position of the view at that time.
type answered struct {
	sum cache.Sum
	at  cache.Seq
}

func (p *poll) keyOf(peer guard.Peer) pollKey {
	return pollKey{
		peer: peer.Host, node: p.sub.node, typeURL: p.sub.typeURL, view: weak.Make(p.view),
		names: maphash.String(namesSeed, strings.Join(p.names, "\n")),
	}
}

// trusts is trustsSet for a poll whose client reports the version of a set: it may, if it was sent the set after that
// reverted.
func (p *poll) trusts(g *cache.Generation, sum cache.Sum) bool {
	at := p.sub.reverted(g)
	if at == 0 {
		return true
	}
	m := p.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	last := m.last[p.key]
	return slices.ContainsFunc(last[:], func(a answered) bool { return a.sum == sum && a.at >= at })
}

// noteAnswer records that the poll is answered with a set. It does so whether or not the set has reverted: a name that
// has an entry in each set may be shown next by the one that did.
func (p *poll) noteAnswer(g *cache.Generation, sum cache.Sum) {
	m := p.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.last == nil || len(m.last) >= maxPolls {
		m.last = make(map[pollKey][4]answered)
	}
	last := m.last[p.key]
	i, at := slices.IndexFunc(last[:], func(a answered) bool { return a.sum == sum }), g.Seq
	if i >= 0 {
		at = max(at, last[i].at)
	} else { // it takes the place of the oldest
		i = slices.Index(last[:], slices.MinFunc(last[:], func(a, b answered) int { return cmp.Compare(a.at, b.at) }))
	}
	last[i] = answered{sum, at}
	m.last[p.key] = last
}

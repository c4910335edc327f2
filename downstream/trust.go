package downstream

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/xdstender/tender/cache"
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
func (s *subscription) trustsSet(h *cache.Head) bool { return s.revertedAt(h).IsZero() }

// revertedAt returns when the set that the client sees last returned to content that it had before, of what is
// remembered; the zero time if it did not. Of names, there is no history but that of each.
func (s *subscription) revertedAt(h *cache.Head) (at time.Time) {
	t := h.Type(s.key)
	for g := range s.followed() {
		at = later(at, h.Type(g.key).Members.Reverted())
	}
	for _, n := range s.names {
		if e, _ := s.see(t, n); e != nil {
			at = later(at, e.Reverted())
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
	members := &s.watch.Head().Type(s.key).Members
	buried := members.Buried()
	for i, n := range s.watch.Find(s.key, buried) {
		if _, reported := s.known[buried[i]]; !reported && (n == nil || !members.Get(n).Present()) {
			s.known[buried[i]] = ""
			s.suspects = append(s.suspects, buried[i])
		}
	}
}

// reported returns how many of the names the client itself reported.
func (s *subscription) reported(names []string) (n int) {
	for _, name := range names {
		if !slices.Contains(s.suspects, name) {
			n++
		}
	}
	return n
}

// maxRetold bounds a retold. One that is full forgets all, which costs each client one more response.
const maxRetold = 10_000

// A retold remembers which polls were answered with a set that had reverted. A REST client has no stream that would
// remember it, and reports the same version in each poll.
type retold struct {
	mu   sync.Mutex
	last map[pollKey]reversion // guarded by mu
}

// A pollKey identifies the polls of one client for the same names.
type pollKey struct{ peer, node, group, typeURL, names string }

// A reversion is a set, and when it returned to that content.
type reversion struct {
	sum cache.Sum
	at  time.Time
}

func (p *poll) keyOf(peer Peer) pollKey {
	return pollKey{peer.Host, p.sub.node, p.sub.client.group, p.sub.typeURL, strings.Join(p.names, "\n")}
}

// trusts is trustsSet for a poll: a client that was sent the set after it reverted may report its version.
func (p *poll) trusts(h *cache.Head) bool {
	at := p.sub.revertedAt(h)
	if at.IsZero() {
		return true
	}
	shown, r := reversion{p.sub.visibleSum(h), at}, p.retold
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last[p.key] == shown
}

// noteAnswer records that the poll is answered with the set.
func (p *poll) noteAnswer(h *cache.Head) {
	at := p.sub.revertedAt(h)
	if at.IsZero() {
		return
	}
	sent, r := reversion{p.sub.visibleSum(h), at}, p.retold
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last == nil || len(r.last) >= maxRetold {
		r.last = make(map[pollKey]reversion)
	}
	r.last[p.key] = sent
}

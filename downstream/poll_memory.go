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
		peer: peer.Host, node: p.client.node, typeURL: p.sub.TypeURL, view: weak.Make(p.view),
		names: maphash.String(namesSeed, strings.Join(p.names, "\n")),
	}
}

// trusts reports whether the version of a set that the client reports may be trusted (B.3): the set did not return to
// content that it had before, or the client was sent it after that.
func (p *poll) trusts(g *cache.Generation, sum cache.Sum) bool {
	at := p.sub.Reverted(g)
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

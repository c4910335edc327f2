package guard

import (
	"context"
	"sync"
	"time"
)

// The budgets of the names in the requests of a peer (B.35). Requests beyond them are handled later.
const (
	// connectionNames is the budget in names a second for each connection that a peer may have, and minNameRate the least
	// budget of a peer. The burst suffices for a fleet behind one address: 500 names for each of these connections.
	connectionNames = 10
	minNameRate     = 100_000
	nameBurst       = 50 * time.Second

	// unknownRate is the budget of names that are new to the node group of the client, in names a second. One of them
	// costs as much as ten others: the relay requests it from the origin, and forgets it later. The burst is small, since
	// the clients of a fleet mostly use the same names.
	unknownRate  = 10_000
	unknownBurst = time.Second

	// keptNames is how many names of a stream cost as much as one in a request, since a request may rewrite their list.
	keptNames = 64

	// recount is the time after which the names of a waiting request are counted again. Those of another request may have
	// become known since.
	recount = 250 * time.Millisecond
)

// A NameCount is what a request takes from the budgets of its peer.
type NameCount struct {
	Listed  int // names in the request
	Unknown int // those that are new to the client's node group
	Kept    int // names that the stream has
}

// names limits the names in the requests of each peer.
type names struct {
	rate int // names a second of a peer

	mu    sync.Mutex
	peers map[string]*peerNames // guarded by mu; peers with requests or a budget that is not full
	swept time.Time             // guarded by mu; time of the last sweep
}

// peerNames has the budgets of one peer.
type peerNames struct {
	// Requests without unknown names do not wait for those with some.
	knownLine, unknownLine nameLine

	// Guarded by names.mu.
	requests        int // that wait or are charged
	listed, unknown budget
}

// A nameLine has requests that wait for a budget.
type nameLine struct {
	turn    chan struct{} // one slot, for the first request; the others wait in order for it
	limited bool          // the last request waited; owned by the holder of the slot
}

// line returns the line of a request.
func (p *peerNames) line(n NameCount) *nameLine {
	if n.Unknown > 0 {
		return &p.unknownLine
	}
	return &p.knownLine
}

func newNames(l Limits) names {
	return names{rate: max(minNameRate, l.MaxPeerConnections*connectionNames), peers: make(map[string]*peerNames)}
}

// enter returns the budgets of a peer. The caller must call leave.
func (s *names) enter(peer string) *peerNames {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.peers[peer]
	if p == nil {
		p = &peerNames{
			knownLine: nameLine{turn: make(chan struct{}, 1)}, unknownLine: nameLine{turn: make(chan struct{}, 1)},
		}
		s.peers[peer] = p
	}
	p.requests++
	return p
}

// leave undoes enter, and removes peers without requests whose budgets are full.
func (s *names) leave(p *peerNames, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.requests--
	if now.Sub(s.swept) < sweepEvery {
		return
	}
	s.swept = now
	for peer, p := range s.peers {
		if p.requests == 0 && p.listed.full(nameBurst, now) && p.unknown.full(unknownBurst, now) {
			delete(s.peers, peer)
		}
	}
}

// take charges a request, or returns how long it has to wait. A request may take more than is left, so that any size
// passes: the next one waits for as long as that takes to refill.
func (s *names) take(p *peerNames, n NameCount, now time.Time) (wait time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	wait = p.listed.tat.Sub(now)
	if n.Unknown > 0 {
		wait = max(wait, p.unknown.tat.Sub(now))
	}
	if wait > 0 {
		return wait
	}
	p.listed.take(int64(n.Listed+n.Kept/keptNames), s.rate, nameBurst, now)
	p.unknown.take(int64(n.Unknown), unknownRate, unknownBurst, now)
	return 0
}

// await waits until a request of a peer may be charged, or until the server drains. It calls limited if the peer becomes
// rate-limited. The error is that of ctx, if it ends before.
func (s *names) await(
	ctx context.Context, draining <-chan struct{}, peer string, count func() NameCount, limited func(),
) error {
	p := s.enter(peer)
	defer func() { s.leave(p, time.Now()) }()
	line := p.line(count())
	select {
	case line.turn <- struct{}{}:
		defer func() { <-line.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	for waited := false; ; waited = true {
		wait := s.take(p, count(), time.Now())
		if wait <= 0 {
			line.limited = waited
			return nil
		}
		if !line.limited {
			line.limited = true
			limited()
		}
		select {
		case <-time.After(min(wait, recount)):
		case <-ctx.Done():
			return ctx.Err()
		case <-draining:
			return nil
		}
	}
}

package quota

import (
	"sync"
	"sync/atomic"
)

// A Pool counts what is in use of a total, in all and by peer, and limits both.
type Pool struct {
	total int // set at creation
	share int // set at creation: the most that one peer may have once half of the total is in use
	used  atomic.Int64

	mu    sync.Mutex
	peers map[string]*Share // guarded by mu; a share is removed when it is closed as often as it was opened
}

// A Share is what one peer uses of a pool.
type Share struct {
	pool *Pool  // set at creation
	peer string // set at creation; empty if the peer is unknown: then only the total limits it
	used atomic.Int64
	open int // calls of Open without a Close; guarded by pool.mu
}

// An Exceeded limit is either that of one peer or the total.
type Exceeded struct {
	PerPeer bool // the limit of the peer's share; false is that of the total
	Used    int  // by the peer or by all, as PerPeer says
	Limit   int  // that Used is compared with
	Total   int  // of the pool
}

// minShare is the smallest part of a total that Tenth returns.
const minShare = 100

// NewPool returns a pool in which one peer may have share once half of the total is in use.
func NewPool(total, share int) *Pool {
	return &Pool{total: total, share: share, peers: make(map[string]*Share)}
}

// Tenth returns the usual share of a peer: a tenth of the total, and at least a hundred.
func Tenth(total int) int { return max(total/10, minShare) }

// Room returns how much more a peer may take that uses own, if used is in use by all peers.
func Room(total, share, used, own int) int {
	return max(0, min(total-used, max(total/2-used, share-own)))
}

// Used returns how much is in use by all peers.
func (p *Pool) Used() int { return int(p.used.Load()) }

// Open returns the share of a peer. The caller closes it.
func (p *Pool) Open(peer string) *Share {
	if peer == "" {
		return &Share{pool: p}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	share := p.peers[peer]
	if share == nil {
		share = &Share{pool: p, peer: peer}
		p.peers[peer] = share
	}
	share.open++
	return share
}

// Close undoes Open.
func (s *Share) Close() {
	if s.peer == "" {
		return
	}
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	if s.open--; s.open == 0 {
		delete(s.pool.peers, s.peer)
	}
}

// Take opens the share of a peer and takes one unit, or returns the limit that prevents it. The caller releases the
// share.
func (p *Pool) Take(peer string) (*Share, *Exceeded) {
	share := p.Open(peer)
	p.mu.Lock()
	if share.Room() > 0 {
		share.add(1, true)
		p.mu.Unlock()
		return share, nil
	}
	over := share.Exceeded(0, 0)
	p.mu.Unlock()
	share.Close()
	return nil, &over
}

// Release undoes Take.
func (s *Share) Release() {
	s.add(-1, true)
	s.Close()
}

// Peer returns the peer that has the share, empty if it is unknown.
func (s *Share) Peer() string { return s.peer }

// Used returns how much the peer uses.
func (s *Share) Used() int { return int(s.used.Load()) }

// Room returns how much more the peer may take.
func (s *Share) Room() int { return s.RoomAfter(0, 0) }

// RoomAfter returns what Room would return if all peers used more than now by all, and this one by own.
func (s *Share) RoomAfter(all, own int) int {
	share := s.pool.share
	if s.peer == "" {
		share = s.pool.total
	}
	return Room(s.pool.total, share, s.pool.Used()+all, s.Used()+own)
}

// Exceeded returns the limit that leaves no room if all peers used more than now by all, and this one by own.
func (s *Share) Exceeded(all, own int) Exceeded {
	if used := s.pool.Used() + all; used >= s.pool.total || s.peer == "" {
		return Exceeded{Used: used, Limit: s.pool.total, Total: s.pool.total}
	}
	return Exceeded{PerPeer: true, Used: s.Used() + own, Limit: s.pool.share, Total: s.pool.total}
}

// add counts n for the peer and, if inTotal is set, in the total.
func (s *Share) add(n int, inTotal bool) {
	s.used.Add(int64(n))
	if inTotal {
		s.pool.used.Add(int64(n))
	}
}

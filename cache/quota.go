package cache

import (
	"sync"
	"sync/atomic"
)

// A Quota counts the names that streams want of one origin, over all views that have it
// (Config.Quotas), and says how many there may be, of all peers and of each (B.35). It counts a name once for each view:
// that is how often the origin is asked for it. In each view, one of the peers that want a name is charged for it. The zero value
// counts nothing and allows all.
type Quota struct {
	names     *Shares // nil: nothing is counted
	elsewhere bool
}

// NewQuota returns a quota of so many names.
func NewQuota(max int) Quota { return Quota{names: NewShares(max, Tenth(max))} }

// Elsewhere returns the same quota for a source that stands for another view, which asks the
// origin and counts. Peers are charged here, since the other view does not know them.
func (q Quota) Elsewhere() Quota {
	q.elsewhere = true
	return q
}

// Wanted returns how many names there are.
func (q Quota) Wanted() int {
	if q.names == nil {
		return 0
	}
	return q.names.Used()
}

// Shares count something that peers take of a total, and bound it (B.35): one peer may take everything while less than half of
// the total is in use, and then no more than its share. So many clients behind one address are served while there is room, and
// one peer leaves room for others. Streams, node groups and names are counted so. The methods may be called from any goroutine.
type Shares struct {
	total, share int
	used         atomic.Int64

	mu    sync.Mutex
	peers map[string]*Share // guarded by mu
}

// A Share is what one peer has taken. It is removed once everybody who opened it has closed it.
type Share struct {
	of   *Shares
	peer string // empty if it is not known: only the total bounds those
	used atomic.Int64
	open int // guarded by of.mu
}

// An Excess is the limit that a peer has reached: its share if OfPeer is set, else the total.
type Excess struct {
	OfPeer            bool
	Used, Most, Total int
}

// leastShare is the smallest part of a total that Tenth returns.
const leastShare = 100

// NewShares returns the shares of a total, of which one peer may take share once half of it is in use.
func NewShares(total, share int) *Shares {
	return &Shares{total: total, share: share, peers: make(map[string]*Share)}
}

// Tenth returns the share of a peer in a total of streams or names: a tenth, and at least a hundred.
func Tenth(total int) int { return max(total/10, leastShare) }

// Room returns how much more a peer may take that has taken own, if the total in use is used.
func Room(total, share, used, own int) int {
	return max(0, min(total-used, max(total/2-used, share-own)))
}

// Used returns how much is in use of all peers.
func (s *Shares) Used() int { return int(s.used.Load()) }

// Open returns the share of a peer. The caller closes it.
func (s *Shares) Open(peer string) *Share {
	if peer == "" {
		return &Share{of: s}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	share := s.peers[peer]
	if share == nil {
		share = &Share{of: s, peer: peer}
		s.peers[peer] = share
	}
	share.open++
	return share
}

// Close undoes Open.
func (s *Share) Close() {
	if s.peer == "" {
		return
	}
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	if s.open--; s.open == 0 {
		delete(s.of.peers, s.peer)
	}
}

// Take opens the share of a peer and takes one, or returns which bound it has reached. The caller gives it back.
func (s *Shares) Take(peer string) (*Share, *Excess) {
	share := s.Open(peer)
	s.mu.Lock()
	if share.Room() > 0 {
		share.add(1, true)
		s.mu.Unlock()
		return share, nil
	}
	over := share.excess(0, 0)
	s.mu.Unlock()
	share.Close()
	return nil, &over
}

// Give undoes Take.
func (s *Share) Give() {
	s.add(-1, true)
	s.Close()
}

// Peer returns whose share it is, empty if that is not known.
func (s *Share) Peer() string { return s.peer }

// Used returns how much the peer has taken.
func (s *Share) Used() int { return int(s.used.Load()) }

// Room returns how much more the peer may take.
func (s *Share) Room() int { return s.room(0, 0) }

// room is Room if so much more were in use, of all and of the peer.
func (s *Share) room(more, own int) int {
	used, share := s.of.Used()+more, s.of.share
	if s.peer == "" {
		share = s.of.total
	}
	return Room(s.of.total, share, used, s.Used()+own)
}

// excess returns which bound there is if so much more were in use, of all and of the peer, and there is no room.
func (s *Share) excess(more, own int) Excess {
	if used := s.of.Used() + more; used >= s.of.total || s.peer == "" {
		return Excess{Used: used, Most: s.of.total, Total: s.of.total}
	}
	return Excess{OfPeer: true, Used: s.Used() + own, Most: s.of.share, Total: s.of.total}
}

// add counts what the peer takes, and, if inAll is set, counts it in the total, too.
func (s *Share) add(n int, inAll bool) {
	s.used.Add(int64(n))
	if inAll {
		s.of.used.Add(int64(n))
	}
}

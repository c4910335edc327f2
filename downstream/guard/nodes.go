package guard

import (
	"context"
	"crypto/sha256"
	"slices"
	"sync"
	"time"

	xdspb "github.com/cncf/xds/go/xds/core/v3"
	"google.golang.org/protobuf/proto"
)

// nodesOfPeer is how many Nodes of [Limits.MaxNodeBytes] may be kept of one peer, not counting the first 16 KiB of
// each.
const nodesOfPeer = 64

// work is a kind of work that requests of a peer make, which takes turns.
type work int

const (
	decodeFirst work = iota // the Node that a client comes with
	decodeLater             // another Node of a client that is there
	otherWork               // decode kept Nodes and polls, and subscribe to many unknown names
	works
)

// A share is how much time of half of the cores one kind of work may take for a peer.
type share struct {
	free int // work on no more bytes takes no turn

	// After a turn, its slot stays taken for rests times as long as the turn took, at most maxRest. Rests of ahead in
	// all may be put off.
	rests   time.Duration
	maxRest time.Duration
	ahead   time.Duration
}

// shares are 1/32 of the time to decode Nodes, and 1/8 for other work. Nodes have less since one of maxNodeContent takes
// a core for milliseconds, and since those that clients are known to come with take no turn. A fleet behind one address
// whose Nodes are larger comes at once, as long as all of them are decoded in a second. A later Node always takes a turn:
// clients hardly ever have one, and one that makes them up can do so at the rate of requests.
var shares = [works]share{
	decodeFirst: {free: smallNode, rests: 31, maxRest: 400 * time.Millisecond, ahead: 31 * time.Second},
	decodeLater: {free: 0, rests: 31, maxRest: 400 * time.Millisecond},
	otherWork:   {free: largeNode, rests: 7, maxRest: 100 * time.Millisecond},
}

// nodes bounds what large requests of each peer take: the time that [shares] say, and the memory of Nodes that wait for
// a turn or are kept (B.35). The rate of frames bounds small Nodes that clients come with.
type nodes struct {
	most   int64 // bytes of a peer
	atOnce int   // turns of one kind of work of a peer

	mu    sync.Mutex
	peers map[string]*peerNodes // guarded by mu; peers that have large Nodes
}

// peerNodes is the use of one peer.
type peerNodes struct {
	// Guarded by nodes.mu.
	held       int64
	uses       int              // those that hold bytes, or have a turn or wait for one
	rested     [works]time.Time // when it will have rested, each slot in its turn, for the work that was done
	forgetting bool             // it is looked at when it will have rested

	slots [works]chan struct{} // a slot for each turn that may be taken at a time
}

// enter returns the use of a peer, which exists until it is left and the peer has rested.
func (s *nodes) enter(peer string) *peerNodes {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.peers[peer]
	if of == nil {
		of = new(peerNodes)
		for w := range of.slots {
			of.slots[w] = make(chan struct{}, s.atOnce)
		}
		s.peers[peer] = of
	}
	of.uses++
	return of
}

func (s *nodes) leave(peer string, of *peerNodes) {
	s.mu.Lock()
	defer s.mu.Unlock()
	of.uses--
	s.forget(peer, of)
}

// forget removes a peer without uses, once it has rested. The caller holds mu.
func (s *nodes) forget(peer string, of *peerNodes) {
	if of.uses > 0 || of.forgetting {
		return
	}
	wait := time.Until(slices.MaxFunc(of.rested[:], time.Time.Compare))
	if wait <= 0 {
		delete(s.peers, peer)
		return
	}
	of.forgetting = true
	time.AfterFunc(wait, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		of.forgetting = false
		s.forget(peer, of)
	})
}

// hold charges a peer for bytes until release, or rejects them.
func (s *nodes) hold(peer string, bytes int) (release func(), err error) {
	charged := int64(bytes - largeNode)
	if charged <= 0 {
		return func() {}, nil
	}
	of := s.enter(peer)
	s.mu.Lock()
	held := of.held
	fits := held+charged <= s.most
	if fits {
		of.held += charged
	}
	s.mu.Unlock()
	if !fits {
		s.leave(peer, of)
		return nil, Exceeds(LimitNodeBytes, "nodes of %s take %d bytes, %d more would be over the %d that one peer is allowed", peer, held, charged, s.most)
	}
	return sync.OnceFunc(func() {
		s.mu.Lock()
		of.held -= charged
		s.mu.Unlock()
		s.leave(peer, of)
	}), nil
}

// turn waits until a peer may have work on so many bytes done. The caller must call done after the work.
func (s *nodes) turn(ctx context.Context, peer string, w work, bytes int) (done func(), err error) {
	if bytes <= shares[w].free {
		return func() {}, nil
	}
	of := s.enter(peer)
	slots := of.slots[w]
	select {
	case slots <- struct{}{}:
		began := time.Now()
		return func() {
			time.AfterFunc(s.rest(of, w, began), func() {
				<-slots
				s.leave(peer, of)
			})
		}, nil
	case <-ctx.Done():
		s.leave(peer, of)
		return nil, ctx.Err()
	}
}

// rest returns how long the slot of a turn that has ended stays taken.
func (s *nodes) rest(of *peerNodes, w work, began time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	its, now := shares[w], time.Now()
	took := now.Sub(began)
	if of.rested[w].Before(began) {
		of.rested[w] = began
	}
	of.rested[w] = of.rested[w].Add((took + min(its.rests*took, its.maxRest)) / time.Duration(s.atOnce))
	return of.rested[w].Sub(now) - its.ahead
}

// A nodeCache has the Nodes that the streams of one connection keep.
type nodeCache struct {
	mu   sync.Mutex
	kept []*KeptNode // guarded by mu
}

// A KeptNode is what streams of a connection with equal Nodes keep of them. It does not change.
type KeptNode struct {
	Shown      string                          // encoded, for operators
	Parameters map[string]*xdspb.ContextParams // dynamic parameters, by type URL; nil without Config.DynamicParameters

	encoded  string     // all that was decoded; empty if it is not needed again
	of       *nodeCache // nil: the stream has no connection
	sum      [sha256.Size]byte
	uncharge func()

	streams int // guarded by of.mu
}

// share returns the kept Node that is equal to n, or else n, for which charge is called.
func (c *nodeCache) share(n *KeptNode, charge func() error) (*KeptNode, error) {
	if c == nil {
		return n, charge()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, kept := range c.kept {
		if kept.sum == n.sum {
			kept.streams++
			return kept, nil
		}
	}
	if err := charge(); err != nil {
		return nil, err
	}
	n.of, n.streams = c, 1
	c.kept = append(c.kept, n)
	return n, nil
}

// Release must be called once by each stream that keeps the Node, when it no longer does.
func (n *KeptNode) Release() {
	if n == nil {
		return
	}
	if c := n.of; c != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		if n.streams--; n.streams > 0 {
			return
		}
		c.kept = slices.DeleteFunc(c.kept, func(other *KeptNode) bool { return other == n })
	}
	n.uncharge()
}

// encodeNode returns the deterministic encoding of a Node, by which Nodes are compared.
func encodeNode(n *node) string {
	encoded, _ := proto.MarshalOptions{Deterministic: true}.Marshal(n) // never fails: it was decoded
	return string(encoded)
}

// maxShown is how many bytes of a Node are kept for operators.
const maxShown = 8 << 10

// shownOf returns the part of a Node that operators are shown, encoded.
func shownOf(all *node) string {
	some := &node{
		Id: all.GetId(), Cluster: all.GetCluster(), Locality: all.GetLocality(), UserAgentName: all.GetUserAgentName(), UserAgentVersionType: all.GetUserAgentVersionType(),
	}
	switch {
	case len(all.GetMetadata().GetFields()) < maxShown/4 && proto.Size(all) <= maxShown: // each field takes four bytes at least
		return encodeNode(all)
	case proto.Size(some) <= maxShown:
		return encodeNode(some)
	default:
		return encodeNode(&node{Id: NodeLabel(all)})
	}
}

package guard

import (
	"context"
	"crypto/sha256"
	"runtime"
	"slices"
	"sync"
	"time"

	xdspb "github.com/cncf/xds/go/xds/core/v3"
	"google.golang.org/protobuf/proto"
)

// nodesOfPeer is how many Nodes of [Limits.MaxNodeBytes] may be kept of one peer, not counting the first 16 KiB of
// each.
const nodesOfPeer = 64

// After a large Node was decoded, its slot stays taken for nodeRests times as long as that took, at most maxNodeRest.
const (
	nodeRests   = 7
	maxNodeRest = 100 * time.Millisecond
)

// nodes bounds what large requests of each peer take: an eighth of the time of half of the cores, to decode large
// Nodes and to subscribe to many unknown names, and the memory of Nodes that wait for that or are kept (B.35). The
// number of streams bounds small Nodes.
type nodes struct {
	most int64 // bytes of a peer

	mu    sync.Mutex
	peers map[string]*peerNodes // guarded by mu; peers that have large Nodes
}

// peerNodes is the use of one peer.
type peerNodes struct {
	// Guarded by nodes.mu.
	held int64
	uses int // those that hold bytes, or decode

	decoding chan struct{} // a slot for each Node that may be decoded at a time
}

// enter returns the use of a peer, which exists until it is left.
func (s *nodes) enter(peer string) *peerNodes {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.peers[peer]
	if of == nil {
		of = &peerNodes{decoding: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2))}
		s.peers[peer] = of
	}
	of.uses++
	return of
}

func (s *nodes) leave(peer string, of *peerNodes) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if of.uses--; of.uses == 0 {
		delete(s.peers, peer)
	}
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

func (s *nodes) turn(ctx context.Context, peer string, bytes int) (done func(), err error) {
	if bytes <= largeNode {
		return func() {}, nil
	}
	of := s.enter(peer)
	select {
	case of.decoding <- struct{}{}:
		began := time.Now()
		return func() {
			time.AfterFunc(min(nodeRests*time.Since(began), maxNodeRest), func() {
				<-of.decoding
				s.leave(peer, of)
			})
		}, nil
	case <-ctx.Done():
		s.leave(peer, of)
		return nil, ctx.Err()
	}
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

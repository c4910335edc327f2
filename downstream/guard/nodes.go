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

// maxPeerBytes bounds the kept Nodes of one peer. The first 16 KiB of each do not count.
const maxPeerBytes = 64 * MaxNodeBytes

// work is a kind of CPU work for the requests of a peer, which is limited by turns.
type work int

const (
	decodeFirst work = iota // decode the first Node of a client
	decodeLater             // decode a changed Node of a client
	otherWork               // decode kept Nodes and polls
	works
)

// A timeShare limits the CPU time that one kind of work may take for a peer, as a fraction of half of the cores.
type timeShare struct {
	free int // work on at most so many bytes takes no turn

	// After a turn, its slot stays taken for a rest of restFactor times the duration of the turn, at most maxRest. A peer
	// may postpone rests of up to credit in total.
	restFactor time.Duration
	maxRest    time.Duration
	credit     time.Duration
}

// timeShares are 1/32 of the time for Nodes, and 1/8 for other work. The share for Nodes is smaller, since a Node of
// maxNodeContent takes a core for milliseconds, and since first Nodes of the usual size take no turn. A fleet with
// larger Nodes behind one address can connect at once if all of them are decoded within a second (credit). A later Node
// always takes a turn: they are rare, and a malicious client could send one in every request.
var timeShares = [works]timeShare{
	decodeFirst: {free: smallNode, restFactor: 31, maxRest: 400 * time.Millisecond, credit: 31 * time.Second},
	decodeLater: {free: 0, restFactor: 31, maxRest: 400 * time.Millisecond},
	otherWork:   {free: largeNode, restFactor: 7, maxRest: 100 * time.Millisecond},
}

// nodes limits the cost of large requests of each peer: CPU time, by timeShares, and the memory of Nodes that wait for
// a turn or are kept (B.35). The rate limit of frames covers small first Nodes.
type nodes struct {
	maxTurns int // concurrent turns of one kind of work of a peer

	mu    sync.Mutex
	peers map[string]*peerNodes // guarded by mu; peers that have large Nodes
}

// peerNodes is the usage of one peer.
type peerNodes struct {
	// Guarded by nodes.mu.
	held             int64            // charged bytes
	uses             int              // charged Nodes, and turns that are taken or waited for
	restUntil        [works]time.Time // end of the rests for all work so far
	removalScheduled bool             // a timer will call removeIdle

	slots [works]chan struct{} // capacity maxTurns; holds a value for each turn or rest
}

// enter returns the usage of a peer. It exists until the last call of leave and the end of the peer's rest.
func (s *nodes) enter(peer string) *peerNodes {
	s.mu.Lock()
	defer s.mu.Unlock()
	use := s.peers[peer]
	if use == nil {
		use = new(peerNodes)
		for w := range use.slots {
			use.slots[w] = make(chan struct{}, s.maxTurns)
		}
		s.peers[peer] = use
	}
	use.uses++
	return use
}

func (s *nodes) leave(peer string, use *peerNodes) {
	s.mu.Lock()
	defer s.mu.Unlock()
	use.uses--
	s.removeIdle(peer, use)
}

// removeIdle removes a peer without uses after the end of its rests. The caller must hold s.mu.
func (s *nodes) removeIdle(peer string, use *peerNodes) {
	if use.uses > 0 || use.removalScheduled {
		return
	}
	wait := time.Until(slices.MaxFunc(use.restUntil[:], time.Time.Compare))
	if wait <= 0 {
		delete(s.peers, peer)
		return
	}
	use.removalScheduled = true
	time.AfterFunc(wait, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		use.removalScheduled = false
		s.removeIdle(peer, use)
	})
}

// hold charges a peer for bytes until release is called, or refuses them.
func (s *nodes) hold(peer string, bytes int) (release func(), err error) {
	charged := int64(bytes - largeNode)
	if charged <= 0 {
		return func() {}, nil
	}
	use := s.enter(peer)
	s.mu.Lock()
	held := use.held
	fits := held+charged <= maxPeerBytes
	if fits {
		use.held += charged
	}
	s.mu.Unlock()
	if !fits {
		s.leave(peer, use)
		return nil, Exceeds(LimitNodeBytes,
			"nodes of %s take %d bytes, %d more would be over the %d that one peer is allowed", peer, held, charged, maxPeerBytes)
	}
	return sync.OnceFunc(func() {
		s.mu.Lock()
		use.held -= charged
		s.mu.Unlock()
		s.leave(peer, use)
	}), nil
}

// turn waits until the time share of a peer allows work on so many bytes. The caller must call done after the work.
func (s *nodes) turn(ctx context.Context, peer string, w work, bytes int) (done func(), err error) {
	if bytes <= timeShares[w].free {
		return func() {}, nil
	}
	use := s.enter(peer)
	slots := use.slots[w]
	select {
	case slots <- struct{}{}:
		began := time.Now()
		return func() {
			time.AfterFunc(s.rest(use, w, began), func() {
				<-slots
				s.leave(peer, use)
			})
		}, nil
	case <-ctx.Done():
		s.leave(peer, use)
		return nil, ctx.Err()
	}
}

// rest returns how long the slot of a turn that began at began and ends now stays taken.
func (s *nodes) rest(use *peerNodes, w work, began time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	share, now := &timeShares[w], time.Now()
	took := now.Sub(began)
	if use.restUntil[w].Before(began) {
		use.restUntil[w] = began
	}
	use.restUntil[w] = use.restUntil[w].Add((took + min(share.restFactor*took, share.maxRest)) / time.Duration(s.maxTurns))
	return use.restUntil[w].Sub(now) - share.credit
}

// A nodeCache has the kept Nodes of the streams of one connection.
type nodeCache struct {
	mu   sync.Mutex
	kept []*KeptNode // guarded by mu
}

// A KeptNode is the kept form of a Node. Streams of a connection with equal Nodes share one. It is immutable, except
// for streams.
type KeptNode struct {
	Shown      string                          // encoded, for operators
	Parameters map[string]*xdspb.ContextParams // dynamic parameters, by type URL; nil without Config.DynamicParameters

	encoded  string     // the whole Node without extensions; empty if it is not needed again
	of       *nodeCache // of the connection; nil if that is unknown
	sum      [sha256.Size]byte
	uncharge func()

	streams int // guarded by of.mu
}

// share returns the kept Node that is equal to n. If there is none, it calls charge, adds n and returns it.
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

// Release drops the reference of a stream to the Node. Each stream must call it once.
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

// encodeNode returns the deterministic encoding of a Node, which is used to compare Nodes.
func encodeNode(n *node) string {
	encoded, _ := proto.MarshalOptions{Deterministic: true}.Marshal(n) // cannot fail, since n was decoded
	return string(encoded)
}

// maxShown is the maximum size in bytes of the part of a Node that is kept for operators.
const maxShown = 8 << 10

// shownOf returns the encoded part of a Node for operators, of at most maxShown bytes.
func shownOf(all *node) string {
	some := &node{
		Id: all.GetId(), Cluster: all.GetCluster(), Locality: all.GetLocality(),
		UserAgentName: all.GetUserAgentName(), UserAgentVersionType: all.GetUserAgentVersionType(),
	}
	switch {
	// A field of the metadata takes at least four bytes. The check avoids computing the size of a large Node.
	case len(all.GetMetadata().GetFields()) < maxShown/4 && proto.Size(all) <= maxShown:
		return encodeNode(all)
	case proto.Size(some) <= maxShown:
		return encodeNode(some)
	default:
		return encodeNode(&node{Id: NodeLabel(all)})
	}
}

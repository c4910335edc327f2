package downstream

import (
	"cmp"
	"context"
	"crypto/sha256"
	"runtime"
	"slices"
	"sync"
	"time"

	xdspb "github.com/cncf/xds/go/xds/core/v3"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"
)

// nodesOfPeer is how many Nodes of [Config.MaxNodeBytes] the streams of one peer may keep in sum, beside the first 16 KiB of each.
const nodesOfPeer = 64

// Who has had a large Node decoded leaves its place for nodeRests times as long as that took, but no longer than maxNodeRest.
const (
	nodeRests   = 7
	maxNodeRest = 100 * time.Millisecond
)

// nodeShares bounds what the large Nodes of each peer take: to decode them, of half of the cores an eighth of the time, and memory for
// those that wait for that or are kept (B.35). Small ones are bounded by how many streams there may be.
type nodes struct {
	most int64 // bytes of a peer

	mu sync.Mutex
	of map[string]*peerNodes // peers that have, or had just now, large Nodes
}

// nodeShare is what one peer has.
type peerNodes struct {
	held     int64         // guarded by nodeShares.mu
	uses     int           // likewise: those that hold something, or decode
	decoding chan struct{} // as many slots as Nodes may be decoded at a time
}

// use returns the share of a peer, which is kept until it is left.
func (s *nodes) enter(peer string) *peerNodes {
	s.mu.Lock()
	defer s.mu.Unlock()
	share := s.of[peer]
	if share == nil {
		share = &peerNodes{decoding: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2))}
		s.of[peer] = share
	}
	share.uses++
	return share
}

func (s *nodes) leave(peer string, share *peerNodes) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if share.uses--; share.uses == 0 {
		delete(s.of, peer)
	}
}

// hold charges a peer for bytes that are kept until release, or refuses them.
func (s *nodes) hold(peer string, bytes int) (release func(), err error) {
	charged := int64(bytes - largeNode)
	if charged <= 0 {
		return func() {}, nil
	}
	share := s.enter(peer)
	s.mu.Lock()
	held := share.held
	fits := held+charged <= s.most
	if fits {
		share.held += charged
	}
	s.mu.Unlock()
	if !fits {
		s.leave(peer, share)
		return nil, Exceeds(LimitNodeBytes, "nodes of %s take %d bytes, %d more would be over the %d that one peer is allowed", peer, held, charged, s.most)
	}
	return sync.OnceFunc(func() {
		s.mu.Lock()
		share.held -= charged
		s.mu.Unlock()
		s.leave(peer, share)
	}), nil
}

// decode waits until a peer may have bytes decoded, which it must call done after. The error is that of ctx, which ended before.
func (s *nodes) decode(ctx context.Context, peer string, bytes int) (done func(), err error) {
	if bytes <= largeNode {
		return func() {}, nil
	}
	share := s.enter(peer)
	select {
	case share.decoding <- struct{}{}:
		began := time.Now()
		return func() {
			time.AfterFunc(min(nodeRests*time.Since(began), maxNodeRest), func() {
				<-share.decoding
				s.leave(peer, share)
			})
		}, nil
	case <-ctx.Done():
		s.leave(peer, share)
		return nil, ctx.Err()
	}
}

// keptNodes are the Nodes that streams of one connection keep.
type nodeCache struct {
	mu   sync.Mutex
	kept []*KeptNode
}

// A keptNode is what the streams of a connection keep of equal Nodes. It does not change.
type KeptNode struct {
	of  *nodeCache // nil: of a single stream
	sum [sha256.Size]byte

	Shown      string                          // encoded, for who asks how a stream stands
	encoded    string                          // all that was decoded, for rules; empty if nobody needs it again
	Parameters map[string]*xdspb.ContextParams // dynamic parameters, by type URL; nil if nobody looks at them

	uncharge func()
	streams  int // guarded by of.mu
}

// nodesOf returns the Nodes of the connection of a stream, nil if it is not known.
func nodeCacheOf(ctx context.Context) *nodeCache {
	if p, ok := peer.FromContext(ctx); ok {
		if c, ok := p.AuthInfo.(connInfo); ok {
			return c.nodes
		}
	}
	return nil
}

// share returns what is kept of a Node that is equal to another one, which counts as one stream's more; else that, once charge has charged
// for it.
func (k *nodeCache) share(other *KeptNode, charge func() error) (*KeptNode, error) {
	if k == nil {
		return other, charge()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, kept := range k.kept {
		if kept.sum == other.sum {
			kept.streams++
			return kept, nil
		}
	}
	if err := charge(); err != nil {
		return nil, err
	}
	other.of, other.streams = k, 1
	k.kept = append(k.kept, other)
	return other, nil
}

// leave is called by each stream that keeps a Node no longer.
func (n *KeptNode) Release() {
	if n == nil {
		return
	}
	if k := n.of; k != nil {
		k.mu.Lock()
		defer k.mu.Unlock()
		if n.streams--; n.streams > 0 {
			return
		}
		k.kept = slices.DeleteFunc(k.kept, func(other *KeptNode) bool { return other == n })
	}
	n.uncharge()
}

// meet decodes a client's Node and has use find out who that is. It returns what a stream of it keeps, which must be left. The Node
// itself is use's as long as it runs: decoded it is many times as large. Goroutines that serve others too must not call it, and nobody
// with a lock that others want.
func (s *Server) WithNode(ctx context.Context, from Peer, raw RawNode, use func(*node) error) (*KeptNode, error) {
	if err := s.cfg.checkNode(raw); err != nil {
		return nil, err
	}
	whose := s.cfg.PeerName(from)
	release, err := s.nodes.hold(whose, len(raw.Encoded))
	if err != nil {
		return nil, err
	}
	defer release() // what is kept of it is charged by itself
	done, err := s.nodes.decode(ctx, whose, len(raw.Encoded))
	if err != nil {
		return nil, err
	}
	defer done()
	n, err := s.cfg.node(raw)
	if err != nil {
		return nil, err
	}
	release()
	kept, err := s.keep(nodeCacheOf(ctx), whose, n)
	if err != nil {
		return nil, err
	}
	if err := use(n); err != nil {
		kept.Release()
		return nil, err
	}
	return kept, nil
}

// keep returns what streams keep of a Node: what of it is shown, and what they need again. Equal Nodes share it, which need not have the
// same bytes: maps have no order.
func (s *Server) keep(of *nodeCache, whose string, n *node) (*KeptNode, error) {
	const parameter = 128 // bytes that a dynamic parameter takes beside its own
	all := &node{
		Id: n.GetId(), Cluster: n.GetCluster(), Locality: n.GetLocality(), Metadata: n.GetMetadata(), DynamicParameters: n.GetDynamicParameters(),
		UserAgentName: n.GetUserAgentName(), UserAgentVersionType: n.GetUserAgentVersionType(), ClientFeatures: n.GetClientFeatures(),
	}
	kept := &KeptNode{Parameters: n.GetDynamicParameters(), uncharge: func() {}}
	size := 0
	if s.cfg.regranted() != nil || len(kept.Parameters) > 0 {
		kept.encoded = encodeNode(all)
		size = len(kept.encoded)
		kept.Shown = kept.encoded
	}
	if size == 0 || size > maxShown {
		kept.Shown = shownOf(all)
	}
	for _, of := range kept.Parameters {
		size += parameter * (1 + len(of.GetParams()))
	}
	kept.sum = sha256.Sum256([]byte(cmp.Or(kept.encoded, kept.Shown)))
	return of.share(kept, func() (err error) {
		kept.uncharge, err = s.nodes.hold(whose, size)
		return err
	})
}

// encodeNode returns a Node that was decoded in bytes that equal ones have in common.
func encodeNode(n *node) string {
	encoded, _ := proto.MarshalOptions{Deterministic: true}.Marshal(n) // which was decoded, so it can be encoded
	return string(encoded)
}

// maxShown is how many bytes of a Node are kept for who asks how its stream stands.
const maxShown = 8 << 10

// shownOf returns what is worth showing of a Node, encoded.
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

// reauthorize returns what a peer may ask for by now of whom a Node is kept.
func (s *Server) reauthorize(ctx context.Context, from Peer, kept *KeptNode) (grant Grant, err error) {
	done, err := s.nodes.decode(ctx, s.cfg.PeerName(from), len(kept.encoded))
	if err != nil {
		return nil, err
	}
	defer done()
	n := new(node)
	_ = proto.Unmarshal([]byte(kept.encoded), n) // which keep has encoded
	return s.cfg.authorize(from, n)
}

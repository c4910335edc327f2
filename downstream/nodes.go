package downstream

import (
	"context"
	"crypto/sha256"
	"runtime"
	"slices"
	"sync"
	"weak"

	xdspb "github.com/cncf/xds/go/xds/core/v3"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"
)

// nodesOfPeer is how many Nodes of [Config.MaxNodeBytes] the streams of one peer may keep in sum, beside the first 16 KiB of each.
const nodesOfPeer = 64

// nodeShares bounds what large Nodes take: of the time of all cores, each peer half at most to decode them, and memory for those that
// wait for that or are kept (B.35). Small ones are bounded by how many streams there may be.
type nodeShares struct {
	most int64 // bytes of a peer

	mu sync.Mutex
	of map[string]*nodeShare // peers that have, or had just now, large Nodes
}

// nodeShare is what one peer has.
type nodeShare struct {
	held     int64         // guarded by nodeShares.mu
	uses     int           // likewise: those that hold something, or decode
	decoding chan struct{} // as many slots as Nodes may be decoded at a time
}

// use returns the share of a peer, which is kept until it is left.
func (s *nodeShares) use(peer string) *nodeShare {
	s.mu.Lock()
	defer s.mu.Unlock()
	share := s.of[peer]
	if share == nil {
		share = &nodeShare{decoding: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2))}
		s.of[peer] = share
	}
	share.uses++
	return share
}

func (s *nodeShares) leave(peer string, share *nodeShare) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if share.uses--; share.uses == 0 {
		delete(s.of, peer)
	}
}

// hold charges a peer for bytes that are kept until release, or refuses them.
func (s *nodeShares) hold(peer string, bytes int) (release func(), err error) {
	charged := int64(bytes - largeNode)
	if charged <= 0 {
		return func() {}, nil
	}
	share := s.use(peer)
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
func (s *nodeShares) decode(ctx context.Context, peer string, bytes int) (done func(), err error) {
	if bytes <= largeNode {
		return func() {}, nil
	}
	share := s.use(peer)
	select {
	case share.decoding <- struct{}{}:
		return func() {
			<-share.decoding
			s.leave(peer, share)
		}, nil
	case <-ctx.Done():
		s.leave(peer, share)
		return nil, ctx.Err()
	}
}

// keptNodes are the Nodes that streams of one connection keep.
type keptNodes struct {
	mu   sync.Mutex
	kept []*keptNode
}

// A keptNode is what the streams of a connection keep of equal Nodes. It does not change but for decoded.
type keptNode struct {
	of  *keptNodes // nil: of a single stream
	sum [sha256.Size]byte

	shown   string                          // encoded, for who asks how a stream stands
	encoded []byte                          // what rules may be about; nil if they do not change
	dynamic map[string]*xdspb.ContextParams // dynamic parameters, by type URL; nil if nobody looks at them

	release func()

	// Guarded by of.mu.
	streams int
	decoded weak.Pointer[node] // of a large one, since streams come together
}

// nodesOf returns the Nodes of the connection of a stream, nil if it is not known.
func nodesOf(ctx context.Context) *keptNodes {
	if p, ok := peer.FromContext(ctx); ok {
		if c, ok := p.AuthInfo.(connection); ok {
			return c.nodes
		}
	}
	return nil
}

// find returns what is kept of a Node, which counts as one stream's more, and the Node itself if that is still there; nil if nothing is.
func (k *keptNodes) find(sum [sha256.Size]byte) (*keptNode, *node) {
	k.mu.Lock()
	defer k.mu.Unlock()
	at := slices.IndexFunc(k.kept, func(kept *keptNode) bool { return kept.sum == sum })
	if at < 0 {
		return nil, nil
	}
	k.kept[at].streams++
	return k.kept[at], k.kept[at].decoded.Value()
}

// keep has further streams find a Node.
func (k *keptNodes) keep(kept *keptNode) {
	k.mu.Lock()
	defer k.mu.Unlock()
	kept.of, kept.streams = k, 1
	k.kept = append(k.kept, kept)
}

// leave is called by each stream that keeps a Node no longer.
func (n *keptNode) leave() {
	if n == nil {
		return
	}
	if k := n.of; k != nil {
		k.mu.Lock()
		defer k.mu.Unlock()
		if n.streams--; n.streams > 0 {
			return
		}
		k.kept = slices.DeleteFunc(k.kept, func(other *keptNode) bool { return other == n })
	}
	n.release()
}

// meet decodes a client's Node and has use find out who that is. It returns what a stream of it keeps, which must be left. The Node
// itself is use's as long as it runs: decoded it is many times as large. Goroutines that serve others too must not call it, and nobody
// with a lock that others want.
func (s *Server) meet(ctx context.Context, from Peer, raw rawNode, use func(*node) error) (*keptNode, error) {
	if err := s.cfg.checkNode(raw); err != nil {
		return nil, err
	}
	whose := s.cfg.peerName(from)
	release, err := s.nodes.hold(whose, len(raw.encoded))
	if err != nil {
		return nil, err
	}
	done, err := s.nodes.decode(ctx, whose, len(raw.encoded))
	if err != nil {
		release()
		return nil, err
	}
	defer done()
	kept, n, err := s.keptNode(nodesOf(ctx), whose, raw)
	release()
	if err != nil {
		return nil, err
	}
	if err := use(n); err != nil {
		kept.leave()
		return nil, err
	}
	return kept, nil
}

// keptNode returns what is kept of a Node, and the Node.
func (s *Server) keptNode(of *keptNodes, whose string, raw rawNode) (kept *keptNode, n *node, err error) {
	var sum [sha256.Size]byte
	if of != nil {
		sum = sha256.Sum256(raw.encoded)
		if kept, n = of.find(sum); n != nil {
			return kept, n, nil
		}
	}
	if n, err = s.cfg.node(raw); err != nil {
		return nil, nil, err
	}
	if kept == nil {
		if kept, err = s.keep(whose, n); err != nil {
			return nil, nil, err
		}
		if kept.sum = sum; of != nil {
			of.keep(kept)
		}
	}
	if len(raw.encoded) > largeNode && of != nil {
		of.mu.Lock()
		kept.decoded = weak.Make(n)
		of.mu.Unlock()
	}
	return kept, n, nil
}

// keep returns what streams keep of a Node: what of it is shown, and what they need again.
func (s *Server) keep(whose string, n *node) (kept *keptNode, err error) {
	const parameter = 128 // bytes that one takes beside its own
	kept = &keptNode{shown: shownOf(n), dynamic: n.GetDynamicParameters()}
	size := 0
	if s.cfg.regranted() != nil {
		kept.encoded = ruledOf(n)
		size += len(kept.encoded)
	}
	for _, of := range kept.dynamic {
		size += parameter
		for key, value := range of.GetParams() {
			size += parameter + len(key) + len(value)
		}
	}
	kept.release, err = s.nodes.hold(whose, size)
	return kept, err
}

// ruledOf returns what rules may be about of a Node, encoded.
func ruledOf(n *node) []byte {
	encoded, _ := proto.Marshal(&node{ // which was decoded, so it can be encoded
		Id: n.GetId(), Cluster: n.GetCluster(), UserAgentName: n.GetUserAgentName(), Locality: n.GetLocality(), Metadata: n.GetMetadata(),
	})
	return encoded
}

// maxShown is how many bytes of a Node are kept for who asks how its stream stands.
const maxShown = 8 << 10

// shownOf returns what is worth showing of a Node, encoded.
func shownOf(n *node) string {
	shown := &node{
		Id: n.GetId(), Cluster: n.GetCluster(), Locality: n.GetLocality(), Metadata: n.GetMetadata(),
		UserAgentName: n.GetUserAgentName(), UserAgentVersionType: n.GetUserAgentVersionType(), ClientFeatures: n.GetClientFeatures(),
	}
	if proto.Size(shown) > maxShown {
		shown.Metadata, shown.ClientFeatures = nil, nil
	}
	if proto.Size(shown) > maxShown {
		shown = &node{Id: nodeLabel(n)}
	}
	encoded, _ := proto.Marshal(shown) // which was decoded, so it can be encoded
	return string(encoded)
}

// reauthorize returns what a peer may ask for by now of whom a Node is kept.
func (s *Server) reauthorize(ctx context.Context, from Peer, kept *keptNode) (grant Grant, err error) {
	done, err := s.nodes.decode(ctx, s.cfg.peerName(from), len(kept.encoded))
	if err != nil {
		return nil, err
	}
	defer done()
	n := new(node)
	_ = proto.Unmarshal(kept.encoded, n) // which ruledOf has encoded
	return s.cfg.authorize(from, n)
}

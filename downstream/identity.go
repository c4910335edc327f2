package downstream

import (
	"hash/maphash"
	"maps"

	xdspb "github.com/cncf/xds/go/xds/core/v3"
	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream/guard"
)

// nodeSeed makes a sum of a node's bytes enough to see that it was repeated
// (R017).
var nodeSeed = maphash.MakeSeed()

// A node is what a client says of itself.
type node = corepb.Node

// An identity is who a client says that it is in a request. It counts as a member of its group until the stream takes it over, or drops
// it.
type identity struct {
	err   error // why the client may not be that; ends the stream
	probe bool  // it only asks whether it would be served, and has no group

	group Group
	grant Grant           // nil if the client may have anything
	rules <-chan struct{} // closed once the grant may have to be renewed
	kept  *guard.KeptNode

	id, label string
	agent     agent
	wrap, ttl bool
}

// drop undoes what identify has done for a stream that takes nothing over any more.
func (who *identity) drop() {
	if who == nil {
		return
	}
	if who.group.Leave != nil {
		who.group.Leave()
	}
	who.kept.Release()
}

// An introduction is what the receiver of a stream remembers of who its client said that it is. Nobody else may use it.
type introduction struct {
	made  bool
	sum   uint64 // of the Node
	leave func() // leaves the group of the Node
}

// introduce finds out who a client is if a request says so, which the first one does (R016), and a later one with another Node (R018);
// else it returns nil. Whoever calls it does so for the client alone, and has no lock: what a client says takes as long as it likes
// (B.35). The request loses its Node.
func (s *stream) introduce(r *wire.Request) *identity {
	raw := guard.RawNode{Encoded: r.Node, Size: r.NodeBytes}
	r.Node = nil
	first := !s.met.made
	if r.Err != nil || s.fixType(r) != nil || !first && raw.Encoded == nil {
		return nil // of what is wrong, handle tells
	}
	sum := maphash.Bytes(nodeSeed, raw.Encoded)
	if !first && sum == s.met.sum && s.cfg.CheckNode(raw) == nil {
		return nil
	}
	s.met.made, s.met.sum = true, sum
	// In a goroutine that ends at once, since it makes a stack grow, and the receiver would have the large one for good.
	found := make(chan *identity)
	go func() { found <- s.identityOf(raw, first) }()
	return <-found
}

// identityOf decodes a Node, and joins its group.
func (s *stream) identityOf(raw guard.RawNode, first bool) *identity {
	ctx := s.rpc.Context()
	from := guard.PeerOf(ctx)
	who := &identity{rules: s.cfg.regranted()}
	who.kept, who.err = s.server.guard.WithNode(ctx, from, raw, func(n *node) (err error) {
		if who.grant, err = s.cfg.authorize(from, n); err != nil {
			return err
		}
		if who.probe = first && s.probes(); who.probe {
			return nil
		}
		if s.met.leave != nil {
			s.met.leave() // so that a client that was alone in its group makes room for its new one
		}
		if who.group, err = s.cfg.Views.Join(n, s.cfg.PeerName(from)); err != nil {
			return err
		}
		s.met.leave = who.group.Leave
		who.id, who.label, who.agent = n.GetId(), guard.NodeLabel(n), agentOf(n)
		who.wrap, who.ttl = features(n)
		return nil
	})
	return who
}

// identify has the stream serve the client that a request comes from; nil if that has not changed. A client that says later that it is
// somebody else belongs to another group, and must not go on being served from this one (R018). The error ends the stream.
func (s *stream) identify(who *identity) error {
	switch {
	case who == nil:
		return nil
	case who.err != nil:
		return who.err
	case who.probe:
		who.drop()
		return s.probed()
	case s.watch != nil:
		return s.reidentify(who)
	}
	s.take(who)
	s.watch = who.group.View.WatchFunc(s.changed)
	s.watch.SetPeer(s.cfg.PeerName(guard.PeerOf(s.rpc.Context())))
	s.agent, s.wrap, s.ttl = who.agent, who.wrap, who.ttl
	s.client = &client{
		cfg: s.cfg, watch: s.watch, stream: s.number, node: who.label, group: who.group.Key,
		delta: s.delta, errors: s.agent.grpc || s.agent.relay,
	}
	if s.cfg.Traces != nil {
		s.watch.SetSubscriber(&cache.Subscriber{Node: s.client.node, Group: who.group.Key, Stream: s.number})
	}
	s.client.began(s.typeURL)
	return nil
}

// take has the stream be of an identity's group, and keep what it keeps.
func (s *stream) take(who *identity) {
	s.kept.Release()
	s.group, s.grant, s.kept = who.group, who.grant, who.kept
	select {
	case <-who.rules: // the rules have changed since, and run may have found no grant to renew
		select {
		case s.stale <- struct{}{}:
		default: // it does so anyway
		}
	default:
	}
}

// reidentify goes on with a client that says something else of itself than before. The error
// ends the stream.
func (s *stream) reidentify(who *identity) error {
	before, parameters := s.group.View, s.dynamic()
	s.take(who)
	if who.group.View != before {
		return guard.Ended(guard.EndedReturn, codes.Unavailable, "node %q now belongs to group %q, connect again", who.id, who.group.Key)
	}
	if !sameParameters(parameters, s.dynamic()) {
		return guard.Ended(guard.EndedReturn, codes.Unavailable, "node %q has other dynamic parameters now, connect again", who.id)
	}
	return s.grantAnew(who.grant)
}

// probes reports whether the stream is a probe, which its first request tells.
func (s *stream) probes() bool { return s.cfg.Probed != nil && isProbe(s.rpc) }

// probed answers a relay that only asks whether it would be served. The error ends the stream.
func (s *stream) probed() error {
	if err := s.cfg.Probed(); err != nil {
		return err
	}
	if err := s.rpc.SendHeader(metadata.Pairs(wire.ProbeHeader, "ready")); err != nil {
		return err
	}
	return guard.Ended(guard.EndedByClient, codes.OK, "")
}

// regrant has the stream obey what the client may ask for by now. Whom a Node is kept of is decided without the lock.
func (s *stream) regrant() {
	ctx := s.rpc.Context()
	for done := false; !done; {
		kept := s.granted()
		if kept == nil {
			return // over, or who it is is not said yet
		}
		grant, err := s.server.reauthorize(ctx, guard.PeerOf(ctx), kept)
		done = s.renew(kept, grant, err)
	}
}

// granted returns what is kept of the Node that the client has a grant for; nil if it has none.
func (s *stream) granted() *guard.KeptNode {
	s.lock.take()
	defer s.lock.leave()
	if s.ended || s.grant == nil {
		return nil
	}
	return s.kept
}

// renew gives the client that a Node is kept of another grant, or ends the stream by err. It reports whether that is the client still.
func (s *stream) renew(of *guard.KeptNode, grant Grant, err error) bool {
	s.lock.take()
	defer s.lock.leave()
	switch {
	case s.ended:
		return true
	case s.kept != of:
		return false
	}
	if err == nil {
		err = s.grantAnew(grant)
	}
	if err != nil {
		s.end(err)
		return true
	}
	s.wake()
	return true
}

// isProbe reports whether a stream is a relay's probe.
func isProbe(rpc grpc.ServerStream) bool {
	return len(metadata.ValueFromIncomingContext(rpc.Context(), wire.ProbeHeader)) > 0
}

// dynamic returns the dynamic parameters of the client's Node, by type URL.
func (s *stream) dynamic() map[string]*xdspb.ContextParams {
	if s.kept == nil {
		return nil
	}
	return s.kept.Parameters
}

func sameParameters(a, b map[string]*xdspb.ContextParams) bool {
	return maps.EqualFunc(a, b, func(a, b *xdspb.ContextParams) bool { return maps.Equal(a.GetParams(), b.GetParams()) })
}

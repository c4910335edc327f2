package downstream

import (
	"context"
	"hash/maphash"
	"maps"

	xdspb "github.com/cncf/xds/go/xds/core/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/downstream/loadreport"
	"github.com/xdstender/tender/downstream/subscription"
)

// nodeSeed seeds the hash by which a repeated Node is recognised (R017).
var nodeSeed = maphash.MakeSeed()

// An identity is the client that a request introduces: its Node, its group and its grant. It counts as a member of the
// group until the stream takes it over or drops it.
type identity struct {
	err   error // the client is rejected; ends the stream
	probe bool  // the stream is a probe, which has no group

	group Group
	grant Grant           // nil without an Authorizer
	rules <-chan struct{} // closed once the grant may have to be renewed
	kept  *guard.KeptNode

	id, label string
	agent     subscription.Software

	// Features of the client.
	wrap, ttl, allClusters bool
}

// drop leaves the group and releases the Node, unless the stream has taken the identity over.
func (who *identity) drop() {
	if who == nil {
		return
	}
	if who.group.Leave != nil {
		who.group.Leave()
	}
	who.kept.Release()
}

// An introduction is what the receiver of a stream remembers of the last identity. It is owned by the receiver.
type introduction struct {
	made  bool
	sum   uint64      // of the Node
	view  *cache.View // of the group of the Node; nil without one
	leave func()      // leaves that group
}

// introduce returns the identity of the client if a request has a new one: the first request does (R016), and a later
// one with another Node (R018). Else it returns nil. It may take long, so it must be called without a lock, and by a
// goroutine that serves this client alone (B.35). The request loses its Node.
func (s identification) introduce(r *wire.Request) *identity {
	raw := guard.RawNode{Encoded: r.Node, Size: r.NodeBytes, Later: s.introduced.made}
	r.Node = nil
	if r.Err != nil || s.fixType(r) != nil || raw.Later && raw.Encoded == nil {
		return nil // handle reports what is wrong
	}
	sum := maphash.Bytes(nodeSeed, raw.Encoded)
	if raw.Later && sum == s.introduced.sum && s.cfg.CheckNode(raw) == nil {
		return nil
	}
	s.introduced.made, s.introduced.sum = true, sum
	// In a goroutine, awaited below: decoding makes a stack grow, and the receiver would keep the large one.
	found := make(chan *identity)
	go func() { found <- s.identityOf(raw) }()
	return <-found
}

// identityOf returns the identity of the stream's client by its Node.
func (s identification) identityOf(raw guard.RawNode) *identity {
	probe := !raw.Later && s.probes()
	who, err := s.server.identify(s.rpc.Context(), guard.PeerOf(s.rpc.Context()), raw, func() bool {
		if s.introduced.leave != nil && !probe {
			s.introduced.leave() // so that a client that was alone in its group makes room for its new one
		}
		return !probe
	})
	if who.err, who.probe = err, probe; err == nil && !probe {
		s.introduced.view, s.introduced.leave = who.group.View, who.group.Leave
	}
	return who
}

// identify decodes a client's Node, authorizes the client, and joins its group if join returns true. The identity must
// be dropped, if there is no error.
func (s *Server) identify(ctx context.Context, from guard.Peer, raw guard.RawNode, join func() bool) (*identity, error) {
	who := &identity{rules: s.cfg.rulesChanged()}
	var err error
	who.kept, err = s.guard.WithNode(ctx, from, raw, func(n *node) (err error) {
		who.id, who.label, who.agent = n.GetId(), guard.NodeLabel(n), softwareOf(n)
		who.features(n)
		if who.grant, err = s.cfg.authorize(from, n); err != nil || !join() {
			return err
		}
		who.group, err = s.cfg.Views.Join(n, Caller{Peer: s.cfg.PeerName(from), Relay: len(relaysOf(ctx)) > 0})
		return err
	})
	return who, err
}

// features reads the client features that the server supports, in all of their spellings (R142).
func (who *identity) features(n *node) {
	for _, f := range n.GetClientFeatures() {
		switch f {
		case "xds.config.resource-in-sotw", "xds.config.supports-resource-in-sotw", "envoy.config.resource-in-sotw":
			who.wrap = true
		case "xds.config.supports-resource-ttl", "envoy.config.supports-resource-ttl":
			who.ttl = true
		case loadreport.SendAllClustersFeature:
			who.allClusters = true
		}
	}
}

// identify applies the identity of a request; nil if it is unchanged. A client that changes its group must not be served
// from the old one (R018). The error ends the stream.
func (s identification) identify(who *identity) error {
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
		Client: subscription.Client{
			Settings: &s.cfg.subscriptions, Watch: s.watch,
			Delta: s.delta, Errors: s.agent.GRPC || s.agent.Relay,
		},
		cfg: s.cfg, stream: s.number, node: who.label, group: who.group.Key,
	}
	if s.cfg.Traces != nil {
		s.client.Closed = s.client.delivered
		s.watch.SetSubscriber(&cache.Subscriber{Node: s.client.node, Group: who.group.Key, Stream: s.number})
	}
	s.client.began(s.typeURL)
	return nil
}

// take replaces the group, the grant and the Node of the stream by those of an identity.
func (s identification) take(who *identity) {
	s.kept.Release()
	s.group, s.grant, s.kept = who.group, who.grant, who.kept
	select {
	case <-who.rules: // the rules have changed meanwhile, when run may have found no grant to renew
		select {
		case s.stale <- struct{}{}:
		default: // it does so anyway
		}
	default:
	}
}

// reidentify applies an identity that differs from the first one. The error ends the stream.
func (s identification) reidentify(who *identity) error {
	before, parameters := s.group.View, s.dynamic()
	s.take(who)
	if who.group.View != before {
		return guard.Ended(guard.EndedReturn, codes.Unavailable, "node %q now belongs to group %q, connect again", who.id, who.group.Key)
	}
	if !sameParameters(parameters, s.dynamic()) {
		return guard.Ended(guard.EndedReturn, codes.Unavailable, "node %q has other dynamic parameters now, connect again", who.id)
	}
	return s.setGrant(who.grant)
}

// probes reports whether the stream is a probe, by its first request.
func (s identification) probes() bool { return s.cfg.Probed != nil && isProbe(s.rpc) }

// probed answers a relay that asks whether it would be served. The error ends the stream.
func (s identification) probed() error {
	if err := s.cfg.Probed(); err != nil {
		return err
	}
	if err := s.rpc.SendHeader(metadata.Pairs(wire.ProbeHeader, "ready")); err != nil {
		return err
	}
	return guard.Ended(guard.EndedByClient, codes.OK, "")
}

// regrant authorizes the client again, without the lock, after rules have changed.
func (s identification) regrant() {
	ctx := s.rpc.Context()
	for done := false; !done; {
		kept := s.granted()
		if kept == nil {
			return // the stream has ended, or has no identity yet
		}
		grant, err := s.server.reauthorize(ctx, guard.PeerOf(ctx), kept)
		done = s.renew(kept, grant, err)
	}
}

// granted returns the Node that the grant is for; nil if there is no grant.
func (s identification) granted() *guard.KeptNode {
	s.lock.take()
	defer s.lock.leave()
	if s.ended || s.grant == nil {
		return nil
	}
	return s.kept
}

// renew replaces the grant of the client with a Node, or ends the stream by err. It reports whether the client still has
// that Node.
func (s identification) renew(of *guard.KeptNode, grant Grant, err error) bool {
	s.lock.take()
	defer s.lock.leave()
	switch {
	case s.ended:
		return true
	case s.kept != of:
		return false
	}
	if err == nil {
		err = s.setGrant(grant)
	}
	if err != nil {
		s.end(err)
		return true
	}
	s.wake()
	return true
}

// dynamic returns the dynamic parameters of the client's Node, by type URL.
func (s identification) dynamic() map[string]*xdspb.ContextParams {
	if s.kept == nil {
		return nil
	}
	return s.kept.Parameters
}

func sameParameters(a, b map[string]*xdspb.ContextParams) bool {
	return maps.EqualFunc(a, b, func(a, b *xdspb.ContextParams) bool { return maps.Equal(a.GetParams(), b.GetParams()) })
}

// isProbe reports whether a stream is the probe of a relay.
func isProbe(rpc grpc.ServerStream) bool {
	return len(metadata.ValueFromIncomingContext(rpc.Context(), wire.ProbeHeader)) > 0
}

// relaysOf returns the tokens of the relays that a stream comes through; none if its client is no relay.
func relaysOf(ctx context.Context) []string {
	return metadata.ValueFromIncomingContext(ctx, wire.RelayHeader)
}

// enterChain counts a stream whose client is a relay, and sends it, in the response header, the relays above. Both
// relays detect a cycle, and only this stream ends, by end.
func (s *Server) enterChain(rpc grpc.ServerStream, end func(error)) (leave func(), err error) {
	tokens := relaysOf(rpc.Context())
	if s.cfg.Chain == nil || len(tokens) == 0 {
		return func() {}, nil
	}
	ways, leave, err := s.cfg.Chain.Below(tokens, end)
	if err != nil {
		return nil, err
	}
	send := rpc.SendHeader
	if isProbe(rpc) { // the header of which says more
		send = rpc.SetHeader
	}
	if err := send(metadata.MD{wire.ChainHeader: ways}); err != nil {
		leave()
		return nil, err
	}
	return leave, nil
}

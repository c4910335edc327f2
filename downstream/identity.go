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

	group         Group
	grant         Grant           // nil without an Authorizer
	grantsChanged <-chan struct{} // closed once the grant may have to be renewed
	keptNode      *guard.KeptNode

	id, label string
	agent     subscription.Software

	// Features of the client.
	wrap, ttl, allClusters bool
}

// drop leaves the group and releases the Node, unless the stream has taken the identity over.
func (ident *identity) release() {
	if ident == nil {
		return
	}
	if ident.group.Leave != nil {
		ident.group.Leave()
	}
	ident.keptNode.Release()
}

// An introduction is what the receiver of a stream remembers of the last identity. It is owned by the receiver.
type lastNode struct {
	seen  bool
	sum   uint64      // of the Node
	view  *cache.View // of the group of the Node; nil without one
	leave func()      // leaves that group
}

// introduce returns the identity of the client if a request has a new one: the first request does (R016), and a later
// one with another Node (R018). Else it returns nil. It may take long, so it must be called without a lock, and by a
// goroutine that serves this client alone (B.35). The request loses its Node.
func (s identification) identityIn(r *wire.Request) *identity {
	raw := guard.RawNode{Encoded: r.Node, Size: r.NodeBytes, Later: s.lastNode.seen}
	r.Node = nil
	if r.Err != nil || s.resolveTypeURL(r) != nil || raw.Later && raw.Encoded == nil {
		return nil // handle reports what is wrong
	}
	sum := maphash.Bytes(nodeSeed, raw.Encoded)
	if raw.Later && sum == s.lastNode.sum && s.cfg.CheckNode(raw) == nil {
		return nil
	}
	s.lastNode.seen, s.lastNode.sum = true, sum
	// In a goroutine, awaited below: decoding makes a stack grow, and the receiver would keep the large one.
	found := make(chan *identity)
	go func() { found <- s.resolveIdentity(raw) }()
	return <-found
}

// identityOf returns the identity of the stream's client by its Node.
func (s identification) resolveIdentity(raw guard.RawNode) *identity {
	probe := !raw.Later && s.answersProbe()
	ident, err := s.server.identify(s.rpc.Context(), guard.PeerOf(s.rpc.Context()), raw, func() bool {
		if s.lastNode.leave != nil && !probe {
			s.lastNode.leave() // so that a client that was alone in its group makes room for its new one
		}
		return !probe
	})
	if ident.err, ident.probe = err, probe; err == nil && !probe {
		s.lastNode.view, s.lastNode.leave = ident.group.View, ident.group.Leave
	}
	return ident
}

// identify decodes a client's Node, authorizes the client, and joins its group if join returns true. The identity must
// be dropped, if there is no error.
func (s *Server) identify(ctx context.Context, from guard.Peer, raw guard.RawNode, join func() bool) (*identity,
	error) {
	ident := &identity{grantsChanged: s.cfg.grantsChanged()}
	var err error
	ident.keptNode, err = s.guard.WithNode(ctx, from, raw, func(n *node) (err error) {
		ident.id, ident.label, ident.agent = n.GetId(), guard.NodeLabel(n), softwareOf(n)
		ident.readFeatures(n)
		if ident.grant, err = s.cfg.authorize(from, n); err != nil || !join() {
			return err
		}
		ident.group, err = s.cfg.Views.Join(n, Caller{Peer: s.cfg.PeerName(from), Relay: len(relayTokens(ctx)) > 0})
		return err
	})
	return ident, err
}

// features reads the client features that the server supports, in all of their spellings (R142).
func (ident *identity) readFeatures(n *node) {
	for _, f := range n.GetClientFeatures() {
		switch f {
		case "xds.config.resource-in-sotw", "xds.config.supports-resource-in-sotw", "envoy.config.resource-in-sotw":
			ident.wrap = true
		case "xds.config.supports-resource-ttl", "envoy.config.supports-resource-ttl":
			ident.ttl = true
		case loadreport.SendAllClustersFeature:
			ident.allClusters = true
		}
	}
}

// identify applies the identity of a request; nil if it is unchanged. A client that changes its group must not be served
// from the old one (R018). The error ends the stream.
func (s identification) applyIdentity(ident *identity) error {
	switch {
	case ident == nil:
		return nil
	case ident.err != nil:
		return ident.err
	case ident.probe:
		ident.release()
		return s.answerProbe()
	case s.watch != nil:
		return s.changeIdentity(ident)
	}
	s.adoptIdentity(ident)
	s.watch = ident.group.View.WatchFunc(s.resourceChanged)
	s.watch.SetPeer(s.cfg.PeerName(guard.PeerOf(s.rpc.Context())))
	s.agent, s.wrap, s.ttl = ident.agent, ident.wrap, ident.ttl
	s.client = &client{
		Client: subscription.Client{
			Settings: &s.cfg.subscriptions, Watch: s.watch,
			Delta: s.delta, Errors: s.agent.GRPC || s.agent.Relay,
		},
		cfg: s.cfg, stream: s.number, node: ident.label, group: ident.group.Key,
	}
	if s.cfg.Traces != nil {
		s.client.Closed = s.client.exportDelivery
		s.watch.SetSubscriber(&cache.Subscriber{Node: s.client.node, Group: ident.group.Key, Stream: s.number})
	}
	s.client.logStart(s.typeURL)
	return nil
}

// take replaces the group, the grant and the Node of the stream by those of an identity.
func (s identification) adoptIdentity(ident *identity) {
	s.keptNode.Release()
	s.group, s.grant, s.keptNode = ident.group, ident.grant, ident.keptNode
	select {
	case <-ident.grantsChanged: // the rules have changed meanwhile, when run may have found no grant to renew
		select {
		case s.grantStale <- struct{}{}:
		default: // it does so anyway
		}
	default:
	}
}

// reidentify applies an identity that differs from the first one. The error ends the stream.
func (s identification) changeIdentity(ident *identity) error {
	before, parameters := s.group.View, s.dynamicParameters()
	s.adoptIdentity(ident)
	if ident.group.View != before {
		return guard.Ended(guard.EndedReturn, codes.Unavailable, "node %q now belongs to group %q, connect again", ident.id,
			ident.group.Key)
	}
	if !sameParameters(parameters, s.dynamicParameters()) {
		return guard.Ended(guard.EndedReturn, codes.Unavailable, "node %q has other dynamic parameters now, connect again",
			ident.id)
	}
	return s.setGrant(ident.grant)
}

// probes reports whether the stream is a probe, by its first request.
func (s identification) answersProbe() bool { return s.cfg.ProbeStatus != nil && isProbe(s.rpc) }

// probed answers a relay that asks whether it would be served. The error ends the stream.
func (s identification) answerProbe() error {
	if err := s.cfg.ProbeStatus(); err != nil {
		return err
	}
	if err := s.rpc.SendHeader(metadata.Pairs(wire.ProbeHeader, "ready")); err != nil {
		return err
	}
	return guard.Ended(guard.EndedByClient, codes.OK, "")
}

// regrant authorizes the client again, without the lock, after rules have changed.
func (s identification) renewGrant() {
	ctx := s.rpc.Context()
	for done := false; !done; {
		kept := s.nodeOfGrant()
		if kept == nil {
			return // the stream has ended, or has no identity yet
		}
		grant, err := s.server.reauthorize(ctx, guard.PeerOf(ctx), kept)
		done = s.applyGrant(kept, grant, err)
	}
}

// granted returns the Node that the grant is for; nil if there is no grant.
func (s identification) nodeOfGrant() *guard.KeptNode {
	s.lock.acquire()
	defer s.lock.release()
	if s.ended || s.grant == nil {
		return nil
	}
	return s.keptNode
}

// renew replaces the grant of the client with a Node, or ends the stream by err. It reports whether the client still has
// that Node.
func (s identification) applyGrant(of *guard.KeptNode, grant Grant, err error) bool {
	s.lock.acquire()
	defer s.lock.release()
	switch {
	case s.ended:
		return true
	case s.keptNode != of:
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
func (s identification) dynamicParameters() map[string]*xdspb.ContextParams {
	if s.keptNode == nil {
		return nil
	}
	return s.keptNode.Parameters
}

func sameParameters(a, b map[string]*xdspb.ContextParams) bool {
	return maps.EqualFunc(a, b, func(a, b *xdspb.ContextParams) bool { return maps.Equal(a.GetParams(), b.GetParams()) })
}

// isProbe reports whether a stream is the probe of a relay.
func isProbe(rpc grpc.ServerStream) bool {
	return len(metadata.ValueFromIncomingContext(rpc.Context(), wire.ProbeHeader)) > 0
}

// relaysOf returns the tokens of the relays that a stream comes through; none if its client is no relay.
func relayTokens(ctx context.Context) []string {
	return metadata.ValueFromIncomingContext(ctx, wire.RelayHeader)
}

// enterChain counts a stream whose client is a relay, and sends it, in the response header, the relays above. Both
// relays detect a cycle, and only this stream ends, by end.
func (s *Server) enterChain(rpc grpc.ServerStream, end func(error)) (leave func(), err error) {
	tokens := relayTokens(rpc.Context())
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

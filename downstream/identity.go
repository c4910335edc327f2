package downstream

import (
	"context"
	"hash/maphash"
	"maps"
	"sync"

	xdspb "github.com/cncf/xds/go/xds/core/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/downstream/loadreport"
	"github.com/xdstender/tender/downstream/subscription"
)

// nodeSeed seeds the hash that detects a repeated Node (R017).
var nodeSeed = maphash.MakeSeed()

// An identity is the resolved Node of a client, with its group and its grant. It counts as a member of the group until
// release, or until the stream that adopted it ends.
type identity struct {
	err   error // refuses the client: ends the stream
	probe bool  // the stream is a probe: it joins no group

	group         Group
	grant         Grant           // nil without an Authorizer
	grantsChanged <-chan struct{} // closed when the grant must be renewed
	keptNode      *guard.KeptNode

	id    string // of the Node
	label string // a short form of the id, for logs
	agent subscription.Software

	// Supported client features.
	wrap, ttl, allClusters bool
}

// release leaves the group and releases the Node. It must not be called once a stream has adopted the identity. A nil
// identity has nothing to release.
func (ident *identity) release() {
	if ident == nil {
		return
	}
	if ident.group.Leave != nil {
		ident.group.Leave()
	}
	ident.keptNode.Release()
}

// A lastNode describes the newest Node of a stream, so that a repeated Node is not resolved again. Only the receiver
// uses it.
type lastNode struct {
	seen  bool
	sum   uint64      // hash of the Node
	view  *cache.View // of the group; nil if the Node was refused
	leave func()      // leaves the group
}

// identityIn returns the identity of the client if the request has a new Node: the first request (R016), or a later one
// with a different Node (R018). Otherwise it returns nil. It removes the Node from the request. It may take long, so
// the caller must hold no lock, and must be a goroutine that serves only this client (B.35).
func (s *stream) identityIn(r *wire.Request) *identity {
	raw := guard.RawNode{Encoded: r.Node, Size: r.NodeBytes, Later: s.lastNode.seen}
	r.Node = nil
	if r.Err != nil || s.resolveTypeURL(r) != nil || s.repeatsNode(raw) {
		return nil // handle returns the error
	}
	s.lastNode.seen, s.lastNode.sum = true, maphash.Bytes(nodeSeed, raw.Encoded)
	// Resolve it in another goroutine, because decoding grows the stack, and the receiver would keep the large stack.
	resolved := make(chan *identity)
	go func() { resolved <- s.resolveIdentity(raw) }()
	return <-resolved
}

// repeatsNode reports whether the Node of a request, if it has one, is that of the request before.
func (s *stream) repeatsNode(raw guard.RawNode) bool {
	return raw.Later && (raw.Encoded == nil ||
		maphash.Bytes(nodeSeed, raw.Encoded) == s.lastNode.sum && guard.CheckNode(raw) == nil)
}

// resolveIdentity resolves the Node of the stream's client, and joins its group unless the stream is a probe.
func (s *stream) resolveIdentity(raw guard.RawNode) *identity {
	probe := !raw.Later && s.answersProbe()
	ident, err := s.server.identify(s.rpc.Context(), guard.PeerOf(s.rpc.Context()), raw, func() bool {
		if s.lastNode.leave != nil && !probe {
			s.lastNode.leave() // first, so that an empty old group makes room for the new group
		}
		return !probe
	})
	if ident.err, ident.probe = err, probe; err == nil && !probe {
		s.lastNode.view, s.lastNode.leave = ident.group.View, ident.group.Leave
	}
	return ident
}

// identify decodes a client's Node and authorizes the client. It joins the group of the Node if join returns true. If
// there is no error, the caller must release the identity, or adopt it for a stream.
func (s *Server) identify(
	ctx context.Context, from guard.Peer, raw guard.RawNode, join func() bool,
) (*identity, error) {
	ident := &identity{grantsChanged: s.cfg.grantsChanged()}
	var err error
	ident.keptNode, err = s.guard.WithNode(ctx, from, raw, func(n *node) (err error) {
		ident.id, ident.label, ident.agent = n.GetId(), guard.NodeLabel(n), softwareOf(n)
		ident.readFeatures(n)
		if ident.grant, err = s.cfg.authorize(from, n); err != nil || !join() {
			return err
		}
		ident.group, err = s.cfg.Views.Join(n, Caller{Peer: guard.PeerName(from), Relay: len(relayTokens(ctx)) > 0})
		return err
	})
	return ident, err
}

// readFeatures reads the client features that the server supports, in all their spellings (R142).
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

// applyIdentity applies the identity of a request to the stream. It does nothing if the identity is nil, because the
// Node is unchanged. A stream must not continue with a view that its client's new Node does not belong to (R018). The
// error ends the stream.
func (s *stream) applyIdentity(ident *identity) error {
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
	s.watch.SetPeer(s.peer)
	s.agent, s.wrap, s.ttl = ident.agent, ident.wrap, ident.ttl
	s.client = &client{
		Client: subscription.Client{
			Settings: &s.cfg.subscriptions, Watch: s.watch,
			Delta: s.delta, Errors: s.agent.GRPC || s.agent.Relay,
		},
		cfg: s.cfg, node: ident.label, group: ident.group.Key,
	}
	if s.cfg.Traces != nil {
		s.client.Closed = s.exportDelivery
		s.watch.SetSubscriber(&cache.Subscriber{Node: s.client.node, Group: ident.group.Key, Stream: s.number})
	}
	s.client.logStart(s.typeURL)
	return nil
}

// adoptIdentity replaces the group, the grant and the Node of the stream.
func (s *stream) adoptIdentity(ident *identity) {
	s.keptNode.Release()
	s.group, s.grant, s.keptNode = ident.group, ident.grant, ident.keptNode
	select {
	case <-ident.grantsChanged: // the rules changed before there was a grant to renew
		go s.renewGrant() // waits for the lock
	default:
	}
}

// changeIdentity applies an identity that differs from the previous one. The error ends the stream.
func (s *stream) changeIdentity(ident *identity) error {
	before, parameters := s.group.View, s.dynamicParameters()
	s.adoptIdentity(ident)
	if ident.group.View != before {
		return guard.Ended(guard.EndedReturn, codes.Unavailable, "node %q now belongs to group %q, connect again",
			ident.id, ident.group.Key)
	}
	if !sameParameters(parameters, s.dynamicParameters()) {
		return guard.Ended(guard.EndedReturn, codes.Unavailable,
			"node %q now has other dynamic parameters, connect again", ident.id)
	}
	return s.setGrant(ident.grant)
}

// answersProbe reports whether the stream is a probe that the server answers. It is called for the first request.
func (s *stream) answersProbe() bool { return s.cfg.ProbeStatus != nil && isProbe(s.rpc.Context()) }

// answerProbe answers the probe of another relay. The error ends the stream.
func (s *stream) answerProbe() error {
	if err := s.cfg.ProbeStatus(); err != nil {
		return err
	}
	if err := s.rpc.SendHeader(metadata.Pairs(wire.ProbeHeader, "ready")); err != nil {
		return err
	}
	return guard.Ended(guard.EndedByClient, codes.OK, "")
}

// renewGrant authorizes the client again after the rules have changed. If another goroutine does so already, that one
// repeats it. The caller must not hold the lock.
func (s *stream) renewGrant() {
	if s.renewals.Add(1) > 1 {
		return
	}
	for requests := int32(0); !s.renewals.CompareAndSwap(requests, 0); {
		requests = s.renewals.Load()
		s.authorizeAgain()
	}
}

// A grantWatch renews the grants of all streams when the rules change. Its goroutine runs while a stream is open.
type grantWatch struct {
	mu      sync.Mutex
	streams int           // guarded by mu
	done    chan struct{} // guarded by mu; closed when the last stream ends
}

// register adds a stream to those that a drain or a change of the rules concerns. The caller must call unregister when
// the stream has ended.
func (s *Server) register(st *stream) (unregister func()) {
	s.registry.Store(st.number, st)
	changed := s.cfg.grantsChanged()
	if changed == nil {
		return func() { s.registry.Delete(st.number) }
	}
	w := &s.grantWatch
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.streams++; w.streams == 1 {
		w.done = make(chan struct{})
		go s.watchGrants(changed, w.done)
	}
	return func() {
		s.registry.Delete(st.number)
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.streams--; w.streams == 0 {
			close(w.done)
		}
	}
}

// watchGrants renews the grants of all streams each time that the rules change, until done is closed. changed is closed
// by the next change.
func (s *Server) watchGrants(changed <-chan struct{}, done <-chan struct{}) {
	for {
		select {
		case <-changed:
			changed = s.cfg.grantsChanged()
			s.eachStream((*stream).renewGrant)
		case <-done:
			return
		}
	}
}

// authorizeAgain authorizes the client by the current rules.
func (s *stream) authorizeAgain() {
	ctx := s.rpc.Context()
	for done := false; !done; {
		kept := s.nodeOfGrant()
		if kept == nil {
			return // the stream has ended, or has no grant
		}
		grant, err := s.server.reauthorize(ctx, guard.PeerOf(ctx), kept)
		done = s.applyGrant(kept, grant, err)
	}
}

// nodeOfGrant returns the Node that the grant is for; nil if there is no grant.
func (s *stream) nodeOfGrant() *guard.KeptNode {
	s.lock.acquire()
	defer s.lock.release()
	if s.ended || s.grant == nil {
		return nil
	}
	return s.keptNode
}

// applyGrant replaces the grant of the stream, or ends the stream with err. It reports false if the client has changed
// its Node meanwhile, so that the grant is not for the current Node.
func (s *stream) applyGrant(kept *guard.KeptNode, grant Grant, err error) bool {
	s.lock.acquire()
	defer s.lock.release()
	switch {
	case s.ended:
		return true
	case s.keptNode != kept:
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

// dynamicParameters returns the dynamic parameters of the client's Node, by type URL.
func (s *stream) dynamicParameters() map[string]*xdspb.ContextParams {
	if s.keptNode == nil {
		return nil
	}
	return s.keptNode.Parameters
}

func sameParameters(a, b map[string]*xdspb.ContextParams) bool {
	return maps.EqualFunc(a, b, func(a, b *xdspb.ContextParams) bool { return maps.Equal(a.GetParams(), b.GetParams()) })
}

// isProbe reports whether a stream is the probe of another relay.
func isProbe(ctx context.Context) bool {
	return len(metadata.ValueFromIncomingContext(ctx, wire.ProbeHeader)) > 0
}

// relayTokens returns the tokens of the relays that a stream passed through; none if its client is not a relay.
func relayTokens(ctx context.Context) []string {
	return metadata.ValueFromIncomingContext(ctx, wire.RelayHeader)
}

// enterChain registers a stream whose client is a relay, and sends the paths from this relay to the origins in the
// response header, and whether the stream is told halts. If the stream is part of a cycle, end is called. Both relays detect a
// cycle, but only this stream ends.
func (s *Server) enterChain(rpc call, halts bool, end func(error)) (leave func(), err error) {
	tokens := relayTokens(rpc.Context())
	if s.cfg.Chain == nil || len(tokens) == 0 {
		return func() {}, nil
	}
	paths, leave, err := s.cfg.Chain.Below(tokens, end)
	if err != nil {
		return nil, err
	}
	header := metadata.MD{wire.ChainHeader: paths, wire.ReportHeader: {"1"}}
	if halts {
		header[wire.HaltsHeader] = []string{"1"}
	}
	send := rpc.SendHeader
	if isProbe(rpc.Context()) { // answerProbe sends the header
		send = rpc.SetHeader
	}
	if err := send(header); err != nil {
		leave()
		return nil, err
	}
	return leave, nil
}

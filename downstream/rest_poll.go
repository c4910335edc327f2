package downstream

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"hash/maphash"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"weak"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/fingerprint"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/cache/wire/schema"
	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/downstream/subscription"
)

// A poll is a REST request that is held until its response: a subscription that ends after one complete set. The relay
// keeps its names subscribed upstream for a while, until the client polls again (B.6).
type poll struct {
	sub      *subscription.Poll
	client   *client
	view     *cache.View
	peer     guard.Peer
	keptNode *guard.KeptNode // to renew the grant
	grant    Grant           // nil if the client may request everything
	names    []string        // requested names
	deadline time.Time       // when the poll must be answered

	key     pollKey
	history *pollHistory

	draining      <-chan struct{} // nil once it was closed
	grantsChanged <-chan struct{} // nil if grants never change
}

// newPoll returns the poll of a client, or an error if a name is denied or over a limit. The caller must close the
// poll.
func (s pollService) newPoll(ident *identity, req restRequest, peer guard.Peer) (*poll, error) {
	c := &client{
		Client: subscription.Client{Settings: &s.cfg.subscriptions, Watch: ident.group.View.Watch()},
		cfg:    &s.cfg, node: ident.label, group: ident.group.Key,
	}
	sub := &subscription.Poll{
		Subscription: subscription.New(&c.Client, subscription.TraitsOf(req.TypeURL, ident.agent), wire.Unwrapped,
			false, (*tally)(nil)), // answer counts the response
	}
	sub.Watch.SetPeer(guard.PeerName(peer))
	if s.cfg.DynamicParameters {
		req.Parameterise(ident.keptNode.Parameters[req.TypeURL].GetParams())
	}
	for _, b := range req.Canonicalise() {
		sub.MarkExplicit() // otherwise a subscription without names would mean the wildcard
		s.logBadName(c, sub.TypeURL, b)
	}
	p := &poll{
		sub: sub, client: c, view: ident.group.View, peer: peer, keptNode: ident.keptNode, grant: ident.grant,
		grantsChanged: ident.grantsChanged, names: req.Subscribe, deadline: req.deadline, history: &s.polls,
	}
	p.key = p.newKey(peer)
	err := p.checkGrant()
	if over := c.checkLimits(sub.Subscription, req.Subscribe, nil, true, usage{}).over; err == nil && len(over) > 0 {
		err = over[0].err
	}
	if err != nil {
		sub.Watch.Close()
		return nil, err
	}
	sub.ApplyRequest(&req.Request, time.Now())
	return p, nil
}

// checkGrant returns an error if the client is not authorized for the type or a name.
func (p *poll) checkGrant() error {
	if p.grant == nil {
		return nil
	}
	if err := p.grant.Type(p.sub.TypeURL); err != nil || !p.grant.RestrictsNames(p.sub.TypeURL) {
		return err
	}
	for _, text := range p.names {
		if err := p.grant.Name(p.sub.TypeURL, wire.PlainName(text)); err != nil {
			return err
		}
	}
	return nil
}

// renewGrant checks the poll against the current rules.
func (p *poll) renewGrant(ctx context.Context, server *Server) (err error) {
	if p.grant, err = server.reauthorize(ctx, p.peer, p.keptNode); err != nil {
		return err
	}
	return p.checkGrant()
}

func (p *poll) close() {
	p.sub.Close()
	p.sub.Watch.Close()
}

// await waits until the poll can be answered, until its deadline at the latest. It returns the generation to answer
// from, or nil if the version that the client reported is current. Errors: the origin has not answered, the server is
// draining, the client is no longer authorized, or ctx has ended.
func (p *poll) await(ctx context.Context, server *Server) (*cache.Generation, error) {
	p.draining = server.draining
	timer := time.NewTimer(max(time.Until(p.deadline), time.Nanosecond))
	defer timer.Stop()
	for {
		g, now := p.view.Generation(), time.Now()
		p.sub.Skip(g.Seq) // complete sets need no removals
		state, again := p.sub.Check(g, now, func(sum fingerprint.Sum) bool { return p.trustsVersion(g, sum) })
		switch {
		case state == subscription.Due, state == subscription.Incomplete && !now.Before(p.deadline) && !p.sub.Deletes():
			return g, nil
		case !now.Before(p.deadline):
			return nil, p.timeoutError(state)
		}
		timer.Reset(max(time.Until(subscription.Earlier(p.deadline, again)), time.Nanosecond))
		if done, err := p.waitForChange(ctx, server, timer.C, state); done || err != nil {
			return nil, err
		}
	}
}

// waitForChange waits until the state of the poll may have changed. It reports whether the poll must end, with an error
// unless the client's version is current.
func (p *poll) waitForChange(
	ctx context.Context, server *Server, timer <-chan time.Time, state subscription.PollState,
) (done bool, err error) {
	select {
	case <-p.sub.Watch.C:
	case <-timer:
	case <-p.grantsChanged:
		p.grantsChanged = server.cfg.grantsChanged()
		return false, p.renewGrant(ctx, server)
	case <-p.draining:
		p.deadline, p.draining = subscription.Earlier(p.deadline, server.randomEndTime()), nil
	case <-server.stopping:
		if state == subscription.Current {
			return true, nil
		}
		return true, status.Error(codes.Unavailable, "the relay is shutting down")
	case <-ctx.Done():
		return true, status.FromContextError(ctx.Err()).Err()
	}
	return false, nil
}

// timeoutError returns the error of a poll at its deadline, or nil if the version that the client reported is current.
func (p *poll) timeoutError(state subscription.PollState) error {
	switch state {
	case subscription.Current:
		return nil
	case subscription.NoAnswer:
		return status.Error(codes.Unavailable, "no resources are cached yet: the origin has not answered")
	default:
		return status.Error(codes.Unavailable, "the resource set is incomplete: the origin has not answered for all names")
	}
}

// A restResponse is a DiscoveryResponse in JSON. Its parts are concatenated when it is written.
type restResponse struct {
	before, after []byte
	resources     [][]byte // separated by commas; shared between responses
	secrets       []string // names of the Secrets in the response
	sum           fingerprint.Sum
}

// render returns a response with all existing resources that the client requested (R113), with the version that streams
// use for the same set. It returns nil if the client reported that version and holds the set (B.3).
func (p *poll) render(g *cache.Generation, identifier string) (*restResponse, error) {
	s := p.sub
	resources, sum := s.Set(g)
	if s.Holds(sum) && p.trustsVersion(g, sum) {
		return nil, nil
	}
	resp := &restResponse{
		sum: sum,
		before: slices.Concat([]byte(`{"versionInfo":`), jsonString(sum.Version(g.Type(s.Key).System())),
			[]byte(`,"resources":[`)),
		after: slices.Concat([]byte(`],"typeUrl":`), jsonString(s.TypeURL),
			[]byte(`,"controlPlane":{"identifier":`), jsonString(identifier), []byte("}}\n")),
	}
	for _, r := range resources {
		if !r.HasBody() {
			continue // as in a SotW response (R111)
		}
		if s.Secret {
			resp.secrets = append(resp.secrets, r.Name)
		}
		resource, err := r.JSON()
		if err != nil {
			return nil, encodeError(r, err)
		}
		resp.resources = append(resp.resources, resource)
	}
	return resp, nil
}

// encodeError returns the error for a resource that cannot be encoded as JSON. A response must not omit a resource.
func encodeError(r *wire.Resource, err error) error {
	if unknown, ok := errors.AsType[*schema.UnknownTypeError](err); ok {
		return restErrorf(http.StatusNotImplemented, codes.Unimplemented,
			"resource %q of type %q: the relay does not know type %q and cannot encode it as JSON; use gRPC",
			r.Name, r.TypeURL, unknown.TypeURL)
	}
	return restErrorf(http.StatusBadGateway, codes.DataLoss,
		"the origin sent a resource that cannot be encoded as JSON: %v", err)
}

// jsonString returns a string as JSON.
func jsonString(text string) []byte {
	b, _ := json.Marshal(text) // a string never fails
	return b
}

// size returns the size of the response in bytes.
func (r *restResponse) size() int {
	size := len(r.before) + len(r.after) + max(len(r.resources)-1, 0)
	for _, resource := range r.resources {
		size += len(resource)
	}
	return size
}

// write writes the response. It ignores errors, which mean that the client has disconnected.
func (r *restResponse) write(w http.ResponseWriter) {
	size := r.size()
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(size))
	w.WriteHeader(http.StatusOK)
	out := bufio.NewWriterSize(w, min(size, 32<<10))
	_, _ = out.Write(r.before)
	for i, resource := range r.resources {
		if i > 0 {
			_ = out.WriteByte(',')
		}
		_, _ = out.Write(resource)
	}
	_, _ = out.Write(r.after)
	_ = out.Flush()
}

// maxPollHistory limits the entries of a pollHistory. When it is full, all entries are dropped. Each client whose set
// has returned to former content is then sent one unnecessary response.
const maxPollHistory = 10_000

// A pollHistory records which sets polls were answered with. A REST client has no stream that could record them, and
// reports the same version in each poll.
type pollHistory struct {
	mu   sync.Mutex
	last map[pollKey][4]sentSet // guarded by mu; clients with equal keys may hold different sets
}

// A pollKey identifies the polls of a client for the same names.
type pollKey struct {
	peer, node, typeURL string
	view                weak.Pointer[cache.View]
	names               uint64 // hash of the names
}

var namesSeed = maphash.MakeSeed()

// A sentSet is a set that a poll was answered with, and the position and the Distrust revision of the view at that
// time.
type sentSet struct {
	sum      fingerprint.Sum
	at       cache.Seq
	distrust uint64
}

// newKey returns the key of the poll.
func (p *poll) newKey(peer guard.Peer) pollKey {
	return pollKey{
		peer: peer.Host, node: p.client.node, typeURL: p.sub.TypeURL, view: weak.Make(p.view),
		names: maphash.String(namesSeed, strings.Join(p.names, "\n")),
	}
}

// trustsVersion reports whether the version that the client reported proves that it holds a set (B.3). It does if the
// set has not returned to former content and was not part of a rejected edition, or if the client was sent the set
// after that.
func (p *poll) trustsVersion(g *cache.Generation, sum fingerprint.Sum) bool {
	reverted, distrust := p.sub.Doubts(g)
	if reverted == 0 && distrust == 0 {
		return true
	}
	m := p.history
	m.mu.Lock()
	defer m.mu.Unlock()
	last := m.last[p.key]
	return slices.ContainsFunc(last[:], func(a sentSet) bool {
		return a.sum == sum && a.at >= reverted && a.distrust >= distrust
	})
}

// recordAnswer records that the poll is answered with a set, even if the set has not returned to former content. A name
// may have an entry by name and another one in the wildcard set; the next set may use the other entry, which may have
// returned to former content.
func (p *poll) recordAnswer(g *cache.Generation, sum fingerprint.Sum) {
	m := p.history
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.last == nil || len(m.last) >= maxPollHistory {
		m.last = make(map[pollKey][4]sentSet)
	}
	last := m.last[p.key]
	i, at := slices.IndexFunc(last[:], func(a sentSet) bool { return a.sum == sum }), g.Seq
	if i >= 0 {
		at = max(at, last[i].at)
	} else { // replace the oldest set
		i = slices.Index(last[:], slices.MinFunc(last[:], func(a, b sentSet) int { return cmp.Compare(a.at, b.at) }))
	}
	last[i] = sentSet{sum, at, p.view.Distrust.Revision()}
	m.last[p.key] = last
}

// REST returns the handler of REST polls: POST requests to paths such as /v3/discovery:clusters. The body is a
// DiscoveryRequest, and the response a DiscoveryResponse, both in the canonical JSON mapping of proto3 (R113).
//
// Polls are stateless: the response depends only on the node, type, names and version of the request. A poll whose
// version is current is held until a change, for at most [MaxHold], and then answered with 304 (B.27).
//
// The body of an error is a google.rpc.Status in JSON.
func (s *Server) REST() http.Handler { return http.HandlerFunc(pollService{s}.serve) }

// serve answers a poll, and counts it against the limits.
func (s pollService) serve(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	defer s.checkIdle()
	defer s.streams.Add(-1)
	var req restRequest
	var resp *restResponse
	s.streams.Add(1)
	leave, err := s.guard.EnterStream(guard.PeerName(guard.PeerOfPoll(r)))
	switch {
	case err != nil:
		s.refused(r, "", err)
		err = restErrorf(http.StatusServiceUnavailable, codes.ResourceExhausted, "%s", status.Convert(err).Message())
	case !s.guard.EnterPoll(r.Context(), guard.HostName(guard.PeerOfPoll(r).Host)):
		err = restErrorf(http.StatusTooManyRequests, codes.ResourceExhausted,
			"this address is rate-limited (%v)", guard.LimitFrames)
		fallthrough
	default:
		defer leave()
		s.accepted.Add(1)
	}
	memory := guard.AccountOfPoll(r).Charged(0)
	defer memory.Release()
	if err == nil {
		req, err = s.readRequest(w, r, began, &memory)
	}
	if err == nil {
		resp, err = s.answer(r.Context(), req, guard.PeerOfPoll(r))
	}
	select {
	case <-s.draining:
		w.Header().Set("Connection", "close") // so that the next poll goes to another relay
	default:
	}
	code := http.StatusNotModified
	switch {
	case err != nil:
		s.refused(r, req.nodeLabel, err)
		code = writeRESTError(w, err)
	case resp != nil:
		code = http.StatusOK
		guard.AccountOfPoll(r).Responded(resp.size())
		resp.write(w)
	default:
		w.WriteHeader(code)
	}
	s.cfg.Logger.LogAttrs(r.Context(), slog.LevelDebug, "poll answered", slog.String("path", r.URL.Path),
		slog.String("node", req.nodeLabel), slog.Int("status", code), slog.Any("err", err))
}

// refused counts and logs the refusal of a poll. Other errors are ignored: the relay drains, has no state yet, or
// the client has disconnected.
func (s pollService) refused(r *http.Request, node string, err error) {
	cause, is := guard.CauseOf(err)
	if rest, own := errors.AsType[*restError](err); own {
		cause, is = guard.InvalidPoll, rest.invalid()
	}
	if is {
		s.guard.Counters.RequestRefused(cause, guard.PeerName(guard.PeerOfPoll(r)), node, err)
	}
}

// answer returns the response to a poll of a peer, or nil if the version that the client reported is current. An error
// is a restError or a gRPC status.
func (s pollService) answer(ctx context.Context, req restRequest, peer guard.Peer) (*restResponse, error) {
	if err := checkNameSizes(&req.Request); err != nil {
		return nil, err
	}
	ident, err := s.identify(ctx, peer, guard.RawNode{Encoded: req.Node, Size: req.NodeBytes}, func() bool { return true })
	if err != nil {
		return nil, err
	}
	defer ident.release()
	if err := s.guard.AwaitNames(ctx, guard.PeerName(peer), func() guard.NameCount {
		return countNames(&req.Request, ident.group.View)
	}); err != nil {
		return nil, status.FromContextError(err).Err()
	}
	p, err := s.newPoll(ident, req, peer)
	if err != nil {
		return nil, err
	}
	defer p.close()
	if redactSecretDetail(&req.Request); req.Rejected {
		s.logNACK(p.client, &req.Request, nil)
	}
	generation, err := p.await(ctx, s.Server)
	if generation == nil || err != nil {
		return nil, err
	}
	resp, err := p.render(generation, s.cfg.Identifier)
	if err != nil && s.nackLog.Allow() {
		p.client.log().LogAttrs(ctx, slog.LevelWarn, "poll cannot be answered in json", slog.Any("err", err),
			s.nackLog.Suppressed())
	}
	if resp != nil {
		p.recordAnswer(generation, resp.sum)
		s.logSecrets(p.client, p.grant, resp.secrets)
		ident.group.Counts.tally(req.TypeURL, s.accepted.Load()).Sent(resp.size())
	}
	return resp, err
}

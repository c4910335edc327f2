package downstream

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"hash/maphash"
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

// A poll is a request over REST while it waits for its answer: a subscription that
// is sent one complete set and ends. The names that it asked for stay subscribed upstream for a while, until the client
// polls again (B.6).
type poll struct {
	sub      *subscription.Poll
	client   *client
	view     *cache.View
	peer     guard.Peer
	keptNode *guard.KeptNode // the Node, for the rules
	grant    Grant           // nil if the client may have anything
	names    []string        // requested
	deadline time.Time       // when it is answered at the latest
	bare     bool            // requested content was dropped from the cache, and is requested from the origin again

	key     pollKey
	history *pollHistory

	draining, grantsChanged <-chan struct{} // nil once they were closed, or never are
}

// newPoll returns the poll of a client.
func (s pollService) newPoll(ident *identity, req restRequest, peer guard.Peer) (*poll, error) {
	c := &client{
		Client: subscription.Client{Settings: &s.cfg.subscriptions, Watch: ident.group.View.Watch()},
		cfg:    &s.cfg, node: ident.label, group: ident.group.Key,
	}
	sub := &subscription.Poll{
		Subscription: subscription.New(&c.Client, s.cfg.subscriptions.TraitsOf(req.TypeURL, ident.agent), wire.Unwrapped,
			false, (*tally)(nil)), // answer counts
	}
	sub.Watch.SetPeer(s.cfg.PeerName(peer))
	if s.cfg.DynamicParameters {
		req.Parameterise(ident.keptNode.Parameters[req.TypeURL].GetParams())
	}
	for _, b := range req.Canonicalise() {
		sub.MarkExplicit() // to ask for what cannot be is not to ask for everything
		s.logBadName(c, sub.TypeURL, b)
	}
	p := &poll{
		sub: sub, client: c, view: ident.group.View, peer: peer, keptNode: ident.keptNode, grant: ident.grant, names: req.Subscribe, deadline: req.deadline,
		grantsChanged: ident.grantsChanged, history: &s.polls,
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

// check returns an error if the client is not authorized for the type or a name.
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

// regrant checks the poll against the rules that apply now.
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

// await waits until the poll can be answered, but no longer than it may be held. It returns the generation to answer
// from, or nil if the client's version is current. Errors: there is no answer for now, or ctx has ended.
func (p *poll) await(ctx context.Context, server *Server) (*cache.Generation, error) {
	p.draining = server.draining
	timer := time.NewTimer(max(time.Until(p.deadline), time.Nanosecond))
	defer timer.Stop()
	for {
		g, now := p.sub.Sendable(p.view.Generation()), time.Now()
		p.sub.Skip(g.Seq) // complete sets need no removals
		state, again := p.sub.Check(g, now, func(sum fingerprint.Sum) bool { return p.trustsVersion(g, sum) })
		switch {
		case state == subscription.Due, state == subscription.Incomplete && !now.Before(p.deadline) && !p.sub.Deletes():
			return g, nil
		case !now.Before(p.deadline):
			return nil, p.timeoutError(state)
		}
		timer.Reset(max(time.Until(subscription.Earlier(p.deadline, again)), time.Nanosecond))
		if over, err := p.waitForChange(ctx, server, timer.C, state); over || err != nil {
			return nil, err
		}
	}
}

// sleep waits until the prospect may have changed. The poll is over if it cannot change any more; the error says why
// there is no answer then.
func (p *poll) waitForChange(ctx context.Context, server *Server, timer <-chan time.Time,
	state subscription.PollState) (over bool, err error) {
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

// overdue returns the error of a poll that may be held no longer, nil if its client is up to date.
func (p *poll) timeoutError(state subscription.PollState) error {
	switch state {
	case subscription.Current:
		return nil
	case subscription.NoAnswer:
		return status.Error(codes.Unavailable, "nothing is known yet of what was asked for: the origin has not answered")
	default:
		return status.Error(codes.Unavailable, "the set is not complete yet: the origin has not answered for all of it")
	}
}

// A restResponse is a DiscoveryResponse in JSON, in parts that are shared between responses.
type restResponse struct {
	before, after []byte
	resources     [][]byte // shared with other responses
	secrets       []string // the names of those that are Secrets
	sum           fingerprint.Sum
}

// render returns a response with all that was requested and exists (R113), under the version that streams use for the
// same set; nil if that is a part, and the client has that part already (B.3).
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

// unrendered returns the error of a poll for a resource that cannot be encoded as JSON. A response must not omit it.
func encodeError(r *wire.Resource, err error) error {
	if unknown, ok := errors.AsType[*schema.UnknownTypeError](err); ok {
		return restErrorf(http.StatusNotImplemented, codes.Unimplemented,
			"resource %q of type %q: the relay does not know type %q, which JSON needs; over gRPC it is served", r.Name, r.TypeURL, unknown.TypeURL)
	}
	return restErrorf(http.StatusBadGateway, codes.DataLoss, "%v; this is what the origin sent", err)
}

// quote returns a text in JSON.
func jsonString(text string) []byte {
	b, _ := json.Marshal(text) // a text never fails
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

// write answers with the response. Write errors are ignored: they mean that the client has left.
func (r *restResponse) write(w http.ResponseWriter) {
	size := r.size()
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(size))
	w.WriteHeader(http.StatusOK)
	out := bufio.NewWriterSize(w, min(size, 32<<10))
	_, _ = out.Write(r.before) // errors stay with out, and mean that the client has left
	for i, resource := range r.resources {
		if i > 0 {
			_ = out.WriteByte(',')
		}
		_, _ = out.Write(resource)
	}
	_, _ = out.Write(r.after)
	_ = out.Flush()
}

// maxPolls bounds a pollMemory. One that is full forgets all, which costs each client whose set has reverted one more
// response.
const maxPollHistory = 10_000

// A pollMemory remembers which polls were answered with which sets. A REST client has no stream that would remember it,
// and reports the same version in each poll.
type pollHistory struct {
	mu   sync.Mutex
	last map[pollKey][4]sentSet // guarded by mu; clients that cannot be told apart may hold different sets
}

// A pollKey identifies the polls of one client for the same names.
type pollKey struct {
	peer, node, typeURL string
	view                weak.Pointer[cache.View]
	names               uint64 // a hash of them
}

var namesSeed = maphash.MakeSeed()

// answered is a set that a poll was answered with, and the position and the distrust of the view at that time.
type sentSet struct {
	sum      fingerprint.Sum
	at       cache.Seq
	distrust uint64
}

func (p *poll) newKey(peer guard.Peer) pollKey {
	return pollKey{
		peer: peer.Host, node: p.client.node, typeURL: p.sub.TypeURL, view: weak.Make(p.view),
		names: maphash.String(namesSeed, strings.Join(p.names, "\n")),
	}
}

// trusts reports whether the version of a set that the client reports may be trusted (B.3): the set did not return to
// content that it had before and is no part of a rejected edition, or the client was sent it after that.
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
		return a.sum == sum && a.at >= reverted &&
			a.distrust >= distrust
	})
}

// noteAnswer records that the poll is answered with a set. It does so whether or not the set has reverted: a name that
// has an entry in each set may be shown next by the one that did.
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
	} else { // it takes the place of the oldest
		i = slices.Index(last[:], slices.MinFunc(last[:], func(a, b sentSet) int { return cmp.Compare(a.at, b.at) }))
	}
	last[i] = sentSet{sum, at, p.view.Distrust.Revision()}
	m.last[p.key] = last
}

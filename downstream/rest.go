package downstream

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/downstream/guard"
)

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
	leave, err := s.guard.EnterStream(s.cfg.PeerName(guard.PeerOfPoll(r)))
	switch {
	case err != nil:
		s.guard.Counters.Rejected(err)
		err = restErrorf(http.StatusServiceUnavailable, codes.ResourceExhausted, "%s", status.Convert(err).Message())
	case !s.guard.EnterPoll(r.Context(), s.cfg.HostName(guard.PeerOfPoll(r).Host)):
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
		s.guard.Counters.Rejected(err)
		s.logDenied(err)
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

// answer returns the response to a poll of a peer, or nil if the version that the client reported is current. An error
// is a restError or a gRPC status.
func (s pollService) answer(ctx context.Context, req restRequest, peer guard.Peer) (*restResponse, error) {
	if err := s.cfg.checkNameSizes(&req.Request); err != nil {
		return nil, err
	}
	ident, err := s.identify(ctx, peer, guard.RawNode{Encoded: req.Node, Size: req.NodeBytes}, func() bool { return true })
	if err != nil {
		return nil, err
	}
	defer ident.release()
	p, err := s.newPoll(ident, req, peer)
	if err != nil {
		return nil, err
	}
	defer p.close()
	if redactSecretDetail(&req.Request); req.Refused {
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

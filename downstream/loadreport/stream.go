package loadreport

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync/atomic"
	"time"

	lrspb "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream/guard"
)

// Config configures a [Server]. All fields except Sum are required.
type Config struct {
	Origin Origin
	Sum    bool // sum the reports of each node group; otherwise forward each stream

	// Identify returns the client that claims a Node, or an error if it is not authorized.
	Identify func(context.Context, guard.RawNode) (*Client, error)

	FirstRequestTimeout time.Duration // maximum wait for the first request of a stream
	SendStall           time.Duration // maximum duration of a send
	MaxRequestRate      int           // requests per second of a stream

	// Draining is closed when all streams must end.
	Draining <-chan struct{}

	Logger *slog.Logger
}

// A Server serves load reports. Its methods may be called from any goroutine.
type Server struct {
	cfg    Config
	groups groups
}

// New returns a server.
func New(cfg Config) *Server {
	return &Server{cfg: cfg, groups: groups{origin: cfg.Origin, log: cfg.Logger, byKey: make(map[string]*Group)}}
}

// Wait waits until all reported load was sent to the origin. All calls of Serve must have returned. Later calls of
// Serve return an error if the server sums reports.
func (s *Server) Wait() { s.groups.wait() }

// The reasons for which the relay ends a stream.
var (
	errDraining = errors.New("draining")
	errAged     = errors.New("the connection reached its maximum age")
)

// A stream serves the load reports of one client.
type stream struct {
	// Read-only after construction.
	server   *Server
	cfg      *Config
	rpc      grpc.ServerStream
	messages chan message   // from receive
	ended    chan error     // from receive: the status with which the client closed its side
	account  *guard.Account // of the connection; nil charges nothing

	// Owned by receive.
	limiter *rate.Limiter

	// Owned by the caller of Serve.
	log             *slog.Logger // with the client's node, once it is known
	loggedNonFinite bool         // a non-finite metric was logged

	answered atomic.Bool // a response was sent
}

// Serve serves a stream until its client closes it or violates the protocol, the server drains, or the time expires is
// reached. A zero time means that the stream does not expire. The error is the status of the stream.
func (s *Server) Serve(ctx context.Context, rpc grpc.ServerStream, expires time.Time) error {
	if !expires.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadlineCause(ctx, expires, errAged)
		defer cancel()
	}
	st := &stream{
		server: s, cfg: &s.cfg, rpc: rpc, log: s.cfg.Logger, account: guard.AccountOf(rpc.Context()),
		limiter:  rate.NewLimiter(rate.Limit(s.cfg.MaxRequestRate), 10*s.cfg.MaxRequestRate),
		messages: make(chan message), ended: make(chan error, 1),
	}
	err, why := st.awaitFirst(ctx), guard.EndedDrained
	if errors.Is(err, errAged) {
		err, why = errDraining, guard.EndedAged
	}
	switch {
	case !errors.Is(err, errDraining):
		return err
	case st.answered.Load():
		return guard.Ended(why, codes.OK, "") // the same status as of resource streams (R134)
	default:
		return guard.Ended(why, codes.Unavailable, "the relay is shutting down")
	}
}

// contextError returns the error that ends a stream whose context has ended: a status, or errAged.
func contextError(ctx context.Context) error {
	cause := context.Cause(ctx)
	if _, is := status.FromError(cause); is || errors.Is(cause, errAged) {
		return cause
	}
	return status.FromContextError(ctx.Err()).Err()
}

// awaitFirst waits for the first request, and serves the stream. The error is a status, errDraining or errAged.
func (s *stream) awaitFirst(ctx context.Context) error {
	// Ends with the RPC, as soon as Serve returns.
	go s.receive(ctx)

	timer := time.NewTimer(s.cfg.FirstRequestTimeout)
	defer timer.Stop()
	select {
	case first := <-s.messages:
		return s.serve(ctx, first)
	case <-timer.C:
		return guard.Ended(guard.EndedSilent, codes.DeadlineExceeded, "no request within %v", s.cfg.FirstRequestTimeout)
	case err := <-s.ended:
		return err
	case <-s.cfg.Draining:
		return errDraining
	case <-ctx.Done():
		return contextError(ctx)
	}
}

// receive passes messages to the caller of Serve until the client closes its side or the stream ends.
func (s *stream) receive(ctx context.Context) {
	for {
		var m wire.Message
		if err := s.rpc.RecvMsg(&m); err != nil {
			s.ended <- guard.ReceiveStatus(err)
			return
		}
		in := message{m.Bytes, s.account.Charged(wire.Framed(len(m.Bytes)))}
		select {
		case s.messages <- in:
		case <-ctx.Done():
			in.Release()
			return
		}
		if s.limiter.Wait(ctx) != nil {
			return // the stream has ended
		}
	}
}

// serve identifies the client by its first request, and handles its reports.
func (s *stream) serve(ctx context.Context, first message) error {
	defer first.Release()
	r, node, err := decode(&first)
	if err != nil {
		return err
	}
	if node.Encoded == nil {
		return guard.Refuses(guard.InvalidNode, "node is missing: the first request of a stream carries it")
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	client, err := s.cfg.Identify(ctx, node)
	if err != nil {
		return err
	}
	defer client.Leave()
	if client.Revoked != nil {
		// Ends with ctx, as soon as serve returns.
		go func() { cancel(client.Revoked(ctx)) }()
	}
	s.log = s.log.With(slog.String("node", client.Label))
	s.log.Debug("load report stream opened")
	defer s.log.Debug("load report stream closed")
	if s.cfg.Sum {
		err = s.sum(ctx, r, client, &first)
	} else {
		err = s.passThrough(ctx, &first)
	}
	if _, is := guard.DenialOf(context.Cause(ctx)); is {
		return context.Cause(ctx)
	}
	return err
}

// sum serves the stream by adding the client's reports to the sum of its group.
func (s *stream) sum(ctx context.Context, r *lrspb.LoadStatsRequest, client *Client, first *message) error {
	if err := s.check(r); err != nil {
		return err
	}
	reporter := &reporter{sendAll: client.SendAllClusters}
	g, leave, err := s.server.groups.join(client, reporter)
	if err != nil {
		return err
	}
	defer leave()
	g.add(reporter, r.GetClusterStats())
	first.Release()
	return s.exchange(ctx, g, reporter)
}

// exchange adds further reports of the client to the sum, and sends the responses of the origin, until the stream ends.
func (s *stream) exchange(ctx context.Context, g *Group, client *reporter) error {
	var sent *lrspb.LoadStatsResponse
	for {
		ask, changed := g.responseFor(client)
		if ask != sent && ask != nil {
			if err := s.send(ctx, func() error { return s.rpc.SendMsg(ask) }); err != nil {
				return err
			}
			s.answered.Store(true)
			sent = ask
		}
		select {
		case m := <-s.messages:
			if err := s.add(g, client, m); err != nil {
				return err
			}
		case <-changed:
		case err := <-s.ended:
			return err
		case <-s.cfg.Draining:
			return errDraining
		case <-ctx.Done():
			return contextError(ctx)
		}
	}
}

// add decodes a report of the client and adds it to the sum.
func (s *stream) add(g *Group, client *reporter, m message) error {
	defer m.Release()
	r, _, err := decode(&m)
	if err != nil {
		return err
	}
	if err := s.check(r); err != nil {
		return err
	}
	g.add(client, r.GetClusterStats())
	return nil
}

// check refuses a report that would make the origin refuse the sum, and with it the reports of all other clients. It
// removes metrics that would make the sum of a metric meaningless.
func (s *stream) check(r *lrspb.LoadStatsRequest) error {
	for i, stats := range r.GetClusterStats() {
		if err := checkCluster(stats); err != nil {
			return guard.Refuses(guard.InvalidReport, "load report: cluster_stats[%d]: %v", i, err)
		}
		if metric, found := dropNonFinite(stats); found && !s.loggedNonFinite {
			s.loggedNonFinite = true
			s.log.Warn("load report has a non-finite metric, which is ignored",
				slog.String("cluster", stats.GetClusterName()), slog.String("metric", metric))
		}
	}
	return nil
}

// send calls a send function, and returns an error if that blocks for SendStall because the peer does not read.
func (s *stream) send(ctx context.Context, send func() error) error {
	done := make(chan error, 1)
	// Ends at the latest with the RPC.
	go func() { done <- send() }()
	stall := time.NewTimer(s.cfg.SendStall)
	defer stall.Stop()
	select {
	case err := <-done:
		return err
	case <-stall.C:
		return guard.Ended(guard.EndedStalled, codes.Unavailable, "the peer has not read for %v", s.cfg.SendStall)
	case <-s.cfg.Draining:
		return errDraining
	case <-ctx.Done():
		return contextError(ctx)
	}
}

// passThrough opens a stream to the origin for the client, and forwards messages between both until either ends.
func (s *stream) passThrough(ctx context.Context, first *message) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	origin, err := s.cfg.Origin.OpenLoads(ctx)
	if err != nil {
		return err
	}
	lost := make(chan error, 1)
	// Ends with either stream, at the latest soon after passThrough has returned.
	go func() { lost <- s.forwardResponses(origin) }()
	if err := s.forwardRequest(ctx, origin, first.bytes); err != nil {
		return err
	}
	first.Release()
	for {
		select {
		case m := <-s.messages:
			err := s.forwardRequest(ctx, origin, m.bytes)
			m.Release()
			if err != nil {
				return err
			}
		case err := <-s.ended:
			if err != nil {
				return err
			}
			_ = origin.CloseSend() // an error means that the stream has ended, which lost reports
		case err := <-lost:
			return err
		case <-s.cfg.Draining:
			return errDraining
		case <-ctx.Done():
			return contextError(ctx)
		}
	}
}

// forwardResponses forwards the origin's responses, and returns the status of its stream.
func (s *stream) forwardResponses(origin grpc.ClientStream) error {
	for {
		m := new(wire.Message)
		if err := origin.RecvMsg(m); err != nil {
			return guard.ReceiveStatus(err)
		}
		if err := s.rpc.SendMsg(m); err != nil {
			return err
		}
		s.answered.Store(true)
	}
}

// forwardRequest forwards a message of the client. It returns nil if the stream to the origin has ended, since
// forwardResponses returns the status of that stream.
func (s *stream) forwardRequest(ctx context.Context, origin grpc.ClientStream, m []byte) error {
	err := s.send(ctx, func() error { return origin.SendMsg(&wire.Message{Bytes: m}) })
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

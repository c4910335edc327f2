package downstream

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	lrspb "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache/wire"
)

// LoadOrigin takes load reports to an origin.
type LoadOrigin interface {
	// OpenLoads opens a stream of load reports, of [wire.Message], which ends with
	// ctx. Errors are gRPC statuses.
	OpenLoads(ctx context.Context) (grpc.ClientStream, error)

	// ReportLoads reports what the clients of a group report until ctx ends, and
	// then what is left.
	ReportLoads(ctx context.Context, g Group, l *LoadGroup)
}

// supportsAllClusters is the client feature of those that can be asked for all
// their clusters without naming them (R140).
const supportsAllClusters = "envoy.lrs.supports_send_all_clusters"

// loadService serves load reports (R139).
type loadService struct{ server *Server }

// StreamLoadStats serves a stream of load reports.
func (s loadService) StreamLoadStats(rpc lrspb.LoadReportingService_StreamLoadStatsServer) error {
	leave, err := s.server.enter(rpc.Context())
	if err != nil {
		return err
	}
	defer leave()
	st := &loadStream{
		server:   s.server,
		cfg:      &s.server.cfg,
		rpc:      rpc,
		log:      s.server.cfg.Logger,
		pace:     s.server.requestPace(),
		messages: make(chan loadMessage),
		account:  AccountOf(rpc.Context()),
		ended:    make(chan error, 1),
	}
	err = st.run(rpc.Context())
	s.server.counters.StreamEnded(err)
	s.server.clientDenied(err)
	return Status(err)
}

// A loadStream serves the load reports of one client.
type loadStream struct {
	// Set at creation; but for the log, read-only afterwards.
	server   *Server
	cfg      *Config
	rpc      grpc.ServerStream
	log      *slog.Logger // with the client's node, once it is known
	pace     *rate.Limiter
	messages chan loadMessage // from receive
	ended    chan error       // from receive: how the client's side ended
	account  *Account         // of the connection; nil if nobody counts

	answered        atomic.Bool // the client was sent something
	loggedNonFinite bool        // that a metric is no number was logged; belongs to sum
}

// A loadMessage is a request of a client.
type loadMessage struct {
	bytes []byte
	Charge
}

// Why streams of load reports end by themselves: the server drains, the connection is old.
var (
	errDraining = errors.New("draining")
	errAged     = errors.New("the connection is old")
)

// run serves the stream until its client leaves, breaks the protocol, or the
// server drains. Its error is the stream's status.
func (s *loadStream) run(ctx context.Context) error {
	ctx, cancel := leaveAt(ctx, Expiry(ctx, s.cfg.ConnectionAge))
	defer cancel()
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	leave, err := s.server.enterChain(s.rpc, end)
	if err != nil {
		return err
	}
	defer leave()
	err, why := s.begin(ctx), EndedDrained
	if errors.Is(err, errAged) {
		err, why = errDraining, EndedAged
	}
	switch {
	case !errors.Is(err, errDraining):
		return err
	case s.answered.Load():
		return Ended(why, codes.OK, "") // as stream.closeStatus has it (R134)
	default:
		return Ended(why, codes.Unavailable, "the relay is shutting down")
	}
}

// begin waits for the first request, and serves.
func (s *loadStream) begin(ctx context.Context) error {
	// Ends when the RPC does, which is as soon as begin returns.
	go s.receive(ctx)

	timer := time.NewTimer(s.cfg.FirstRequestTimeout)
	defer timer.Stop()
	select {
	case first := <-s.messages:
		return s.serve(ctx, first)
	case <-timer.C:
		return Ended(EndedSilent, codes.DeadlineExceeded, "no request within %v", s.cfg.FirstRequestTimeout)
	case err := <-s.ended:
		return err
	case <-s.server.draining:
		return errDraining
	case <-ctx.Done():
		return over(ctx)
	}
}

// receive hands messages over until the client closes its side or the stream ends.
func (s *loadStream) receive(ctx context.Context) {
	for {
		var m wire.Message
		if err := s.rpc.RecvMsg(&m); err != nil {
			s.ended <- ReceiveStatus(err)
			return
		}
		in, err := s.inflated(m.Bytes)
		if err != nil {
			s.ended <- err
			return
		}
		select {
		case s.messages <- in:
		case <-ctx.Done():
			in.Release()
			return
		}
		if s.pace.Wait(ctx) != nil {
			return // the stream has ended
		}
	}
}

// inflated returns a message as it was before it was compressed.
func (s *loadStream) inflated(m []byte) (in loadMessage, err error) {
	in = loadMessage{m, Charge{s.account, wire.Framed(len(m))}}
	if s.cfg.GzipRequests {
		in.bytes, err = wire.Inflate(m, s.cfg.MaxRequestBytes, &in)
	}
	if err != nil {
		in.Release()
		return in, s.cfg.unreadable(err)
	}
	return in, nil
}

func (s *loadStream) serve(ctx context.Context, first loadMessage) error {
	defer first.Release()
	r, raw, err := s.decode(&first)
	if err != nil {
		return err
	}
	if raw.Encoded == nil {
		return status.Error(codes.InvalidArgument, "node is missing: the first request of a stream carries it")
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	who, err := s.identify(ctx, raw)
	if err != nil {
		return err
	}
	defer who.drop()
	s.renew(ctx, cancel, who)
	s.log = s.log.With(slog.String("node", who.label))
	s.log.Debug("load reporting began")
	defer s.log.Debug("load reporting ended")
	err = s.report(ctx, r, who, &first)
	if _, is := DenialOf(context.Cause(ctx)); is {
		return context.Cause(ctx)
	}
	return err
}

// identify returns who the client is, which must be dropped. It has a group if that is needed.
func (s *loadStream) identify(ctx context.Context, raw RawNode) (*identity, error) {
	from := PeerOf(ctx)
	who := &identity{rules: s.cfg.regranted()}
	var err error
	who.kept, err = s.server.WithNode(ctx, from, raw, func(n *node) (err error) {
		who.label, who.allClusters = NodeLabel(n), slices.Contains(n.GetClientFeatures(), supportsAllClusters)
		if who.grant, err = s.cfg.authorize(from, n); err != nil || !s.cfg.SumLoads {
			return err
		}
		who.group, err = s.cfg.Views.Join(n, s.cfg.PeerName(from))
		return err
	})
	return who, err
}

// renew has end called once the client may no longer be the node that it says it is, if that is before ctx ends.
func (s *loadStream) renew(ctx context.Context, end context.CancelCauseFunc, who *identity) {
	if who.rules == nil {
		return
	}
	// Ends when the stream does.
	go func() {
		var err error
		for rules := who.rules; err == nil; {
			select {
			case <-rules:
				rules = s.cfg.regranted()
				_, err = s.server.reauthorize(ctx, PeerOf(ctx), who.kept)
			case <-ctx.Done():
				return
			}
		}
		end(err)
	}()
}

// report takes the reports of a client to the origin, of which the first has come.
func (s *loadStream) report(ctx context.Context, r *lrspb.LoadStatsRequest, who *identity, first *loadMessage) error {
	if s.cfg.SumLoads {
		return s.sum(ctx, r, who, first)
	}
	for _, token := range relaysOf(ctx) {
		ctx = metadata.AppendToOutgoingContext(ctx, wire.RelayHeader, token)
	}
	return s.pass(ctx, first)
}

// What a report may have, and takes for each, once it is decoded: messages, one for each cluster, locality, endpoint, metric and
// so on, and bytes.
const (
	maxLoadMessages  = 100_000
	loadMessageBytes = 256
)

// decode decodes a report without its Node, which is bounded by itself, and charges for that.
func (s *loadStream) decode(m *loadMessage) (r *lrspb.LoadStatsRequest, raw RawNode, err error) {
	const nodeField = 1
	var rest []byte
	r = new(lrspb.LoadStatsRequest)
	n := 0
	if raw.Encoded, raw.Size, rest, err = wire.TakeNode(m.bytes, nodeField); err == nil {
		n, err = wire.Messages(r.ProtoReflect().Descriptor(), rest, maxLoadMessages)
	}
	switch {
	case err != nil:
		return nil, raw, badReport(err)
	case n > maxLoadMessages:
		return nil, raw, Exceeds(LimitRequest, "load report of more than %d clusters, localities, endpoints and metrics: no more are allowed", maxLoadMessages)
	}
	if err := m.Hold(len(rest) + n*loadMessageBytes); err != nil {
		return nil, raw, err
	}
	if err := proto.Unmarshal(rest, r); err != nil {
		return nil, raw, badReport(err)
	}
	return r, raw, nil
}

func badReport(err error) error {
	return status.Errorf(codes.InvalidArgument, "load report: %v", err)
}

// pass passes messages on between the client and a stream of its own to the
// origin, until either ends.
func (s *loadStream) pass(ctx context.Context, first *loadMessage) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	origin, err := s.cfg.Loads.OpenLoads(ctx)
	if err != nil {
		return err
	}
	lost := make(chan error, 1)
	// Ends when either stream does, which is as soon as pass returns.
	go func() { lost <- s.answer(origin) }()
	if err := s.forward(ctx, origin, first.bytes); err != nil {
		return err
	}
	first.Release()
	for {
		select {
		case m := <-s.messages:
			err := s.forward(ctx, origin, m.bytes)
			m.Release()
			if err != nil {
				return err
			}
		case err := <-s.ended:
			if err != nil {
				return err
			}
			_ = origin.CloseSend() // an error means that the stream has ended, which lost tells
		case err := <-lost:
			return err
		case <-s.server.draining:
			return errDraining
		case <-ctx.Done():
			return over(ctx)
		}
	}
}

// answer passes on what the origin says, and returns how its stream ended.
func (s *loadStream) answer(origin grpc.ClientStream) error {
	for {
		m := new(wire.Message)
		if err := origin.RecvMsg(m); err != nil {
			return ReceiveStatus(err)
		}
		if err := s.rpc.SendMsg(m); err != nil {
			return err
		}
		s.answered.Store(true)
	}
}

// forward passes a message of the client on. That the stream to the origin has
// ended is not its error: answer knows why.
func (s *loadStream) forward(ctx context.Context, origin grpc.ClientStream, m []byte) error {
	err := s.bounded(ctx, func() error { return origin.SendMsg(&wire.Message{Bytes: m}) })
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// sum adds what the client reports to what others of its group do.
func (s *loadStream) sum(ctx context.Context, r *lrspb.LoadStatsRequest, who *identity, first *loadMessage) error {
	if err := s.check(r); err != nil {
		return err
	}
	client := &reporter{all: who.allClusters}
	loads, leave, err := s.server.loads.join(who.group, client, s.cfg.Logger)
	if err != nil {
		return err
	}
	defer leave()
	loads.add(client, r.GetClusterStats())
	first.Release()
	return s.converse(ctx, loads, client)
}

// converse takes the client's reports, and asks it for what the origin asks for.
func (s *loadStream) converse(ctx context.Context, loads *LoadGroup, client *reporter) error {
	var told *lrspb.LoadStatsResponse
	for {
		ask, changed := loads.ask(client)
		if ask != told && ask != nil {
			if err := s.bounded(ctx, func() error { return s.rpc.SendMsg(ask) }); err != nil {
				return err
			}
			s.answered.Store(true)
			told = ask
		}
		select {
		case m := <-s.messages:
			if err := s.add(loads, client, m); err != nil {
				return err
			}
		case <-changed:
		case err := <-s.ended:
			return err
		case <-s.server.draining:
			return errDraining
		case <-ctx.Done():
			return over(ctx)
		}
	}
}

// add adds a report of the client.
func (s *loadStream) add(loads *LoadGroup, client *reporter, m loadMessage) error {
	defer m.Release()
	r, _, err := s.decode(&m)
	if err != nil {
		return err
	}
	if err := s.check(r); err != nil {
		return err
	}
	loads.add(client, r.GetClusterStats())
	return nil
}

// check refuses a report that the origin would refuse with those of all others in the
// sum, and takes out of it what would spoil their metrics.
func (s *loadStream) check(r *lrspb.LoadStatsRequest) error {
	for i, stats := range r.GetClusterStats() {
		if err := checkCluster(stats); err != nil {
			return status.Errorf(codes.InvalidArgument, "load report: cluster_stats[%d]: %v", i, err)
		}
		if metric, found := dropNonFinite(stats); found && !s.loggedNonFinite {
			s.loggedNonFinite = true
			s.log.Warn("client reported a metric that is no number: it is left out of the sums",
				slog.String("cluster", stats.GetClusterName()), slog.String("metric", metric))
		}
	}
	return nil
}

// within bounds a send: to a peer that does not read it would block for ever.
func (s *loadStream) bounded(ctx context.Context, send func() error) error {
	done := make(chan error, 1)
	// Ends at the latest when the stream does.
	go func() { done <- send() }()
	stall := time.NewTimer(s.cfg.SendStall)
	defer stall.Stop()
	select {
	case err := <-done:
		return err
	case <-stall.C:
		return Ended(EndedStalled, codes.Unavailable, "the peer has not read for %v", s.cfg.SendStall)
	case <-s.server.draining:
		return errDraining
	case <-ctx.Done():
		return over(ctx)
	}
}

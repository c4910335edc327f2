package loadreport

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"time"

	"github.com/cenkalti/backoff/v5"
	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointpb "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	lrspb "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/xdstender/tender/upstream"
)

const (
	// loadInterval is the shortest time between two load reports, whatever the origin
	// asks for: some clients fail on an interval of nothing.
	minInterval = time.Second

	// loadsKept is how long load is kept for an origin that does not take it. What is
	// older says nothing about the load of today.
	maxReportAge = 10 * time.Minute

	// refusalWait is how long an origin that does not know the service is left alone.
	unimplementedWait = 5 * time.Minute

	// sendTimeout is how long an origin may not read, endWait how long to wait for why a stream ended.
	sendTimeout = 5 * time.Second
	streamErrorWait     = time.Second

	// lastReport is how long the last report and the end of a stream may take.
	finalReportTimeout = time.Second
)

// supportsAllClusters says that the relay can be asked for all clusters without
// naming them (R140).
const supportsAllClusters = "envoy.lrs.supports_send_all_clusters"

var stream = &grpc.StreamDesc{StreamName: "StreamLoadStats", ServerStreams: true, ClientStreams: true}

// Loads is what is reported to an origin.
type Loads interface {
	// Ask says what the origin asks for.
	Ask(*lrspb.LoadStatsResponse)
	// Take returns the load since it was last called.
	Take() []*endpointpb.ClusterStats
	// Return takes back what could not be sent.
	Return([]*endpointpb.ClusterStats)
}

// errNotReading ends a stream whose origin does not read.
var errNotReading = errors.New("the origin does not read")

// errMoved ends a stream of load reports at an address to which the origin was moved only for
// a while (B.40).
var errFailedBack = errors.New("the origin has returned to an earlier address")

// Open opens a stream of load reports, which ends with ctx, and on which messages are the caller's. Errors
// are gRPC statuses; UNAVAILABLE where there is no connection within 5s, after which the next target is the
// one in use, and once the session has returned to an earlier one, so that the client comes again (B.40).
func Open(ctx context.Context, s *upstream.Session) (grpc.ClientStream, error) {
	own, cancel := context.WithCancelCause(ctx)
	rpc, at, err := open(own, s)
	if err != nil {
		cancel(err)
		return nil, err
	}
	context.AfterFunc(rpc.Context(), func() { cancel(nil) })
	if at.Changed != nil {
		// Ends with the RPC, or ends it.
		go func() {
			for at.MayStay() {
				select {
				case <-at.Changed:
				case <-own.Done():
					return
				}
			}
			cancel(errFailedBack)
		}()
	}
	return passthroughStream{rpc, own}, nil
}

// A passed stream is one whose client is told why it ended.
type passthroughStream struct {
	grpc.ClientStream
	ctx context.Context
}

func (p passthroughStream) RecvMsg(m any) error {
	err := p.ClientStream.RecvMsg(m)
	if err != nil && errors.Is(context.Cause(p.ctx), errFailedBack) {
		return status.Error(codes.Unavailable, errFailedBack.Error())
	}
	return err
}

func open(ctx context.Context, s *upstream.Session) (grpc.ClientStream, upstream.StreamTarget, error) {
	return s.OpenStream(ctx, stream, lrspb.LoadReportingService_StreamLoadStats_FullMethodName)
}

// A reporter reports the load of one group. It belongs to Run.
type reporter struct {
	session *upstream.Session
	node    *corepb.Node
	loads   Loads
	log     *slog.Logger

	retry   *backoff.ExponentialBackOff
	acceptedAt    time.Time // when the origin last took reports
	unimplementedLogged bool      // that it takes none was logged
	intervalLogged   bool      // that it asks too often was logged
}

// Run reports load to the origin, which takes the relay for a node, each time that
// the interval has passed that the origin asks for, until ctx ends; then it reports
// what is left. No failure of the origin ends it: it is logged and tried again, as
// for a view. Load that could not be sent is in the next report, unless that
// comes more than 10 minutes later. What was sent when the connection broke may be
// lost: nothing acknowledges a report.
func Run(ctx context.Context, s *upstream.Session, node *corepb.Node, loads Loads, log *slog.Logger) {
	r := &reporter{
		session: s,
		node:    node,
		loads:   loads,
		log:     log,
		retry: &backoff.ExponentialBackOff{
			InitialInterval: time.Second, Multiplier: 1.6, RandomizationFactor: 0.2, MaxInterval: 30 * time.Second,
		},
		acceptedAt: time.Now(),
	}
	r.retry.Reset()
	for {
		answered, err := r.report(ctx)
		if ctx.Err() != nil {
			return
		}
		select {
		case <-time.After(r.wait(answered, err)):
		case <-ctx.Done():
			return
		}
	}
}

// wait returns how long to wait before the next stream.
func (r *reporter) wait(answered bool, err error) time.Duration {
	if status.Code(err) == codes.Unimplemented {
		if !r.unimplementedLogged {
			r.log.Warn("origin does not accept load reports: they are discarded", slog.Any("err", err))
		}
		r.unimplementedLogged = true
		return time.Duration(float64(unimplementedWait) * (0.8 + 0.4*rand.Float64()))
	}
	var wait time.Duration
	if answered {
		r.retry.Reset()
		r.unimplementedLogged, wait = false, rand.N(upstream.ReconnectMax)
	} else {
		wait = r.retry.NextBackOff()
	}
	level := slog.LevelWarn
	if errors.Is(err, io.EOF) || errors.Is(err, errFailedBack) {
		level = slog.LevelInfo // servers end streams to spread their clients
	}
	r.log.LogAttrs(context.Background(), level, "load report stream closed",
		slog.Any("err", err), slog.Duration("retry_in", wait.Round(time.Millisecond)))
	return wait
}

// report reports on one stream until it or ctx ends, and returns whether the
// origin asked for anything on it.
func (r *reporter) report(ctx context.Context) (answered bool, err error) {
	st, err := r.open(ctx)
	if err != nil {
		return false, err
	}
	defer st.close()
	timer := time.NewTimer(math.MaxInt64) // until the origin asks
	defer timer.Stop()
	for {
		select {
		case ask := <-st.requests:
			if r.configure(st, ask) {
				timer.Reset(st.interval)
			}
		case <-timer.C:
			if err := r.send(st); err != nil {
				return st.configured(), err
			}
			timer.Reset(st.interval)
		case err := <-st.errs:
			return st.configured(), err
		case <-st.at.Changed:
			if !st.at.MayStay() {
				r.finish(st)
				return true, errFailedBack
			}
		case <-ctx.Done():
			r.finish(st)
			return st.configured(), ctx.Err()
		}
	}
}

// open opens a stream, on which it says whom the origin is to take the relay for.
func (r *reporter) open(ctx context.Context) (*reportStream, error) {
	st, err := openReports(ctx, r.session)
	if err != nil {
		return nil, err
	}
	node := proto.CloneOf(r.node)
	node.ClientFeatures = append(node.ClientFeatures, supportsAllClusters)
	if err := st.send(&lrspb.LoadStatsRequest{Node: node}); err != nil {
		st.close()
		return nil, err
	}
	return st, nil
}

// asked takes what the origin asks for, and reports whether that changes when it is
// to be told.
func (r *reporter) configure(st *reportStream, ask *lrspb.LoadStatsResponse) (changed bool) {
	if age := time.Since(r.acceptedAt); !st.configured() && age > maxReportAge {
		r.loads.Take()
		r.log.Info("old load reports dropped: the origin has not accepted them", slog.Duration("age", age.Round(time.Second)))
	}
	r.acceptedAt = time.Now()
	before := st.interval
	ask.LoadReportingInterval = r.interval(ask)
	st.interval = ask.GetLoadReportingInterval().AsDuration()
	r.loads.Ask(ask)
	return st.interval != before
}

// interval returns the interval that the origin asks for, or the shortest one
// where it asks for none that can be kept.
func (r *reporter) interval(ask *lrspb.LoadStatsResponse) *durationpb.Duration {
	asked := ask.GetLoadReportingInterval()
	if asked.IsValid() && asked.AsDuration() >= minInterval {
		return asked
	}
	if !r.intervalLogged {
		r.intervalLogged = true
		r.log.Warn("origin requests load reports too often",
			slog.Duration("interval", asked.AsDuration()), slog.Duration("interval_used", minInterval))
	}
	return durationpb.New(minInterval)
}

// send reports what there is, be it nothing. What cannot be sent is kept.
func (r *reporter) send(st *reportStream) error {
	report := r.loads.Take()
	if err := st.send(&lrspb.LoadStatsRequest{ClusterStats: report}); err != nil {
		r.loads.Return(report)
		return err
	}
	r.acceptedAt = time.Now()
	return nil
}

// finish reports what is left, and lets the origin end the stream.
func (r *reporter) finish(st *reportStream) {
	hard := time.AfterFunc(finalReportTimeout, func() { st.cancel(errNotReading) })
	defer hard.Stop()
	if st.configured() && r.send(st) == nil && st.rpc.CloseSend() == nil {
		<-st.done
	}
}

// A reportStream is one stream of load reports. But for what its receiver tells,
// it belongs to report.
type reportStream struct {
	rpc    grpc.ClientStream
	at     upstream.StreamTarget
	ctx    context.Context
	cancel context.CancelCauseFunc
	requests   chan *lrspb.LoadStatsResponse
	errs  chan error
	done   chan struct{} // closed when the receiver has ended

	interval time.Duration // that the origin asks for; zero: it has not asked
}

func (st *reportStream) configured() bool { return st.interval > 0 }

// openReports opens a stream, which outlives ctx for a last report.
func openReports(ctx context.Context, s *upstream.Session) (*reportStream, error) {
	own, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	opened := context.AfterFunc(ctx, func() { cancel(ctx.Err()) })
	rpc, at, err := open(own, s)
	if !opened() || err != nil {
		cancel(err)
		return nil, cmp.Or(err, ctx.Err())
	}
	st := &reportStream{
		rpc:    rpc,
		at:     at,
		ctx:    own,
		cancel: cancel,
		requests:   make(chan *lrspb.LoadStatsResponse),
		errs:  make(chan error, 1),
		done:   make(chan struct{}),
	}
	// Ends with the RPC; awaited by close.
	go st.receive()
	return st, nil
}

// close ends the stream.
func (st *reportStream) close() {
	st.cancel(nil)
	<-st.done
}

func (st *reportStream) receive() {
	defer close(st.done)
	for {
		ask := new(lrspb.LoadStatsResponse)
		if err := st.rpc.RecvMsg(ask); err != nil {
			st.errs <- err
			return
		}
		select {
		case st.requests <- ask:
		case <-st.ctx.Done():
			return
		}
	}
}

// send sends a request, for which an origin that does not read has a few seconds.
// Its error says why the stream ended.
func (st *reportStream) send(r *lrspb.LoadStatsRequest) error {
	stalled := time.AfterFunc(sendTimeout, func() { st.cancel(errNotReading) })
	defer stalled.Stop()
	err := st.rpc.SendMsg(r)
	if err == nil {
		return nil
	}
	select {
	case err = <-st.errs: // the receiver learns why, as a rule
	case <-time.After(streamErrorWait):
	case <-st.ctx.Done():
	}
	if cause := context.Cause(st.ctx); cause != nil {
		err = cause
	}
	return fmt.Errorf("send load report: %w", err)
}

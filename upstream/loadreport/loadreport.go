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
	// minInterval is the minimum interval between two load reports, whatever the origin requests.
	minInterval = time.Second

	// maxReportAge is how long the relay keeps load for an origin that does not accept reports. Older load is not
	// relevant to load balancing.
	maxReportAge = 10 * time.Minute

	// unimplementedWait is the delay before a new stream to an origin that does not implement LRS.
	unimplementedWait = 5 * time.Minute

	// sendTimeout is how long a send may block on an origin that does not read. streamErrorWait is how long a failed
	// send waits for the receiver to return the error of the stream.
	sendTimeout     = 5 * time.Second
	streamErrorWait = time.Second

	// finalReportTimeout limits the final report and the close of a stream.
	finalReportTimeout = time.Second
)

// supportsAllClusters is the client feature of a relay that can report all clusters (R140).
const supportsAllClusters = "envoy.lrs.supports_send_all_clusters"

var stream = &grpc.StreamDesc{StreamName: "StreamLoadStats", ServerStreams: true, ClientStreams: true}

// Loads collects the load of a group of clients. Run calls its methods from one goroutine.
type Loads interface {
	// Configure applies a request of the origin: the interval and the clusters to report.
	Configure(*lrspb.LoadStatsResponse)
	// Take returns the load since the last call.
	Take() []*endpointpb.ClusterStats
	// Return adds load that could not be sent to the next report.
	Return([]*endpointpb.ClusterStats)
}

// errNotReading is the cause when the relay closes a stream that the origin does not read.
var errNotReading = errors.New("the origin does not read")

// errFailedBack is the cause when the relay closes a stream because the session has failed back to an earlier address
// (B.40).
var errFailedBack = errors.New("the origin has returned to an earlier address")

// Open opens a stream of load reports for a client. It ends with ctx. The caller sends and receives its messages. When
// the session fails back to an earlier target, the stream ends with UNAVAILABLE, so that the client reconnects (B.40).
//
// Errors are gRPC statuses. Without a connection, the error is UNAVAILABLE after 5s. If that happens repeatedly, the
// session fails over to the next target.
func Open(ctx context.Context, s *upstream.Session) (grpc.ClientStream, error) {
	own, cancel := context.WithCancelCause(ctx)
	rpc, at, err := open(own, s)
	if err != nil {
		cancel(err)
		return nil, err
	}
	context.AfterFunc(rpc.Context(), func() { cancel(nil) })
	if at.Changed != nil {
		// The goroutine ends with the RPC, or cancels it.
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

// A passthroughStream is the stream of a client. If the relay closed it, RecvMsg returns UNAVAILABLE instead of
// CANCELED.
type passthroughStream struct {
	grpc.ClientStream
	ctx context.Context // its cause is why the relay closed the stream
}

// RecvMsg implements grpc.ClientStream.
func (p passthroughStream) RecvMsg(m any) error {
	err := p.ClientStream.RecvMsg(m)
	if err != nil && errors.Is(context.Cause(p.ctx), errFailedBack) {
		return status.Error(codes.Unavailable, errFailedBack.Error())
	}
	return err
}

// open opens an LRS stream to the active target.
func open(ctx context.Context, s *upstream.Session) (grpc.ClientStream, upstream.StreamTarget, error) {
	return s.OpenStream(ctx, stream, lrspb.LoadReportingService_StreamLoadStats_FullMethodName)
}

// A reporter reports the load of one group. It belongs to Run.
type reporter struct {
	session *upstream.Session
	node    *corepb.Node
	loads   Loads
	log     *slog.Logger

	retry               *backoff.ExponentialBackOff
	acceptedAt          time.Time // when the relay last sent a report or the origin requested reports
	unimplementedLogged bool      // the lack of LRS was logged; reset once the origin requests reports
	troubleLogged       bool      // that, or the end of a stream, was logged; reset likewise
	intervalLogged      bool      // a requested interval that is too short was logged
}

// Run reports load to the origin for a node, at the interval that the origin requests, until ctx ends. Then it sends a
// final report and returns. Failures of the origin do not end it: it logs them and retries after 1s to 30s. For an
// origin that does not implement LRS, it retries after about 5m and discards the load.
//
// Load that could not be sent is part of the next report, unless that is more than 10 minutes later. A report that was
// in flight when the connection broke may be lost: LRS has no acknowledgment.
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

// wait logs the end of a stream and returns the delay before the next one. answered reports that the origin requested
// reports.
func (r *reporter) wait(answered bool, err error) time.Duration {
	if status.Code(err) == codes.Unimplemented {
		if !r.unimplementedLogged {
			r.log.Warn("origin does not accept load reports: they are discarded", slog.Any("err", err))
		}
		r.unimplementedLogged, r.troubleLogged = true, true
		return time.Duration(float64(unimplementedWait) * (0.8 + 0.4*rand.Float64()))
	}
	var wait time.Duration
	if answered {
		r.retry.Reset()
		wait = rand.N(upstream.ReconnectMax)
	} else {
		wait = r.retry.NextBackOff()
	}
	r.troubleLogged = true
	level := slog.LevelWarn
	if errors.Is(err, io.EOF) || errors.Is(err, errFailedBack) {
		level = slog.LevelInfo // servers close streams to spread their clients
	}
	r.log.LogAttrs(context.Background(), level, "load report stream closed",
		slog.Any("err", err), slog.Duration("retry_in", wait.Round(time.Millisecond)))
	return wait
}

// report reports on one stream until the stream or ctx ends. It returns whether the origin has requested reports on it.
func (r *reporter) report(ctx context.Context) (answered bool, err error) {
	st, err := r.open(ctx)
	if err != nil {
		return false, err
	}
	defer st.close()
	timer := time.NewTimer(math.MaxInt64) // stopped until the origin requests reports
	defer timer.Stop()
	for {
		select {
		case req := <-st.requests:
			if r.configure(st, req) {
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

// open opens a stream and sends the node.
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

// configure applies a request of the origin. It reports whether the interval has changed.
func (r *reporter) configure(st *reportStream, req *lrspb.LoadStatsResponse) (changed bool) {
	if age := time.Since(r.acceptedAt); !st.configured() && age > maxReportAge {
		r.loads.Take()
		r.log.Info("old load reports dropped: the origin has not accepted them", slog.Duration("age", age.Round(time.Second)))
	}
	if !st.configured() && r.troubleLogged {
		r.log.Info("origin accepts load reports again")
		r.troubleLogged, r.unimplementedLogged = false, false
	}
	r.acceptedAt = time.Now()
	before := st.interval
	req.LoadReportingInterval = r.interval(req)
	st.interval = req.GetLoadReportingInterval().AsDuration()
	r.loads.Configure(req)
	return st.interval != before
}

// interval returns the interval that the origin requests, or minInterval if it is shorter or invalid.
func (r *reporter) interval(req *lrspb.LoadStatsResponse) *durationpb.Duration {
	requested := req.GetLoadReportingInterval()
	if requested.IsValid() && requested.AsDuration() >= minInterval {
		return requested
	}
	if !r.intervalLogged {
		r.intervalLogged = true
		r.log.Warn("origin requests load reports too often",
			slog.Duration("interval", requested.AsDuration()), slog.Duration("interval_used", minInterval))
	}
	return durationpb.New(minInterval)
}

// send sends a report, which may be empty. If this fails, the load is kept.
func (r *reporter) send(st *reportStream) error {
	report := r.loads.Take()
	if err := st.send(&lrspb.LoadStatsRequest{ClusterStats: report}); err != nil {
		r.loads.Return(report)
		return err
	}
	r.acceptedAt = time.Now()
	return nil
}

// finish sends the final report and waits for the origin to end the stream, at most finalReportTimeout.
func (r *reporter) finish(st *reportStream) {
	hard := time.AfterFunc(finalReportTimeout, func() { st.cancel(errNotReading) })
	defer hard.Stop()
	if st.configured() && r.send(st) == nil && st.rpc.CloseSend() == nil {
		<-st.done
	}
}

// A reportStream is one stream of load reports. It belongs to reporter.report, except rpc.RecvMsg and the channels,
// which the receiver uses.
type reportStream struct {
	rpc      grpc.ClientStream
	at       upstream.StreamTarget
	ctx      context.Context
	cancel   context.CancelCauseFunc
	requests chan *lrspb.LoadStatsResponse
	errs     chan error    // receives the error that ended the stream; capacity 1
	done     chan struct{} // closed when the receiver has ended

	interval time.Duration // requested by the origin; zero before its first request
}

// configured reports whether the origin has requested reports on the stream.
func (st *reportStream) configured() bool { return st.interval > 0 }

// openReports opens a stream. The stream outlives ctx, for the final report.
func openReports(ctx context.Context, s *upstream.Session) (*reportStream, error) {
	own, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	opened := context.AfterFunc(ctx, func() { cancel(ctx.Err()) })
	rpc, at, err := open(own, s)
	if !opened() || err != nil {
		cancel(err)
		return nil, cmp.Or(err, ctx.Err())
	}
	st := &reportStream{
		rpc:      rpc,
		at:       at,
		ctx:      own,
		cancel:   cancel,
		requests: make(chan *lrspb.LoadStatsResponse),
		errs:     make(chan error, 1),
		done:     make(chan struct{}),
	}
	// The goroutine ends with the RPC. close waits for it.
	go st.receive()
	return st, nil
}

// close cancels the stream and waits for the receiver.
func (st *reportStream) close() {
	st.cancel(nil)
	<-st.done
}

// receive passes the requests of the origin to the reporter until the stream ends.
func (st *reportStream) receive() {
	defer close(st.done)
	for {
		req := new(lrspb.LoadStatsResponse)
		if err := st.rpc.RecvMsg(req); err != nil {
			st.errs <- err
			return
		}
		select {
		case st.requests <- req:
		case <-st.ctx.Done():
			return
		}
	}
}

// send sends a request. If the origin does not read for sendTimeout, it closes the stream. The error is the reason why
// the stream ended.
func (st *reportStream) send(r *lrspb.LoadStatsRequest) error {
	stalled := time.AfterFunc(sendTimeout, func() { st.cancel(errNotReading) })
	defer stalled.Stop()
	err := st.rpc.SendMsg(r)
	if err == nil {
		return nil
	}
	select {
	case err = <-st.errs: // usually the receiver returns the reason
	case <-time.After(streamErrorWait):
	case <-st.ctx.Done():
	}
	if cause := context.Cause(st.ctx); cause != nil {
		err = cause
	}
	return fmt.Errorf("send load report: %w", err)
}

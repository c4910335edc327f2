package upstream

import (
	"context"
	"fmt"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache/wire"
)

// sendQueue is how many requests may wait for an origin that does not read. A
// request is small; an origin that leaves so many unread is not there.
const sendQueue = 4096

// deltaStream and sotwStream describe the methods that the relay calls.
var (
	deltaStream = &grpc.StreamDesc{StreamName: "DeltaAggregatedResources", ServerStreams: true, ClientStreams: true}
	sotwStream  = &grpc.StreamDesc{StreamName: "StreamAggregatedResources", ServerStreams: true, ClientStreams: true}
)

// A stream is one ADS stream. Its fields belong to the loop of the view sync.
type stream struct {
	role   role
	cancel context.CancelCauseFunc
	out    chan proto.Message
	sotw   *sotwState // nil: the stream is Delta

	requested map[string]bool // types of which a first request was sent
	nodeSent  bool
	responded bool
	replaced  bool // what the origin still says on it is not looked at
	rpcOpened bool // the origin was asked for it; belongs to converse
}

// An event is what a stream's goroutines send to the view sync: that it is open, what it
// received, or that it ended.
type event struct {
	stream *stream
	opened bool
	update wire.Update
	at     time.Time // when it was received
	err    error     // of decoding, if update came; of the stream, if ended
	ended  bool
}

// open starts a stream. Its outcome comes as an event: opened, or ended.
func (s *Session) open(ctx context.Context, target int, r role, sotw bool, events chan<- event) *stream {
	ctx, cancel := context.WithCancelCause(s.cfg.withRelayToken(ctx))
	st := &stream{
		role:      r,
		cancel:    cancel,
		out:       make(chan proto.Message, sendQueue),
		requested: make(map[string]bool),
	}
	if sotw {
		st.sotw = newSotwState()
	}
	// Ended by cancel; the view sync waits for the event that it ended.
	go func() {
		err := st.run(ctx, s.conns[target], &s.cfg, events)
		if !st.rpcOpened {
			s.limiter.refund()
		}
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		cancel(nil)
		deliver(events, event{stream: st, ended: true, err: err})
	}()
	return st
}

// converse opens the RPC and receives until it ends.
func (st *stream) run(ctx context.Context, conn *grpc.ClientConn, cfg *Config, events chan<- event) error {
	dec := wire.Decoder{ContentVersions: cfg.ContentVersions, MaxResourceBytes: cfg.MaxResourceBytes}
	timeout := time.AfterFunc(openTimeout, func() { st.cancel(errOpenTimeout) })
	desc, method, decode := deltaStream, discoverypb.AggregatedDiscoveryService_DeltaAggregatedResources_FullMethodName, dec.Decode
	if st.sotw != nil {
		desc, method, decode = sotwStream, discoverypb.AggregatedDiscoveryService_StreamAggregatedResources_FullMethodName, dec.DecodeSotW
	}
	rpc, err := conn.NewStream(ctx, desc, method)
	st.rpcOpened = err == nil
	if !timeout.Stop() || err != nil {
		return err
	}
	deliver(events, event{stream: st, opened: true})
	sent := make(chan struct{})
	// Ends with the RPC; awaited below.
	go func() {
		defer close(sent)
		st.send(ctx, rpc)
	}()
	err = st.receive(rpc, cfg, decode, events)
	st.cancel(err)
	<-sent
	return err
}

func (st *stream) receive(rpc grpc.ClientStream, cfg *Config, decode func([]byte) (wire.Update, error), events chan<- event) error {
	leave, err := cfg.registerChain(rpc)
	if err != nil {
		return err
	}
	defer leave()
	for {
		var msg wire.Message
		if err := rpc.RecvMsg(&msg); err != nil {
			return err
		}
		at := time.Now()
		u, err := decode(msg.Bytes)
		deliver(events, event{stream: st, update: u, at: at, err: err})
	}
}

// sendFailed is how long a stream on which a request could not be sent may live
// on: its receiver learns why it ended, as a rule. But a stream that gRPC opened
// anew by itself, when its connection broke under the first request, may go on
// receiving after a send has failed.
const sendErrorGrace = time.Second

func (st *stream) send(ctx context.Context, rpc grpc.ClientStream) {
	for {
		select {
		case r := <-st.out:
			err := rpc.SendMsg(r)
			if err == nil {
				continue
			}
			select {
			case <-time.After(sendErrorGrace):
				st.cancel(fmt.Errorf("send: %w", err))
			case <-ctx.Done():
			}
			return
		case <-ctx.Done():
			return
		}
	}
}

// tell hands an event to the view sync, which takes events until all of its streams
// have ended.
func deliver(events chan<- event, e event) { events <- e }

// request queues a request. The first of the stream carries the node (R020). On a
// SotW stream it changes the list of its type, which flush sends.
func (st *stream) request(node *corepb.Node, r *discoverypb.DeltaDiscoveryRequest) {
	if st.sotw != nil {
		st.sotw.change(r)
		return
	}
	moveToLocators(&r.ResourceNamesSubscribe, &r.ResourceLocatorsSubscribe)
	moveToLocators(&r.ResourceNamesUnsubscribe, &r.ResourceLocatorsUnsubscribe)
	if !st.nodeSent {
		r.Node, st.nodeSent = node, true
	}
	st.queue(r)
}

// flush sends the lists of a SotW stream that changed since the last call: one
// request for each type.
func (st *stream) flush(node *corepb.Node, now time.Time) {
	if st.sotw == nil {
		return
	}
	for _, r := range st.sotw.requests(now) {
		if !st.nodeSent {
			r.Node, st.nodeSent = node, true
		}
		st.queue(r)
	}
}

func (st *stream) queue(r proto.Message) {
	select {
	case st.out <- r:
	default:
		st.cancel(errNotReading)
	}
}

// answer acknowledges a response, or refuses it with a reason. In Delta it carries
// no names: control planes differ in what they make of names on an ACK (R082).
func (st *stream) ackOrNack(node *corepb.Node, u wire.Update, refusal error) {
	var detail *statuspb.Status
	if refusal != nil {
		detail = &statuspb.Status{Code: int32(codes.InvalidArgument), Message: refusal.Error()}
	}
	if st.sotw != nil {
		st.sotw.ackOrNack(u, detail)
		return
	}
	r := &discoverypb.DeltaDiscoveryRequest{TypeUrl: u.TypeURL, ResponseNonce: u.Nonce, ErrorDetail: detail}
	st.requested[u.TypeURL] = true
	st.request(node, r)
}

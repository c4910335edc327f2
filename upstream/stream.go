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
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache/wire"
)

// sendQueue is the maximum number of requests that wait for an origin that does not read. Requests are small, so a full
// queue means that the origin is dead.
const sendQueue = 4096

var (
	// deltaStream and sotwStream describe the gRPC methods that the relay calls.
	deltaStream = &grpc.StreamDesc{StreamName: "DeltaAggregatedResources", ServerStreams: true, ClientStreams: true}
	sotwStream  = &grpc.StreamDesc{StreamName: "StreamAggregatedResources", ServerStreams: true, ClientStreams: true}
)

// A stream is one ADS stream. Its fields belong to the loop of the view sync, except where noted.
type stream struct {
	branch *branch
	role   role
	cancel context.CancelCauseFunc // closes the stream; any goroutine may call it
	out    chan proto.Message      // requests to send; received by send
	sotw   *sotwState              // nil for a Delta stream

	reporting reporting          // only if the origin is a relay; see tiers.go
	requested map[string]bool    // types for which a request was sent
	answers   map[string]*answer // by type URL; see verdict.go
	nodeSent  bool               // a request with the node was queued
	responded bool               // a response was accepted
	replaced  bool               // a new stream replaces it: its responses are ignored
	rpcOpened bool               // gRPC opened the stream; belongs to the goroutine of run
	address   string             // of the server, empty before the stream ended; belongs to run until the ended event
}

// An answer is what the origin was told last about the newest response of a type on a stream.
type answer struct {
	response wire.Update // its type, version and nonce
	own      error       // why the relay refuses it, or a part of it; nil if it accepts it
	reported bool        // the origin was told what clients reject
}

// An event is a message from a stream's goroutines to the view sync: the stream opened, its server sent headers, it was told
// halts, it received a response, or it ended.
type event struct {
	stream *stream
	opened bool
	header bool   // the server has sent headers; relay and tells are known
	relay  bool   // the server is a relay that accepts reports
	tells  bool   // the server is a relay that tells halts
	halts  []byte // what it tells; nil otherwise
	update wire.Update
	at     time.Time // receive time of update
	err    error     // decoding error of update, or the reason why the stream ended
	ended  bool

	address string // of the server; only with update, and empty if gRPC does not report it
}

// open starts a stream and does not wait for the origin. The stream sends an event when it opens, when it receives a
// response, and when it ends. The caller must receive events until the stream has ended.
func (s *Session) open(ctx context.Context, target int, r role, sotw bool, events chan<- event) *stream {
	ctx, cancel := context.WithCancelCause(s.cfg.withRelayToken(ctx))
	st := &stream{
		role:      r,
		cancel:    cancel,
		out:       make(chan proto.Message, sendQueue),
		requested: make(map[string]bool),
		answers:   make(map[string]*answer),
	}
	if sotw {
		st.sotw = newSotwState()
	}
	// The goroutine ends after cancel. The view sync waits for its ended event.
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

// run opens the RPC and receives until it ends. It returns why the RPC ended or could not be opened.
func (st *stream) run(ctx context.Context, conn *grpc.ClientConn, cfg *Config, events chan<- event) error {
	dec := wire.Decoder{ContentVersions: cfg.ContentVersions, MaxResourceBytes: cfg.MaxResourceBytes}
	timeout := time.AfterFunc(openTimeout, func() { st.cancel(errOpenTimeout) })
	desc, decode := deltaStream, dec.Decode
	method := discoverypb.AggregatedDiscoveryService_DeltaAggregatedResources_FullMethodName
	if st.sotw != nil {
		desc, decode = sotwStream, dec.DecodeSotW
		method = discoverypb.AggregatedDiscoveryService_StreamAggregatedResources_FullMethodName
	}
	rpc, err := conn.NewStream(ctx, desc, method)
	st.rpcOpened = err == nil
	if !timeout.Stop() || err != nil {
		return err
	}
	deliver(events, event{stream: st, opened: true})
	sent := make(chan struct{})
	// The goroutine ends with the RPC. run waits for it below.
	go func() {
		defer close(sent)
		st.send(ctx, rpc)
	}()
	err = st.receive(rpc, cfg, decode, events)
	st.address = peerAddress(rpc)
	st.cancel(err)
	<-sent
	return err
}

// receive passes the responses to the view sync until the stream ends, and returns why it ended.
func (st *stream) receive(
	rpc grpc.ClientStream, cfg *Config, decode func([]byte) (wire.Update, error), events chan<- event,
) error {
	header, leave, err := cfg.registerChain(rpc)
	if err != nil {
		return err
	}
	defer leave()
	tells := len(header.Get(wire.HaltsHeader)) > 0
	if header != nil {
		deliver(events, event{stream: st, header: true, relay: len(header.Get(wire.ReportHeader)) > 0, tells: tells})
	}
	address := ""
	for {
		var msg wire.Message
		if err := rpc.RecvMsg(&msg); err != nil {
			return err
		}
		at := time.Now()
		if address == "" {
			address = peerAddress(rpc)
		}
		if halts, ok := wire.HaltsIn(msg.Bytes); ok && tells {
			deliver(events, event{stream: st, halts: halts})
			continue
		}
		u, err := decode(msg.Bytes)
		deliver(events, event{stream: st, update: u, at: at, err: err, address: address})
	}
}

// peerAddress returns the address of the server of a stream that has received a message or has ended. It is empty if gRPC
// does not report it.
func peerAddress(rpc grpc.ClientStream) string {
	if p, ok := peer.FromContext(rpc.Context()); ok && p.Addr != nil {
		return p.Addr.String()
	}
	return ""
}

// sendErrorGrace is how long a stream may continue after a request could not be sent. Usually, the receiver returns the
// reason earlier. If gRPC has retried the stream transparently after its connection broke, the receiver would continue
// without further requests.
const sendErrorGrace = time.Second

// send sends the queued requests until the stream ends.
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

// deliver passes an event to the view sync, which receives events until all of its streams have ended.
func deliver(events chan<- event, e event) { events <- e }

// request queues a request. The first one on a stream carries the node (R020). On a SotW stream, it only changes the
// subscription, which flush sends.
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

// flush sends the changed subscriptions of a SotW stream, one request per type.
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

// queue passes a request to send. If the queue is full, it closes the stream.
func (st *stream) queue(r proto.Message) {
	select {
	case st.out <- r:
	default:
		st.cancel(errNotReading)
	}
}

// ackOrNack queues an ACK for a response, or a NACK if refusal is not nil. In Delta it carries no names: control
// planes differ in how they treat names on an ACK (R082).
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

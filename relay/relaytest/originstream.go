package relaytest

import (
	"context"
	"slices"
	"strconv"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest/codec"
)

// An OriginStream is a stream at an origin. Its methods send Delta messages unless documented otherwise. They may be
// used in automatic mode too.
type OriginStream struct {
	// Immutable after creation.
	origin     *Origin
	rpc        grpc.ServerStream
	manual     bool
	wake       chan struct{} // receives when the queue is not empty
	peerClosed chan struct{} // closed by the receiver when the peer has closed its side

	// Guarded by origin.mon.
	record  *StreamState
	content *Content // nil before the first request
	read    int      // number of requests that Recv has returned
	queue   []outgoing
	nonces  nonces
	err     error // error of the ended stream
}

// An outgoing is a queued message.
type outgoing struct {
	message any // a message, codec.Raw, or a *status.Status that ends the stream
	typeURL string
	due     time.Time // zero for immediately
}

// serveStream is the handler of both methods.
func (o *Origin) serveStream(rpc grpc.ServerStream, sotw bool) error {
	o.mon.Lock()
	supported := o.behaviour.SotW == sotw
	o.mon.Unlock()
	if !supported {
		return status.Error(codes.Unimplemented, "the origin implements the other variant")
	}
	if len(metadata.ValueFromIncomingContext(rpc.Context(), wire.ProbeHeader)) > 0 {
		return o.serveProbe(rpc, sotw)
	}
	return o.open(rpc, sotw).run()
}

// serveProbe answers the probe of a relay with a response that is not recorded, or not at all.
func (o *Origin) serveProbe(rpc grpc.ServerStream, sotw bool) error {
	o.mon.Lock()
	o.record.Probes++
	silent := o.behaviour.SilentProbes
	o.mon.Changed()
	o.mon.Unlock()
	var answer proto.Message
	if sotw {
		var req discoverypb.DiscoveryRequest
		if err := rpc.RecvMsg(&req); err != nil {
			return err
		}
		answer = &discoverypb.DiscoveryResponse{TypeUrl: req.GetTypeUrl(), Nonce: "probe", VersionInfo: "probe"}
	} else {
		var req discoverypb.DeltaDiscoveryRequest
		if err := rpc.RecvMsg(&req); err != nil {
			return err
		}
		answer = &discoverypb.DeltaDiscoveryResponse{TypeUrl: req.GetTypeUrl(), Nonce: "probe"}
	}
	if !silent {
		if err := rpc.SendMsg(answer); err != nil {
			return err
		}
	}
	<-rpc.Context().Done()
	return context.Cause(rpc.Context())
}

// open creates and records a stream.
func (o *Origin) open(rpc grpc.ServerStream, sotw bool) *OriginStream {
	header, _ := metadata.FromIncomingContext(rpc.Context())
	s := &OriginStream{
		origin:     o,
		rpc:        rpc,
		wake:       make(chan struct{}, 1),
		peerClosed: make(chan struct{}),
		nonces:     nonces{byValue: make(map[string]*issuedNonce)},
		record:     &StreamState{SotW: sotw, Header: header, Types: make(map[string]*TypeState)},
	}
	o.mon.Lock()
	defer o.mon.Unlock()
	s.manual = o.behaviour.Manual
	s.record.ID = len(o.streams)
	o.streams = append(o.streams, s)
	o.record.Streams = append(o.record.Streams, s.record)
	o.mon.Changed()
	return s
}

// State returns a copy of the record of the stream.
func (s *OriginStream) State() *StreamState {
	s.origin.mon.Lock()
	defer s.origin.mon.Unlock()
	return s.record.clone()
}

// Recv returns the next request of a Delta stream that Recv has not returned yet. It fails the test on a timeout, or if
// the stream has ended.
func (s *OriginStream) Recv(ctx context.Context) *discoverypb.DeltaDiscoveryRequest {
	s.origin.tb.Helper()
	var req *discoverypb.DeltaDiscoveryRequest
	err := s.origin.mon.Await(ctx, func() bool {
		if s.read < len(s.record.Requests) {
			req = s.record.Requests[s.read].Message
			s.read++
			return true
		}
		return s.record.Ended
	})
	switch {
	case err != nil:
		s.origin.tb.Fatalf("receive request: %v\n%v", err, s.State())
	case req == nil:
		s.origin.tb.Fatalf("receive request: the stream has ended: %v\n%v", s.err, s.State())
	}
	return req
}

// ExpectRequest is Recv, but fails the test if the request does not equal want. The Node counts only if want has one.
// The order of names does not count.
func (s *OriginStream) ExpectRequest(
	ctx context.Context, want *discoverypb.DeltaDiscoveryRequest,
) *discoverypb.DeltaDiscoveryRequest {
	s.origin.tb.Helper()
	got := s.Recv(ctx)
	a, b := proto.CloneOf(got), proto.CloneOf(want)
	if b.GetNode() == nil {
		a.Node = nil
	}
	for _, r := range []*discoverypb.DeltaDiscoveryRequest{a, b} {
		slices.Sort(r.ResourceNamesSubscribe)
		slices.Sort(r.ResourceNamesUnsubscribe)
	}
	if !proto.Equal(a, b) {
		s.origin.tb.Fatalf("request at the origin:\n got %s\nwant %s\n%v", describe(got), describe(want), s.State())
	}
	return got
}

// Send sends resp, with a new nonce if it has none, and returns the nonce. It does not block. If the stream has ended,
// it drops resp.
func (s *OriginStream) Send(resp *discoverypb.DeltaDiscoveryResponse) (nonce string) {
	s.origin.mon.Lock()
	defer s.origin.mon.Unlock()
	resp = s.withNonce(resp)
	s.enqueue(resp, 0)
	return resp.GetNonce()
}

// SendBytes sends b as one gRPC message without checks. It counts as a response if it has a type URL and a nonce.
func (s *OriginStream) SendBytes(b []byte) {
	typeURL, _ := field(b, 4)
	nonce, _ := field(b, 5)
	s.origin.mon.Lock()
	defer s.origin.mon.Unlock()
	if len(nonce) > 0 {
		s.nonces.add(string(nonce))
	}
	s.enqueueOutgoing(outgoing{message: codec.Raw(slices.Clone(b)), typeURL: string(typeURL)})
}

// Close ends the stream with a status (nil means OK) after the queued responses.
func (s *OriginStream) Close(st *status.Status) {
	s.origin.mon.Lock()
	defer s.origin.mon.Unlock()
	s.enqueueOutgoing(outgoing{message: st})
}

// WaitEnd waits until the stream has ended. It fails the test on a timeout.
func (s *OriginStream) WaitEnd(ctx context.Context) {
	s.origin.tb.Helper()
	if err := s.origin.mon.Await(ctx, func() bool { return s.record.Ended }); err != nil {
		s.origin.tb.Fatalf("wait for the end of the stream: %v\n%v", err, s.State())
	}
}

// run is the handler of the stream and its only sender.
func (s *OriginStream) run() error {
	s.origin.running.Go(s.receive) // ends with the handler; Stop waits for it
	err := s.send()
	s.origin.mon.Lock()
	defer s.origin.mon.Unlock()
	s.err, s.record.Ended, s.queue = err, true, nil
	s.origin.mon.Changed()
	return err
}

// send sends queued messages until the stream ends.
func (s *OriginStream) send() error {
	ctx := s.rpc.Context()
	for {
		s.origin.mon.Lock()
		queue := s.queue
		s.queue = nil
		s.origin.mon.Unlock()
		for _, out := range queue {
			if end, ok := out.message.(*status.Status); ok {
				return end.Err()
			}
			if err := s.sendOne(ctx, out); err != nil {
				return err
			}
		}
		select {
		case <-s.wake:
		case <-s.peerClosed:
			return context.Cause(ctx) // nil if the peer closed its side without an error
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// sendOne waits until a message is due, and sends it.
func (s *OriginStream) sendOne(ctx context.Context, out outgoing) error {
	if wait := time.Until(out.due); !out.due.IsZero() && wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	// Count the response before it is sent, so that its ACK cannot come first.
	s.origin.mon.Lock()
	if t := s.record.Types[out.typeURL]; t != nil {
		t.Sent++
	}
	s.origin.mon.Changed()
	s.origin.mon.Unlock()
	return s.rpc.SendMsg(out.message)
}

// receive handles requests until the peer closes its side.
func (s *OriginStream) receive() {
	defer close(s.peerClosed)
	for {
		req, sotw := new(discoverypb.DeltaDiscoveryRequest), new(discoverypb.DiscoveryRequest)
		into := proto.Message(req)
		if s.record.SotW {
			into = sotw
		}
		if s.rpc.RecvMsg(into) != nil {
			return // closing peerClosed ends the handler, unless it has ended
		}
		s.origin.mon.Lock()
		if s.record.SotW {
			s.handleSotW(sotw)
		} else {
			s.handle(req)
		}
		s.origin.mon.Changed()
		s.origin.mon.Unlock()
	}
}

// handle records a request and, in automatic mode, answers it. The caller must hold the lock.
func (s *OriginStream) handle(req *discoverypb.DeltaDiscoveryRequest) {
	s.record.Requests = append(s.record.Requests, Request{At: time.Now(), Message: req})
	s.identify(req.GetNode())
	t, first := s.record.openType(req.GetTypeUrl())
	t.Requests++
	s.nonces.acknowledge(t, req.GetResponseNonce(), req.GetErrorDetail() != nil)
	wasWildcard := t.Wildcard
	t.subscribe(req, first)
	if s.endsFor(req.GetTypeUrl(), req.GetResourceNamesSubscribe(), t.Wildcard && !wasWildcard) {
		return
	}
	if !s.manual {
		s.answer(t, req, first, t.Wildcard && !wasWildcard)
	}
}

// endsFor ends the stream if Behaviour.Ends applies to one of the names, or to the wildcard, and reports whether it does.
// The caller must hold the lock.
func (s *OriginStream) endsFor(typeURL string, names []string, wildcard bool) bool {
	ends := s.origin.behaviour.Ends
	if ends == nil {
		return false
	}
	over := wildcard && ends(typeURL, wire.Wildcard) ||
		slices.ContainsFunc(names, func(name string) bool { return ends(typeURL, name) })
	if over {
		s.enqueueOutgoing(outgoing{message: status.New(codes.Unknown, "no cache for this subscription")})
	}
	return over
}

// identify selects the Content for the Node of the first request, or rejects the Node.
func (s *OriginStream) identify(node *corepb.Node) {
	if s.content != nil {
		return
	}
	s.record.Node = node
	if node == nil {
		node = &corepb.Node{}
	}
	contents := s.origin.contents
	s.content = contents[slices.IndexFunc(contents, func(c *Content) bool { return c.match(node) })]
	for _, r := range s.origin.rejections {
		if r.match(node) {
			s.enqueueOutgoing(outgoing{message: r.status})
		}
	}
}

// subscribe applies the names of a request.
func (t *TypeState) subscribe(req *discoverypb.DeltaDiscoveryRequest, first bool) {
	if first && len(req.GetResourceNamesSubscribe()) == 0 {
		t.Wildcard = true
	}
	for _, name := range req.GetResourceNamesSubscribe() {
		if name == "*" {
			t.Wildcard = true
		} else {
			t.Names[name] = struct{}{}
		}
	}
	for _, name := range req.GetResourceNamesUnsubscribe() {
		if name == "*" {
			t.Wildcard = false
		} else {
			delete(t.Names, name)
		}
	}
}

// withNonce returns resp with a nonce of this stream, and records the nonce. The caller must hold the lock.
func (s *OriginStream) withNonce(resp *discoverypb.DeltaDiscoveryResponse) *discoverypb.DeltaDiscoveryResponse {
	nonce := s.nonces.issue(resp.GetNonce())
	if resp.GetNonce() == "" {
		resp = shallow(resp)
		resp.Nonce = nonce
	}
	return resp
}

// shallow returns a copy of a response that shares the resources.
func shallow(r *discoverypb.DeltaDiscoveryResponse) *discoverypb.DeltaDiscoveryResponse {
	return &discoverypb.DeltaDiscoveryResponse{
		SystemVersionInfo:    r.GetSystemVersionInfo(),
		Resources:            r.GetResources(),
		TypeUrl:              r.GetTypeUrl(),
		RemovedResources:     r.GetRemovedResources(),
		RemovedResourceNames: r.GetRemovedResourceNames(),
		Nonce:                r.GetNonce(),
		ControlPlane:         r.GetControlPlane(),
		ResourceErrors:       r.GetResourceErrors(),
	}
}

// enqueue queues a response, to be sent after a delay.
func (s *OriginStream) enqueue(resp *discoverypb.DeltaDiscoveryResponse, delay time.Duration) {
	s.enqueueOutgoing(outgoing{message: resp, typeURL: resp.GetTypeUrl(), due: dueAfter(delay)})
}

// dueAfter returns the time after a delay, or zero for no delay.
func dueAfter(delay time.Duration) time.Time {
	if delay <= 0 {
		return time.Time{}
	}
	return time.Now().Add(delay)
}

// enqueueOutgoing queues a message, unless the stream has ended.
func (s *OriginStream) enqueueOutgoing(out outgoing) {
	if s.record.Ended {
		return
	}
	s.queue = append(s.queue, out)
	select {
	case s.wake <- struct{}{}:
	default: // a wake-up is pending
	}
}

// nonces are the nonces of a stream. They are guarded by origin.mon.
type nonces struct {
	issued  int // number of issued nonces
	byValue map[string]*issuedNonce
}

type issuedNonce struct{ answered bool }

// issue records the nonce of a response, and returns it. If the response has none, the nonce is new.
func (n *nonces) issue(nonce string) string {
	n.issued++
	if nonce == "" {
		nonce = strconv.Itoa(n.issued)
	}
	n.add(nonce)
	return nonce
}

// add records the nonce of a response of the test.
func (n *nonces) add(nonce string) { n.byValue[nonce] = &issuedNonce{} }

// answered reports whether a nonce is known and already answered.
func (n *nonces) answered(nonce string) bool {
	issued := n.byValue[nonce]
	return issued != nil && issued.answered
}

// acknowledge counts an ACK or a NACK, or a stray if the nonce is unknown or already answered.
func (n *nonces) acknowledge(t *TypeState, nonce string, rejected bool) {
	if nonce == "" {
		return
	}
	issued := n.byValue[nonce]
	switch {
	case issued == nil || issued.answered:
		t.Strays++
		return
	case rejected:
		t.NACKs++
	default:
		t.ACKs++
	}
	issued.answered = true
}

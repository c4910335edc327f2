package demo

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/xdstender/tender/cache/wire"
)

// An oddClient misbehaves so that the status page has a problem to show. The demo does not compare its resources with
// those of the origin.
type oddClient struct {
	name    string
	typeURL string
	names   []string // names to subscribe to; none means wildcard

	after  time.Duration // delay before it answers a response
	detail string        // error detail of its NACKs; if empty, it ACKs every response
}

// The misbehaving clients of a demo. The status page shows a client as lagging after ten seconds without an ACK.
const (
	rejecting  = "gateway-old"
	slow       = "edge-far-away"
	slowAnswer = 15 * time.Second
)

// oddClients are the clients that every demo without rollouts starts.
var oddClients = []*oddClient{
	{
		name: rejecting, typeURL: wire.ListenerType, names: []string{ingress},
		detail: "Error adding/updating listener(s) " + ingress + ": Didn't find a registered implementation for '" + routerFilter + "' with type URL: 'envoy.extensions.filters.http.router.v3.Router'",
	},
	{name: slow, typeURL: wire.ClusterType, after: slowAnswer},
}

// A due is an update with the time at which the client answers it.
type due struct {
	update
	at time.Time
}

// run keeps a stream open until ctx ends. It returns the cause of ctx, or the error that ended the stream earlier.
func (o *oddClient) run(ctx context.Context, conn *grpc.ClientConn) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s, err := openDelta(ctx, conn, &corepb.Node{Id: o.name, Cluster: "demo", UserAgentName: userAgent})
	if err != nil {
		return fmt.Errorf("%s: %w", o.name, err)
	}
	if err := s.subscribe(o.typeURL, o.names, nil); err != nil {
		return fmt.Errorf("%s: %w", o.name, err)
	}
	updates := make(chan due)
	received := make(chan struct{})
	go func() { // awaited below
		defer close(received)
		cancel(o.receive(ctx, s, updates))
	}()
	o.answer(ctx, s.(*deltaStream), updates)
	cancel(nil)
	<-received
	return context.Cause(ctx)
}

// receive passes responses to updates, each with the time at which it is due, until the stream or ctx ends.
func (o *oddClient) receive(ctx context.Context, s stream, updates chan<- due) error {
	for {
		u, err := s.receive()
		if err != nil {
			return fmt.Errorf("%s: %w", o.name, err)
		}
		select {
		case updates <- due{u, time.Now().Add(o.after)}:
		case <-ctx.Done():
			return nil
		}
	}
}

// answer answers updates when they are due, until ctx ends. It accepts further updates while it waits, so that
// receive does not block.
func (o *oddClient) answer(ctx context.Context, s *deltaStream, updates <-chan due) {
	var open []due
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		if len(open) > 0 {
			timer.Reset(max(time.Until(open[0].at), time.Millisecond))
		}
		select {
		case u := <-updates:
			open = append(open, u)
		case <-timer.C:
			if len(open) == 0 {
				continue
			}
			if s.answer(open[0].update, o.detail) != nil {
				return // receive returns the error
			}
			open = open[1:]
		case <-ctx.Done():
			return
		}
	}
}

// answer sends an ACK, or a NACK if detail is not empty.
func (s *deltaStream) answer(u update, detail string) error {
	r := &discoverypb.DeltaDiscoveryRequest{TypeUrl: u.typeURL, ResponseNonce: u.nonce}
	if detail != "" {
		r.ErrorDetail = &statuspb.Status{Code: int32(codes.InvalidArgument), Message: detail}
	}
	return s.send(r)
}

// meant are the messages that the relay logs because the demo's clients reject a response on purpose. They must match
// the messages of the relay.
var meant = []string{"client rejected a response", "rollout halted; serving the last good"}

// wanted is a handler that drops the messages in meant.
type wanted struct{ slog.Handler }

// Handle implements slog.Handler.
func (h wanted) Handle(ctx context.Context, r slog.Record) error {
	if slices.Contains(meant, r.Message) {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

func (h wanted) WithAttrs(attrs []slog.Attr) slog.Handler { return wanted{h.Handler.WithAttrs(attrs)} }
func (h wanted) WithGroup(name string) slog.Handler       { return wanted{h.Handler.WithGroup(name)} }

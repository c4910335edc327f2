package upstream

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache/wire"
)

// probeSilence is how long the stream of a probe must stay open without a response to count as success. An origin may
// have no resources for the node of the relay.
const probeSilence = 15 * time.Second

// A Probe checks on its own stream whether an origin serves the relay (B.8).
type Probe struct {
	Node    *corepb.Node
	TypeURL string // subscribed to by wildcard

	// ForOthers reports that clients have other node IDs than Node, so that an error about Node need not affect them.
	ForOthers bool

	// Opened is called when a stream is open. Failed is called with the error when a stream ended without a response,
	// or could not be opened. Both are called by the goroutine of Session.Probe.
	Opened func()
	Failed func(error)
}

// Probe returns nil once the origin has responded: with a response, or with a stream open without an error for 15s.
// With ForOthers, an error about the node other than UNAUTHENTICATED also counts. Until then it retries at intervals
// from 1s to 5s, and at once when the connection comes up. Its failures count for failover. It returns only the error
// of ctx.
func (s *Session) Probe(ctx context.Context, p Probe) error {
	retry := &backoff.ExponentialBackOff{
		InitialInterval: time.Second, Multiplier: 1.6, RandomizationFactor: 0.2, MaxInterval: 5 * time.Second,
	}
	retry.Reset()
	sotw := s.cfg.Protocol == ProtocolSotW
	target := s.target()
	defer func() { s.links[target].failures.forget(retry) }()
	for {
		if next := s.target(); next != target {
			s.links[target].failures.forget(retry)
			target = next
		}
		s.links[target].failures.streamStarted(retry)
		address, err := s.probe(ctx, target, p, sotw)
		switch code := status.Code(err); {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case code == codes.Unimplemented && !sotw && s.cfg.Protocol == ProtocolAuto:
			sotw = true
			continue
		case p.ForOthers && refusesNode(code):
			return nil
		}
		p.Failed(explainUnresolved(s.cfg.Targets[target], err))
		sotw = s.cfg.Protocol == ProtocolSotW
		s.attemptFailed(target, retry, address, err)
		s.waitReconnect(ctx, target, retry.NextBackOff())
	}
}

// refusesNode reports whether an error is about the node, so that the origin may accept other nodes.
func refusesNode(code codes.Code) bool {
	return code == codes.PermissionDenied || code == codes.InvalidArgument || code == codes.NotFound
}

// probe makes one attempt, with SotW if sotw is set. It returns no error if the target has responded, kept the stream
// open for probeSilence, or is a relay that is ready; otherwise also the address of the server, if it is known.
func (s *Session) probe(ctx context.Context, target int, p Probe, sotw bool) (address string, err error) {
	ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(s.cfg.withRelayToken(ctx), wire.ProbeHeader, "1"))
	defer cancel()
	desc, method := deltaStream, discoverypb.AggregatedDiscoveryService_DeltaAggregatedResources_FullMethodName
	names := []string{wire.Wildcard}
	if wire.LegacyWildcard(p.TypeURL) {
		names = nil
	}
	request := proto.Message(&discoverypb.DeltaDiscoveryRequest{
		Node: p.Node, TypeUrl: p.TypeURL, ResourceNamesSubscribe: names,
	})
	if sotw {
		desc, method = sotwStream, discoverypb.AggregatedDiscoveryService_StreamAggregatedResources_FullMethodName
		request = &discoverypb.DiscoveryRequest{Node: p.Node, TypeUrl: p.TypeURL, ResourceNames: names}
	}
	s.conns[target].Connect()
	stream, err := s.conns[target].NewStream(ctx, desc, method)
	if err != nil {
		return "", err
	}
	p.Opened()
	var quiet atomic.Bool
	timer := time.AfterFunc(probeSilence, func() { quiet.Store(true); cancel() })
	defer timer.Stop()
	// If SendMsg returns io.EOF, RecvMsg returns the reason.
	if err := stream.SendMsg(request); err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	err = stream.RecvMsg(new(wire.Message))
	switch {
	case err == nil, errors.Is(err, io.EOF) && isReadyRelay(stream):
		s.links[target].failures.responseReceived()
		return "", nil
	case quiet.Load():
		return "", nil
	}
	return peerAddress(stream), explainEnd(err)
}

// isReadyRelay reports whether the server of a stream that has ended is a relay that is ready.
func isReadyRelay(stream grpc.ClientStream) bool {
	header, err := stream.Header()
	return err == nil && len(header.Get(wire.ProbeHeader)) > 0
}

// waitReconnect waits for d, or until the connection to a target becomes ready.
func (s *Session) waitReconnect(ctx context.Context, target int, d time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	conn := s.conns[target]
	for was := conn.GetState(); conn.WaitForStateChange(ctx, was); {
		switch was = conn.GetState(); was {
		case connectivity.Ready:
			return
		case connectivity.Idle:
			conn.Connect()
		}
	}
}

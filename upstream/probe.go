package upstream

import (
	"context"
	"errors"
	"fmt"
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

// probeQuiet is how long a probe's stream must stay open for the origin's silence to count as an
// answer: an origin need not have anything for the relay itself.
const probeSilence = 15 * time.Second

// A Probe asks an origin whether it would serve the relay, on a stream of its own (B.8).
type Probe struct {
	Node    *corepb.Node
	TypeURL string // whose wildcard is asked for

	// ForOthers reports that clients' nodes are presented under other ids than Node has: that the
	// origin does not serve this one says nothing about them.
	ForOthers bool

	// Opened is called when a stream is open, and Failed with the reason when one ended without an
	// answer or could not be opened; both by the goroutine that probes.
	Opened func()
	Failed func(error)
}

// Probe returns nil once the origin has answered: by a response, by an open stream without an error for
// 15s, or, with ForOthers, by a refusal of the node that is not UNAUTHENTICATED. It tries
// again until then, at intervals from 1s to 5s and at once when the origin can be reached. Its failures are those of a
// stream like others, and may have the next target used. The error is that of ctx.
func (s *Session) Probe(ctx context.Context, p Probe) error {
	retry := &backoff.ExponentialBackOff{InitialInterval: time.Second, Multiplier: 1.6, RandomizationFactor: 0.2, MaxInterval: 5 * time.Second}
	retry.Reset()
	sotw := s.cfg.Protocol == ProtocolSotW
	for {
		target := s.target()
		leave, err := s.attempt(ctx, target, p, sotw, retry)
		switch code := status.Code(err); {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case code == codes.Unimplemented && !sotw && s.cfg.Protocol == ProtocolAuto:
			sotw = true
			continue
		case p.ForOthers && rejectsNode(code):
			return nil
		}
		p.Failed(explainUnresolved(s.cfg.Targets[target], err))
		if sotw = s.cfg.Protocol == ProtocolSotW; leave {
			s.failOver(target)
		}
		s.waitReconnect(ctx, target, retry.NextBackOff())
	}
}

// attempt makes one attempt, counts it for the target by the name of by, and reports whether to leave the target.
func (s *Session) attempt(ctx context.Context, target int, p Probe, sotw bool, by any) (leave bool, err error) {
	attempts := &s.links[target].failures
	attempts.streamStarted(by)
	err = s.probe(ctx, target, p, sotw)
	leave = err != nil && ctx.Err() == nil && s.shouldFailOver(target, by, err)
	if leave || err == nil || ctx.Err() != nil || s.target() != target {
		attempts.forget(by)
	}
	return leave, err
}

// refusesNode reports whether an error is about one node, so that other nodes may have other answers.
func rejectsNode(code codes.Code) bool {
	return code == codes.PermissionDenied || code == codes.InvalidArgument || code == codes.NotFound
}

// probe makes one attempt, and returns nil if the target has answered.
func (s *Session) probe(ctx context.Context, target int, p Probe, sotw bool) error {
	ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(s.cfg.withRelayToken(ctx), wire.ProbeHeader, "1"))
	defer cancel()
	desc, method := deltaStream, discoverypb.AggregatedDiscoveryService_DeltaAggregatedResources_FullMethodName
	names := []string{wire.Wildcard}
	if wire.LegacyWildcard(p.TypeURL) {
		names = nil
	}
	request := proto.Message(&discoverypb.DeltaDiscoveryRequest{Node: p.Node, TypeUrl: p.TypeURL, ResourceNamesSubscribe: names})
	if sotw {
		desc, method = sotwStream, discoverypb.AggregatedDiscoveryService_StreamAggregatedResources_FullMethodName
		request = &discoverypb.DiscoveryRequest{Node: p.Node, TypeUrl: p.TypeURL, ResourceNames: names}
	}
	s.conns[target].Connect()
	stream, err := s.conns[target].NewStream(ctx, desc, method)
	if err != nil {
		return err
	}
	p.Opened()
	var quiet atomic.Bool
	timer := time.AfterFunc(probeSilence, func() { quiet.Store(true); cancel() })
	defer timer.Stop()
	if err := stream.SendMsg(request); err != nil && !errors.Is(err, io.EOF) { // of which RecvMsg has the reason
		return err
	}
	err = stream.RecvMsg(new(wire.Message))
	if err == nil || quiet.Load() || errors.Is(err, io.EOF) && isReadyRelay(stream) {
		return nil
	}
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("the origin closed the stream without a response: %w", err)
	}
	return err
}

// answered reports whether the server of a stream that has ended is a relay that is ready.
func isReadyRelay(stream grpc.ClientStream) bool {
	header, err := stream.Header()
	return err == nil && len(header.Get(wire.ProbeHeader)) > 0
}

// pause waits, or until the connection to a target comes up.
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

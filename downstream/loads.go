package downstream

import (
	"context"

	lrspb "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/downstream/loadreport"
)

// loadService serves load reports (R139).
type loadService struct{ *Server }

// StreamLoadStats implements the gRPC service.
func (s loadService) StreamLoadStats(rpc lrspb.LoadReportingService_StreamLoadStatsServer) error {
	leave, err := s.enterStream(rpc.Context())
	if err != nil {
		return s.streamEnded(err)
	}
	defer leave()
	return s.streamEnded(s.serve(rpc))
}

// serve serves a stream of load reports that was counted against the limits.
func (s loadService) serve(rpc grpc.ServerStream) error {
	ctx, end := context.WithCancelCause(rpc.Context())
	defer end(nil)
	leave, err := s.enterChain(rpc, end)
	if err != nil {
		return err
	}
	defer leave()
	for _, token := range relayTokens(ctx) {
		// The stream to the origin has the same header, unless reports are summed.
		ctx = metadata.AppendToOutgoingContext(ctx, wire.RelayHeader, token)
	}
	return s.loads.Serve(ctx, rpc, guard.Expiry(ctx, s.cfg.ConnectionAge))
}

// identifyReporter returns the client that a Node in a stream of load reports identifies. It joins the group of the
// Node if reports are summed.
func (s loadService) identifyReporter(ctx context.Context, raw guard.RawNode) (*loadreport.Client, error) {
	from := guard.PeerOf(ctx)
	ident, err := s.identify(ctx, from, raw, func() bool { return s.cfg.SumLoads })
	if err != nil {
		return nil, err
	}
	client := &loadreport.Client{
		Label: ident.label, SendAllClusters: ident.allClusters,
		Group: ident.group.Key, Node: ident.group.Node, Leave: ident.release,
	}
	if ident.grantsChanged != nil {
		client.Revoked = func(ctx context.Context) error { return s.awaitRevocation(ctx, from, ident) }
	}
	return client, nil
}

// awaitRevocation waits until the client is no longer authorized to use its Node, and returns the error. It returns nil
// if ctx ends first.
func (s loadService) awaitRevocation(ctx context.Context, from guard.Peer, ident *identity) (err error) {
	for rules := ident.grantsChanged; err == nil; {
		select {
		case <-rules:
			rules = s.cfg.grantsChanged()
			_, err = s.reauthorize(ctx, from, ident.keptNode)
		case <-ctx.Done():
			return nil
		}
	}
	return err
}

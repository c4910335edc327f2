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

// StreamLoadStats serves a stream of load reports.
func (s loadService) StreamLoadStats(rpc lrspb.LoadReportingService_StreamLoadStatsServer) error {
	leave, err := s.enterStream(rpc.Context())
	if err != nil {
		return s.streamEnded(err)
	}
	defer leave()
	return s.streamEnded(s.serve(rpc))
}

func (s loadService) serve(rpc grpc.ServerStream) error {
	ctx, end := context.WithCancelCause(rpc.Context())
	defer end(nil)
	leave, err := s.enterChain(rpc, end)
	if err != nil {
		return err
	}
	defer leave()
	for _, token := range relayTokens(ctx) {
		ctx = metadata.AppendToOutgoingContext(ctx, wire.RelayHeader,
			token) // for the origin, if the stream is passed through
	}
	return s.loads.Serve(ctx, rpc, guard.Expiry(ctx, s.cfg.ConnectionAge))
}

// reporter returns the client of a stream of load reports, by its Node. It joins its group if reports are summed.
func (s loadService) identifyReporter(ctx context.Context, raw guard.RawNode) (*loadreport.Client, error) {
	from := guard.PeerOf(ctx)
	ident, err := s.identify(ctx, from, raw, func() bool { return s.cfg.SumLoads })
	if err != nil {
		return nil, err
	}
	client := &loadreport.Client{
		Label: ident.label, SendAllClusters: ident.allClusters, Group: ident.group.Key, Node: ident.group.Node, Leave: ident.release,
	}
	if ident.grantsChanged != nil {
		client.Revoked = func(ctx context.Context) error { return s.awaitRevocation(ctx, from, ident) }
	}
	return client, nil
}

// awaitRevocation waits until a client is no longer authorized to be the node that it says it is, and returns why; nil
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

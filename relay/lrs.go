package relay

import (
	"context"
	"log/slog"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	lrspb "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/downstream"
	"github.com/xdstender/tender/upstream"
)

// loadsOf returns where load reports go, or nil if they are refused: only the origin
// of TENDER_ORIGIN is told of load, wherever the clusters come from.
func loadsOf(cfg Config, all origins, groups *groups, log *slog.Logger) downstream.LoadOrigin {
	first, ok := all[0].(sessionOrigin)
	if !ok || cfg.LRS == "" || cfg.LRS == LRSOff {
		return nil
	}
	return sessionLoads{first.Session, groups, log}
}

// sessionLoads takes load reports to a control plane.
type sessionLoads struct {
	session *upstream.Session
	groups  *groups
	log     *slog.Logger
}

func (s sessionLoads) Via(n *corepb.Node) ([]byte, error) {
	list, err := s.groups.through(n)
	if err != nil {
		return nil, err
	}
	return proto.Marshal(&lrspb.LoadStatsRequest{Node: s.groups.behind(new(corepb.Node), list)})
}

func (s sessionLoads) OpenLoads(ctx context.Context) (grpc.ClientStream, error) {
	return s.session.OpenLoads(ctx)
}

func (s sessionLoads) ReportLoads(ctx context.Context, g downstream.Group, l *downstream.Loads) {
	s.session.ReportLoads(ctx, s.groups.presence(g), l, s.log.With(slog.String("group", g.Key)))
}

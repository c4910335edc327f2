package relay

import (
	"context"
	"log/slog"

	"google.golang.org/grpc"

	"github.com/xdstender/tender/downstream/loadreport"
	"github.com/xdstender/tender/upstream"
	upload "github.com/xdstender/tender/upstream/loadreport"
)

// loadsOf returns where load reports go, or nil if they are refused: only the origin
// of TENDER_ORIGIN is told of load, wherever the clusters come from.
func loadsOf(cfg Config, all origins, log *slog.Logger) loadreport.Origin {
	first, ok := all[0].(sessionOrigin)
	if !ok || cfg.LRS == "" || cfg.LRS == LRSOff {
		return nil
	}
	return sessionLoads{first.Session, log}
}

// sessionLoads takes load reports to a control plane.
type sessionLoads struct {
	session *upstream.Session
	log     *slog.Logger
}

func (s sessionLoads) OpenLoads(ctx context.Context) (grpc.ClientStream, error) {
	return upload.Open(ctx, s.session)
}

func (s sessionLoads) ReportLoads(ctx context.Context, g *loadreport.Group) {
	upload.Run(ctx, s.session, g.Node, g, s.log.With(slog.String("group", g.Key)))
}

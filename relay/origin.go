package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc"

	"github.com/xdstender/tender/cache/quota"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream/loadreport"
	"github.com/xdstender/tender/pending"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/config"
	"github.com/xdstender/tender/upstream"
	"github.com/xdstender/tender/upstream/files"
	upload "github.com/xdstender/tender/upstream/loadreport"
)

// An origin is a control plane or a directory. Views follow its resources.
type origin interface {
	// sync states the resources that the origin serves to node to a list in front of a view, until ctx ends. It also runs
	// the commands of control.
	sync(ctx context.Context, node *corepb.Node, list *pending.List, log *slog.Logger, control *upstream.Control)
	// probe returns nil once the origin has responded to the relay, or the error of ctx.
	probe(ctx context.Context, p upstream.Probe) error
	// follow runs the work of the origin that does not depend on a view, such as watching files, until ctx ends.
	follow(ctx context.Context)
	// status returns the state of the origin without its name.
	status() admin.Origin
	// Stats returns the counters of the origin.
	Stats() upstream.Stats
	close() error
}

// origins are the origins of a relay: TENDER_ORIGIN, then TENDER_ORIGINS in their order.
type origins []origin

// openOrigins opens the origins of the configuration. creds has the credentials of each.
func openOrigins(
	s *settings, opts Options, creds []config.OriginCredentials, log *slog.Logger,
) (all origins, err error) {
	for i, named := range s.origins {
		variable, logger := "TENDER_ORIGIN", log
		if i > 0 {
			variable, logger = "TENDER_ORIGINS", log.With(slog.String("origin_name", named.Name))
		}
		o, err := openOrigin(variable, named, s, opts, creds[i], logger)
		if err != nil {
			return nil, errors.Join(err, all.close())
		}
		all = append(all, o)
	}
	return all, nil
}

func (all origins) close() (err error) {
	for _, o := range all {
		err = errors.Join(err, o.close())
	}
	return err
}

// openOrigin opens an origin. variable is the environment variable that configures it, for error messages.
func openOrigin(
	variable string, named config.NamedOrigin, s *settings, opts Options, creds config.OriginCredentials, log *slog.Logger,
) (origin, error) {
	targets := named.Targets
	var trace func(upstream.Received) upstream.Trace
	var requested func(upstream.Request)
	if opts.tracer != nil {
		trace, requested = opts.tracer.Origin(named.Name).Received, opts.tracer.Requested
	}
	if dir, ok := targets.Directory(); ok {
		settings := s.files
		settings.Dir, settings.Check, settings.Trace, settings.Logger = dir, opts.check, trace, log
		files, err := files.Open(settings)
		if err != nil {
			return nil, config.RefuseDirectory(&named, err)
		}
		return filesOrigin{files}, nil
	}
	settings := s.upstream
	settings.Targets, settings.DialOptions = targets, opts.DialOptions
	settings.Credentials, settings.CallCredentials, settings.Authority = creds.Transport, creds.Calls, creds.Authority
	settings.Check, settings.Chain, settings.Logger = opts.check, opts.chain, log
	settings.Trace, settings.Requested = trace, requested
	session, err := upstream.New(settings)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", variable, err)
	}
	return sessionOrigin{session}, nil
}

// sessionOrigin adapts the session of a control plane to origin.
type sessionOrigin struct{ *upstream.Session }

func (o sessionOrigin) sync(
	ctx context.Context, node *corepb.Node, list *pending.List, log *slog.Logger, control *upstream.Control,
) {
	o.Sync(ctx, node, list, log, control)
}

func (o sessionOrigin) probe(ctx context.Context, p upstream.Probe) error { return o.Probe(ctx, p) }

func (o sessionOrigin) follow(context.Context) {}

func (o sessionOrigin) close() error { return o.Close() }

// filesOrigin adapts a directory to origin. It serves the same resources to all nodes.
type filesOrigin struct{ *files.Origin }

func (o filesOrigin) sync(
	ctx context.Context, _ *corepb.Node, list *pending.List, _ *slog.Logger, control *upstream.Control,
) {
	o.Sync(ctx, list, control)
}

// probe implements origin. It reports errNoGoodFile until the directory has a valid file or is empty.
func (o filesOrigin) probe(ctx context.Context, p upstream.Probe) error {
	select {
	case <-o.Known():
		return nil
	default:
		p.Failed(errNoGoodFile)
	}
	select {
	case <-o.Known():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (o filesOrigin) follow(ctx context.Context) { o.Follow(ctx) }

func (o filesOrigin) close() error { return nil }

// loadsOf returns the destination of load reports, or nil if the relay refuses them. Only the origin of TENDER_ORIGIN
// receives load reports, even if another origin serves the clusters.
func loadsOf(s *settings, all origins, log *slog.Logger) loadreport.Origin {
	first, ok := all[0].(sessionOrigin)
	if !ok || !s.loads {
		return nil
	}
	return sessionLoads{first.Session, log}
}

// sessionLoads forwards load reports to a control plane.
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

// A router selects the origin of each resource (R129). It is immutable.
//
// A view has two sources per origin: one for the resources of its node group, and one for the xdstp names that node
// groups share (R130).
type router struct {
	origins     int            // number of origins
	types       map[string]int // origin by type URL; types without a route belong to the first origin
	authorities map[string]int // origin by authority; AnyAuthority stands for authorities without a route
}

func newRouter(s *settings) *router {
	r := &router{origins: len(s.origins), types: make(map[string]int), authorities: make(map[string]int)}
	for _, route := range s.routes {
		origin := slices.IndexFunc(s.origins, func(o NamedOrigin) bool { return o.Name == route.Origin })
		if route.TypeURL != "" {
			r.types[route.TypeURL] = origin
		} else {
			r.authorities[route.Authority] = origin
		}
	}
	return r
}

// sources returns the number of sources of a view.
func (r *router) sources() int { return 2 * r.origins }

// sharedSource returns the source of an origin for the names that node groups share.
func (r *router) sharedSource(origin int) int { return r.origins + origin }

// quotas returns the quotas of the sources of a node group's view, given those of the origins. The shared view counts
// the shared names.
func (r *router) quotas(byOrigin []quota.Names) []quota.Names {
	bySource := make([]quota.Names, r.sources())
	for origin, q := range byOrigin {
		bySource[origin], bySource[r.sharedSource(origin)] = q, q.CountedElsewhere()
	}
	return bySource
}

// route returns the source of a name, or of the type's wildcard set if the name is empty. A route by authority takes
// precedence over one by type (B.23).
func (r *router) route(typeURL, name string) int {
	authority, ok := wire.Authority(name)
	if !ok {
		return r.types[typeURL]
	}
	for _, authority := range []string{authority, AnyAuthority} {
		if origin, ok := r.authorities[authority]; ok {
			return r.sharedSource(origin)
		}
	}
	return r.sharedSource(r.types[typeURL])
}

// origin returns the index of the origin of a name, or of the type's wildcard set if the name is empty.
func (r *router) origin(typeURL, name string) int { return r.route(typeURL, name) % r.origins }

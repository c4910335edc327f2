package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"time"

	adminpb "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	statuspb "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/downstream"
)

// maxStatusBytes is the maximum size of a CSDS response. The default receive limit of gRPC clients is 4 MiB.
const maxStatusBytes = 3_500_000

// omittedHeader is the response metadata that FetchClientStatus sets to the parts that it omitted because of
// maxStatusBytes.
const omittedHeader = "tender-left-out"

// clientStatus implements CSDS: the state of the relay as a client of its origins, and the state of each of its clients
// (R141, B.30).
type clientStatus struct {
	statuspb.UnimplementedClientStatusDiscoveryServiceServer
	*Fleet
}

// NewServer returns the gRPC services for operators: CSDS and reflection.
func NewServer(f *Fleet) *grpc.Server {
	s := grpc.NewServer(grpc.MaxRecvMsgSize(maxOperatorRequest))
	statuspb.RegisterClientStatusDiscoveryServiceServer(s, clientStatus{Fleet: f})
	reflection.Register(s)
	return s
}

// maxOperatorRequest is the maximum size of a request in bytes.
const maxOperatorRequest = 64 << 10

// FetchClientStatus returns the state in one response. If that is too large, it omits the bodies of all resources and
// sets omittedHeader. If the response is still too large, it returns RESOURCE_EXHAUSTED.
func (c clientStatus) FetchClientStatus(
	ctx context.Context, r *statuspb.ClientStatusRequest,
) (*statuspb.ClientStatusResponse, error) {
	match, err := downstream.MatchNodes(r.GetNodeMatchers())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if !r.GetExcludeResourceContents() {
		if found, all := gather(ctx, c.configs(match, true)); all {
			return found, ctx.Err()
		}
		_ = grpc.SetHeader(ctx, metadata.Pairs(omittedHeader, "resource contents")) // cannot fail: no header was sent yet
	}
	found, all := gather(ctx, c.configs(match, false))
	if !all {
		return nil, status.Errorf(codes.ResourceExhausted, "only the first %d clients fit in a response of %d bytes: "+
			"select clients by node_matchers, or call StreamClientStatus, which sends several responses",
			len(found.GetConfig()), maxStatusBytes)
	}
	return found, ctx.Err()
}

// gather returns a response with configs, up to the maximum size. all reports whether it contains all of them.
func gather(
	ctx context.Context, configs iter.Seq[*statuspb.ClientConfig],
) (found *statuspb.ClientStatusResponse, all bool) {
	found, size := new(statuspb.ClientStatusResponse), 0
	for config := range configs {
		if size += maxSize(config); size > maxStatusBytes || ctx.Err() != nil {
			return found, false
		}
		found.Config = append(found.Config, config)
	}
	return found, true
}

// maxSize returns an upper limit for the size that a message adds to a response.
func maxSize(m proto.Message) int {
	const tagAndLength = 8
	return proto.Size(m) + tagAndLength
}

// StreamClientStatus sends one or more responses to each request. The state of one client may be split over several
// responses, each with its node and scope. All responses to a request are sent before it reads the
// next request. The stream ends when the client closes its side.
func (c clientStatus) StreamClientStatus(stream statuspb.ClientStatusDiscoveryService_StreamClientStatusServer) error {
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		match, err := downstream.MatchNodes(r.GetNodeMatchers())
		if err != nil {
			return status.Error(codes.InvalidArgument, err.Error())
		}
		if err := sendAll(stream, c.configs(match, !r.GetExcludeResourceContents())); err != nil {
			return err
		}
	}
}

// sendAll sends configs in as few responses as possible.
func sendAll(
	stream statuspb.ClientStatusDiscoveryService_StreamClientStatusServer, configs iter.Seq[*statuspb.ClientConfig],
) error {
	next, size := new(statuspb.ClientStatusResponse), 0
	for config := range configs {
		for part := range split(config) {
			if size += maxSize(part); size > maxStatusBytes && len(next.GetConfig()) > 0 {
				if err := stream.Send(next); err != nil {
					return err
				}
				next, size = new(statuspb.ClientStatusResponse), maxSize(part)
			}
			next.Config = append(next.Config, part)
		}
	}
	return stream.Send(next)
}

// split yields a config in parts of at most the size of a response. It omits the content of a resource that is too
// large for one part.
func split(config *statuspb.ClientConfig) iter.Seq[*statuspb.ClientConfig] {
	return func(yield func(*statuspb.ClientConfig) bool) {
		rest := config.GetGenericXdsConfigs()
		for _, one := range rest {
			if len(one.GetXdsConfig().GetValue()) > maxStatusBytes/2 {
				one.XdsConfig = nil
			}
		}
		for first := true; first || len(rest) > 0; first = false {
			part := &statuspb.ClientConfig{Node: config.GetNode(), ClientScope: config.GetClientScope()}
			n, size := 0, maxSize(part)
			for n < len(rest) && (n == 0 || size+maxSize(rest[n]) <= maxStatusBytes) {
				size += maxSize(rest[n])
				n++
			}
			part.GenericXdsConfigs, rest = rest[:n], rest[n:]
			if !yield(part) {
				return
			}
		}
	}
}

// configs yields the state of the relay at its origins, and then the state of its clients, for nodes that match.
func (c clientStatus) configs(match downstream.NodeMatch, withContents bool) iter.Seq[*statuspb.ClientConfig] {
	return func(yield func(*statuspb.ClientConfig) bool) {
		var contents downstream.Contents
		if withContents {
			contents = make(downstream.Contents)
		}
		for _, v := range c.Views() {
			if v.Shared || !match(v.Node) {
				continue
			}
			for _, config := range c.configsOf(&v, contents, time.Now()) {
				if !yield(config) {
					return
				}
			}
		}
		for s := range c.Server.Clients() {
			if match(s.Node()) && !yield(c.Server.ClientConfig(&s, contents)) {
				return
			}
		}
	}
}

// configsOf returns the state of the relay's subscriptions for a node group, by origin. The client_scope is "origin/"
// and the name of the origin.
func (f *Fleet) configsOf(v *View, contents downstream.Contents, now time.Time) []*statuspb.ClientConfig {
	configs := make([]*statuspb.ClientConfig, len(f.Origins))
	for i := range configs {
		configs[i] = &statuspb.ClientConfig{Node: v.Node, ClientScope: "origin/" + f.Origins[i]}
	}
	generation := v.View.Generation()
	for t := range generation.ChangedSince(0) {
		typeURL, glob, _ := cache.SplitCollection(t.URL)
		for r := range entries(t) {
			origin := f.Route(typeURL, glob)
			if r.askedAs == "" {
				origin = f.Route(typeURL, r.name.String())
			}
			config := originConfig(t, typeURL, &r, contents)
			configs[origin].GenericXdsConfigs = append(configs[origin].GenericXdsConfigs, config)
		}
	}
	for _, u := range v.View.Unanswered() {
		typeURL, _, _ := cache.SplitCollection(u.Type)
		origin := f.Route(typeURL, u.Name.String())
		config := &statuspb.ClientConfig_GenericXdsConfig{
			TypeUrl: typeURL, Name: u.Name.String(), ClientStatus: unansweredStatus(generation, u.Name, now),
		}
		configs[origin].GenericXdsConfigs = append(configs[origin].GenericXdsConfigs, config)
	}
	for _, config := range configs {
		slices.SortStableFunc(config.GenericXdsConfigs, func(a, b *statuspb.ClientConfig_GenericXdsConfig) int {
			return cmp.Or(wire.CompareTypes(a.GetTypeUrl(), b.GetTypeUrl()), cmp.Compare(a.GetName(), b.GetName()))
		})
	}
	return configs
}

// requestTimeout is how long an origin may take to respond to a subscription before CSDS reports TIMEOUT.
//
// Source: xDS protocol, "Knowing When a Requested Resource Does Not Exist".
const requestTimeout = 15 * time.Second

// unansweredStatus returns the status of a subscribed name for which the origin has sent no response.
func unansweredStatus(g *cache.Generation, n *cache.Name, now time.Time) adminpb.ClientResourceStatus {
	if asked := n.Asked(); g.From(n).Connected && !asked.IsZero() && now.Sub(asked) >= requestTimeout {
		return adminpb.ClientResourceStatus_TIMEOUT
	}
	return adminpb.ClientResourceStatus_REQUESTED
}

// originConfig returns the status of a resource, or of the error that the origin sent instead.
func originConfig(
	t *cache.Type, typeURL string, r *viewResource, contents downstream.Contents,
) *statuspb.ClientConfig_GenericXdsConfig {
	out := &statuspb.ClientConfig_GenericXdsConfig{
		TypeUrl: typeURL, Name: r.name.String(), ClientStatus: adminpb.ClientResourceStatus_DOES_NOT_EXIST,
	}
	if r.entry.Present() {
		resource := r.entry.Resource
		out.ClientStatus = adminpb.ClientResourceStatus_ACKED
		out.VersionInfo = cmp.Or(resource.OriginVersion, resource.Version)
		out.XdsConfig = contents.Of(typeURL, resource)
		out.LastUpdated = timestamppb.New(t.Changed())
	}
	if r.fault != nil {
		details := fmt.Sprintf("%s: %s", r.fault.Code, r.fault.Message)
		if wire.IsSecret(typeURL) {
			details = r.fault.Code.String()
		}
		out.ErrorState = &adminpb.UpdateFailureState{Details: details}
		if !r.fault.NotFound() {
			out.ClientStatus = adminpb.ClientResourceStatus_RECEIVED_ERROR
		}
	}
	return out
}

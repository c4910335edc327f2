package downstream

import (
	"cmp"
	"strconv"

	adminpb "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	statuspb "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/cache/wire/schema"
)

// Contents caches the bodies of resources as CSDS shows them: without sensitive fields, and none of Secrets (B.36). It
// is for one request, in which many clients have the same resources. Nil shows no bodies.
type Contents map[*wire.Resource]*anypb.Any

// Of returns the body of a resource, nil if it is not shown. A body that cannot be decoded is empty.
func (c Contents) Of(typeURL string, r *wire.Resource) *anypb.Any {
	if c == nil || wire.IsSecret(typeURL) || wire.IsSecret(r.TypeURL) || !r.HasBody() || r.ContentDropped() {
		return nil
	}
	if shown, have := c[r]; have {
		return shown
	}
	shown := &anypb.Any{TypeUrl: r.TypeURL}
	if value, err := schema.Redact(r.TypeURL, r.Value()); err == nil {
		shown.Value = value
	}
	c[r] = shown
	return shown
}

// ClientConfig returns the status of each resource that a client requested, as CSDS defines it for management servers
// (R141). The client_scope is "client/" and the number of the stream.
func (s *Server) ClientConfig(of *StreamStatus, contents Contents) *statuspb.ClientConfig {
	config := &statuspb.ClientConfig{Node: of.Node(), ClientScope: "client/" + strconv.FormatUint(of.Number, 10)}
	types := make(map[string]*TypeStatus, len(of.Types))
	for i := range of.Types {
		types[of.Types[i].TypeURL] = &of.Types[i]
	}
	for _, r := range s.Resources(of.Number) {
		if t := types[r.TypeURL]; t != nil { // else the client subscribed to the type meanwhile
			config.GenericXdsConfigs = append(config.GenericXdsConfigs, configOf(&r, t, of.Delta, contents))
		}
	}
	return config
}

// configOf returns the status of a resource. SotW clients have versions of responses, Delta clients versions of resources.
func configOf(r *ResourceStatus, t *TypeStatus, delta bool, contents Contents) *statuspb.ClientConfig_GenericXdsConfig {
	out := &statuspb.ClientConfig_GenericXdsConfig{TypeUrl: r.TypeURL, Name: r.Entry.Name.String()}
	version := ""
	if r.Entry.Present() {
		version, out.XdsConfig = r.Entry.Resource.Version, contents.Of(r.TypeURL, r.Entry.Resource)
	}
	pick := func(response string) string {
		if delta {
			return version
		}
		return cmp.Or(response, version)
	}
	switch r.State {
	case NotSent:
		out.ConfigStatus, out.VersionInfo = statuspb.ConfigStatus_NOT_SENT, version
	case Sent:
		out.ConfigStatus, out.VersionInfo = statuspb.ConfigStatus_STALE, pick(t.Version)
		out.LastUpdated = timestamppb.New(t.SentAt)
	case Accepted:
		out.ConfigStatus, out.VersionInfo = statuspb.ConfigStatus_SYNCED, pick(t.Accepted)
		if !t.AcceptedAt.IsZero() {
			out.LastUpdated = timestamppb.New(t.AcceptedAt)
		}
	case Refused:
		out.ConfigStatus = statuspb.ConfigStatus_ERROR
		if !delta {
			out.VersionInfo = t.Accepted
		}
		out.ErrorState = &adminpb.UpdateFailureState{
			LastUpdateAttempt: timestamppb.New(r.Refusal.At), Details: r.Refusal.Detail, VersionInfo: pick(r.Refusal.Version),
		}
	}
	return out
}

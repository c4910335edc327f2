package relaytest

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// RecvSotW is Recv for a SotW stream.
func (s *OriginStream) RecvSotW(ctx context.Context) *discoverypb.DiscoveryRequest {
	s.origin.tb.Helper()
	return receive(ctx, s, func(r Request) *discoverypb.DiscoveryRequest { return r.SotW })
}

// SendSotW is Send for a SotW stream.
func (s *OriginStream) SendSotW(resp *discoverypb.DiscoveryResponse) (nonce string) {
	s.origin.mon.Lock()
	defer s.origin.mon.Unlock()
	resp = proto.CloneOf(resp)
	s.enqueueSotW(resp, 0)
	return resp.GetNonce()
}

// InjectSotW is Inject for SotW streams.
func (o *Origin) InjectSotW(resp *discoverypb.DiscoveryResponse) {
	o.mon.Lock()
	defer o.mon.Unlock()
	for _, s := range o.streams {
		if s.record.Types[resp.GetTypeUrl()] != nil && s.record.SotW {
			s.enqueueSotW(proto.CloneOf(resp), 0)
		}
	}
	o.mon.Changed()
}

// handleSotW records a request and, in automatic mode, answers it. Requests with a nonce that is not the newest are
// ignored, as go-control-plane does. The caller must hold the lock.
func (s *OriginStream) handleSotW(req *discoverypb.DiscoveryRequest) {
	s.record.Requests = append(s.record.Requests, Request{At: time.Now(), SotW: req})
	s.identify(req.GetNode())
	t, first := s.typeState(req.GetTypeUrl())
	t.Requests++
	// Until the next response, all requests have the nonce of the last one. Only the first of them is an ACK or a NACK.
	if n := s.open[req.GetResponseNonce()]; n == nil || !n.answered {
		s.acknowledge(t, req.GetResponseNonce(), req.GetErrorDetail() != nil)
	}
	if req.GetResponseNonce() != t.nonce {
		return
	}
	added, wildcard := t.replace(req.GetResourceNames())
	if !s.manual && (first || wildcard || len(added) > 0) {
		s.answerSotW(t, req.GetTypeUrl(), added, wildcard)
	}
}

// replace replaces the subscribed names, and returns the new names and whether the wildcard is new.
func (t *TypeState) replace(names []string) (added []string, wildcard bool) {
	was, before := t.Wildcard, t.Names
	t.named = t.named || len(names) > 0
	t.Wildcard, t.Names = !t.named, make(map[string]struct{}, len(names))
	for _, name := range names {
		if name == "*" {
			t.Wildcard = true
			continue
		}
		t.Names[name] = struct{}{}
		if _, had := before[name]; !had {
			added = append(added, name)
		}
	}
	return added, t.Wildcard && !was
}

// answerSotW sends the resources of a subscription: all resources of full-state types, and new resources of other
// types. It sends no empty response for the latter.
func (s *OriginStream) answerSotW(t *TypeState, typeURL string, added []string, wildcard bool) {
	b, r := s.origin.behaviour, newReply()
	if FullState(typeURL) {
		added, wildcard = slices.Collect(maps.Keys(t.Names)), t.Wildcard
	}
	if wildcard {
		s.answerWildcard(r, typeURL, b)
	}
	for _, name := range added {
		for _, key := range s.collection(typeURL, name) {
			r.add(s.content.types[typeURL][key], b)
		}
	}
	if FullState(typeURL) || !r.empty() {
		s.respondSotW(typeURL, r)
	}
}

// pushSotW sends the changes that the stream subscribes to, or the complete set of a full-state type. SotW has no
// removals of other types. The caller must hold the lock.
func (s *OriginStream) pushSotW(typeURL string, changes map[string]change) {
	t := s.record.Types[typeURL]
	if t == nil {
		return
	}
	b, r, wanted := s.origin.behaviour, newReply(), false
	for name, c := range changes {
		resource := c.resource
		if !t.wants(name, resource.GetAliases()) && (!t.Wildcard || b.namedOnly(typeURL, name)) {
			continue
		}
		wanted = true
		if resource != nil {
			r.add(resource, b)
		}
	}
	switch {
	case wanted && FullState(typeURL):
		s.answerSotW(t, typeURL, nil, false)
	case !r.empty():
		s.respondSotW(typeURL, r)
	}
}

// respondSotW queues a response, with resources sorted by name. The caller must hold the lock.
func (s *OriginStream) respondSotW(typeURL string, r *reply) {
	b := s.origin.behaviour
	resp := &discoverypb.DiscoveryResponse{TypeUrl: typeURL, VersionInfo: b.SystemVersion}
	if b.ControlPlane != "" {
		resp.ControlPlane = &corepb.ControlPlane{Identifier: b.ControlPlane}
	}
	for _, name := range slices.Sorted(maps.Keys(r.resources)) {
		resp.Resources = append(resp.Resources, b.sotwBody(r.resources[name]))
	}
	if b.Duplicate {
		resp.Resources = append(resp.Resources, resp.Resources...)
	}
	s.enqueueSotW(resp, b.Delay)
}

// sotwBody returns a resource as a SotW response contains it.
func (b Behaviour) sotwBody(r *discoverypb.Resource) *anypb.Any {
	if !b.Wrap && len(r.GetAliases()) == 0 && r.GetResource() != nil {
		return r.GetResource()
	}
	if b.EmptyVersions {
		r = proto.CloneOf(r)
		r.Version = ""
	}
	return Pack(r)
}

// enqueueSotW queues a response. If it has no nonce or version, it gets those of this stream.
func (s *OriginStream) enqueueSotW(resp *discoverypb.DiscoveryResponse, delay time.Duration) {
	s.issued++
	if resp.GetNonce() == "" {
		resp.Nonce = strconv.Itoa(s.issued)
	}
	if resp.GetVersionInfo() == "" {
		resp.VersionInfo = "v" + resp.GetNonce()
	}
	s.open[resp.GetNonce()] = &issuedNonce{}
	if t := s.record.Types[resp.GetTypeUrl()]; t != nil {
		t.nonce = resp.GetNonce()
	}
	out := outgoing{message: resp, typeURL: resp.GetTypeUrl()}
	if delay > 0 {
		out.due = time.Now().Add(delay)
	}
	s.enqueueOutgoing(out)
}

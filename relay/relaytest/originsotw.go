package relaytest

import (
	"maps"
	"slices"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
)

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
	t, first := s.record.openType(req.GetTypeUrl())
	t.Requests++
	// Until the next response, all requests have the nonce of the last one. Only the first of them is an ACK or a NACK.
	if !s.nonces.answered(req.GetResponseNonce()) {
		s.nonces.acknowledge(t, req.GetResponseNonce(), req.GetErrorDetail() != nil)
	}
	if req.GetResponseNonce() != t.nonce {
		return
	}
	added, wildcard := t.replace(req.GetResourceNames())
	if s.endsFor(req.GetTypeUrl(), req.GetResourceNames(), t.Wildcard) {
		return
	}
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
	reply := newReply(s.content, typeURL)
	if FullState(typeURL) {
		added, wildcard = slices.Collect(maps.Keys(t.Names)), t.Wildcard
	}
	if wildcard {
		reply.addWildcard()
	}
	for _, name := range added {
		for _, resource := range s.content.collection(typeURL, name) {
			reply.add(resource)
		}
	}
	if FullState(typeURL) || !reply.empty() {
		s.respondSotW(reply)
	}
}

// pushSotW sends the changes that the stream subscribes to, or the complete set of a full-state type. SotW has no
// removals of other types. The caller must hold the lock.
func (s *OriginStream) pushSotW(typeURL string, changes map[string]change) {
	t := s.record.Types[typeURL]
	if t == nil {
		return
	}
	reply, wanted := newReply(s.content, typeURL), false
	for name, c := range changes {
		if !reply.subscribed(t, name, c.resource.GetAliases()) {
			continue
		}
		wanted = true
		if c.resource != nil {
			reply.add(c.resource)
		}
	}
	switch {
	case wanted && FullState(typeURL):
		s.answerSotW(t, typeURL, nil, false)
	case !reply.empty():
		s.respondSotW(reply)
	}
}

// respondSotW queues a response. The caller must hold the lock.
func (s *OriginStream) respondSotW(reply *reply) {
	s.enqueueSotW(reply.sotw(), reply.behaviour.Delay)
}

// enqueueSotW queues a response. If it has no nonce or version, it gets those of this stream.
func (s *OriginStream) enqueueSotW(resp *discoverypb.DiscoveryResponse, delay time.Duration) {
	resp.Nonce = s.nonces.issue(resp.GetNonce())
	if resp.GetVersionInfo() == "" {
		resp.VersionInfo = "v" + resp.GetNonce()
	}
	if t := s.record.Types[resp.GetTypeUrl()]; t != nil {
		t.nonce = resp.GetNonce()
	}
	s.enqueueOutgoing(outgoing{message: resp, typeURL: resp.GetTypeUrl(), due: dueAfter(delay)})
}

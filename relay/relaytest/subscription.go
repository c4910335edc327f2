package relaytest

import (
	"fmt"
	"maps"
	"slices"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// A subscription has the subscribed names of one type, and the state of the protocol for the type. It does no I/O.
type subscription struct {
	typeURL string
	names   []string // in the order of subscription; may include "*"
	version string   // version of the last accepted response

	// State of the current stream.
	requested bool   // a request was sent
	named     bool   // a request had names, so an empty list is no wildcard
	legacy    bool   // wildcard subscription by a request without names
	nonce     string // nonce of the last answered response
}

func (s *subscription) wildcard() bool { return s.legacy || slices.Contains(s.names, "*") }

// wants reports whether a resource is subscribed by the wildcard, its name, its collection or an alias.
func (s *subscription) wants(name string, aliases []string) bool {
	return s.wildcard() || slices.ContainsFunc(s.names, func(sub string) bool {
		return sub == name || sub == CollectionOf(name) || slices.Contains(aliases, sub)
	})
}

// reset prepares the subscription for a new stream.
func (s *subscription) reset() { s.requested, s.named, s.nonce = false, false, "" }

// replace sets the names, as a SotW request does.
func (s *subscription) replace(names []string) {
	s.requested, s.names = true, slices.Clone(names)
	s.named = s.named || len(names) > 0
	s.legacy = !s.named
}

// update applies the names of a Delta request.
func (s *subscription) update(subscribe, unsubscribe []string) {
	switch {
	case !s.requested:
		s.legacy = len(subscribe) == 0
	case slices.Contains(unsubscribe, "*"):
		s.legacy = false
	}
	s.requested = true
	s.named = s.named || len(subscribe) > 0
	s.names = without(with(s.names, subscribe), unsubscribe)
}

// subscribe returns the request that adds names.
func (s *subscription) subscribe(variant Variant, names []string) proto.Message {
	if variant == Delta {
		return &discoverypb.DeltaDiscoveryRequest{TypeUrl: s.typeURL, ResourceNamesSubscribe: names}
	}
	list := s.names
	if s.legacy && len(names) > 0 {
		list = []string{"*"} // the legacy wildcard becomes explicit
	}
	return s.sotw(with(list, names))
}

// unsubscribe returns the request that removes names.
func (s *subscription) unsubscribe(variant Variant, names []string) proto.Message {
	if variant == Delta {
		return &discoverypb.DeltaDiscoveryRequest{TypeUrl: s.typeURL, ResourceNamesUnsubscribe: names}
	}
	return s.sotw(without(s.names, names))
}

// answer returns an ACK, or a NACK if the response was rejected.
func (s *subscription) answer(variant Variant, resp *Response, rejected error) proto.Message {
	s.nonce = resp.Nonce
	detail := status.New(codes.InvalidArgument, fmt.Sprint(rejected)).Proto()
	if rejected == nil {
		s.version, detail = resp.Version, nil
	}
	if variant == Delta {
		return &discoverypb.DeltaDiscoveryRequest{TypeUrl: s.typeURL, ResponseNonce: resp.Nonce, ErrorDetail: detail}
	}
	req := s.sotw(s.names)
	req.ErrorDetail = detail
	return req
}

// restate returns the first request on a new stream, which repeats the subscriptions. It returns nil if there are none,
// because no request can express that.
func (s *subscription) restate(variant Variant, have map[string]Entry) proto.Message {
	if !s.legacy && len(s.names) == 0 {
		return nil
	}
	names := s.names
	if s.legacy && len(names) > 0 {
		names = with([]string{"*"}, names)
	}
	if variant == SotW {
		return s.sotw(names)
	}
	versions := make(map[string]string, len(have))
	for name, entry := range have {
		versions[name] = entry.Version
	}
	return &discoverypb.DeltaDiscoveryRequest{TypeUrl: s.typeURL, ResourceNamesSubscribe: names,
		InitialResourceVersions: versions}
}

func (s *subscription) sotw(names []string) *discoverypb.DiscoveryRequest {
	return &discoverypb.DiscoveryRequest{TypeUrl: s.typeURL, ResourceNames: slices.Clone(names),
		VersionInfo: s.version, ResponseNonce: s.nonce}
}

// with returns names, followed by the names in more that are new.
func with(names, more []string) []string {
	all := slices.Clone(names)
	have := make(map[string]struct{}, len(names)+len(more))
	for _, name := range names {
		have[name] = struct{}{}
	}
	for _, name := range more {
		if _, ok := have[name]; !ok {
			all = append(all, name)
		}
		have[name] = struct{}{}
	}
	return all
}

// without returns names except those in less.
func without(names, less []string) []string {
	drop := make(map[string]struct{}, len(less))
	for _, name := range less {
		drop[name] = struct{}{}
	}
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		_, ok := drop[name]
		return ok
	})
}

// subscriptions has the subscriptions of a client, and the resources that it has accepted. It does no I/O. The client's
// mon guards it.
type subscriptions struct {
	variant   Variant
	byType    map[string]*subscription
	order     []string // type URLs by first request
	resources State
	aliases   map[string]map[string][]string // by type URL and name, as resources

	// Resources from which the client unsubscribed while paused. Unread responses on the stream may contain them.
	unsubscribed State
}

func newSubscriptions(variant Variant) *subscriptions {
	return &subscriptions{
		variant:   variant,
		byType:    make(map[string]*subscription),
		resources: make(State),
		aliases:   make(map[string]map[string][]string),
	}
}

// reset prepares all subscriptions for a new stream.
func (s *subscriptions) reset() {
	s.unsubscribed = make(State)
	for _, sub := range s.byType {
		sub.reset()
	}
}

// answer returns the ACK or NACK for a response.
func (s *subscriptions) answer(resp *Response, rejected error) proto.Message {
	return s.of(resp.TypeURL).answer(s.variant, resp, rejected)
}

// of returns the subscription of a type, and creates it if necessary.
func (s *subscriptions) of(typeURL string) *subscription {
	sub := s.byType[typeURL]
	if sub == nil {
		sub = &subscription{typeURL: typeURL}
		s.byType[typeURL] = sub
		s.order = append(s.order, typeURL)
	}
	return sub
}

// apply applies the subscribed resources of an accepted response to the state.
func (s *subscriptions) apply(resp *Response) {
	sub, entries := s.of(resp.TypeURL), s.resources.entries(resp.TypeURL)
	present := make(map[string]struct{}, len(resp.Resources))
	for _, r := range resp.Resources {
		present[r.Name] = struct{}{}
		if s.isHeartbeat(resp.TypeURL, &r) {
			continue
		}
		if !sub.wants(r.Name, r.Aliases) {
			s.updateUnsubscribed(&r, resp.TypeURL)
			continue
		}
		delete(s.unsubscribed[resp.TypeURL], r.Name)
		entries[r.Name] = r.Entry
		if len(r.Aliases) > 0 {
			if s.aliases[resp.TypeURL] == nil {
				s.aliases[resp.TypeURL] = make(map[string][]string)
			}
			s.aliases[resp.TypeURL][r.Name] = r.Aliases
		}
	}
	for _, name := range resp.Removed {
		delete(entries, name)
		delete(s.unsubscribed[resp.TypeURL], name)
	}
	if s.variant == SotW && FullState(resp.TypeURL) {
		maps.DeleteFunc(entries, func(name string, _ Entry) bool {
			_, ok := present[name]
			return !ok
		})
	}
}

// isHeartbeat reports whether a resource is a heartbeat for a current or former resource of the client.
func (s *subscriptions) isHeartbeat(typeURL string, r *Resource) bool {
	have, had := s.resources[typeURL][r.Name]
	known := r.Body == nil && had && (s.variant == SotW || have.Version == r.Version)
	return known || s.isLateHeartbeat(typeURL, r)
}

// updateUnsubscribed records the new version of an unsubscribed resource that was sent again, because more such
// responses may follow.
func (s *subscriptions) updateUnsubscribed(r *Resource, typeURL string) {
	if left := s.unsubscribed[typeURL]; left != nil {
		if _, is := left[r.Name]; is {
			left[r.Name] = r.Entry
		}
	}
}

// dropUnsubscribed removes resources that are no longer subscribed.
func (s *subscriptions) dropUnsubscribed(typeURL string, paused bool) {
	sub := s.byType[typeURL]
	if sub.wildcard() {
		return
	}
	maps.DeleteFunc(s.resources[typeURL], func(name string, e Entry) bool {
		gone := !sub.wants(name, s.aliases[typeURL][name])
		if gone && paused {
			s.unsubscribed.entries(typeURL)[name] = e
		}
		return gone
	})
}

// invalidHeartbeats returns violations for heartbeats of resources that the client has not accepted. An Envoy rejects
// these as resources of the wrong type. Heartbeats that were sent before an unsubscription arrived are legal.
func (s *subscriptions) invalidHeartbeats(resp *Response) []string {
	var broken []string
	for _, r := range resp.Resources {
		have := s.resources[resp.TypeURL][r.Name].Version
		if s.variant == Delta && r.Heartbeat() && have != r.Version && !s.isLateHeartbeat(resp.TypeURL, &r) {
			broken = append(broken, fmt.Sprintf("a heartbeat for version %q of %q, but the client has version %q", r.Version,
				r.Name, have))
		}
	}
	return broken
}

// isLateHeartbeat reports whether a heartbeat refers to a resource from which the client unsubscribed while it was
// paused.
func (s *subscriptions) isLateHeartbeat(typeURL string, r *Resource) bool {
	left, ok := s.unsubscribed[typeURL][r.Name]
	return ok && r.Heartbeat() && left.Version == r.Version
}

// recordNames applies the names of a request to the subscription.
func (s *subscriptions) recordNames(req proto.Message, paused bool) {
	switch r := req.(type) {
	case *discoverypb.DiscoveryRequest:
		s.of(r.GetTypeUrl()).replace(r.GetResourceNames())
		s.dropUnsubscribed(r.GetTypeUrl(), paused)
	case *discoverypb.DeltaDiscoveryRequest:
		s.of(r.GetTypeUrl()).update(r.GetResourceNamesSubscribe(), r.GetResourceNamesUnsubscribe())
		s.dropUnsubscribed(r.GetTypeUrl(), paused)
	}
}

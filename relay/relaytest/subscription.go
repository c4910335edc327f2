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

// subscription returns the subscription of a type, and creates it if necessary. The caller must hold the lock.
func (c *Client) subscription(typeURL string) *subscription {
	sub := c.subscriptions[typeURL]
	if sub == nil {
		sub = &subscription{typeURL: typeURL}
		c.subscriptions[typeURL] = sub
		c.order = append(c.order, typeURL)
	}
	return sub
}

// apply applies the subscribed resources of an accepted response to the state. The caller must hold the lock.
func (c *Client) apply(resp *Response) {
	sub, entries := c.subscription(resp.TypeURL), c.state.entries(resp.TypeURL)
	present := make(map[string]struct{}, len(resp.Resources))
	for _, r := range resp.Resources {
		present[r.Name] = struct{}{}
		if c.isHeartbeat(resp.TypeURL, &r) {
			continue
		}
		if !sub.wants(r.Name, r.Aliases) {
			c.stream.updateUnsubscribed(&r, resp.TypeURL)
			continue
		}
		delete(c.stream.unsubscribed[resp.TypeURL], r.Name)
		entries[r.Name] = r.Entry
		if len(r.Aliases) > 0 {
			if c.aliases[resp.TypeURL] == nil {
				c.aliases[resp.TypeURL] = make(map[string][]string)
			}
			c.aliases[resp.TypeURL][r.Name] = r.Aliases
		}
	}
	for _, name := range resp.Removed {
		delete(entries, name)
		delete(c.stream.unsubscribed[resp.TypeURL], name)
	}
	if c.options.Variant == SotW && FullState(resp.TypeURL) {
		maps.DeleteFunc(entries, func(name string, _ Entry) bool {
			_, ok := present[name]
			return !ok
		})
	}
}

// isHeartbeat reports whether a resource is a heartbeat for a current or former resource of the client. The caller must
// hold the lock.
func (c *Client) isHeartbeat(typeURL string, r *Resource) bool {
	have, had := c.state[typeURL][r.Name]
	known := r.Body == nil && had && (c.options.Variant == SotW || have.Version == r.Version)
	return known || c.isLateHeartbeat(typeURL, r)
}

// updateUnsubscribed records the new version of an unsubscribed resource that was sent again, because more such
// responses may follow. The caller must hold the lock.
func (s *clientStream) updateUnsubscribed(r *Resource, typeURL string) {
	if left := s.unsubscribed[typeURL]; left != nil {
		if _, is := left[r.Name]; is {
			left[r.Name] = r.Entry
		}
	}
}

// dropUnsubscribed removes resources that are no longer subscribed. The caller must hold the lock.
func (c *Client) dropUnsubscribed(typeURL string) {
	sub := c.subscriptions[typeURL]
	if sub.wildcard() {
		return
	}
	maps.DeleteFunc(c.state[typeURL], func(name string, e Entry) bool {
		gone := !sub.wants(name, c.aliases[typeURL][name])
		if gone && c.paused {
			c.stream.unsubscribed.entries(typeURL)[name] = e
		}
		return gone
	})
}

// changesNothing reports whether a response does not change the state of a client.
func changesNothing(before State, resp *Response) bool {
	had := before[resp.TypeURL]
	for _, r := range resp.Resources {
		if before.Digest(resp.TypeURL, r.Name) != r.Digest {
			return false
		}
	}
	for _, name := range resp.Removed {
		if _, has := had[name]; has {
			return false
		}
	}
	return !resp.SotW() || !FullState(resp.TypeURL) || len(resp.Resources) == len(had)
}

// unexpected returns "" if a response contains the changed resource and, in a complete set, unchanged resources.
// Otherwise it describes the unexpected content.
func unexpected(before State, resp *Response, typeURL, name string) string {
	if resp.TypeURL != typeURL {
		return "another type"
	}
	if len(resp.Removed) > 0 {
		return "removed " + list(resp.Removed)
	}
	full := resp.SotW() && FullState(typeURL)
	found := false
	for _, r := range resp.Resources {
		switch {
		case r.Name == name:
			found = true
		case !full || r.Digest != before.Digest(typeURL, r.Name):
			return "resource " + r.Name
		}
	}
	if !found {
		return "the resource is missing"
	}
	if had := len(before[typeURL]); full && len(resp.Resources) < had {
		return "other resources are missing"
	}
	return ""
}

package relaytest

import (
	"maps"
	"slices"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// answer sends the response that the protocol requires for a request: the resources that it subscribes to, and the
// state of names that it unsubscribes from under a wildcard. The caller must hold the lock.
func (s *OriginStream) answer(t *TypeState, req *discoverypb.DeltaDiscoveryRequest, first, wildcard bool) {
	wildcard = wildcard || t.Wildcard && slices.Contains(req.GetResourceNamesSubscribe(), "*")
	reply := newReply(s.content, req.GetTypeUrl())
	if first && !reply.behaviour.IgnoreIRV {
		reply.initialVersions = req.GetInitialResourceVersions()
	}
	if wildcard {
		reply.addWildcard()
	}
	for _, name := range req.GetResourceNamesSubscribe() {
		reply.addName(name)
	}
	if t.Wildcard {
		reply.addUnsubscribed(req.GetResourceNamesUnsubscribe())
	}
	reply.removeAbsent(t, wildcard)
	if initial := first && wildcard && len(reply.initialVersions) == 0; initial || !reply.empty() {
		s.respond(reply)
	}
}

// push sends the changes that the stream subscribes to. The caller must hold the lock.
func (s *OriginStream) push(typeURL string, changes map[string]change) {
	t := s.record.Types[typeURL]
	if t == nil {
		return
	}
	reply := newReply(s.content, typeURL)
	for name, c := range changes {
		switch {
		case !reply.subscribed(t, name, s.content.aliases(typeURL, name, c)):
		case c.err != nil:
			reply.errors[name] = c.err
		case c.resource == nil:
			reply.removed[name] = struct{}{}
		default:
			reply.add(c.resource)
		}
	}
	if !reply.empty() {
		s.respond(reply)
	}
}

// respond queues a response. The caller must hold the lock.
func (s *OriginStream) respond(reply *reply) {
	s.enqueue(s.withNonce(reply.delta()), reply.behaviour.Delay)
}

// wants reports whether a resource is subscribed by its name, its collection or an alias.
func (t *TypeState) wants(name string, aliases []string) bool {
	for _, sub := range append([]string{name, CollectionOf(name)}, aliases...) {
		if _, ok := t.Names[sub]; ok {
			return true
		}
	}
	return false
}

// A reply is the content of an automatic response of one type that is being built.
type reply struct {
	content         *Content
	behaviour       Behaviour
	typeURL         string
	initialVersions map[string]string // versions that the client reported
	resources       map[string]*discoverypb.Resource
	removed         map[string]struct{}
	errors          map[string]*discoverypb.ResourceError
}

// newReply returns an empty reply. The caller must hold the lock until the reply is complete.
func newReply(content *Content, typeURL string) *reply {
	return &reply{
		content:   content,
		behaviour: content.origin.behaviour,
		typeURL:   typeURL,
		resources: make(map[string]*discoverypb.Resource),
		removed:   make(map[string]struct{}),
		errors:    make(map[string]*discoverypb.ResourceError),
	}
}

func (r *reply) empty() bool { return len(r.resources)+len(r.removed)+len(r.errors) == 0 }

// inWildcard reports whether a resource is part of the wildcard set.
func (r *reply) inWildcard(name string) bool {
	return r.behaviour.NamedOnly == nil || !r.behaviour.NamedOnly(r.typeURL, name)
}

// subscribed reports whether a resource is subscribed by the wildcard, its name, its collection or an alias.
func (r *reply) subscribed(t *TypeState, name string, aliases []string) bool {
	return t.wants(name, aliases) || t.Wildcard && r.inWildcard(name)
}

// add adds a resource, unless the client reported its version.
func (r *reply) add(resource *discoverypb.Resource) {
	version, ok := r.initialVersions[resource.GetName()]
	if ok && !r.behaviour.EmptyVersions && version == resource.GetVersion() {
		return
	}
	r.resources[resource.GetName()] = resource
}

// addWildcard adds the wildcard set.
func (r *reply) addWildcard() {
	for name, resource := range r.content.types[r.typeURL] {
		if r.inWildcard(name) {
			r.add(resource)
		}
	}
	for name, e := range r.content.errors[r.typeURL] {
		if r.inWildcard(name) {
			r.errors[name] = e
		}
	}
}

// addName adds the state of a name: an error, resources, or a removal if nothing exists.
func (r *reply) addName(name string) {
	if name == "*" {
		return
	}
	if e := r.content.errors[r.typeURL][name]; e != nil {
		r.errors[name] = e
		return
	}
	found := r.content.collection(r.typeURL, name)
	for _, resource := range found {
		r.add(resource)
	}
	switch {
	case len(found) > 0:
	case r.behaviour.Unresolved != nil && r.behaviour.Unresolved(r.typeURL, name):
		r.add(&discoverypb.Resource{Name: name, Aliases: []string{name}})
	case !r.behaviour.SilentOnMissing:
		r.removed[name] = struct{}{}
	}
}

// addUnsubscribed adds the state of names that a request unsubscribes from while a wildcard subscription remains.
func (r *reply) addUnsubscribed(names []string) {
	for _, name := range names {
		if name == "*" {
			continue
		}
		if resource := r.content.find(r.typeURL, name); resource != nil && r.inWildcard(resource.GetName()) {
			r.add(resource)
		} else {
			r.removed[name] = struct{}{}
		}
	}
}

// removeAbsent removes resources in initial_resource_versions that the origin does not have.
func (r *reply) removeAbsent(t *TypeState, wildcard bool) {
	for name := range r.initialVersions {
		if (wildcard || t.wants(name, nil)) && r.content.find(r.typeURL, name) == nil &&
			r.content.errors[r.typeURL][name] == nil {
			r.removed[name] = struct{}{}
		}
	}
}

// delta returns the Delta response without a nonce, with resources sorted by name.
func (r *reply) delta() *discoverypb.DeltaDiscoveryResponse {
	b := r.behaviour
	resp := &discoverypb.DeltaDiscoveryResponse{
		TypeUrl:           r.typeURL,
		SystemVersionInfo: b.SystemVersion,
		RemovedResources:  slices.Sorted(maps.Keys(r.removed)),
		ControlPlane:      b.controlPlane(),
	}
	for _, name := range slices.Sorted(maps.Keys(r.resources)) {
		resp.Resources = append(resp.Resources, b.withVersion(r.resources[name]))
	}
	for _, name := range slices.Sorted(maps.Keys(r.errors)) {
		resp.ResourceErrors = append(resp.ResourceErrors, r.errors[name])
	}
	if b.Duplicate {
		resp.Resources = append(resp.Resources, resp.Resources...)
	}
	return resp
}

// sotw returns the SotW response without a nonce, with resources sorted by name.
func (r *reply) sotw() *discoverypb.DiscoveryResponse {
	b := r.behaviour
	resp := &discoverypb.DiscoveryResponse{
		TypeUrl:      r.typeURL,
		VersionInfo:  b.SystemVersion,
		ControlPlane: b.controlPlane(),
	}
	for _, name := range slices.Sorted(maps.Keys(r.resources)) {
		resp.Resources = append(resp.Resources, b.sotwBody(r.resources[name]))
	}
	if b.Duplicate {
		resp.Resources = append(resp.Resources, resp.Resources...)
	}
	return resp
}

// controlPlane returns the control_plane field of responses.
func (b Behaviour) controlPlane() *corepb.ControlPlane {
	if b.ControlPlane == "" {
		return nil
	}
	return &corepb.ControlPlane{Identifier: b.ControlPlane}
}

// withVersion returns a resource with the version that is sent.
func (b Behaviour) withVersion(r *discoverypb.Resource) *discoverypb.Resource {
	if b.EmptyVersions {
		r = proto.CloneOf(r)
		r.Version = ""
	}
	return r
}

// sotwBody returns a resource as a SotW response contains it.
func (b Behaviour) sotwBody(r *discoverypb.Resource) *anypb.Any {
	if !b.Wrap && len(r.GetAliases()) == 0 && r.GetResource() != nil {
		return r.GetResource()
	}
	return Pack(b.withVersion(r))
}

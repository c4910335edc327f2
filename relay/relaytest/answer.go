package relaytest

import (
	"maps"
	"slices"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
)

// answer sends the response that the protocol requires for a request: the resources that it subscribes to, and the
// state of names that it unsubscribes from under a wildcard. The caller must hold the lock.
func (s *OriginStream) answer(t *TypeState, req *discoverypb.DeltaDiscoveryRequest, first, wildcard bool) {
	b := s.origin.behaviour
	wildcard = wildcard || t.Wildcard && slices.Contains(req.GetResourceNamesSubscribe(), "*")
	reply := newReply()
	if first && !b.IgnoreIRV {
		reply.initialVersions = req.GetInitialResourceVersions()
	}
	if wildcard {
		s.answerWildcard(reply, req.GetTypeUrl(), b)
	}
	for _, name := range req.GetResourceNamesSubscribe() {
		s.answerName(reply, req.GetTypeUrl(), name, b)
	}
	if t.Wildcard {
		s.answerUnsubscribed(reply, req, b)
	}
	s.answerInitialVersions(reply, req.GetTypeUrl(), t, wildcard)
	if initial := first && wildcard && len(reply.initialVersions) == 0; initial || !reply.empty() {
		s.respond(req.GetTypeUrl(), reply)
	}
}

// answerWildcard adds the wildcard set of a type.
func (s *OriginStream) answerWildcard(reply *reply, typeURL string, b Behaviour) {
	for name, r := range s.content.types[typeURL] {
		if !b.namedOnly(typeURL, name) {
			reply.add(r, b)
		}
	}
	for name, e := range s.content.errors[typeURL] {
		if !b.namedOnly(typeURL, name) {
			reply.errors[name] = e
		}
	}
}

// answerInitialVersions removes resources in initial_resource_versions that the origin does not have.
func (s *OriginStream) answerInitialVersions(reply *reply, typeURL string, t *TypeState, wildcard bool) {
	for name := range reply.initialVersions {
		if (wildcard || t.wants(name, nil)) && s.content.find(typeURL, name) == nil &&
			s.content.errors[typeURL][name] == nil {
			reply.removed[name] = struct{}{}
		}
	}
}

// answerName adds the state of a name: an error, resources, or a removal if nothing exists.
func (s *OriginStream) answerName(reply *reply, typeURL, name string, b Behaviour) {
	if name == "*" {
		return
	}
	if e := s.content.errors[typeURL][name]; e != nil {
		reply.errors[name] = e
		return
	}
	found := false
	for _, key := range s.collection(typeURL, name) {
		found = true
		reply.add(s.content.types[typeURL][key], b)
	}
	switch {
	case found:
	case b.Unresolved != nil && b.Unresolved(typeURL, name):
		reply.add(&discoverypb.Resource{Name: name, Aliases: []string{name}}, b)
	case !b.SilentOnMissing:
		reply.removed[name] = struct{}{}
	}
}

// answerUnsubscribed sends the state of names that a request unsubscribes from while a wildcard subscription remains.
func (s *OriginStream) answerUnsubscribed(reply *reply, req *discoverypb.DeltaDiscoveryRequest, b Behaviour) {
	for _, name := range req.GetResourceNamesUnsubscribe() {
		if name == "*" {
			continue
		}
		if r := s.content.find(req.GetTypeUrl(), name); r != nil && !b.namedOnly(req.GetTypeUrl(), r.GetName()) {
			reply.add(r, b)
		} else {
			reply.removed[name] = struct{}{}
		}
	}
}

// collection returns the resources that a name refers to: the resource with that name or alias, or the members of a
// collection.
func (s *OriginStream) collection(typeURL, name string) []string {
	if r := s.content.find(typeURL, name); r != nil {
		return []string{r.GetName()}
	}
	var keys []string
	for key := range s.content.types[typeURL] {
		if CollectionOf(key) == name {
			keys = append(keys, key)
		}
	}
	return keys
}

// push sends the changes that the stream subscribes to. The caller must hold the lock.
func (s *OriginStream) push(typeURL string, changes map[string]change) {
	t := s.record.Types[typeURL]
	if t == nil {
		return
	}
	b := s.origin.behaviour
	reply := newReply()
	for name, c := range changes {
		switch {
		case !t.wants(name, s.aliases(typeURL, name, c)) && (!t.Wildcard || b.namedOnly(typeURL, name)):
		case c.err != nil:
			reply.errors[name] = c.err
		case c.resource == nil:
			reply.removed[name] = struct{}{}
		default:
			reply.add(c.resource, b)
		}
	}
	if !reply.empty() {
		s.respond(typeURL, reply)
	}
}

// aliases returns the other names of a changed resource. Removals and heartbeats are sent under all names.
func (s *OriginStream) aliases(typeURL, name string, c change) []string {
	if held := s.content.types[typeURL][name]; held != nil && c.resource.GetResource() == nil {
		return held.GetAliases()
	}
	return c.resource.GetAliases()
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

// namedOnly calls NamedOnly, if set.
func (b Behaviour) namedOnly(typeURL, name string) bool {
	return b.NamedOnly != nil && b.NamedOnly(typeURL, name)
}

// A reply is the content of a response that is being built.
type reply struct {
	initialVersions map[string]string // versions that the client reported
	resources       map[string]*discoverypb.Resource
	removed         map[string]struct{}
	errors          map[string]*discoverypb.ResourceError
}

func newReply() *reply {
	return &reply{
		resources: make(map[string]*discoverypb.Resource),
		removed:   make(map[string]struct{}),
		errors:    make(map[string]*discoverypb.ResourceError),
	}
}

func (r *reply) empty() bool { return len(r.resources)+len(r.removed)+len(r.errors) == 0 }

// add adds a resource, unless the client reported its version.
func (r *reply) add(resource *discoverypb.Resource, b Behaviour) {
	version, ok := r.initialVersions[resource.GetName()]
	if ok && !b.EmptyVersions && version == resource.GetVersion() {
		return
	}
	r.resources[resource.GetName()] = resource
}

// respond queues a response, with resources sorted by name. The caller must hold the lock.
func (s *OriginStream) respond(typeURL string, reply *reply) {
	b := s.origin.behaviour
	resp := &discoverypb.DeltaDiscoveryResponse{
		TypeUrl:           typeURL,
		SystemVersionInfo: b.SystemVersion,
		RemovedResources:  slices.Sorted(maps.Keys(reply.removed)),
	}
	if b.ControlPlane != "" {
		resp.ControlPlane = &corepb.ControlPlane{Identifier: b.ControlPlane}
	}
	for _, name := range slices.Sorted(maps.Keys(reply.resources)) {
		r := reply.resources[name]
		if b.EmptyVersions {
			r = proto.CloneOf(r)
			r.Version = ""
		}
		resp.Resources = append(resp.Resources, r)
	}
	for _, name := range slices.Sorted(maps.Keys(reply.errors)) {
		resp.ResourceErrors = append(resp.ResourceErrors, reply.errors[name])
	}
	if b.Duplicate {
		resp.Resources = append(resp.Resources, resp.Resources...)
	}
	s.enqueue(s.withNonce(resp), b.Delay)
}

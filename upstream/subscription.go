package upstream

import (
	"maps"
	"slices"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/upstream/reconcile"
)

// A role selects one of the two streams of a view.
type role int

const (
	noStream role = iota
	main
	auxiliary
)

// String returns the name of the stream in log lines.
func (r role) String() string { return [...]string{"none", "main", "auxiliary"}[r] }

// other returns the other stream.
func (r role) other() role {
	if r == main {
		return auxiliary
	}
	return main
}

// A subscription is the subscription of a view to one type of its origin: the wildcard, names and collections. It does
// no I/O and belongs to the loop of the view sync.
type subscription struct {
	branch     *branch
	typeURL    string
	requesters []cache.Demand // see addRequester

	// The subscription to the wildcard exists while a client uses it and for [WildcardLinger] after that.
	// assignStreams sets wildcardRole; noStream means no subscription.
	wildcardRole role
	prewarm      bool      // listed in Config.Prewarm: never unsubscribed
	wanted       bool      // a client subscribes to the wildcard now
	lingerUntil  time.Time // when an unused wildcard is unsubscribed; zero while it is used
	requestedAt  time.Time // when the wildcard was last added

	// The names include unused ones that linger. A name is in names from the decision to subscribe to it until the
	// decision to unsubscribe. assignStreams sets namesRole; noStream means no names and no collections.
	namesRole role
	names     map[*cache.Name]struct{}
	added     []*cache.Name // subscribe not sent yet
	refetch   []*cache.Name // to request again: unsubscribe and subscribe
	removed   []*cache.Name // unsubscribe not sent yet

	changedSince time.Time // since when an unsent change waits on a SotW stream; zero if none waits

	// canonicalNames maps the names of resources that clients subscribe to only under aliases to these aliases. If the
	// relay reports cached versions, it must subscribe to these names, too: the origin can report the removal of a name
	// only if it is subscribed to.
	canonicalNames map[string][]*cache.Name

	told [auxiliary + 1]reports // by stream, what origins were told that clients reject

	members, byName *set
	collections     map[string]*collection // by glob; they use the stream of the names
	check           task                   // of the wildcard set: its phase, and the query for what is missing
}

// A set is one of the sets of resources of a subscription in the view: the wildcard set, the resources subscribed to by
// name, or a collection.
type set struct {
	*reconcile.Set
	view *streams
	sub  *subscription
	key  string // type URL or collection, as the key in the view
	kind cache.Kind
}

// A collection is a subscription to a glob. In requests the glob is a name; in the view it is a set of members (R132).
// A response is assigned to a collection by the names of its resources, so that collections can share the stream of the
// names.
type collection struct {
	*set
	glob        string
	lingerUntil time.Time // when an unused collection is unsubscribed; zero while it is used
	requestedAt time.Time // when the collection was last added
	check       task      // of its phase, the query for what is missing, and whether it is used
}

// wantedNames returns the subscribed names, including those that linger.
func (s *subscription) wantedNames() map[string]struct{} {
	out := make(map[string]struct{}, len(s.names))
	for n := range s.names {
		out[n.String()] = struct{}{}
	}
	return out
}

// withoutWanted returns names without those of wantedNames. It does not modify the slice names, which an unsent request
// may share.
func (s *subscription) withoutWanted(names []string) []string {
	if len(names) == 0 {
		return nil // avoids the cost of wantedNames
	}
	wanted := s.wantedNames()
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { _, ok := wanted[name]; return ok })
}

// assignStreams assigns the wildcard, if members is set, and the names to streams. The result does not depend on the
// order in which clients subscribed. It reports whether the wildcard or the names moved to the other stream.
//
// The main stream carries every type, in the order of the origin (B.11). If a type is subscribed to by wildcard and by
// name, the main stream carries the form that Envoy uses, since Envoy needs that order. The auxiliary stream carries
// the other form.
func (s *subscription) assignStreams(members bool) (moved bool) {
	wildcard, named := noStream, noStream
	if members {
		wildcard = main
	}
	if len(s.names)+len(s.collections) > 0 {
		named = main
	}
	switch {
	case wildcard == noStream || named == noStream:
	case wire.LegacyWildcard(s.typeURL):
		named = auxiliary
	default:
		wildcard = auxiliary
	}
	moved = wildcard != noStream && s.wildcardRole == wildcard.other() || named != noStream && s.namesRole == named.other()
	s.wildcardRole, s.namesRole = wildcard, named
	return moved
}

// needsStream reports whether the subscription uses the stream of a role.
func (s *subscription) needsStream(r role) bool {
	return s.wildcardRole == r || s.namesRole == r || s.sweepsOn(r)
}

// sweepsOn reports whether the relay queries members of the wildcard set by name on the stream of that role. This is
// the stream without the wildcard.
func (s *subscription) sweepsOn(r role) bool {
	return s.members.Querying() && s.wildcardRole.other() == r
}

// reportedVersion returns the version that the relay reports for a cached resource. It is empty if the content was
// dropped: then the origin sends the resource again, or its removal (R125).
func reportedVersion(r *wire.Resource) string {
	if r.ContentDropped() {
		return ""
	}
	return r.OriginVersion
}

// hasReportableVersion reports whether a version identifies the cached resource. It does not if the resource is a
// variant, or if it has no version and its content was dropped.
func hasReportableVersion(r *wire.Resource) bool {
	return r.Constraints == nil && r.HasBody() && (!r.ContentDropped() || r.OriginVersion != "")
}

// allNames returns all subscribed names and globs for the first request of a stream; asked are the names among them.
// Names with a resource are first: if a SotW request cannot contain all names, clients keep receiving these. It
// discards unsent changes.
func (s *subscription) allNames(g *cache.Generation) (names []string, asked []*cache.Name) {
	held := &g.Type(s.typeURL).ByName
	for n := range s.names {
		if held.Get(n).Present() {
			asked = append(asked, n)
		}
	}
	for n := range s.names {
		if !held.Get(n).Present() {
			asked = append(asked, n)
		}
	}
	names = nameStrings(asked)
	for glob := range s.collections {
		names = append(names, glob)
	}
	s.added, s.refetch, s.removed, s.canonicalNames = nil, nil, nil, nil
	return names, asked
}

// addCanonicalNames sets canonicalNames for a new stream, and returns the names to subscribe to. VHDS is excluded: a
// server may treat the name of a virtual host as a domain, and it reports removed aliases itself.
func (s *subscription) addCanonicalNames(g *cache.Generation) []string {
	if wire.OnDemand(s.typeURL) {
		return nil
	}
	named := &g.Type(s.typeURL).ByName
	s.canonicalNames = make(map[string][]*cache.Name)
	for n := range s.names {
		e := named.Get(n)
		if !e.Present() || !hasReportableVersion(e.Resource) || e.Resource.Name == wire.PlainName(n.String()) {
			continue
		}
		s.canonicalNames[e.Resource.Name] = append(s.canonicalNames[e.Resource.Name], n)
	}
	names := s.withoutWanted(slices.Sorted(maps.Keys(s.canonicalNames)))
	maps.DeleteFunc(s.canonicalNames, func(name string, _ []*cache.Name) bool { return !slices.Contains(names, name) })
	return names
}

// dropCanonicalNames removes canonical names that are no longer needed, and returns them. A canonical name is not
// needed if its aliases are unused, or if asked contains the name.
func (s *subscription) dropCanonicalNames(asked []*cache.Name) (names []string) {
	for _, n := range asked {
		if _, ok := s.canonicalNames[n.String()]; ok {
			names = append(names, n.String())
		}
	}
	for name, aliases := range s.canonicalNames {
		if len(s.stillWanted(aliases)) == 0 && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for _, name := range names {
		delete(s.canonicalNames, name)
	}
	slices.Sort(names)
	return names
}

// maxVersionsBytes limits the size of the resource versions in a request. Many servers accept no message over 4 MiB,
// and the protocol cannot split the versions (B.15).
const maxVersionsBytes = 3_400_000

// maxNamesBytes limits the size of the names in a request, so that the total stays under 4 MiB with versions and a node of
// 256 KiB. There is no limit on their number: an origin answers each request separately, and a client receives the answers
// one by one (B.5).
const maxNamesBytes = 500_000

// splitBytes splits names for one request. head has at most maxNamesBytes as encoded, but at least one name.
func splitBytes(names []string) (head, rest []string) {
	size := 0
	for i, name := range names {
		if size += encodedSize(name); size > maxNamesBytes && i > 0 {
			return names[:i], names[i:]
		}
	}
	return names, nil
}

// fitsRequest reports whether there are versions, and whether they fit in one request.
func fitsRequest(versions map[string]string) bool {
	const perEntry = 12 // upper bound of tags and lengths
	size := 0
	for name, version := range versions {
		size += len(name) + len(version) + perEntry
	}
	return size > 0 && size <= maxVersionsBytes
}

// changes returns the requests with the unsent changes, and the names that they subscribe to. It clears the changes.
func (s *subscription) changes() (reqs []*discoverypb.DeltaDiscoveryRequest, asked []*cache.Name) {
	refetch := s.stillWanted(s.refetch)
	asked = append(s.stillWanted(s.added), refetch...)
	subscribe := nameStrings(asked)
	unsubscribe := s.withoutWanted(nameStrings(s.removed))
	s.added, s.refetch, s.removed = nil, nil, nil
	// Not every origin responds again for a name that is subscribed already (C07).
	reqs = s.requests(nil, append(nameStrings(refetch), s.dropCanonicalNames(asked)...))
	return append(reqs, s.requests(subscribe, unsubscribe)...), asked
}

// sendAt returns when to send the unsent changes. On a Delta stream, and for names to refetch, it returns now. on is
// nil for a Delta stream.
func (s *subscription) sendAt(on *sotwState, now time.Time) time.Time {
	if on == nil || len(s.refetch) > 0 {
		return now
	}
	if s.changedSince.IsZero() {
		s.changedSince = now
	}
	return on.sendAt(s.typeURL, len(s.added)+len(s.removed), s.changedSince)
}

// requests returns requests that subscribe to names and then unsubscribe from others.
func (s *subscription) requests(subscribe, unsubscribe []string) (reqs []*discoverypb.DeltaDiscoveryRequest) {
	for len(subscribe)+len(unsubscribe) > 0 {
		r := &discoverypb.DeltaDiscoveryRequest{TypeUrl: s.typeURL}
		r.ResourceNamesSubscribe, subscribe = splitBytes(subscribe)
		if len(subscribe) == 0 {
			r.ResourceNamesUnsubscribe, unsubscribe = splitBytes(unsubscribe)
		}
		reqs = append(reqs, r)
	}
	return reqs
}

// stillWanted returns the names that are subscribed to, each once: two clients may need a name again before the request
// for the first of them is sent.
func (s *subscription) stillWanted(names []*cache.Name) (wanted []*cache.Name) {
	seen := make(map[*cache.Name]struct{}, len(names))
	for _, n := range names {
		_, subscribed := s.names[n]
		if _, twice := seen[n]; subscribed && !twice {
			seen[n] = struct{}{}
			wanted = append(wanted, n)
		}
	}
	return wanted
}

// nameStrings returns the texts of names.
func nameStrings(names []*cache.Name) []string {
	out := make([]string, len(names))
	for i, n := range names {
		out[i] = n.String()
	}
	return out
}

// subscribeWildcard returns the request that subscribes to the wildcard. For most types it is the legacy form without
// names, which Envoy uses and most origins support. For types where an empty request subscribes to nothing, it is "*"
// (R054).
func (s *subscription) subscribeWildcard() *discoverypb.DeltaDiscoveryRequest {
	r := &discoverypb.DeltaDiscoveryRequest{TypeUrl: s.typeURL}
	if !wire.LegacyWildcard(s.typeURL) {
		r.ResourceNamesSubscribe = []string{wire.Wildcard}
	}
	return r
}

// unsubscribeWildcard returns the request that unsubscribes from the wildcard.
func (s *subscription) unsubscribeWildcard() *discoverypb.DeltaDiscoveryRequest {
	return &discoverypb.DeltaDiscoveryRequest{TypeUrl: s.typeURL, ResourceNamesUnsubscribe: []string{wire.Wildcard}}
}

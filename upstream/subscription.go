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

// A role is which of a view's streams carries a subscription.
type role int

const (
	noStream role = iota
	main
	auxiliary
)

func (r role) String() string { return [...]string{"none", "main", "auxiliary"}[r] }

// other returns the other stream.
func (r role) other() role {
	if r == main {
		return auxiliary
	}
	return main
}

// A subscription is what a view wants of one type from its origin. It does no
// I/O.
type subscription struct {
	typeURL    string
	requesters []cache.Demand // see asks

	// The members. They are wanted while a client has a wildcard, and for a while
	// after. The role is place's.
	wildcardRole role
	prewarm      bool
	wanted       bool      // by a client now
	lingerUntil  time.Time // when lingering ends

	// The names, with those that linger. A name is in the map while the origin is, or
	// is about to be, subscribed to it. The role is place's.
	namesRole role
	names     map[*cache.Name]struct{}
	added     []*cache.Name // not yet sent
	refetch   []*cache.Name // to be asked for once more
	removed   []*cache.Name // to be unsubscribed

	changedSince time.Time // since when such a change waits on a SotW stream; zero if none does

	// companions are names of resources that clients asked for by aliases alone, with these aliases. The origin is asked for
	// them too when it is told what is held: it can only say of a name that it is asked for that it is gone.
	canonicalNames map[string][]*cache.Name

	members, byName *set
	collections     map[string]*collection // by glob; they travel with the names
	due             []*collection          // of these, those to be looked at now
}

// A set is one of the sets of a subscription as the view holds it: the wildcard set, what is asked for by
// name, or a collection.
type set struct {
	*reconcile.Set
	view *streams
	sub  *subscription
	key  string // in the view
	kind cache.Kind
}

// A collection is a subscription to a glob: to the origin it is a name, to the view a
// set of members (R132). Whatever the origin says of a name that the glob matches
// belongs to it, so it can share a stream with names.
type collection struct {
	*set
	glob        string
	lingerUntil time.Time // when lingering ends; zero while a client wants it

	// Of the view's agenda.
	checkAt   time.Time // when to look; zero if it is not in there
	heapIndex int
}

// wantedNames returns the names that clients asked for, with those that linger.
func (s *subscription) wantedNames() map[string]struct{} {
	out := make(map[string]struct{}, len(s.names))
	for n := range s.names {
		out[n.String()] = struct{}{}
	}
	return out
}

// unwanted returns names without those that clients asked for, in a slice of its own: a request that is not sent yet may
// still have names.
func (s *subscription) withoutWanted(names []string) []string {
	if len(names) == 0 {
		return nil // to look at all that is wanted would be for nothing
	}
	wanted := s.wantedNames()
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { _, is := wanted[name]; return is })
}

// namesPerRequest bounds one request that changes a subscription (B.5).
const namesPerRequest = 500

// place assigns the wildcard, which is wanted if members is set, and the names to streams. Only
// what is wanted now decides, not what was asked for first. It reports whether one of the two
// moved to the other stream.
//
// The main stream carries every type, in the origin's order (B.11). If a type is wanted by
// wildcard and by name, the main stream carries the form that Envoys use, since they need that
// order, and the auxiliary stream carries the other one.
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

// wants reports whether the stream of that role has anything to carry.
func (s *subscription) needsStream(r role) bool {
	return s.wildcardRole == r || s.namesRole == r || s.sweepsOn(r)
}

// sweepsOn reports whether a sweep is asking for members by name on the stream of that role,
// which is the one without the wildcard.
func (s *subscription) sweepsOn(r role) bool {
	return s.members.Asking() && s.wildcardRole.other() == r
}

// heldVersion returns the version at which the origin is told that a resource is held.
// Of one whose content was given up it is told none: it says what it is once more, or
// that it is gone (R125).
func reportedVersion(r *wire.Resource) string {
	if r.ContentDropped() {
		return ""
	}
	return r.OriginVersion
}

// sayable reports whether the version of a resource can say what is held: not of which
// variant it is, nor where there was none and the content is needed again.
func hasReportableVersion(r *wire.Resource) bool {
	return r.Constraints == nil && r.HasBody() && (!r.ContentDropped() || r.OriginVersion != "")
}

// restateNames returns all names and globs that are wanted.
func (s *subscription) allNames() (names []string, asked []*cache.Name) {
	for n := range s.names {
		asked = append(asked, n)
		names = append(names, n.String())
	}
	for glob := range s.collections {
		names = append(names, glob)
	}
	s.added, s.refetch, s.removed, s.canonicalNames = nil, nil, nil, nil
	return names, asked
}

// accompany begins to ask for the names of resources that are held by aliases alone, and returns them. It is for a new stream.
// A server of VHDS may take the name of a virtual host for a domain, and says itself of an alias that it means nothing.
func (s *subscription) addCanonicalNames(g *cache.Generation) []string {
	if s.typeURL == wire.VirtualHostType {
		return nil
	}
	named := &g.Type(s.typeURL).ByName
	s.canonicalNames = make(map[string][]*cache.Name)
	for n := range s.names {
		if e := named.Get(n); e.Present() && hasReportableVersion(e.Resource) && e.Resource.Name != wire.PlainName(n.String()) {
			s.canonicalNames[e.Resource.Name] = append(s.canonicalNames[e.Resource.Name], n)
		}
	}
	names := s.withoutWanted(slices.Sorted(maps.Keys(s.canonicalNames)))
	maps.DeleteFunc(s.canonicalNames, func(name string, _ []*cache.Name) bool { return !slices.Contains(names, name) })
	return names
}

// part returns the names of companions that are to be unsubscribed: their aliases are wanted no more, or they are about to
// be asked for themselves.
func (s *subscription) dropCanonicalNames(asked []*cache.Name) (names []string) {
	for _, n := range asked {
		if _, is := s.canonicalNames[n.String()]; is {
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

// maxVersionsBytes bounds what a request says of held versions: many servers take
// no message over 4 MiB, and the protocol has no way to split them (B.15).
const maxVersionsBytes = 3_500_000

// maxNamesBytes bounds the names beside them, so that both keep below that limit.
const maxNamesBytes = 500_000

// cutBytes splits off as many names, but at least one, as fit into max bytes.
func splitBytes(names []string, max int) (head, rest []string) {
	const perName = 6 // tag and length, generously
	size := 0
	for i, name := range names {
		if size += len(name) + perName; size > max && i > 0 {
			return names[:i], names[i:]
		}
	}
	return names, nil
}

func fitsRequest(versions map[string]string) bool {
	const perEntry = 12 // tags and lengths, generously
	size := 0
	for name, version := range versions {
		size += len(name) + len(version) + perEntry
	}
	return size > 0 && size <= maxVersionsBytes
}

// changes returns the requests that bring an open stream up to date with what is
// wanted, and the names that they ask for.
func (s *subscription) changes() (reqs []*discoverypb.DeltaDiscoveryRequest, asked []*cache.Name) {
	again := s.stillWanted(s.refetch)
	asked = append(s.stillWanted(s.added), again...)
	subscribe := nameStrings(asked)
	unsubscribe := s.withoutWanted(nameStrings(s.removed))
	s.added, s.refetch, s.removed = nil, nil, nil
	// Not every origin answers twice for a name that is subscribed to (C07).
	reqs = s.requests(nil, append(nameStrings(again), s.dropCanonicalNames(asked)...))
	return append(reqs, s.requests(subscribe, unsubscribe)...), asked
}

// changeAt returns when the changes that wait are to be sent: at once on a Delta stream, and of what the origin is asked for again.
func (s *subscription) sendAt(on *sotwState, now time.Time) time.Time {
	if on == nil || len(s.refetch) > 0 {
		return now
	}
	if s.changedSince.IsZero() {
		s.changedSince = now
	}
	return on.sendAt(s.typeURL, len(s.added)+len(s.removed), s.changedSince)
}

// requests returns those that subscribe to names, and then unsubscribe from others.
func (s *subscription) requests(subscribe, unsubscribe []string) (reqs []*discoverypb.DeltaDiscoveryRequest) {
	for len(subscribe)+len(unsubscribe) > 0 {
		r := &discoverypb.DeltaDiscoveryRequest{TypeUrl: s.typeURL}
		r.ResourceNamesSubscribe, subscribe = splitCount(subscribe)
		if len(subscribe) == 0 {
			r.ResourceNamesUnsubscribe, unsubscribe = splitCount(unsubscribe)
		}
		reqs = append(reqs, r)
	}
	return reqs
}

// wantedOf returns those of names that are wanted still.
func (s *subscription) stillWanted(names []*cache.Name) (wanted []*cache.Name) {
	for _, n := range names {
		if _, ok := s.names[n]; ok {
			wanted = append(wanted, n)
		}
	}
	return wanted
}

func splitCount(names []string) (head, rest []string) {
	n := min(len(names), namesPerRequest)
	return names[:n], names[n:]
}

func nameStrings(names []*cache.Name) []string {
	out := make([]string, len(names))
	for i, n := range names {
		out[i] = n.String()
	}
	return out
}

// subscribeWildcard is the request that opens a type for its members: with
// neither list, as Envoy sends it and most origins know it, or by "*" for types of
// which an empty request asks for nothing (R054).
func (s *subscription) subscribeWildcard() *discoverypb.DeltaDiscoveryRequest {
	r := &discoverypb.DeltaDiscoveryRequest{TypeUrl: s.typeURL}
	if !wire.LegacyWildcard(s.typeURL) {
		r.ResourceNamesSubscribe = []string{wire.Wildcard}
	}
	return r
}

// unsubscribeWildcard is the request that gives up the members.
func (s *subscription) unsubscribeWildcard() *discoverypb.DeltaDiscoveryRequest {
	return &discoverypb.DeltaDiscoveryRequest{TypeUrl: s.typeURL, ResourceNamesUnsubscribe: []string{wire.Wildcard}}
}

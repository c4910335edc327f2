package upstream

import (
	"maps"
	"slices"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// A role is which of a view's streams carries a subscription.
type role int

const (
	nowhere role = iota
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
	typeURL string
	askers  []cache.Demand // see asks

	// The members. They are wanted while a client has a wildcard, and for a while
	// after. The role is place's.
	wildcard role
	prewarm  bool
	wanted   bool      // by a client now
	until    time.Time // when lingering ends

	// The names, with those that linger. A name is in the map while the origin is, or
	// is about to be, subscribed to it. The role is place's.
	named role
	names map[*cache.Name]struct{}
	added []*cache.Name // not yet sent
	again []*cache.Name // to be asked for once more
	gone  []*cache.Name // to be unsubscribed

	// companions are names of resources that clients asked for by aliases alone, with these aliases. The origin is asked for
	// them too when it is told what is held: it can only say of a name that it is asked for that it is gone.
	companions map[string][]*cache.Name

	learn, learnNames learning // what is known of the members and of the names
	sweep             sweep    // members that a resync has not seen again

	removals [cache.ByName + 1]removals // of members and of names

	collections map[string]*collection // by glob; they travel with the names
	due         []*collection          // of these, those to be looked at now

	// foreign is what is held from another target, whose versions mean nothing to
	// the one that is connected.
	foreign [cache.ByName + 1]heldNames
}

// heldNames are names of resources.
type heldNames map[string]struct{}

func namesIn(s *cache.Set) heldNames {
	names := make(heldNames)
	for e := range s.Since(0) {
		if e.Present() {
			names[e.Resource.Name] = struct{}{}
		}
	}
	return names
}

// drop takes out what an update mentions.
func (h heldNames) drop(u wire.Update) {
	if len(h) == 0 {
		return
	}
	for _, r := range u.Resources {
		delete(h, r.Name)
	}
	for name := range u.RemovedNames() {
		delete(h, name)
	}
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
func (s *subscription) unwanted(names []string) []string {
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
func (s *subscription) place(members bool) (moved bool) {
	wildcard, named := nowhere, nowhere
	if members {
		wildcard = main
	}
	if len(s.names)+len(s.collections) > 0 {
		named = main
	}
	switch {
	case wildcard == nowhere || named == nowhere:
	case wire.LegacyWildcard(s.typeURL):
		named = auxiliary
	default:
		wildcard = auxiliary
	}
	moved = wildcard != nowhere && s.wildcard == wildcard.other() || named != nowhere && s.named == named.other()
	s.wildcard, s.named = wildcard, named
	return moved
}

// wants reports whether the stream of that role has anything to carry.
func (s *subscription) wants(r role) bool {
	return s.wildcard == r || s.named == r || s.sweepsOn(r)
}

// sweepsOn reports whether a sweep is asking for members by name on the stream of that role,
// which is the one without the wildcard.
func (s *subscription) sweepsOn(r role) bool { return s.sweep.asking() && s.wildcard.other() == r }

// restate returns the first requests of the type on a new stream: everything that
// is wanted, and in the first of them what is held (R088, R089). There is more
// than one only if the names would make it too large, none if nothing is wanted.
func (s *subscription) restate(r role, g *cache.Generation, withVersions bool) (reqs []*discoverypb.DeltaDiscoveryRequest, asked []*cache.Name) {
	req := &discoverypb.DeltaDiscoveryRequest{TypeUrl: s.typeURL}
	t := g.Type(s.typeURL)
	versions := make(map[string]string)
	var names []string
	if s.wildcard == r {
		req = s.subscribeWildcard()
		reqs = append(reqs, req)
		withVersions = withVersions && len(s.foreign[cache.Wildcard]) == 0
		for e := range t.Wildcard.Since(0) {
			if e.Present() && sayable(e.Resource) {
				versions[e.Resource.Name] = heldVersion(e.Resource)
			}
		}
	}
	if s.named == r {
		names, asked = s.restateNames(g, versions, withVersions)
	}
	if s.sweepsOn(r) {
		names = append(names, s.sweep.asked...)
	}
	if withVersions && fits(versions) {
		req.InitialResourceVersions = versions
	}
	for len(names) > 0 {
		req.ResourceNamesSubscribe, names = cutBytes(names, maxNamesBytes)
		reqs = append(reqs, req)
		req = &discoverypb.DeltaDiscoveryRequest{TypeUrl: s.typeURL}
	}
	return reqs, asked
}

// heldVersion returns the version at which the origin is told that a resource is held.
// Of one whose content was given up it is told none: it says what it is once more, or
// that it is gone (R125).
func heldVersion(r *wire.Resource) string {
	if r.ContentDropped() {
		return ""
	}
	return r.OriginVersion
}

// sayable reports whether the version of a resource can say what is held: not of which
// variant it is, nor where there was none and the content is needed again.
func sayable(r *wire.Resource) bool {
	return r.Constraints == nil && r.HasBody() && (!r.ContentDropped() || r.OriginVersion != "")
}

// restateNames returns all names and globs that are wanted, and adds to versions what is
// held of them. WithVersions says whether the origin is told these, if they fit.
func (s *subscription) restateNames(g *cache.Generation, versions map[string]string, withVersions bool) (names []string, asked []*cache.Name) {
	named := &g.Type(s.typeURL).ByName
	for n := range s.names {
		asked = append(asked, n)
		names = append(names, n.String())
		e := named.Get(n)
		if !e.Present() || !sayable(e.Resource) || wire.PlainName(n.String()) != n.String() {
			continue
		}
		if _, foreign := s.foreign[cache.ByName][e.Resource.Name]; !foreign {
			versions[e.Resource.Name] = heldVersion(e.Resource)
		}
	}
	for glob, c := range s.collections {
		names = append(names, glob)
		c.restate(g, versions)
	}
	s.added, s.again, s.gone, s.companions = nil, nil, nil, nil
	if withVersions && fits(versions) {
		names = append(names, s.accompany(g)...)
	}
	return names, asked
}

// accompany begins to ask for the names of resources that are held by aliases alone, and returns them. It is for a new stream.
// A server of VHDS may take the name of a virtual host for a domain, and says itself of an alias that it means nothing.
func (s *subscription) accompany(g *cache.Generation) []string {
	if s.typeURL == wire.VirtualHostType {
		return nil
	}
	named := &g.Type(s.typeURL).ByName
	for n := range s.names {
		if e := named.Get(n); e.Present() && sayable(e.Resource) && e.Resource.Name != wire.PlainName(n.String()) {
			put(&s.companions, e.Resource.Name, append(s.companions[e.Resource.Name], n))
		}
	}
	names := s.unwanted(slices.Sorted(maps.Keys(s.companions)))
	maps.DeleteFunc(s.companions, func(name string, _ []*cache.Name) bool { return !slices.Contains(names, name) })
	return names
}

// part returns the names of companions that are to be unsubscribed: their aliases are wanted no more, or they are about to
// be asked for themselves.
func (s *subscription) part(asked []*cache.Name) (names []string) {
	for _, n := range asked {
		if _, is := s.companions[n.String()]; is {
			names = append(names, n.String())
		}
	}
	for name, aliases := range s.companions {
		if len(s.wantedOf(aliases)) == 0 && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for _, name := range names {
		delete(s.companions, name)
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
func cutBytes(names []string, max int) (head, rest []string) {
	const perName = 6 // tag and length, generously
	size := 0
	for i, name := range names {
		if size += len(name) + perName; size > max && i > 0 {
			return names[:i], names[i:]
		}
	}
	return names, nil
}

func fits(versions map[string]string) bool {
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
	again := s.wantedOf(s.again)
	asked = append(s.wantedOf(s.added), again...)
	subscribe := texts(asked)
	unsubscribe := s.unwanted(texts(s.gone))
	s.added, s.again, s.gone = nil, nil, nil
	// Not every origin answers twice for a name that is subscribed to (C07).
	reqs = s.requests(nil, append(texts(again), s.part(asked)...))
	return append(reqs, s.requests(subscribe, unsubscribe)...), asked
}

// requests returns those that subscribe to names, and then unsubscribe from others.
func (s *subscription) requests(subscribe, unsubscribe []string) (reqs []*discoverypb.DeltaDiscoveryRequest) {
	for len(subscribe)+len(unsubscribe) > 0 {
		r := &discoverypb.DeltaDiscoveryRequest{TypeUrl: s.typeURL}
		r.ResourceNamesSubscribe, subscribe = cut(subscribe)
		if len(subscribe) == 0 {
			r.ResourceNamesUnsubscribe, unsubscribe = cut(unsubscribe)
		}
		reqs = append(reqs, r)
	}
	return reqs
}

// wantedOf returns those of names that are wanted still.
func (s *subscription) wantedOf(names []*cache.Name) (wanted []*cache.Name) {
	for _, n := range names {
		if _, ok := s.names[n]; ok {
			wanted = append(wanted, n)
		}
	}
	return wanted
}

func cut(names []string) (head, rest []string) {
	n := min(len(names), namesPerRequest)
	return names[:n], names[n:]
}

func texts(names []*cache.Name) []string {
	out := make([]string, len(names))
	for i, n := range names {
		out[i] = n.String()
	}
	return out
}

// How long a set has to be quiet to be taken for complete: Delta has no end mark
// (B.7).
const (
	settleQuiet = 150 * time.Millisecond
	settleMax   = 2 * time.Second
	confirmMax  = 60 * time.Second // or Config.ColdWait without a new name

	// confirmSilence is how long an origin has to be silent that was told what a
	// snapshot holds: it says nothing if that is what there is. It is longer than a relay
	// that knows nothing itself keeps a stream (B.8).
	confirmSilence = 15 * time.Second
)

// learning is how much is known of the members of a type: the timing of the
// responses since they were asked for.
type learning struct {
	first   time.Time // response since the members were asked for; zero if none came
	last    time.Time // response
	newName time.Time // response with a name that was not known
	told    time.Time // when the origin was told which members a snapshot holds; zero if it was not

	// complete: a SotW origin has sent the set as a whole. An empty one does not
	// count, it may be that of an origin that has just started.
	complete bool
}

// confirmed returns when all of a set was said, if nothing comes until then: at the latest a minute after some time, such as
// when its stream opened.
// Quiet is for how long no new name must come.
func (l *learning) confirmed(began time.Time, quiet time.Duration) time.Time {
	switch {
	case l.complete:
		return l.first
	case l.first.IsZero():
		return began.Add(confirmMax)
	}
	return earlier(l.newName.Add(quiet), began.Add(confirmMax))
}

// heard records a response. Once no new name has come for as long as quiet, all of the set was said: a name that is new later changes
// nothing about that.
func (l *learning) heard(now time.Time, news bool, quiet time.Duration) {
	if l.first.IsZero() {
		l.first, l.newName = now, now
	}
	l.last = now
	if news && now.Before(l.newName.Add(quiet)) {
		l.newName = now
	}
}

// settled returns when the first answers seem to be all, if nothing comes until then.
func (l *learning) settled() time.Time {
	return earlier(l.last.Add(settleQuiet), l.first.Add(settleMax))
}

// isSettled reports whether the first answers, of which there are some, seem to be all.
func (l *learning) isSettled(now time.Time) bool {
	return !l.first.IsZero() && !now.Before(l.settled())
}

// phase returns what is known now, given what was known before, and when that
// will change if nothing comes.
func (l *learning) phase(now time.Time, known cache.Phase, quiet time.Duration) (p cache.Phase, next time.Time) {
	if known == cache.Confirmed || l.first.IsZero() && l.told.IsZero() {
		return known, time.Time{}
	}
	if l.first.IsZero() {
		if silent := l.told.Add(confirmSilence); now.Before(silent) {
			return known, silent
		}
		return cache.Confirmed, time.Time{}
	}
	settled := l.settled()
	confirmed := l.confirmed(l.first, quiet)
	switch {
	case !now.Before(confirmed):
		return cache.Confirmed, time.Time{}
	case !now.Before(settled):
		return cache.Settled, confirmed
	default:
		return known, settled
	}
}

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
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

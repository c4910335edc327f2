package upstream

import (
	"maps"
	"slices"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// A mirror thinks in Delta. This file makes it a client of an origin that speaks
// SotW: a request that changes a subscription becomes one that states all of it,
// and what a response leaves out becomes what a Delta origin would have removed.

// lists are the subscriptions of one SotW stream. They do no I/O.
type lists struct {
	types map[string]*list
	due   []*list // to be stated, in this order
}

func newLists() *lists { return &lists{types: make(map[string]*list)} }

// A list is what a SotW stream asks for of one type, and where the conversation
// about it stands.
type list struct {
	typeURL  string
	wildcard bool
	names    map[string]struct{}
	stated   []string // names in order; nil if they changed since

	due     bool
	opened  bool             // the first request has left
	leaving bool             // the wildcard is being given up
	version string           // of the last response that was accepted
	nonce   string           // of the last response
	refusal *statuspb.Status // of that response, until it is sent

	// What the absence of a name from a response may say.
	answered bool                    // a response listed something
	first    map[string]struct{}     // names and globs of the first request: every response takes them into account
	had      map[string]wire.Variant // what the last response listed, by its key
	varied   bool                    // some of it were variants
}

// change applies a request.
func (l *lists) change(r *discoverypb.DeltaDiscoveryRequest) {
	subscribe, unsubscribe := r.GetResourceNamesSubscribe(), r.GetResourceNamesUnsubscribe()
	t := l.types[r.GetTypeUrl()]
	if t == nil {
		t = &list{typeURL: r.GetTypeUrl(), names: make(map[string]struct{}), first: make(map[string]struct{})}
		t.wildcard = len(subscribe)+len(unsubscribe) == 0
		l.types[t.typeURL] = t
	}
	if slices.Contains(subscribe, wire.Wildcard) {
		t.wildcard = true
	}
	for _, name := range subscribe {
		t.add(name)
	}
	for _, name := range unsubscribe {
		t.drop(name)
	}
	l.state(t)
}

// answer acknowledges a response, or refuses it. A type that was never asked for
// is not answered: a list without names would ask for all of it.
func (l *lists) answer(u wire.Update, refusal *statuspb.Status) {
	t := l.types[u.TypeURL]
	if t == nil {
		return
	}
	t.nonce, t.refusal = u.Nonce, refusal
	if refusal == nil {
		t.version = u.SystemVersion
	}
	l.state(t)
}

func (l *lists) state(t *list) {
	if !t.due {
		t.due = true
		l.due = append(l.due, t)
	}
}

// requests returns the requests that state what changed, or was answered, since
// the last call.
func (l *lists) requests() (reqs []*discoverypb.DiscoveryRequest) {
	for _, t := range l.due {
		t.due = false
		switch {
		case !t.opened && !t.wildcard && len(t.names) == 0: // came and went
			delete(l.types, t.typeURL)
			continue
		case t.leaving && t.opened && wire.LegacyWildcard(t.typeURL):
			// An empty list would still mean all. It ceases to once a name was given.
			reqs = append(reqs, t.request([]string{wire.Wildcard}))
		case t.leaving && t.opened && t.wildcard:
			// Given up to be asked for again: without a list between, that is no change. It
			// lacks what is there, which says nothing: such a type is not of full state.
			reqs = append(reqs, t.request(nil))
		}
		r := t.request(t.list())
		r.ErrorDetail = t.refusal
		reqs = append(reqs, r)
		t.opened, t.leaving, t.refusal = true, false, nil
	}
	l.due = nil
	return reqs
}

// add subscribes to a name. Only of the first request is it certain that a
// response takes it into account: those that come after a later one may have been
// under way.
func (t *list) add(name string) {
	if _, have := t.names[name]; have || name == wire.Wildcard {
		return
	}
	t.names[name], t.stated = struct{}{}, nil
	t.forget(wire.PlainName(name))
	if !t.opened {
		t.first[name] = struct{}{}
	}
}

func (t *list) drop(name string) {
	if name == wire.Wildcard {
		t.leaving, t.wildcard = t.wildcard, false
		return
	}
	delete(t.names, name)
	delete(t.first, name)
	t.stated = nil
}

// list returns the names of a request, which nobody may change any more.
func (t *list) list() []string {
	if t.wildcard && !wire.LegacyWildcard(t.typeURL) {
		return []string{wire.Wildcard}
	}
	if t.stated == nil {
		t.stated = slices.Sorted(maps.Keys(t.names))
	}
	return t.stated
}

func (t *list) request(names []string) *discoverypb.DiscoveryRequest {
	r := &discoverypb.DiscoveryRequest{
		TypeUrl:       t.typeURL,
		ResourceNames: names,
		VersionInfo:   t.version,
		ResponseNonce: t.nonce,
	}
	locate(&r.ResourceNames, &r.ResourceLocators)
	return r
}

// withOmissions adds to a response of a SotW origin what it says by leaving out,
// for types of which it holds all that was asked for (R058, R059, R065).
//
// What the origin had listed on the stream and lists no more, it has removed. What
// its first list leaves out may be gone, or the origin has just started: that is inferred
// (B.15, C15). An empty list is no first one, and proves nothing: of names that are not there it says
// nothing. Nor does any list of names that were asked for later than the type, until they were listed.
func (v *answers) withOmissions(s *subscription, r role, u wire.Update, now time.Time) wire.Update {
	sotw := v.lines[r].sotw
	if sotw == nil || !wire.FullState(u.TypeURL) || r != s.wildcard && r != s.named || hasHeartbeat(u) {
		return u
	}
	t, said := sotw.types[u.TypeURL], saidBy(u)
	if t == nil {
		return u // not asked for yet
	}
	u.Complete = true
	u.Removed, u.RemovedVariants = t.omitted(u, said)
	set := s.byName
	if r == s.wildcard {
		set = s.members
		set.Known()
	}
	var missing map[string]struct{}
	if first := !t.answered; first {
		t.answered = len(said) > 0
		var removed []string
		missing, removed = set.neverListed(t, said)
		u.Removed = append(u.Removed, removed...)
		if set == s.byName {
			v.vanished(s, t, said, now)
		}
	}
	set.Listed(missing, len(said) == 0)
	slices.Sort(u.Removed)
	return u
}

// vanished infers which members of collections are gone that the first list of a stream leaves out.
func (v *answers) vanished(s *subscription, t *list, said map[string]struct{}, now time.Time) {
	for glob, c := range s.collections {
		if _, known := t.first[glob]; !known {
			continue
		}
		missing, _ := c.neverListed(t, said)
		if c.Listed(missing, len(said) == 0); len(said) > 0 {
			c.Known()
		}
		v.agenda.put(c, now)
	}
}

// hasHeartbeat reports whether a response is about lifetimes: such a one does not
// list what there is (R106).
func hasHeartbeat(u wire.Update) bool {
	return slices.ContainsFunc(u.Resources, func(r *wire.Resource) bool { return !r.HasBody() && len(r.Aliases) == 0 })
}

// saidBy returns all names and aliases in a response.
func saidBy(u wire.Update) map[string]struct{} {
	said := make(map[string]struct{}, len(u.Resources))
	for _, r := range u.Resources {
		said[r.Name] = struct{}{}
		for _, alias := range r.Aliases {
			said[alias] = struct{}{}
		}
	}
	return said
}

// forget has the absence of a name, or of any variant of it, say nothing.
func (t *list) forget(name string) {
	delete(t.had, name)
	if t.varied {
		maps.DeleteFunc(t.had, func(_ string, v wire.Variant) bool { return v.Name == name })
	}
}

// omitted returns what the last response listed and this one does not.
func (t *list) omitted(u wire.Update, said map[string]struct{}) (names []string, variants []wire.Variant) {
	had := t.had
	t.had = make(map[string]wire.Variant, len(u.Resources))
	for _, r := range u.Resources {
		t.had[r.Key()] = r.Variant()
		t.varied = t.varied || r.Constraints != nil
	}
	for key, v := range had {
		_, listed := t.had[key]
		switch _, there := said[v.Name]; {
		case v.Constraints != nil && !listed:
			variants = append(variants, v)
		case v.Constraints == nil && !there:
			names = append(names, v.Name)
		}
	}
	return names, variants
}

// neverListed returns what the first list of a stream leaves out of what a set holds, and of what was asked for and is not
// there, to remove which deletes nothing.
func (s *set) neverListed(t *list, said map[string]struct{}) (missing map[string]struct{}, removed []string) {
	missing = make(map[string]struct{})
	if s.kind == cache.Wildcard {
		for e := range s.entries {
			if _, there := said[e.Resource.Name]; !there {
				missing[e.Resource.Name] = struct{}{}
			}
		}
		return missing, nil
	}
	for n := range s.sub.names {
		_, known := t.first[n.String()]
		_, there := said[wire.PlainName(n.String())]
		switch {
		case there || !known || wire.Glob(n.String()): // a glob is answered under the names of its members
		case s.in(s.view.w.Generation()).Get(n).Present():
			missing[n.String()] = struct{}{}
		case len(said) > 0:
			removed = append(removed, n.String())
		}
	}
	return missing, removed
}

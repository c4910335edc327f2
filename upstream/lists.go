package upstream

import (
	"maps"
	"slices"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"

	"github.com/xdstender/tender/cache/wire"
)

// The package thinks in Delta. This file and answers.go make it a client of an origin that speaks SotW: a
// request that changes a subscription becomes one that states all of it, and what a response leaves out becomes
// what a Delta origin would have removed.

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
	grew    bool             // names were added that were not stated yet
	askedAt time.Time        // when names were last added; zero once a response has come
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
	t.nonce, t.refusal, t.askedAt = u.Nonce, refusal, time.Time{}
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

// Every change of a list states all of it, and so does every ACK. So changes wait for a response that is outstanding, and the more names
// there are, for each other: all that states the names of a herd is then a small multiple of their number (B.5).
const (
	answerWait  = time.Second // at most, for a response: an origin need not answer for what it does not have
	waitForName = 25 * time.Microsecond
	longestWait = time.Second
)

// changeAt returns when a change of so many names, which has been waiting since a time, is to be stated.
func (l *lists) changeAt(typeURL string, names int, since time.Time) time.Time {
	t := l.types[typeURL]
	if t == nil || !t.opened {
		return since
	}
	at := since
	if names < len(t.names) {
		at = since.Add(min(time.Duration(len(t.names))*waitForName, longestWait))
	}
	if answered := t.askedAt.Add(answerWait); !t.askedAt.IsZero() && answered.After(at) {
		at = answered
	}
	return at
}

// requests returns the requests that state what changed, or was answered, since
// the last call.
func (l *lists) requests(now time.Time) (reqs []*discoverypb.DiscoveryRequest) {
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
		if t.grew {
			t.grew, t.askedAt = false, now
		}
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
	t.names[name], t.stated, t.grew = struct{}{}, nil, true
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

// locate moves the names that have dynamic parameters to where these can be said
// (R120).
func locate(names *[]string, locators *[]*discoverypb.ResourceLocator) {
	plain := func(text string) bool { return wire.PlainName(text) == text }
	if !slices.ContainsFunc(*names, func(text string) bool { return !plain(text) }) {
		return
	}
	for _, text := range *names {
		if !plain(text) {
			name, parameters := wire.SplitParameters(text)
			*locators = append(*locators, &discoverypb.ResourceLocator{Name: name, DynamicParameters: parameters})
		}
	}
	*names = slices.DeleteFunc(slices.Clone(*names), func(text string) bool { return !plain(text) })
}

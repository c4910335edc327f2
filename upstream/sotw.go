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
type sotwState struct {
	types map[string]*sotwSubscription
	due   []*sotwSubscription // to be stated, in this order
}

func newSotwState() *sotwState { return &sotwState{types: make(map[string]*sotwSubscription)} }

// A list is what a SotW stream asks for of one type, and where the conversation
// about it stands.
type sotwSubscription struct {
	typeURL     string
	wildcard    bool
	names       map[string]struct{}
	sortedNames []string // names in order; nil if they changed since

	due              bool
	opened           bool             // the first request has left
	hasNewNames      bool             // names were added that were not stated yet
	askedAt          time.Time        // when names were last added; zero once a response has come
	removingWildcard bool             // the wildcard is being given up
	version          string           // of the last response that was accepted
	nonce            string           // of the last response
	nackDetail       *statuspb.Status // of that response, until it is sent

	// What the absence of a name from a response may say.
	listedAny   bool                    // a response listed something
	firstNames  map[string]struct{}     // names and globs of the first request: every response takes them into account
	lastListed  map[string]wire.Variant // what the last response listed, by its key
	hasVariants bool                    // some of it were variants
}

// change applies a request.
func (l *sotwState) change(r *discoverypb.DeltaDiscoveryRequest) {
	subscribe, unsubscribe := r.GetResourceNamesSubscribe(), r.GetResourceNamesUnsubscribe()
	t := l.types[r.GetTypeUrl()]
	if t == nil {
		t = &sotwSubscription{typeURL: r.GetTypeUrl(), names: make(map[string]struct{}), firstNames: make(map[string]struct{})}
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
		t.remove(name)
	}
	l.markDue(t)
}

// answer acknowledges a response, or refuses it. A type that was never asked for
// is not answered: a list without names would ask for all of it.
func (l *sotwState) ackOrNack(u wire.Update, refusal *statuspb.Status) {
	t := l.types[u.TypeURL]
	if t == nil {
		return
	}
	t.nonce, t.nackDetail, t.askedAt = u.Nonce, refusal, time.Time{}
	if refusal == nil {
		t.version = u.SystemVersion
	}
	l.markDue(t)
}

func (l *sotwState) markDue(t *sotwSubscription) {
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
func (l *sotwState) sendAt(typeURL string, names int, since time.Time) time.Time {
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
func (l *sotwState) requests(now time.Time) (reqs []*discoverypb.DiscoveryRequest) {
	for _, t := range l.due {
		t.due = false
		switch {
		case !t.opened && !t.wildcard && len(t.names) == 0: // came and went
			delete(l.types, t.typeURL)
			continue
		case t.removingWildcard && t.opened && wire.LegacyWildcard(t.typeURL):
			// An empty list would still mean all. It ceases to once a name was given.
			reqs = append(reqs, t.request([]string{wire.Wildcard}))
		case t.removingWildcard && t.opened && t.wildcard:
			// Given up to be asked for again: without a list between, that is no change. It
			// lacks what is there, which says nothing: such a type is not of full state.
			reqs = append(reqs, t.request(nil))
		}
		r := t.request(t.requestNames())
		r.ErrorDetail = t.nackDetail
		reqs = append(reqs, r)
		t.opened, t.removingWildcard, t.nackDetail = true, false, nil
		if t.hasNewNames {
			t.hasNewNames, t.askedAt = false, now
		}
	}
	l.due = nil
	return reqs
}

// add subscribes to a name. Only of the first request is it certain that a
// response takes it into account: those that come after a later one may have been
// under way.
func (t *sotwSubscription) add(name string) {
	if _, have := t.names[name]; have || name == wire.Wildcard {
		return
	}
	t.names[name], t.sortedNames, t.hasNewNames = struct{}{}, nil, true
	t.forgetListed(wire.PlainName(name))
	if !t.opened {
		t.firstNames[name] = struct{}{}
	}
}

func (t *sotwSubscription) remove(name string) {
	if name == wire.Wildcard {
		t.removingWildcard, t.wildcard = t.wildcard, false
		return
	}
	delete(t.names, name)
	delete(t.firstNames, name)
	t.sortedNames = nil
}

// list returns the names of a request, which nobody may change any more.
func (t *sotwSubscription) requestNames() []string {
	if t.wildcard && !wire.LegacyWildcard(t.typeURL) {
		return []string{wire.Wildcard}
	}
	if t.sortedNames == nil {
		t.sortedNames = slices.Sorted(maps.Keys(t.names))
	}
	return t.sortedNames
}

func (t *sotwSubscription) request(names []string) *discoverypb.DiscoveryRequest {
	r := &discoverypb.DiscoveryRequest{
		TypeUrl:       t.typeURL,
		ResourceNames: names,
		VersionInfo:   t.version,
		ResponseNonce: t.nonce,
	}
	moveToLocators(&r.ResourceNames, &r.ResourceLocators)
	return r
}

// forget has the absence of a name, or of any variant of it, say nothing.
func (t *sotwSubscription) forgetListed(name string) {
	delete(t.lastListed, name)
	if t.hasVariants {
		maps.DeleteFunc(t.lastListed, func(_ string, v wire.Variant) bool { return v.Name == name })
	}
}

// omitted returns what the last response listed and this one does not.
func (t *sotwSubscription) omitted(u wire.Update, said map[string]struct{}) (names []string, variants []wire.Variant) {
	had := t.lastListed
	t.lastListed = make(map[string]wire.Variant, len(u.Resources))
	for _, r := range u.Resources {
		t.lastListed[r.Key()] = r.Variant()
		t.hasVariants = t.hasVariants || r.Constraints != nil
	}
	for key, v := range had {
		_, listed := t.lastListed[key]
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
func moveToLocators(names *[]string, locators *[]*discoverypb.ResourceLocator) {
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

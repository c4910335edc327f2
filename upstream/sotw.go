package upstream

import (
	"fmt"
	"maps"
	"slices"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache/wire"
)

// This file and responses.go translate between Delta, which the package uses, and an origin that implements only SotW.
// A request that changes a subscription becomes a request that lists all names. A resource that a response omits
// becomes a removal.

// sotwState contains the subscriptions of one SotW stream. It does no I/O and belongs to the loop of the view sync.
type sotwState struct {
	types map[string]*sotwSubscription // by type URL
	due   []*sotwSubscription          // types with an unsent request, in this order

	refusing int                 // types with refused names
	changed  []*sotwSubscription // types whose refused names have changed since the last call of noteRefused
}

// newSotwState returns the state of a stream without requests.
func newSotwState() *sotwState { return &sotwState{types: make(map[string]*sotwSubscription)} }

// A sotwSubscription is the subscription of a SotW stream to one type, and the state of its requests and responses.
type sotwSubscription struct {
	typeURL     string
	wildcard    bool
	names       map[string]struct{} // without "*"
	bytes       int                 // encoded size of names
	refused     map[string]struct{} // names that would exceed maxListBytes; nil without any
	accepted    []string            // names that were refused before, and are in names since the last request
	refusal     *Isolation          // describes refused; nil without any
	sortedNames []string            // cache for requestNames; nil if the names have changed

	due              bool             // in sotwState.due: an ACK, a NACK or a change is unsent
	opened           bool             // the first request was sent
	hasNewNames      bool             // names were added since the last request
	askedAt          time.Time        // when a request last added names; zero once a response has arrived
	removingWildcard bool             // the next request must end the wildcard
	version          string           // of the last accepted response
	nonce            string           // of the last response
	nackDetail       *statuspb.Status // of the unsent NACK of the last response; nil for an ACK

	// These fields decide whether a name that a response omits was removed.
	listedAny   bool                    // a response contained a resource
	firstNames  map[string]struct{}     // names and globs of the first request, which every response takes into account
	lastListed  map[string]wire.Variant // resources of the last response by key
	hasVariants bool                    // lastListed contains variants
}

// change applies the names of a Delta request to the subscription of its type.
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

// ackOrNack queues an ACK for a response, or a NACK if detail is not nil. For a type without a subscription it does
// nothing: a request without names would subscribe to all resources.
func (l *sotwState) ackOrNack(u wire.Update, detail *statuspb.Status) {
	t := l.types[u.TypeURL]
	if t == nil {
		return
	}
	t.nonce, t.nackDetail, t.askedAt = u.Nonce, detail, time.Time{}
	if detail == nil {
		t.version = u.SystemVersion
	}
	l.markDue(t)
}

// markDue makes requests return a request for the type.
func (l *sotwState) markDue(t *sotwSubscription) {
	if !t.due {
		t.due = true
		l.due = append(l.due, t)
	}
}

// Every request and every ACK lists all names. So a change waits for an outstanding response, whose ACK then includes
// it. The wait for further changes grows with the number of names. So the total size of the requests stays a small
// multiple of the number of names when many names are added (B.5).
const (
	answerWait  = time.Second           // maximum wait for a response: an origin need not respond to unknown names
	waitForName = 25 * time.Microsecond // wait per subscribed name
	longestWait = time.Second           // maximum wait because of the number of names
)

// sendAt returns when to send a change of a number of names that has been waiting since a time.
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

// maxListBytes limits the size of the names in a SotW request, so that the request stays under 4 MiB with a node of 256
// KiB, a version and a nonce. Many servers end a stream with a larger request. SotW cannot split the list of a type.
const maxListBytes = 3_500_000

// errListTooLong is the error of names that a SotW request cannot contain.
var errListTooLong = fmt.Errorf("not requested: a SotW request lists all names of its type, in at most %d bytes", maxListBytes)

// admit adds refused names as far as they fit.
func (t *sotwSubscription) admit() {
	for name := range t.refused {
		if t.bytes+encodedSize(name) <= maxListBytes {
			delete(t.refused, name)
			t.add(name)
			t.accepted = append(t.accepted, name)
		}
	}
}

// describeRefused updates the refusal of a type before a request.
func (l *sotwState) describeRefused(t *sotwSubscription, now time.Time) {
	before := t.refusal
	if before == nil && len(t.refused) == 0 {
		return
	}
	l.changed = append(l.changed, t)
	if len(t.refused) == 0 {
		t.refusal, l.refusing = nil, l.refusing-1
		return
	}
	names := slices.Sorted(maps.Keys(t.refused))
	t.refusal = &Isolation{
		TypeURL: t.typeURL, Names: names[:min(len(names), namesListed)], Count: len(names), Since: now, Err: errListTooLong,
	}
	if before == nil {
		l.refusing++
	} else {
		t.refusal.Since = before.Since
	}
}

// requests returns the requests for changes, ACKs and NACKs since the last call.
func (l *sotwState) requests(now time.Time) (reqs []*discoverypb.DiscoveryRequest) {
	for _, t := range l.due {
		t.due = false
		switch {
		case !t.opened && !t.wildcard && len(t.names) == 0: // added and removed before the first request
			delete(l.types, t.typeURL)
			continue
		case t.removingWildcard && t.opened && wire.LegacyWildcard(t.typeURL):
			// In the legacy form, an empty list subscribes to the wildcard, unless an earlier request listed a name.
			reqs = append(reqs, t.request([]string{wire.Wildcard}))
		case t.removingWildcard && t.opened && t.wildcard:
			// The wildcard was removed and added again. Without a request between, the origin would see no change. The
			// responses to it omit resources, but do not remove them: such a type is not a full-state type.
			reqs = append(reqs, t.request(nil))
		}
		t.admit()
		l.describeRefused(t, now)
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

// add subscribes to a name. Only names of the first request are added to firstNames. A response may have been in flight
// when a later request was sent, so that it does not consider the names of that request.
func (t *sotwSubscription) add(name string) {
	if _, have := t.names[name]; have || name == wire.Wildcard {
		return
	}
	size := encodedSize(name)
	if t.bytes+size > maxListBytes {
		addName(&t.refused, name)
		return
	}
	t.bytes += size
	t.names[name], t.sortedNames, t.hasNewNames = struct{}{}, nil, true
	t.forgetListed(wire.PlainName(name))
	if !t.opened {
		t.firstNames[name] = struct{}{}
	}
}

// remove unsubscribes from a name, or from the wildcard if name is "*".
func (t *sotwSubscription) remove(name string) {
	if name == wire.Wildcard {
		t.removingWildcard, t.wildcard = t.wildcard, false
		return
	}
	delete(t.refused, name)
	if _, have := t.names[name]; have {
		delete(t.names, name)
		t.bytes -= encodedSize(name)
	}
	delete(t.firstNames, name)
	t.sortedNames = nil
}

// addName adds a name to a set, which it creates if needed.
func addName(set *map[string]struct{}, name string) {
	if *set == nil {
		*set = make(map[string]struct{})
	}
	(*set)[name] = struct{}{}
}

// encodedSize returns an upper bound of the size of a name in a request.
func encodedSize(name string) int {
	const perField = 6 // tag and length
	if wire.PlainName(name) == name {
		return len(name) + perField
	}
	plain, parameters := wire.SplitParameters(name)
	r := &discoverypb.ResourceLocator{Name: plain, DynamicParameters: parameters}
	return proto.Size(r) + perField
}

// requestNames returns the names for a request. The caller must not modify the slice.
func (t *sotwSubscription) requestNames() []string {
	if t.wildcard && !wire.LegacyWildcard(t.typeURL) {
		return []string{wire.Wildcard}
	}
	if t.sortedNames == nil {
		t.sortedNames = slices.Sorted(maps.Keys(t.names))
	}
	return t.sortedNames
}

// request returns a request for names, with the version and the nonce of the last response.
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

// forgetListed makes omitted ignore the absence of a name and its variants from the next response.
func (t *sotwSubscription) forgetListed(name string) {
	delete(t.lastListed, name)
	if t.hasVariants {
		maps.DeleteFunc(t.lastListed, func(_ string, v wire.Variant) bool { return v.Name == name })
	}
}

// omitted returns the names and variants that the previous response listed and u does not. It then makes u the previous
// response. mentioned is namesIn(u).
func (t *sotwSubscription) omitted(
	u wire.Update, mentioned map[string]struct{},
) (names []string, variants []wire.Variant) {
	last := t.lastListed
	t.lastListed = make(map[string]wire.Variant, len(u.Resources))
	for _, r := range u.Resources {
		t.lastListed[r.Key()] = r.Variant()
		t.hasVariants = t.hasVariants || r.Constraints != nil
	}
	for key, v := range last {
		_, listed := t.lastListed[key]
		switch _, present := mentioned[v.Name]; {
		case v.Constraints != nil && !listed:
			variants = append(variants, v)
		case v.Constraints == nil && !present:
			names = append(names, v.Name)
		}
	}
	return names, variants
}

// moveToLocators moves the names with dynamic parameters from names to locators: only locators have a field for the
// parameters (R120). It replaces the slice of names instead of modifying it.
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

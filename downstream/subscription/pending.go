package subscription

import (
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// pendingErrors are the resource errors that are due to the client (R123, R124).
type pendingErrors struct {
	scannedUpTo   cache.Seq     // position up to which the error logs were read
	wildcardAsked bool          // the client has subscribed to the wildcard since, so earlier errors concern it
	muted         bool          // the relay's own errors are not sent: the stream may end without a response (B.8)
	due           []*cache.Name // names with an error of the origin

	relayErrors  []*wire.ResourceError // the relay's own errors
	misnamedSent map[string]struct{}   // invalid names that the client was sent an error for

	// Names whose origin is unreachable.
	unreachableSent map[*cache.Name]struct{} // names that the client was sent an error for
	originsChecked  uint64                   // [cache.Generation.OriginChanges] when all names were checked
	recheckAt       time.Time                // when to check again; zero if not needed
}

// behind reports whether errors may be due.
func (f *pendingErrors) behind(t *cache.Type) bool {
	return t.Failed() > f.scannedUpTo || f.wildcardAsked && t.Failed() > 0 || f.any()
}

// any reports whether any error is due.
func (f *pendingErrors) any() bool { return len(f.due)+len(f.relayErrors) > 0 }

// nameRequested records that the client subscribed to a name, perhaps again. Its error is due.
func (f *pendingErrors) nameRequested(t *cache.Type, n *cache.Name) {
	f.originsChecked = 0
	delete(f.unreachableSent, n)
	if t.Failed() > 0 {
		f.due = append(f.due, n)
	}
}

// collect adds new errors to due, and drops names without an error according to errorOf.
func (f *pendingErrors) collect(t *cache.Type, errorOf func(*cache.Name) *cache.Entry) {
	from := [...]cache.Seq{cache.Wildcard: f.scannedUpTo, cache.ByName: f.scannedUpTo}
	if f.wildcardAsked {
		from[cache.Wildcard] = 0
	}
	for kind, p := range from {
		for e := range t.Errors(cache.Kind(kind)).Since(p) {
			f.due = append(f.due, e.Name)
		}
	}
	f.scannedUpTo, f.wildcardAsked = max(f.scannedUpTo, t.Failed()), false
	if len(f.due) == 0 {
		return
	}
	slices.SortFunc(f.due, (*cache.Name).Compare)
	f.due = slices.DeleteFunc(slices.Compact(f.due), func(n *cache.Name) bool { return errorOf(n) == nil })
}

// add queues an error of the relay.
func (f *pendingErrors) add(name string, code codes.Code, message string) {
	f.relayErrors = append(f.relayErrors, wire.NewResourceError(name, code, message))
}

// addMisnamed queues an error for an invalid name, once.
func (f *pendingErrors) addMisnamed(b wire.BadName) {
	if _, sent := f.misnamedSent[b.Name]; sent {
		return
	}
	if f.misnamedSent == nil {
		f.misnamedSent = make(map[string]struct{})
	}
	f.misnamedSent[strings.Clone(b.Name)] = struct{}{} // it may be a part of a larger string
	f.add(b.Name, codes.Unavailable, b.Err.Error())
}

// addUnreachable queues an error for a name whose origin is unreachable.
func (f *pendingErrors) addUnreachable(n *cache.Name) {
	if f.unreachableSent == nil {
		f.unreachableSent = make(map[*cache.Name]struct{})
	}
	f.unreachableSent[n] = struct{}{}
	f.add(n.String(), codes.Unavailable, "control plane unreachable")
}

// take moves the relay's errors to a body until that is full.
func (f *pendingErrors) take(body func() *wire.Body, full func() bool) {
	for !f.muted && len(f.relayErrors) > 0 && !full() {
		body().Error(f.relayErrors[0])
		f.relayErrors = f.relayErrors[1:]
	}
}

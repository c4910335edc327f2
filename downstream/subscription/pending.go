package subscription

import (
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// pendingErrors are the errors of resources that the client is to be sent (R123, R124).
type pendingErrors struct {
	scannedUpTo   cache.Seq     // position up to which the logs of errors were read
	wildcardAsked bool          // the client asked for the wildcard set since, so earlier errors concern it
	muted         bool          // errors of the relay are not sent: the stream is to end without a response (B.8)
	due           []*cache.Name // with an error of the origin

	relayErrors  []*wire.ResourceError // of the relay itself
	misnamedSent map[string]struct{}   // invalid names that the client was sent an error for

	// Names that cannot be asked for.
	unreachableSent map[*cache.Name]struct{} // the client was sent an error for them
	originsChecked  uint64                   // [cache.Generation.OriginChanges] when all names were looked at
	recheckAt       time.Time                // when to look again; zero if that is not needed
}

// behind reports whether errors may be due.
func (f *pendingErrors) behind(t *cache.Type) bool {
	return t.Failed() > f.scannedUpTo || f.wildcardAsked && t.Failed() > 0 || f.any()
}

// any reports whether an error waits to be sent.
func (f *pendingErrors) any() bool { return len(f.due)+len(f.relayErrors) > 0 }

// nameRequested records that the client asked for a name, or asked for it again: its error is due.
func (f *pendingErrors) nameRequested(t *cache.Type, n *cache.Name) {
	f.originsChecked = 0
	delete(f.unreachableSent, n)
	if t.Failed() > 0 {
		f.due = append(f.due, n)
	}
}

// collect finds the errors that are due, of names that have one as errorOf says.
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

// add has the client sent an error of the relay.
func (f *pendingErrors) add(name string, code codes.Code, message string) {
	f.relayErrors = append(f.relayErrors, wire.NewResourceError(name, code, message))
}

// addMisnamed has the client sent an error for an invalid name, once.
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

// addUnreachable has the client sent an error for a name that cannot be asked for.
func (f *pendingErrors) addUnreachable(n *cache.Name) {
	if f.unreachableSent == nil {
		f.unreachableSent = make(map[*cache.Name]struct{})
	}
	f.unreachableSent[n] = struct{}{}
	f.add(n.String(), codes.Unavailable, "control plane unreachable")
}

// take moves errors of the relay to a body, until that is full.
func (f *pendingErrors) take(body func() *wire.Body, full func() bool) {
	for !f.muted && len(f.relayErrors) > 0 && !full() {
		body().Error(f.relayErrors[0])
		f.relayErrors = f.relayErrors[1:]
	}
}

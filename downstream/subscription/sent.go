package subscription

import (
	"fmt"
	"strings"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/fingerprint"
	"github.com/xdstender/tender/cache/wire"
)

// A held is what a client reported in its first request that it holds.
type reported struct {
	initialVersion  string            // SotW: version_info
	foreignNonce    bool              // SotW: the request carried a nonce, so the client does not know of streams
	initialVersions map[string]string // Delta: initial_resource_versions that are not accounted for yet
	initialCount    int               // how many they were

	// Delta: names in initialVersions that the origin has not answered yet, see removals.staleNames.
	unansweredNames map[*cache.Name]struct{}

	report *cache.Report // what the view knows of it; nil if that withholds nothing
}

// InitialVersions returns how many of the versions in the first request are not accounted for.
func (h *reported) InitialVersions() int { return len(h.initialVersions) }

// closeReport ends the report of what the client holds.
func (h *reported) closeReport() {
	h.report.Close()
	h.report = nil
}

// A sent is how far a client was served. A wildcard set has two positions, since removals may stay behind
// changes. Each name has one (see subscribed), and scannedUpTo is the position up to which the logs were
// searched for changes of names.
type sent struct {
	sendAll         bool // the whole wildcard set is to be sent
	wildcardStarted bool // some of it was sent since the client subscribed to it
	holdsSet        bool // SotW: the client holds a complete set that was sent on this stream, or reported
	idle            bool // of a glob that is served apart: nothing is due until something changes
	sentUpTo        cache.Seq
	removedUpTo     cache.Seq
	scannedUpTo     cache.Seq
	wildcardSince   cache.Seq // when the wildcard set began to be sent the last time

	pendingNames       []*cache.Name // names that need a look, whatever the logs say
	resend             []string      // resources of the wildcard set to send although unchanged (B.16)
	unsubscribeReplies []string      // names unsubscribed under a wildcard, to be answered (R079)
	ttlsSentUpTo       positions
	variants           variants

	nameSum      nameSum
	setSum       fingerprint.Sum // of the complete set that the client holds
	contentUntil time.Time       // until when dependent types wait for a set whose content was dropped
}

// positions are those of a type's two sets.
type positions [cache.ByName + 1]cache.Seq

// A nameSum is the sum of what a SotW client sees of its names, where it need not be made of all of them each time.
type nameSum struct {
	known   bool
	sum     fingerprint.Sum
	at      cache.Seq // up to where the generation had changes
	scanned cache.Seq // scannedUpTo after the changes up to at were looked at
}

// startAll has the whole wildcard set sent to a client that does not follow it yet.
func (s *sent) startAll() {
	s.sendAll, s.wildcardStarted, s.sentUpTo, s.removedUpTo = true, false, 0, 0
}

// repeatAll has the whole wildcard set sent again.
func (s *sent) repeatAll() { s.sendAll, s.sentUpTo = true, 0 }

// stopAll ends what is due of the wildcard set.
func (s *sent) stopAll() { s.sendAll, s.unsubscribeReplies, s.resend = false, nil, nil }

// startWildcard records that the wildcard set begins to be sent. Earlier removals mean nothing to a client
// that did not have the set. One that subscribed to it again is still sent them.
func (s *sent) startWildcard(at cache.Seq) {
	s.wildcardSince = at
	if s.sendAll = false; !s.wildcardStarted {
		s.wildcardStarted, s.removedUpTo = true, at
	}
}

// passRemovals records that the client was sent the wildcard set up to limit, including removals, if these do
// not wait or if there were none.
func (s *sent) passRemovals(t *cache.Type, limit cache.Seq, late bool) {
	if !late || t.Wildcard.LastRemoval() <= s.removedUpTo {
		s.removedUpTo = max(s.removedUpTo, limit)
	}
}

// caughtUp records that the client has everything up to a position, except names that it was not sent.
func (s *sent) caughtUp(at cache.Seq, lateRemovals bool) {
	if s.sendAll {
		s.wildcardSince = at
	}
	s.sendAll, s.sentUpTo, s.scannedUpTo, s.pendingNames = false, at, at, nil
	s.ttlsSentUpTo = positions{at, at}
	if !lateRemovals {
		s.removedUpTo = at
	}
}

// due returns how many names need a look or an answer, whatever the logs say.
func (s *sent) due() int { return len(s.pendingNames) + len(s.resend) + len(s.unsubscribeReplies) }

// hadMember reports whether the client was sent a resource that left the wildcard set.
func (s *sent) hadMember(e *cache.Entry) bool {
	return e.Seq > s.removedUpTo && e.Created() <= s.sentUpTo
}

// String returns how far the client was served: "sent=7 removed=5 scanned=7 pending=2".
func (s *sent) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "sent=%d removed=%d scanned=%d", s.sentUpTo, s.removedUpTo, s.scannedUpTo)
	if s.sendAll {
		b.WriteString(" send-all")
	}
	if n := s.due(); n > 0 {
		fmt.Fprintf(&b, " pending=%d", n)
	}
	if s.holdsSet {
		b.WriteString(" holds-set")
	}
	return b.String()
}

// variants are the constraints of the variant that a client was sent of each name (R122).
type variants map[*cache.Name][]byte

// replace notes which variant of a resource the client is sent. It returns the one that the client had by the
// name before, and whether it is to be removed: of the variants that the parameters of a client match there is
// only one.
func (v *variants) replace(n *cache.Name, constraints []byte) (old wire.Variant, gone bool) {
	had := (*v)[n]
	if constraints == nil {
		delete(*v, n)
	} else {
		if *v == nil {
			*v = make(variants)
		}
		(*v)[n] = constraints
	}
	if had == nil {
		return old, false
	}
	old = wire.Variant{Name: wire.PlainName(n.String()), Constraints: had}
	return old, !v.has(old)
}

// has reports whether the client has a variant of a resource, by whatever parameters.
func (v variants) has(of wire.Variant) bool {
	for n, constraints := range v {
		if string(constraints) == string(of.Constraints) && wire.PlainName(n.String()) == of.Name {
			return true
		}
	}
	return false
}

package subscription

import (
	"fmt"
	"strings"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/fingerprint"
	"github.com/xdstender/tender/cache/wire"
)

// reported is what a returning client reported in its first request that it holds.
type reported struct {
	initialVersion  string            // SotW: version_info
	foreignNonce    bool              // SotW: the request carried a nonce of another stream
	initialVersions map[string]string // Delta: initial_resource_versions that were not confirmed, replaced or removed yet
	initialCount    int               // original length of initialVersions
	reportedAt      Moment            // when the client reported initialVersions

	// Delta: names in initialVersions that the origin has not answered yet, see removals.staleNames.
	unansweredNames map[*cache.Name]struct{}

	report *cache.Report // registers these resources with the view; nil if the view may remove all unknown ones
}

// InitialVersions returns how many resources of initial_resource_versions were not confirmed, replaced or removed yet.
func (h *reported) InitialVersions() int { return len(h.initialVersions) }

// closeReport closes the report to the view.
func (h *reported) closeReport() {
	h.report.Close()
	h.report = nil
}

// sent holds the positions up to which a client was served. A wildcard set has two, since removals may be sent later
// than changes. Each name has its own (see subscribed). scannedUpTo is the position up to which the logs were searched
// for changes of names.
type sent struct {
	sendAll         bool // the whole wildcard set is due
	wildcardStarted bool // part of the set was sent since the client subscribed to it
	holdsSet        bool // SotW: the client holds a complete set, which was sent on this stream or reported
	idle            bool // of a separately served glob: nothing is due until its set changes
	sentUpTo        cache.Seq
	removedUpTo     cache.Seq
	scannedUpTo     cache.Seq
	wildcardSince   cache.Seq // position at which sending of the whole wildcard set last began

	pendingNames       []*cache.Name // names to check again, even if the logs have no change of them
	resend             []string      // resources of the wildcard set to send although unchanged (B.11, B.16)
	unsubscribeReplies []string      // names unsubscribed under a wildcard, which need an answer (R079)
	ttlsSentUpTo       positions
	variants           variants

	nameSum      nameSum
	setSum       fingerprint.Sum // of the complete set that the client holds
	contentUntil time.Time       // deadline until which dependent types wait for dropped content of the set
}

// positions has one position for each of a type's two sets.
type positions [cache.ByName + 1]cache.Seq

// A nameSum caches the sum of the resources that a SotW client sees by name, so that a change does not need a pass over
// all names.
type nameSum struct {
	known   bool
	sum     fingerprint.Sum
	at      cache.Seq // position of the generation that sum is of
	scanned cache.Seq // scannedUpTo after the changes up to at were scanned
}

// startAll makes the whole wildcard set due to a client that was not subscribed to it.
func (s *sent) startAll() {
	s.sendAll, s.wildcardStarted, s.sentUpTo, s.removedUpTo = true, false, 0, 0
}

// repeatAll makes the whole wildcard set due again.
func (s *sent) repeatAll() { s.sendAll, s.sentUpTo = true, 0 }

// stopAll clears everything that is due of the wildcard set.
func (s *sent) stopAll() { s.sendAll, s.unsubscribeReplies, s.resend = false, nil, nil }

// startWildcard records that sending of the whole wildcard set begins. A client that did not have the set needs no
// earlier removals. A client that subscribed to it again is still sent them.
func (s *sent) startWildcard(at cache.Seq) {
	s.wildcardSince = at
	if s.sendAll = false; !s.wildcardStarted {
		s.wildcardStarted, s.removedUpTo = true, at
	}
}

// passRemovals records that the client was sent removals up to limit, if removals do not wait (late) or there were
// none.
func (s *sent) passRemovals(t *cache.Type, limit cache.Seq, late bool) {
	if !late || t.Wildcard.LastRemoval() <= s.removedUpTo {
		s.removedUpTo = max(s.removedUpTo, limit)
	}
}

// caughtUp records that the client was sent all changes up to a position. It leaves the positions of names unchanged.
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

// due returns how many names need a check or an answer, even if the logs have no change of them.
func (s *sent) due() int { return len(s.pendingNames) + len(s.resend) + len(s.unsubscribeReplies) }

// hadMember reports whether the client was sent a resource that left the wildcard set.
func (s *sent) hadMember(e *cache.Entry) bool {
	return e.Seq > s.removedUpTo && e.Created() <= s.sentUpTo
}

// String returns the positions, such as "sent=7 removed=5 scanned=7 pending=2".
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

// variants maps each name to the constraints of the variant that the client was sent (R122).
type variants map[*cache.Name][]byte

// replace records the variant that the client is sent for a name. It returns the variant that the client had by that
// name before, and whether to remove it. The parameters of a client match only one variant.
func (v *variants) replace(n *cache.Name, constraints []byte) (old wire.Variant, obsolete bool) {
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

// has reports whether the client has a variant of a resource under any name.
func (v variants) has(of wire.Variant) bool {
	for n, constraints := range v {
		if string(constraints) == string(of.Constraints) && wire.PlainName(n.String()) == of.Name {
			return true
		}
	}
	return false
}

package subscription

import (
	"maps"
	"slices"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// removals builds Delta responses with delayed removals. A SotW client is sent the next full set or nothing.
type removals struct {
	writer
	now time.Time
}

// delayed returns the removals that waited until changes to the referring resources were sent (B.11).
func (r *removals) delayed() Response {
	if r.wildcard != nil && !r.sendAll && r.t.Phase >= cache.Settled {
		for e := range r.t.Wildcard.Since(r.removedUpTo) {
			if r.full(nil) {
				break // the other removals follow in the next response (B.32)
			}
			if _, named := r.find(e.Name); !named && !e.Present() {
				r.removeMember(e)
			}
			r.removedUpTo = max(r.removedUpTo, e.Seq)
		}
		if !r.out.Truncated {
			r.removedUpTo = max(r.removedUpTo, r.g.Seq)
		}
	}
	r.pendingNames = slices.DeleteFunc(r.pendingNames, func(n *cache.Name) bool { return !r.full(nil) && r.removeName(n) })
	return r.out
}

// removeName removes a name whose removal was delayed. It reports whether the name needs no further check.
func (r *removals) removeName(n *cache.Name) (done bool) {
	at, ok := r.find(n)
	if !ok {
		return true
	}
	e, seq := r.t.Lookup(n)
	name := &r.names[at]
	if e.Present() || seq <= name.sent || !r.confirmedAbsent(e) || r.mayReappear(e, *name) || r.holdsAwaited(*name) {
		return false
	}
	r.removeEntry(e, name.sent != 0)
	name.sent = seq
	return true
}

// stale returns the removals of resources that a returning client reported and the origin no longer has (R086), except
// those that the view keeps for now. until is when to check again.
func (r *removals) stale() (_ Response, until time.Time) {
	if len(r.initialVersions) == 0 {
		return r.out, time.Time{}
	}
	r.distrustedMembers()
	until = r.staleMembers()
	until = Earlier(until, r.staleNames())
	return r.out, until
}

// staleMembers removes stale resources from a client with a wildcard, once it is known which they are.
func (r *removals) staleMembers() (until time.Time) {
	if r.wildcard == nil || r.sendAll {
		return time.Time{}
	}
	if known, until := r.absenceKnown(); !known {
		return until
	}
	unknown := r.unknownMembers()
	if r.removeReported(unknown) == len(unknown) && len(r.names) == 0 && !r.t.Wildcard.AwaitsAny() {
		r.initialVersions = nil
	}
	return time.Time{} // the view wakes the stream once it allows further removals
}

// removeReported removes those of the reported resources that the view allows to remove, and returns their number, as far as they
// fit. The others follow in the next response (B.32).
func (r *removals) removeReported(unknown []string) (n int) {
	for _, text := range r.report.Removable(unknown) {
		if r.full(nil) {
			return n
		}
		delete(r.initialVersions, text)
		r.removeResource(text)
		n++
	}
	if n > 0 {
		r.removeEmptyGlob()
	}
	return n
}

// replaceReported begins the first response to a returning client with the removals of what the view does not have, for types
// whose resources exclude one another: a resource that the client holds may exclude one that it is sent (B.11). The response
// waits until the set is confirmed, but not for ever, since the origin may be gone: removals then follow the additions. wait is
// when to check again; zero if the response is due.
func (r *removals) replaceReported() (wait time.Time) {
	if !r.reportsBeforeFirst() {
		return time.Time{}
	}
	unknown, awaits := r.unknownMembers(), r.reportsAwaited()
	if len(unknown) == 0 && !awaits {
		return time.Time{}
	}
	known, at := r.absenceKnown()
	if known && !awaits {
		r.writer = newWriter(r.visible)
		r.emitted = make(map[string]struct{}) // the wildcard set may have the same removals
		r.removeReported(unknown)
		return time.Time{}
	}
	latest := r.reportedAt.Time().Add(r.Settings.confirmWait() + replaceSlack)
	if !awaits && !r.holdsAny(unknown) || !r.now.Before(latest) {
		return time.Time{}
	}
	return Earlier(at, latest)
}

// holdsAny reports whether the client reported any of the resources. Others are in doubt, see addUnreported.
func (r *removals) holdsAny(names []string) bool {
	return slices.ContainsFunc(names, func(name string) bool { return r.initialVersions[name] != "" })
}

// reportsBeforeFirst reports whether the first response is due to a returning client, of a type whose resources exclude one another.
func (r *removals) reportsBeforeFirst() bool {
	return r.Delta && r.sendAll && len(r.initialVersions) > 0 && wire.HasKeys(r.TypeURL) && r.t.Phase >= cache.Settled
}

// reportsAwaited reports whether the client holds a resource that the view awaits. Until the view has it, it may exclude what the
// client is sent.
func (r *removals) reportsAwaited() bool {
	for text := range r.initialVersions {
		if r.t.Wildcard.Awaits(text) {
			return true
		}
	}
	return false
}

// replaceSlack is how much longer than a set takes to be confirmed a returning client waits for its first response: the origin may
// have been connected after the client.
const replaceSlack = 5 * time.Second

// distrustedMembers removes resources that were part of a rejected edition and that the client may have. They are in no
// set that the relay knows, regardless of the origin's state. It needs the last known set.
func (r *removals) distrustedMembers() {
	known := r.t.Phase == cache.Confirmed || r.t.Restored
	if r.wildcard == nil || r.sendAll || !known || !r.Watch.View().Distrust.HasType(r.Key) {
		return
	}
	for _, text := range r.unknownMembers() {
		if r.full(nil) {
			return // the other removals follow in the next response (B.32)
		}
		if r.distrusts(text) {
			delete(r.initialVersions, text)
			r.removeResource(text)
		}
	}
}

// unknownMembers returns the resources that the client reported and the wildcard set does not have, nor awaits. It omits names
// that the client subscribed to, which staleNames handles.
func (r *removals) unknownMembers() (unknown []string) {
	texts := slices.Sorted(maps.Keys(r.initialVersions))
	for i, n := range r.Watch.Find(r.Key, texts) {
		if _, named := r.find(n); !named && (n == nil || !r.t.Wildcard.Get(n).Present()) && !r.t.Wildcard.Awaits(texts[i]) {
			unknown = append(unknown, texts[i])
		}
	}
	return unknown
}

// absenceKnown reports whether what the wildcard set lacks counts as removed: the set is confirmed, or frozen. On the
// first connection of the origin, the set was confirmed. The relay does not know resources that were added while the
// origin was disconnected, so later on the origin has to be connected again for a while (R068). Otherwise until is when
// to check again; the confirmation of the set and a new connection wake the stream.
func (r *removals) absenceKnown() (known bool, until time.Time) {
	switch from := r.g.WildcardSource(r.Key); {
	case r.g.SetFrozen(r.Key):
		return true, time.Time{}
	case r.t.Phase < cache.Confirmed || !from.Connected:
		return false, time.Time{}
	case from.Lost.IsZero():
		return true, time.Time{}
	default:
		until = from.Since.Add(r.Settings.confirmWait())
		return !r.now.Before(until), until
	}
}

// staleNames removes stale names that the client subscribed to and the origin did not answer. Many origins send a
// removal only to clients that they have sent the resource to.
func (r *removals) staleNames() (until time.Time) {
	if len(r.unansweredNames) == 0 {
		return time.Time{}
	}
	var absent []*cache.Name
	maps.DeleteFunc(r.unansweredNames, func(n *cache.Name, _ struct{}) bool {
		_, subscribed := r.find(n)
		_, holds := r.initialVersions[n.String()]
		e, _ := r.t.Lookup(n)
		if !subscribed || !holds || e != nil || r.wildcard != nil {
			return true
		}
		switch at := r.assumedAbsentAt(n, r.now); {
		case at.Equal(Forever):
		case r.now.Before(at):
			until = Earlier(until, at)
		default:
			absent = append(absent, n)
		}
		return false
	})
	slices.SortFunc(absent, (*cache.Name).Compare)
	texts := make([]string, len(absent))
	for i, n := range absent {
		texts[i] = n.String()
	}
	for _, name := range r.report.Removable(texts) {
		if r.full(nil) {
			return Earlier(until, r.now.Add(r.Settings.AckWait)) // the others follow in the next response (B.32)
		}
		delete(r.initialVersions, name)
		r.removeResource(name)
	}
	return until
}

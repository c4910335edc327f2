package subscription

import (
	"iter"
	"slices"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// ttls are the TTLs of the resources that a client sees at one generation.
type ttls struct{ visible }

// renewed yields the entries of a set that the client was sent and that got a new TTL since.
func (v ttls) renewed(kind cache.Kind) iter.Seq[*cache.Entry] {
	return func(yield func(*cache.Entry) bool) {
		for e := range v.t.Set(kind).RenewedSince(v.ttlsSentUpTo[kind]) {
			if e.Present() && v.wasSent(kind, e) && !yield(e) {
				return
			}
		}
	}
}

// wasSent reports whether the client was last sent this entry of a set for its name.
func (v ttls) wasSent(kind cache.Kind, e *cache.Entry) bool {
	at, named := v.find(e.Name)
	if !named {
		return kind == cache.Wildcard && v.wildcard != nil && e.Seq <= v.sentUpTo
	}
	current, seq := v.t.Lookup(e.Name)
	return current == e && seq <= v.names[at].sent
}

// dueWithSet reports whether a complete set is due because a TTL in it was renewed (R111).
func (v ttls) dueWithSet() (due bool) {
	if !v.sendsTTLs {
		return false
	}
	for kind := range v.ttlsSentUpTo {
		for range v.renewed(cache.Kind(kind)) {
			return true
		}
	}
	return slices.ContainsFunc(v.globs, func(glob *Subscription) bool { return ttls{glob.visibleAt(v.g)}.dueWithSet() })
}

// heartbeatSuffices reports whether a heartbeat can carry the TTL of a resource: the client is known to have accepted
// this version (R109). For Envoy, a virtual host without content is one that does not exist (R095).
func (v ttls) heartbeatSuffices(e *cache.Entry) bool {
	accepted := !v.nackedAny && !v.pending && e.Versions() == 1
	return v.Delta && accepted && e.Expires() && e.Resource.Constraints == nil && !wire.OnDemand(v.TypeURL)
}

// mayHaveExpired reports whether resources may have expired at the client. Then a set is sent even if it is the same
// (C31).
func (v ttls) mayHaveExpired() bool {
	return v.sendsTTLs && (v.t.Wildcard.Limited() || v.t.ByName.Limited() ||
		slices.ContainsFunc(v.globs, func(glob *Subscription) bool { return v.g.Type(glob.Key).Wildcard.Limited() }))
}

// addRenewedTTLs adds the TTLs of resources that the client has and the origin renewed (R105).
func (w *writer) addRenewedTTLs() {
	if !w.ttlsDue() {
		return
	}
	for kind := range w.ttlsSentUpTo {
		for e := range (ttls{w.visible}).renewed(cache.Kind(kind)) {
			if w.full(e) {
				return
			}
			w.addTTL(e)
			w.ttlsSentUpTo[kind] = e.Renewed()
		}
		w.ttlsSentUpTo[kind] = w.g.Seq
	}
}

// addTTL adds the TTL of a resource, by a heartbeat or with the resource itself (R109, R111).
func (w *writer) addTTL(e *cache.Entry) {
	switch {
	case ttls{w.visible}.heartbeatSuffices(e):
		if !w.alreadyEmitted(e.Resource.Key()) {
			w.body().Heartbeat(e.Resource, w.ttlOf(e))
		}
	case e.Resource.ContentDropped():
		w.sendAfterRefetch(e)
	default:
		w.add(e)
	}
}

// sendAfterRefetch marks a resource to be sent once the origin has sent its content again (R125).
func (w *writer) sendAfterRefetch(e *cache.Entry) {
	at, named := w.find(e.Name)
	if !named {
		w.resend = append(w.resend, e.Name.String())
		w.refetchWildcard()
		return
	}
	w.names[at].sent = 0
	w.pendingNames = append(w.pendingNames, e.Name)
	w.refetch(e)
}

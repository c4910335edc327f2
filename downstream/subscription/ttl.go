package subscription

import (
	"iter"
	"slices"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// renewals yields the entries of a set that the client was sent and that got a new TTL since.
func (v shown) renewals(kind cache.Kind) iter.Seq[*cache.Entry] {
	set := &v.t.Wildcard
	if kind == cache.ByName {
		set = &v.t.ByName
	}
	return func(yield func(*cache.Entry) bool) {
		for e := range set.RenewedSince(v.ttlsSentUpTo[kind]) {
			if e.Present() && v.wasSent(kind, e) && !yield(e) {
				return
			}
		}
	}
}

// wasSent reports whether the client was last sent this entry of a set for its name.
func (v shown) wasSent(kind cache.Kind, e *cache.Entry) bool {
	at, named := v.find(e.Name)
	if !named {
		return kind == cache.Wildcard && v.wildcard != nil && e.Seq <= v.sentUpTo
	}
	seen, seq := v.t.Lookup(e.Name)
	return seen == e && seq <= v.names[at].sent
}

// renewalDue reports whether a complete set is due only for the TTLs of what is in it (R111).
func (v shown) renewalDue() (due bool) {
	if !v.sendsTTLs {
		return false
	}
	for kind := range v.ttlsSentUpTo {
		for range v.renewals(cache.Kind(kind)) {
			return true
		}
	}
	return slices.ContainsFunc(v.globs, func(glob *Subscription) bool { return glob.in(v.g).renewalDue() })
}

// heartbeatSuffices reports whether a heartbeat tells the client the TTL of a resource: the client is known to have
// accepted this very version (R109). To an Envoy, a virtual host without content is one that does not exist (R095).
func (v shown) heartbeatSuffices(e *cache.Entry) bool {
	accepted := !v.nackedAny && !v.pending && e.Versions() == 1
	return v.Delta && accepted && e.Expires() && e.Resource.Constraints == nil && v.TypeURL != wire.VirtualHostType
}

// addRenewals adds the TTLs of resources that the client has, which the origin renewed (R105).
func (w *writer) addRenewals() {
	if !w.ttlsDue() {
		return
	}
	for kind := range w.ttlsSentUpTo {
		for e := range w.renewals(cache.Kind(kind)) {
			if w.full(e) {
				return
			}
			w.addTTL(e)
			w.ttlsSentUpTo[kind] = e.Renewed()
		}
		w.ttlsSentUpTo[kind] = w.g.Seq
	}
}

// addTTL adds the TTL of a resource: by a heartbeat, or else with the resource itself (R109, R111).
func (w *writer) addTTL(e *cache.Entry) {
	switch {
	case w.heartbeatSuffices(e):
		if !w.alreadyEmitted(e.Resource.Key()) {
			w.body().Heartbeat(e.Resource, w.ttlOf(e))
		}
	case e.Resource.Released():
		w.sendLater(e)
	default:
		w.add(e)
	}
}

// sendLater has a resource sent once its content is back (R125).
func (w *writer) sendLater(e *cache.Entry) {
	at, named := w.find(e.Name)
	if !named {
		w.resend = append(w.resend, e.Name.String())
		w.askAgainForAll()
		return
	}
	w.names[at].sent = 0
	w.pendingNames = append(w.pendingNames, e.Name)
	w.askAgain(e)
}

package subscription

import (
	"maps"
	"slices"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// removals make Delta responses that hold removals which had to wait. A SotW client is sent the next full set, or
// nothing.
type removals struct {
	writer
	now time.Time
}

// late returns the removals that had to wait until what referred to the resources was sent (B.11).
func (r *removals) delayed() Response {
	if r.wildcard != nil && !r.sendAll && r.t.Phase >= cache.Settled {
		for e := range r.t.Wildcard.Since(r.removedUpTo) {
			if r.full(nil) {
				break // the rest follows the answer (B.32)
			}
			if _, named := r.find(e.Name); !named && !e.Present() {
				r.removeMember(e)
			}
			r.removedUpTo = max(r.removedUpTo, e.Seq)
		}
		if !r.out.Cut {
			r.removedUpTo = max(r.removedUpTo, r.g.Seq)
		}
	}
	r.pendingNames = slices.DeleteFunc(r.pendingNames, func(n *cache.Name) bool { return !r.full(nil) && r.removeName(n) })
	return r.out
}

// removeName removes a name whose removal had to wait, and reports whether the name needs no further look.
func (r *removals) removeName(n *cache.Name) (done bool) {
	at, ok := r.find(n)
	if !ok {
		return true
	}
	e, seq := r.t.Lookup(n)
	if e.Present() || seq <= r.names[at].sent || !r.confirmedAbsent(e) || r.mayReappear(e, r.names[at]) || r.mayPostdateFreeze(r.names[at]) {
		return false
	}
	r.removeEntry(e, r.names[at].sent != 0)
	r.names[at].sent = seq
	return true
}

// stale returns the removal of what a returning client reports and the origin no longer has (R086), except for what the
// view withholds. It returns when to look again.
func (r *removals) stale() (_ Response, until time.Time) {
	if len(r.initialVersions) == 0 {
		return Response{}, time.Time{}
	}
	r.writer = newWriter(r.visible)
	r.distrustedMembers()
	until = r.staleMembers()
	until = Earlier(until, r.staleNames())
	return r.out, until
}

// staleMembers is stale for a client with a wildcard. A resource that it holds is known to be gone only once the set is
// confirmed. Resources that were added while the relay was without its origin are unknown too, so the origin has to be
// connected again for a while (R068).
func (r *removals) staleMembers() (until time.Time) {
	if r.wildcard == nil || r.sendAll || r.t.Phase < cache.Confirmed {
		return time.Time{}
	}
	if settled, until := r.originSettled(r.g.WildcardSource(r.Key)); !settled {
		return until
	}
	unknown := r.unknownMembers()
	gone := r.report.Removable(unknown)
	for _, text := range gone {
		if r.full(nil) {
			return time.Time{} // the rest follows the answer (B.32)
		}
		delete(r.initialVersions, text)
		r.removeResource(text)
	}
	if len(gone) > 0 {
		r.removeEmptyGlob()
	}
	if len(r.names) == 0 && len(gone) == len(unknown) {
		r.initialVersions = nil
	}
	return time.Time{} // the view wakes the stream for what it still withholds
}

// distrustedMembers is stale for resources that were part of a rejected edition: what the client may have of that is in no
// set that the relay knows, whatever became of the origin since. It needs the last known set, and no freeze.
func (r *removals) distrustedMembers() {
	known := r.t.Phase == cache.Confirmed || r.t.Restored
	if r.wildcard == nil || r.sendAll || !known || !r.Watch.View().Distrust.HasType(r.Key) || !r.g.WildcardSource(r.Key).Frozen.IsZero() {
		return
	}
	for _, text := range r.unknownMembers() {
		if r.full(nil) {
			return // the rest follows the answer (B.32)
		}
		if r.distrusts(text) {
			delete(r.initialVersions, text)
			r.removeResource(text)
		}
	}
}

// unknownMembers returns what the client reports and the wildcard set does not have. Names that it subscribed to are
// answered as such.
func (r *removals) unknownMembers() (gone []string) {
	texts := slices.Sorted(maps.Keys(r.initialVersions))
	for i, n := range r.Watch.Find(r.Key, texts) {
		if _, named := r.find(n); !named && (n == nil || !r.t.Wildcard.Get(n).Present()) {
			gone = append(gone, texts[i])
		}
	}
	return gone
}

// originSettled reports whether a resource that an origin does not mention counts as gone: on its first connection, on
// which the set was confirmed, and on later ones once it has been connected for a while. If not, it returns when to look
// again.
func (r *removals) originSettled(from *cache.Source) (settled bool, until time.Time) {
	switch {
	case !from.Connected || !from.Frozen.IsZero():
		return false, time.Time{} // what a frozen origin has added since is not known here
	case from.Lost.IsZero():
		return true, time.Time{}
	}
	until = from.Since.Add(r.Settings.confirmWait())
	return !r.now.Before(until), until
}

// silenceWait is how long an origin that has answered for other names of a request is waited for.
const silenceWait = 15 * time.Second

// lookAgain is the first wait before names are looked at again of which nothing shows whether the origin has them.
const recheckWait = 5 * time.Second

// staleNames is stale for names that the client subscribed to and that the origin does not mention: many origins never
// say that a name does not exist to a client that they have not sent it to.
func (r *removals) staleNames() (until time.Time) {
	if len(r.unansweredNames) == 0 {
		return time.Time{}
	}
	var gone []*cache.Name
	maps.DeleteFunc(r.unansweredNames, func(n *cache.Name, _ struct{}) bool {
		_, subscribed := r.find(n)
		_, holds := r.initialVersions[n.String()]
		e, _ := r.t.Lookup(n)
		if !subscribed || !holds || e != nil || r.wildcard != nil {
			return true
		}
		switch at := r.assumedAbsentAt(n); {
		case at.Equal(Forever):
		case r.now.Before(at):
			until = Earlier(until, at)
		default:
			gone = append(gone, n)
		}
		return false
	})
	slices.SortFunc(gone, (*cache.Name).Compare)
	texts := make([]string, len(gone))
	for i, n := range gone {
		texts[i] = n.String()
	}
	for _, name := range r.report.Removable(texts) {
		if r.full(nil) {
			return Earlier(until, r.now.Add(r.Settings.AckWait)) // the rest follows the answer (B.32)
		}
		delete(r.initialVersions, name)
		r.removeResource(name)
	}
	return until
}

// absentFrom returns when the silence of the origin on a name means that there is no such resource: the confirmed
// wildcard set lacks it, or the origin has answered for other names of the request (B.15). If neither holds yet, it
// returns when to look again.
func (r *removals) assumedAbsentAt(n *cache.Name) (at time.Time) {
	from, asked := r.g.From(n), n.Asked()
	if !from.Connected || !from.Frozen.IsZero() {
		return Forever // the stream is woken
	}
	if answered := n.RequestAnswered(); !answered.IsZero() {
		at = answered.Add(silenceWait)
	}
	_, xdstp := wire.GlobOf(n.String())
	if r.t.Phase == cache.Confirmed && from == r.g.WildcardSource(r.Key) && !xdstp && !asked.IsZero() {
		at = Earlier(at, later(asked, from.Since).Add(r.Settings.confirmWait()))
	}
	if at.IsZero() {
		at = r.now.Add(max(recheckWait, r.now.Sub(r.since)))
	}
	return at
}

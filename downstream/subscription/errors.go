package subscription

import (
	"cmp"
	"slices"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// visibleErrors are the resource errors of a subscription at one generation.
type visibleErrors struct{ visible }

// errorOf returns the error of a resource as the client sees it, nil if there is none.
func (v visibleErrors) errorOf(n *cache.Name) *cache.Entry {
	if _, named := v.find(n); named {
		return v.t.Errors(cache.ByName).Get(n)
	}
	if v.wildcard == nil {
		return nil
	}
	return v.t.Errors(cache.Wildcard).Get(n)
}

func (v visibleErrors) collect() { v.errors.collect(v.t, v.errorOf) }

// checkReachable queues errors for names whose origin is not connected. A client that understands resource_errors keeps
// what it has and learns the reason (B.7).
func (v visibleErrors) checkReachable(now time.Time) {
	f := &v.errors
	if !v.sendsUnreachable() || f.originsChecked == v.g.OriginChanges() {
		return
	}
	f.recheckAt = time.Time{}
	for _, n := range v.names {
		from := v.g.From(n.name)
		if _, sent := f.unreachableSent[n.name]; sent || from.Connected || v.answerKnown(n) {
			continue
		}
		if at := later(v.since, from.Lost).Add(v.Settings.ColdWait); now.Before(at) {
			f.recheckAt = Earlier(f.recheckAt, at)
		} else {
			f.addUnreachable(n.name)
		}
	}
	if f.recheckAt.IsZero() {
		f.originsChecked = v.g.OriginChanges()
	}
}

// sendsUnreachable reports whether the client is sent the relay's own errors of names (B.39). Complete sets do not have
// them (B.7).
func (v visibleErrors) sendsUnreachable() bool { return v.Errors && !v.errors.muted && !v.sendsSets() }

// answerKnown reports whether the client was sent an answer for a name, or can be.
func (v visibleErrors) answerKnown(n subscribed) bool {
	if v.t.Errors(cache.ByName).Get(n.name) != nil {
		return true
	}
	e, _ := v.t.Lookup(n.name)
	return e != nil && !v.mayReappear(e, n) && (n.sent != 0 || !e.Present() || !e.Resource.ContentDropped())
}

// sendable reports whether the client can be sent an error now. An error of a resource in the wildcard set follows the
// set. A NOT_FOUND error follows the removal of the resource, which may be delayed (B.7, B.11), since it has the same
// effect at the client.
func (v visibleErrors) sendable(e *cache.Entry) bool {
	at, named := v.find(e.Name)
	switch {
	case !named && e.Name.String() == cmp.Or(v.glob, wire.Wildcard):
		return true
	case !named && !v.wildcardStarted:
		return false
	case !e.Err.NotFound():
		return true
	case !named:
		member := v.t.Wildcard.Get(e.Name)
		return member == nil || member.Seq <= v.removedUpTo
	}
	sent := v.names[at].sent
	if !v.Delta && v.LateRemovals() {
		sent = v.removedUpTo // the removal itself is not sent
	}
	current, seq := v.t.Lookup(e.Name)
	return v.confirmedAbsent(current) && seq <= sent
}

// dueWithSet reports whether a complete set is due because of errors of resources that are not in it. Errors of
// resources in the set are not sent, since the resource would clear the error at the client.
func (v visibleErrors) dueWithSet() (due bool) {
	f := &v.errors
	v.collect()
	f.due = slices.DeleteFunc(f.due, func(n *cache.Name) bool {
		in, lasting := v.inSet(n, v.LateRemovals() && v.holdsSet)
		due = due || !in
		return lasting
	})
	for _, glob := range v.globs {
		due = visibleErrors{glob.visibleAt(v.g)}.dueWithSet() || due
	}
	return due || len(f.relayErrors) > 0 && !f.muted
}

// inSet reports whether a set contains a resource with an error, and whether the next set will contain it too
// (lasting).
func (v visibleErrors) inSet(n *cache.Name, union bool) (in, lasting bool) {
	at, named := v.find(n)
	if !named {
		return v.inSetAsMember(n, union)
	}
	e, seq := v.entryOf(v.names[at])
	if e.Present() {
		return true, true
	}
	if err := v.errorOf(n).Err; err.NotFound() && !v.confirmedAbsent(e) {
		return true, false // the removal is not confirmed yet
	}
	return e != nil && e.Prior != nil && union && v.names[at].sent != 0 && seq > v.names[at].sent, false
}

// inSetAsMember is inSet for what the client did not name.
func (v visibleErrors) inSetAsMember(n *cache.Name, union bool) (in, lasting bool) {
	e := v.t.Wildcard.Get(n)
	if e.Present() {
		lasting = !v.withheld(e)
		return lasting, lasting
	}
	return union && e != nil && e.Prior != nil && v.hadMember(e), false
}

// addTo adds the errors of resources that are not in a complete set to the body of the set.
func (v visibleErrors) addTo(body *wire.Body, union bool) {
	f := &v.errors
	var sent []*wire.ResourceError
	f.due = slices.DeleteFunc(f.due, func(n *cache.Name) bool {
		in, lasting := v.inSet(n, union)
		if e := v.errorOf(n); !in && !slices.Contains(sent, e.Err) {
			sent = append(sent, e.Err)
			body.Error(e.Err)
		}
		return !in || lasting
	})
	set := body.Size()
	f.take(func() *wire.Body { return body }, func() bool { return body.Size()-set >= v.Settings.ResponseBytes })
	for _, glob := range v.globs {
		visibleErrors{glob.visibleAt(v.g)}.addTo(body, union)
	}
}

// addErrors adds the errors of resources that the client subscribed to. If the response contains the resource, its
// error is sent later, since a response must not have both for a name (R124).
func (w *writer) addErrors(now time.Time) {
	f, v := &w.errors, visibleErrors{w.visible}
	v.collect()
	v.checkReachable(now)
	var sent []*wire.ResourceError
	f.due = slices.DeleteFunc(f.due, func(n *cache.Name) bool {
		e := v.errorOf(n)
		if slices.Contains(sent, e.Err) {
			return true // sent for another of its names
		}
		if w.full(nil) || !v.sendable(e) || w.alreadyEmitted(e.Err.Key()) {
			return false
		}
		sent = append(sent, e.Err)
		w.body().Error(e.Err)
		return true
	})
	f.take(w.body, func() bool { return w.full(nil) })
}

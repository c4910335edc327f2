package upstream_test

import (
	"fmt"
	"slices"
	"strings"
	"testing/synctest"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/upstream/reconcile"
)

// settleTime is the maximum time that the relay needs to match an origin. A set is confirmed after a minute at most.
// Missing resources are queried after 15s and removed after 15s more. Content is compared once, 20s after a resume.
// Then the confirmation and the queries may start over.
const settleTime = 200 * time.Second

// growthLimit is what may grow in one change.
var growthLimit = reconcile.GrowthLimit{Factor: 1, Bytes: 1000, Names: 4}

// required is the resource that only an operator removes.
var required = id{clusters, "c02"}

// observed returns the resources that clients receive. The caller must not modify them.
func (w *world) observed() map[key]observed {
	generation := w.view.Generation()
	if generation == w.observedIn {
		return w.observedThere
	}
	seen := make(map[key]observed)
	add := func(set string, e *cache.Entry) {
		if e.Present() {
			r := e.Resource
			k := key{id{r.TypeURL, r.Name}, set}
			seen[k] = observed{string(r.Value()), r.TypeURL != endpoints || r.HasEndpoints(), e.Created()}
		}
	}
	for set, of := range map[string]string{members + clusters: clusters, members + listeners: listeners, modelGlob: cache.Collection(clusters, modelGlob)} {
		for e := range generation.Type(of).Wildcard.Since(0) {
			add(strings.TrimSuffix(set, of), e)
		}
	}
	for typeURL, names := range wanted {
		for _, n := range w.view.Find(typeURL, names) {
			if n != nil {
				e, _ := generation.Type(typeURL).Lookup(n)
				add(named, e)
			}
		}
	}
	w.observedIn, w.observedThere = generation, seen
	return seen
}

// sees reports whether clients receive a resource in any set, other than an empty assignment.
func (w *world) sees(of id) bool {
	for _, set := range []string{members, named, modelGlob} {
		if w.seen[key{of, set}].had {
			return true
		}
	}
	return false
}

// currentHolds returns the pending and dropped removals of the control.
func (w *world) currentHolds() map[id][]reconcile.Hold {
	w.control.Operate(w.Context(), reconcile.Command{}) // wakes the loop, which may connect now
	synctest.Wait()
	holds := make(map[id][]reconcile.Hold)
	for _, h := range w.control.Operate(w.Context(), reconcile.Command{}) {
		for _, name := range h.Names {
			of := id{h.TypeURL, name}
			holds[of] = append(holds[of], h)
		}
	}
	synctest.Wait()
	return holds
}

// check compares the resources that clients receive with those of the last check, and with the model. If holds is set,
// it also checks the pending removals.
func (w *world) check(holds bool) {
	now, was := time.Now(), w.active
	for i, t := range w.session.Status().Targets {
		if t.Active {
			w.active = i
		}
	}
	if was != w.active {
		w.markUnsettled(settleTime)
		w.moved = true
	}
	if w.view.Generation() != w.observedIn {
		w.checkChanges(w.observed(), was)
	}
	if holds {
		w.checkHolds(was)
	}
	if w.thawed {
		w.frozen, w.thawed = time.Time{}, false
	}
	if w.frozen.IsZero() && !now.Before(w.restless) && holds {
		w.checkSettled()
	}
}

// checkChanges compares the resources that clients receive with those of the last check. was is the active address at
// the last check.
func (w *world) checkChanges(seen map[key]observed, was int) {
	now := time.Now()
	var lost []key
	for k, old := range w.seen {
		is, there := seen[k]
		switch {
		case !there, old.had && !is.had, is.born != old.born && k.set != named:
			lost = append(lost, k)
		case !w.frozen.IsZero() && !w.thawed && is.body != old.body:
			w.Errorf("%v changed although the view is frozen", k)
		}
	}
	for k, is := range seen {
		if _, there := w.seen[k]; !there {
			w.began[k] = now
		}
		if !w.ever[k.id][is.body] {
			w.Errorf("%v has content that no origin has sent", k)
		}
	}
	w.checkLost(lost, was)
	w.checkGrowth(seen)
	w.knows = make(map[string]bool)
	for _, typeURL := range []string{clusters, listeners} {
		w.knows[typeURL] = w.view.Generation().Type(typeURL).Phase == cache.Confirmed
	}
	w.checkDependencies(lost, seen, was)
	w.seen = seen
}

// checkGrowth checks that what has grown abnormally since the last check was held before.
func (w *world) checkGrowth(seen map[key]observed) {
	if !w.watched || !w.frozen.IsZero() || w.thawed || len(w.passed) > 0 {
		return
	}
	had, added := make(map[string]int), make(map[string][]key)
	for k, old := range w.seen {
		if is, there := seen[k]; there && is.born == old.born && k.set == members {
			had[k.typeURL]++ // if all are removed between two checks, the set is empty for a moment
		}
	}
	for k, is := range seen {
		old, there := w.seen[k]
		switch {
		case k.typeURL == endpoints:
		case !there && k.set == members:
			added[k.typeURL] = append(added[k.typeURL], k)
		case there && is.born == old.born && growthLimit.Bytes <= len(is.body)-len(old.body) && len(is.body) > growthLimit.Factor*len(old.body):
			if !w.growthExpired(k) {
				w.Errorf("%v grew from %d to %d bytes without a hold that has expired: %+v", k, len(old.body), len(is.body), w.holds[k.id])
			}
		}
	}
	for typeURL, keys := range added {
		n := had[typeURL]
		if w.knows[typeURL] && n > 0 && len(keys) >= growthLimit.Names && n+len(keys) > growthLimit.Factor*n && !w.growthExpired(keys...) {
			w.Errorf("%d resources such as %v were added to %d without a hold that has expired", len(keys), keys[0], n)
		}
	}
}

// growthExpired reports whether the time of the growth of one of some resources is over.
func (w *world) growthExpired(keys ...key) bool {
	return slices.ContainsFunc(keys, func(k key) bool {
		return slices.ContainsFunc(w.holds[k.id], func(h reconcile.Hold) bool {
			return h.Reason == reconcile.Growth && !h.Until.After(time.Now())
		})
	})
}

// isOfContent reports whether a hold is of content that an origin has stated, rather than of removals.
func isOfContent(h reconcile.Hold) bool { return h.Details != nil && h.Kind != reconcile.Removal }

// originLacked reports whether an active address lacked a resource at some time since the last check, or since the
// freeze.
func (w *world) originLacked(of id, was int) bool {
	since := time.Now().Add(-10 * time.Second)
	if !w.frozen.IsZero() {
		since = w.frozen
	}
	for _, at := range []int{was, w.active} {
		a := w.addresses[at]
		if it, has := a.items[of]; !has || it.empty || !a.back[of].Before(since) {
			return true
		}
	}
	return false
}

// checkLost checks that the removals that clients received were correct.
func (w *world) checkLost(lost []key, was int) {
	judged := make(map[[2]string][]key) // removals that the relay inferred, by set
	for _, k := range lost {
		if !w.frozen.IsZero() && !w.thawed {
			w.Errorf("%v removed although the view is frozen", k)
			continue
		}
		if w.passed[k.id] {
			continue
		}
		if !w.originLacked(k.id, was) {
			w.Errorf("%v removed although the active address contains it", k)
		}
		if k.id == required && !w.thawed {
			w.Errorf("%v removed without an operator: %+v", k, w.holds[k.id])
		}
		if w.stated[k.id] {
			continue
		}
		second, barred := w.holdExpired(k)
		if barred != nil && !w.thawed {
			w.Errorf("%v removed although its removal is pending: %+v", k, *barred)
		}
		if !second && !w.thawed && w.watched {
			group := [2]string{k.set, k.typeURL}
			judged[group] = append(judged[group], k)
		}
	}
	for _, keys := range judged {
		w.checkUnheldRemovals(keys)
	}
}

// checkDependencies checks that no removed resource is referenced by one with a pending removal.
func (w *world) checkDependencies(lost []key, seen map[key]observed, was int) {
	for _, k := range lost {
		if w.passed[k.id] {
			continue
		}
		for needer := range seen {
			if len(w.holds[needer.id]) > 0 && !w.inTwoSets(needer.id) && references(needer.id, k.id) && w.stillLacks(needer.id, was) && w.watched && !w.thawed {
				w.Errorf("%v removed although %v references it and its own removal is pending: %+v", k, needer, w.holds[needer.id])
			}
		}
	}
}

// references reports whether a resource references another one; see world.make.
func references(of, other id) bool {
	last := int(of.name[len(of.name)-1] - '0')
	switch of.typeURL {
	case clusters:
		return other == id{endpoints, fmt.Sprintf("e%02d", last%8)}
	case listeners:
		return other == id{routes, fmt.Sprintf("r%02d", last%4)}
	}
	return false
}

// holdExpired reports whether the hold of a resource expired, and otherwise returns the hold. The hold may be that of
// another set.
func (w *world) holdExpired(k key) (late bool, by *reconcile.Hold) {
	for _, h := range w.holds[k.id] {
		switch held := h.Reason != reconcile.Dropped && h.Reason != reconcile.Required && !h.Undecided(); {
		case isOfContent(h):
		case h.Reason == reconcile.Growth: // a removal ends with the additions that may replace its resource
			return true, nil
		case held && !h.Until.After(time.Now()):
			return true, nil
		case (held || isOfOperator(h)) && !w.inTwoSets(k.id):
			by = &h
		}
	}
	return false, by
}

// inTwoSets reports whether clients receive a resource both as a member and by name.
func (w *world) inTwoSets(of id) bool {
	return of.typeURL == clusters && slices.Contains(wanted[clusters], of.name)
}

// checkUnheldRemovals checks removals from one set that were neither explicit, passed nor held. They must be small, and
// the set must be confirmed, or one server must have lacked the resources for as long.
func (w *world) checkUnheldRemovals(keys []key) {
	k := keys[0]
	opened := w.openedAt(k)
	had, removed, added := 0, len(keys), 0
	for other := range w.seen {
		if other.set == k.set && other.typeURL == k.typeURL {
			had++
		}
	}
	for other, at := range w.began {
		if other.set == k.set && other.typeURL == k.typeURL && !at.Before(opened) {
			added++
		}
	}
	if k.typeURL == listeners {
		removed -= added
	}
	if k.typeURL != endpoints && removed > 2 && (removed == had || 2*removed > had || removed > 10 && 10*removed > had) {
		w.Errorf("%d of %d resources, such as %v, removed at once without an explicit removal or a hold", removed, had, k)
	}
	lacked := func(k key) bool {
		a := w.addresses[w.active]
		it, has := a.items[k.id]
		return (!has || it.empty) && time.Since(a.gone[k.id]) >= 10*time.Second && time.Since(a.since) >= 10*time.Second
	}
	known := k.set != modelGlob && (k.set == members || k.typeURL != clusters)
	if age := time.Since(opened); known && age < 10*time.Second && slices.ContainsFunc(keys, func(k key) bool { return !lacked(k) }) {
		w.Errorf("%v and %d more removed %v after the stream opened, want only after the set is confirmed", k, len(keys)-1, age)
	}
}

// openedAt returns when the stream of a set opened.
func (w *world) openedAt(k key) (at time.Time) {
	for _, s := range w.addresses[w.active].State().Open() {
		t := s.Type(k.typeURL)
		if carries := t.Wildcard == (k.set == members) && t.Requests > 0; carries && s.Requests[0].At.After(at) {
			at = s.Requests[0].At
		}
	}
	return at
}

// checkHolds checks that pending removals are visible with a deadline, and that no hold has just disappeared.
func (w *world) checkHolds(was int) {
	old := w.holds
	w.holds = w.currentHolds()
	connected := w.connected() && len(w.control.Isolated()) == 0 // otherwise a stream may be closed
	held := 0
	for of, holds := range w.holds {
		for _, h := range holds {
			if !h.Undecided() && !isOfOperator(h) && h.Reason != reconcile.Growth {
				held++
			}
			switch {
			case isOfOperator(h) && !h.Until.IsZero():
				w.Errorf("removal of %v that waits for an operator has a deadline, want none: %+v", of, h)
			case h.Reason == reconcile.Replacement && connected && !h.ByOperator && h.Until.IsZero():
				w.Errorf("pending removal of %v has no deadline although the origin is connected: %+v", of, h)
			case h.Undecided() && connected && !h.Until.IsZero() && h.Until.Before(time.Now().Add(-10*time.Second)):
				w.Errorf("pending removal of %v has a deadline that is over: %+v", of, h)
			case !h.Undecided() && h.Reason != reconcile.Dropped && h.Since.IsZero():
				w.Errorf("pending removal of %v has no start time: %+v", of, h)
			}
		}
	}
	if n := heldNow(w.session); n != held {
		w.Errorf("status: %d pending removals, want %d", n, held)
	}
	moved := w.moved
	w.moved = false
	if !w.frozen.IsZero() || moved { // the other address may have sent the resource
		return
	}
	for of, were := range old {
		were = slices.DeleteFunc(slices.Clone(were), isOfContent)
		if len(were) == 0 || w.inTwoSets(of) || !w.sees(of) || w.passed[of] || !w.stillLacks(of, was) {
			continue
		}
		undecided := slices.ContainsFunc(were, func(h reconcile.Hold) bool { // these end with the stream, which has to state them again
			return h.Undecided() || h.Reason == reconcile.Growth
		})
		if len(w.holds[of]) == 0 && !undecided {
			w.Errorf("%v is still served although the origin lacks it, and its hold disappeared: %+v", of, were)
		}
		if w.watched && !w.stated[of] && slices.ContainsFunc(were, isDropped) && !slices.ContainsFunc(w.holds[of], isDropped) {
			w.Errorf("removal of %v is no longer dropped although the origin sent nothing for it: %+v", of, w.holds[of])
		}
	}
}

// isDropped reports whether an operator dropped the removals.
func isDropped(h reconcile.Hold) bool { return h.Reason == reconcile.Dropped }

// isOfOperator reports whether only an operator ends the hold.
func isOfOperator(h reconcile.Hold) bool { return isDropped(h) || h.Reason == reconcile.Required }

// stillLacks reports whether the active address lacks a resource and was active at the last check. was is the active
// address at the last check.
func (w *world) stillLacks(of id, was int) bool {
	a := w.addresses[w.active]
	it, has := a.items[of]
	return was == w.active && (!has || it.empty)
}

// connected reports whether there is a stream to the active address.
func (w *world) connected() bool { return w.view.Generation().First().Connected }

// checkSettled checks that clients receive the resources of the active address.
func (w *world) checkSettled() {
	if !w.connected() {
		return
	}
	a := w.addresses[w.active]
	for k, is := range w.seen {
		it, has := a.items[k.id]
		if len(w.holds[k.id]) > 0 {
			continue
		}
		asked := time.Since(w.openedAt(k)) < 30*time.Second // by a second look at other resources
		if !has && !w.neverRemoved(k) && !asked {
			w.Errorf("%v is served although the origin lacks it and no removal is pending", k)
		}
		if has && string(it.body.Value) != is.body {
			w.Errorf("%v has outdated content", k)
		}
	}
	for of := range a.items {
		if of.typeURL == clusters || of.typeURL == listeners {
			set := members
			if strings.HasPrefix(of.name, "xdstp:") {
				set = modelGlob
			}
			w.wantSeen(key{of, set})
		}
		if slices.Contains(wanted[of.typeURL], of.name) {
			w.wantSeen(key{of, named})
		}
	}
}

// wantSeen checks that clients receive a resource.
func (w *world) wantSeen(k key) {
	if _, is := w.seen[k]; !is && len(w.holds[k.id]) == 0 {
		w.Errorf("%v is not served although the origin contains it", k)
	}
}

// neverRemoved reports whether no origin of this history reports the removal of a resource.
func (w *world) neverRemoved(k key) bool {
	if w.sotw {
		return !wire.FullState(k.typeURL) || k.set == modelGlob
	}
	return w.silent && (k.set != members || slices.Contains(wanted[k.typeURL], k.name))
}

// keptFor reports whether a resource may stay because a resource whose removal waits for an operator references it. It is true for
// all resources of a type that such a resource can reference.
func (w *world) keptFor(of id) bool {
	needer := map[string]string{endpoints: clusters, routes: listeners}[of.typeURL]
	for other, holds := range w.holds {
		if other.typeURL == needer && slices.ContainsFunc(holds, isOfOperator) {
			return true
		}
	}
	return false
}

var _ relaytest.TB = (*world)(nil)

package pending

import (
	"maps"
	"slices"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// Freeze makes all changes wait until Thaw, except what [cache.Writer.ApplyFirst] applies, and what no origin states: TTLs
// end, names without subscribers are forgotten, connections are opened and lost. Of the changes until Thaw, only the newest
// of each name is kept. It has no effect on a list that is frozen.
//
// What clients have now is the state of returning clients, too, whatever they report.
func (l *List) Freeze() {
	if !l.Frozen() {
		l.keepStaged()
		l.begin(time.Now(), time.Time{})
		l.recordStopped()
	}
}

// RollBack gives clients the former state of resources until Thaw. Of several states of a resource, the last one is used.
// Until then, changes of the types for which [cache.Config.Waits] is true wait, and so do removals of endpoints and Secrets.
// All other changes pass. It ends a freeze.
func (l *List) RollBack(formers []cache.Former, since time.Time) {
	wasFrozen := l.Frozen()
	l.begin(time.Time{}, since)
	if wasFrozen {
		l.release(frozenReason, func(set setKey, r row) bool { return !l.stopsRow(set, r) })
	}
	type formerKey struct {
		set  setKey
		name string
	}
	bySet, seen := make(map[setKey][]cache.Statement), make(map[formerKey]bool)
	for _, f := range slices.Backward(formers) {
		set := setKey{f.Key, f.Kind}
		if of := (formerKey{set, f.Name}); l.stops(set.typeURL(), false) && !seen[of] {
			seen[of] = true
			s := cache.Statement{Name: f.Name, HasContent: true, Resource: f.Resource, Deadline: f.Deadline}
			if l.listServed(set, s) {
				bySet[set] = append(bySet[set], s)
			}
		}
	}
	for set, some := range inOrder(bySet, func(_ setKey, s cache.Statement) bool { return s.Resource == nil }) {
		sortStatements(some)
		l.w.Restate(set.kind, set.key, "", some)
	}
	l.recordStopped()
}

// listServed lists the newest state of a name that gets a former state. It returns false if the name keeps its state: readers
// have the former one, or no client subscribes to it.
func (l *List) listServed(set setKey, former cache.Statement) bool {
	served := l.w.Shown(l.rest(), set.kind, set.key, former.Name)
	if set.kind == cache.ByName && !served.HasContent {
		return false
	}
	former.HasError, former.Err = served.HasError, served.Err
	l.serve(set, former)
	return !served.Same(&former)
}

// Thaw ends Freeze and RollBack: clients are sent the newest state of each name, additions and changes in the order in which
// types are sent, then removals in reverse order, so that no resource refers to a removed one (B.11). A set of the last type
// changes in one generation. It has no effect if nothing waits for an operator.
func (l *List) Thaw() {
	if !l.isCommanded() {
		return
	}
	reason := frozenReason
	if !l.rolledBack.IsZero() {
		reason = rolledBackReason
	}
	l.release(reason, l.thaws)
	l.endShown()
	l.w.SetFrozen(time.Time{}, time.Time{})
	if l.frozen, l.rolledBack, l.beforeFreeze = (time.Time{}), (time.Time{}), nil; !l.staged {
		l.stop = stop{}
	}
	l.recordRows()
	for id := range l.stagedNames() {
		newest := l.newest(id)
		l.recordChange(id, newest.last() == nil)
	}
	l.compareAll()
	l.expireStaged(time.Now())
	l.recordStopped()
}

// thaws reports whether Thaw applies a row.
func (l *List) thaws(set setKey, r row) bool {
	return l.stopsRow(set, r) && !l.stagesRow(set, r)
}

// Thawed returns the names that Thaw changes, with their newest states.
func (l *List) Thawed() []cache.Former { return l.states(l.thaws) }

// begin makes changes wait for an operator. What waited for an interval waits for the operator from now on.
func (l *List) begin(frozen, rolledBack time.Time) {
	before := l.stop
	l.frozen, l.rolledBack = frozen, rolledBack
	l.w.SetFrozen(frozen, rolledBack)
	if before.isCommanded() {
		return
	}
	l.stop.begin()
	waited := make(map[setKey]map[string]row)
	for set, rows := range l.sets {
		for name, r := range rows {
			if l.stopsRow(set, r) && !l.stages(set.typeURL(), r.removes()) {
				if waited[set] == nil {
					waited[set] = make(map[string]row)
				}
				waited[set][name] = r
				l.remove(set, name)
			}
		}
	}
	for set, rows := range waited {
		// Clients that report what the list adds no longer keep it: they get the state of all others.
		l.w.Await(set.kind, set.key, nil, slices.Collect(maps.Keys(rows)))
		l.dropEmpty(set.typeURL())
		l.withhold(set, updateFrom(set, rows, l.served(set).System()))
		for name, r := range rows {
			if listed, ok := l.row(set, name); ok {
				listed.cause, listed.since = r.cause, r.since
				l.sets[set][name] = listed
			}
		}
	}
}

// release applies rows, in the order of Thaw.
func (l *List) release(reason string, match func(setKey, row) bool) {
	released := make(map[setKey][]string)
	for set, rows := range l.sets {
		for name, r := range rows {
			if match(set, r) {
				released[set] = append(released[set], name)
			}
		}
	}
	defer l.w.SetCause(l.cause)
	removes := func(set setKey, name string) bool { return l.sets[set][name].removes() }
	for set, names := range released {
		if l.clock != nil && slices.ContainsFunc(names, func(name string) bool { return removes(set, name) }) {
			l.hastenAll(time.Now()) // what may refer to the removed passes first
			break
		}
	}
	for set, names := range inOrder(released, removes) {
		rows, all := make(map[string]row, len(names)), make([]cache.Statement, 0, len(names))
		for _, name := range names {
			r := l.sets[set][name]
			r.Name, rows[name] = name, r
			all = append(all, r.Statement)
			l.remove(set, name)
		}
		sortStatements(all)
		now, cause := time.Now(), causeOf(rows, reason)
		cause.Received = now // clients get it now because of the operator
		l.w.SetCause(cause)
		if c := l.w.Restate(set.kind, set.key, l.systems[set], all); l.clock != nil {
			l.record(set, c, now)
		}
	}
}

// applyStopped applies a response while changes wait for an operator.
func (l *List) applyStopped(kind cache.Kind, u wire.Update) cache.Change {
	set := setKey{u.TypeURL, kind}
	changes, removals := l.stops(set.typeURL(), false), l.stops(set.typeURL(), true)
	switch {
	case changes:
		return l.withhold(set, u)
	case !removals:
		return l.pace(kind, u)
	}
	left := wire.Update{
		TypeURL: u.TypeURL, SystemVersion: u.SystemVersion, Removed: u.Removed, RemovedVariants: u.RemovedVariants,
	}
	for _, err := range u.Errors {
		if err.NotFound() || slices.Contains(u.Removed, err.Name) {
			left.Errors = append(left.Errors, err)
		}
	}
	u.Removed, u.RemovedVariants = nil, nil
	u.Errors = slices.DeleteFunc(slices.Clone(u.Errors), func(err *wire.ResourceError) bool {
		return slices.Contains(left.Errors, err) // clients get it together with the removal
	})
	l.endRestated(set, u)
	if shown := l.served(set).System(); shown != "" && (len(left.Removed)+len(left.RemovedVariants) > 0 || len(l.sets[set]) > 0) {
		u.SystemVersion = shown // that of the response follows, if no removal waits
	}
	c, of := l.pace(kind, u), l.withhold(set, left)
	c.Removed += of.Removed
	c.Ignored += of.Ignored
	return c
}

// endRestated ends removals that wait, of names that a response states again: content under all of its names, and errors.
func (l *List) endRestated(set setKey, u wire.Update) {
	if len(l.sets[set]) == 0 {
		return
	}
	content := make(map[string][]*wire.Resource)
	for _, r := range u.Resources {
		if r.Refusal != nil || !r.HasBody() {
			continue
		}
		for _, name := range append([]string{r.Name}, r.Aliases...) {
			content[name] = append(content[name], r)
		}
	}
	for name, r := range l.sets[set] {
		plain, parameters := wire.SplitParameters(name)
		restates := func(of *wire.Resource) bool { return of.Variant().Matches(parameters) }
		fails := func(e *wire.ResourceError) bool { return e.Name == plain && e.Matches(parameters) }
		if slices.ContainsFunc(content[plain], restates) {
			l.end(set, cache.Statement{Name: name, HasContent: r.removes(), HasError: r.removes()})
		} else if slices.ContainsFunc(u.Errors, fails) {
			l.end(set, cache.Statement{Name: name, HasError: true})
		}
	}
}

// withhold applies the part of a response that does not wait for an operator, and lists the rest.
func (l *List) withhold(set setKey, u wire.Update) cache.Change {
	system, shown := u.SystemVersion, l.served(set).System()
	if len(l.sets[set]) > 0 && shown != "" {
		u.SystemVersion = shown
	}
	var waiting cache.Change
	c := l.w.ApplyFirst(set.kind, u, newest{l, set, &waiting})
	add(&c, waiting, 1)
	if c.Reused = append(c.Reused, waiting.Reused...); len(waiting.Reused) > 0 {
		source := l.w.Source()
		source.Reused = true
		l.w.SetSource(source)
	}
	l.systems[set] = system
	l.endSystem(set)
	return c
}

// RetainsUnused reports whether resources without subscribers must be kept. Otherwise returning clients would be sent the
// newest state, with changes that other clients are not sent yet.
func (l *List) RetainsUnused() bool {
	return l.Frozen() || l.countRows(true) > 0
}

// Withholds reports whether the newest state of a name is not that which clients have, for longer than an interval.
func (l *List) Withholds(typeURL string, n *cache.Name) bool {
	r, listed := l.row(setKey{typeURL, cache.ByName}, n.String())
	return listed && l.stopsRow(setKey{typeURL, cache.ByName}, r)
}

// WithholdsAny reports whether the newest state of any name of a wildcard set is not that which clients have, for longer than an
// interval.
func (l *List) WithholdsAny(key string) bool {
	set := setKey{key, cache.Wildcard}
	for _, r := range l.sets[set] {
		if l.stopsRow(set, r) {
			return true
		}
	}
	return false
}

package reconcile

import (
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/xdstender/tender/cache/partition"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/pending"
)

// A unit is a group of changes that are applied together or not at all: additions, and the removals and moves of served resources
// that make room for them. Clients cannot have two resources with a common key at the same time, such as two listeners on one address (B.11). A unit is
// applied whole, so that no client is sent an addition that it must reject, and then loses the resource that it had.
//
// A unit whose removals the origin has stated, or probably intends, is a replacement: clients lose nothing by it, so that it
// passes at once (B.15). If the origin has said nothing of a resource, the unit waits for its removal.
type unit struct {
	additions names // resources that are added, or that move
	excluding names // served resources that keep a key which an addition needs
}

// A standing is what the origin has said of a served resource that excludes an addition.
type standing int

const (
	removing standing = iota // its removal is decided, suspected or held
	kept                     // an operator has dropped its removal, or has to decide about it
	unsure                   // the origin may have removed it without a word; the relay asks
	present                  // the origin has it
)

// unitWaitMax is the longest time that a unit waits for the origin: until a query is due, for its answer, and once more on a new stream.
const unitWaitMax = 3 * mentionTimeout

// A joining decides which units pass with an update, and which wait.
type joining struct {
	f       *filter
	set     *Set
	removed names                     // by the update
	stated  map[string]*wire.Resource // with content, by the origin
	next    map[string]*wire.Resource // what will be served instead of what is: stated, and what waited before
	before  map[string]waiting        // the additions that waited before
	keys    map[*wire.Resource]names  // of candidates
}

// hasUnits reports whether resources of the set exclude one another. The names of a set by name are of different clients.
func (s *Set) hasUnits() bool {
	return wire.HasKeys(s.TypeURL) && s.isWhole()
}

// joinUnits returns an update, whose changes are decided, with each unit whole: it adds what waited for this update, and takes out
// additions that have to wait for another one, which it records. blocked are served resources of these units: their removals have
// to wait, too.
func (f *filter) joinUnits(u wire.Update) (_ wire.Update, blocked names) {
	s := f.set
	if !s.hasUnits() || len(u.Resources)+len(s.waiting)+s.count(grown) == 0 {
		return u, nil
	}
	j := joining{
		f: f, set: s, removed: make(names), stated: make(map[string]*wire.Resource), next: make(map[string]*wire.Resource),
		before: s.waiting, keys: make(map[*wire.Resource]names),
	}
	for name := range u.RemovedNames() {
		j.removed[name] = struct{}{}
	}
	candidates := j.candidates(u)
	s.waiting = nil
	deferred, replaced := make(names), make(names)
	for _, of := range j.unitsOf(candidates) {
		if j.grows(of) || j.waits(of) {
			maps.Copy(deferred, of.additions)
			for name := range of.excluding {
				put(&blocked, name, struct{}{})
			}
			continue
		}
		j.replace(of, replaced)
	}
	u.Resources = j.record(candidates, deferred)
	u.Removed, u.Errors = slices.Clip(u.Removed), slices.Clip(u.Errors) // the caller keeps its own
	f.moveTo(&u, func(name string, _ removal) bool { _, ok := replaced[name]; return ok })
	return u, blocked
}

// candidates returns the resources of the update, and what waited before unless the origin has stated something else of it.
func (j *joining) candidates(u wire.Update) []*wire.Resource {
	for _, r := range j.f.update.Resources {
		if statesContent(r) {
			j.stated[r.Name] = r
		} else if w, waited := j.before[r.Name]; waited {
			w.renewed = j.f.now
			j.before[r.Name] = w
		}
	}
	all := slices.Clone(u.Resources)
	if whole := u.Complete || j.set.group.cfg.AllResources && u.TypeURL != ""; !whole { // otherwise it lists what the origin has
		all = append(all, j.waitedBefore()...)
	}
	for _, name := range slices.Sorted(maps.Keys(j.set.byName)) {
		if change := j.set.byName[name]; change.growing() {
			all = append(all, change.replacement) // what makes room for it waits with it, and so does what it makes room for
		}
	}
	for _, r := range all {
		if r.HasBody() && r.Refusal == nil { // otherwise clients keep what is served
			j.next[r.Name] = r
		}
	}
	return all
}

// waitedBefore returns what waited before the update and has not expired, unless the origin has stated something else of it, or it
// would break clients by now.
func (j *joining) waitedBefore() (all []*wire.Resource) {
	for _, name := range slices.Sorted(maps.Keys(j.before)) {
		w := j.before[name]
		_, removed := j.removed[name]
		expired := w.resource.TTL > 0 && !j.f.now.Before(w.renewed.Add(w.resource.TTL))
		denied := slices.ContainsFunc(j.f.update.Errors, func(e *wire.ResourceError) bool { return e.Name == name })
		if j.stated[name] == nil && !removed && !denied && !j.set.HasRemoval(name) && !expired {
			all = append(all, w.resource)
		}
	}
	return j.f.holdBreaking(wire.Update{Resources: all}).Resources
}

// keysOf returns the keys of a candidate, which are read once.
func (j *joining) keysOf(r *wire.Resource) names {
	keys, read := j.keys[r]
	if !read {
		for _, key := range keysOf(r) {
			put(&keys, key, struct{}{})
		}
		j.keys[r] = keys
	}
	return keys
}

// neededKeys returns the keys that a candidate needs and that other resources are served with. A key that it is served with itself
// is no reason: clients have decided about it. The index may still have it from before it left the content without an update.
func (j *joining) neededKeys(r *wire.Resource) (keys []string) {
	s := j.set
	served := s.content.Get(r.Name)
	if served != nil && (served == r || served.SameContent(r)) || len(j.keysOf(r)) == 0 {
		return nil
	}
	s.index.build(s.content.Names(), s.content.Get)
	for key := range j.keysOf(r) {
		if holders := s.index.names[key]; len(holders) > 0 && (served == nil || !has(holders, r.Name)) {
			keys = append(keys, key)
		}
	}
	return keys
}

// unitsOf returns the units of the candidates that need keys of served resources, in a fixed order.
func (j *joining) unitsOf(candidates []*wire.Resource) []*unit {
	var p partition.Partition[node] // of names, and of the keys that connect them
	needed, additions, excluding := make(names), make(names), make(names)
	for _, r := range candidates {
		for _, key := range j.neededKeys(r) {
			additions[r.Name], needed[key] = struct{}{}, struct{}{}
			join(&p, r.Name, key)
		}
	}
	for key := range needed {
		for name := range j.set.index.names[key] {
			if j.set.content.Get(name) == nil {
				continue
			}
			join(&p, name, key)
			if next := j.next[name]; next == nil || has(j.keysOf(next), key) {
				excluding[name] = struct{}{}
			} else {
				additions[name] = struct{}{}
			}
		}
	}
	return unitsIn(&p, additions, excluding)
}

// grows reports whether an addition of a unit is abnormal growth: then the unit waits as long as that.
func (j *joining) grows(of *unit) bool {
	for addition := range of.additions {
		if j.set.byName[addition].growing() {
			return true
		}
	}
	return false
}

// waits reports whether a unit waits for a removal that the origin may still state: for ColdWait if the origin has the resource, for
// unitWaitMax if it has not mentioned it, and without limit if an operator keeps it or there is no connection.
func (j *joining) waits(of *unit) bool {
	var since time.Time // of the addition that has waited longest
	for addition := range of.additions {
		if w, waited := j.before[addition]; waited {
			since = Earlier(since, w.since)
		}
	}
	passed := func(d time.Duration) bool { return !since.IsZero() && !j.f.now.Before(since.Add(d)) }
	conflict := false
	for name := range of.excluding {
		switch j.standing(name) {
		case removing:
		case kept:
			return true
		case unsure:
			if conflict = true; !passed(unitWaitMax) {
				return true
			}
		case present:
			conflict = true
		}
	}
	_, connected := j.set.content.CompleteAt()
	return conflict && (!connected || !passed(min(j.set.group.cfg.ColdWait, unitWaitMax)))
}

// standing returns what the origin has said of a served resource.
func (j *joining) standing(name string) standing {
	change, pending := j.set.byName[name]
	switch {
	case has(j.removed, name):
		return removing
	case j.stated[name] != nil || pending && change.replacement != nil:
		return present
	case pending && (change.state == dropped || j.set.requires(name)):
		return kept
	case pending:
		return removing
	case has(j.set.withoutVersion, name):
		return unsure
	}
	return present
}

// record records the additions that wait, and returns the other candidates.
func (j *joining) record(candidates []*wire.Resource, deferred names) []*wire.Resource {
	var first []string
	candidates = slices.DeleteFunc(candidates, func(r *wire.Resource) bool {
		if j.set.byName[r.Name].growing() {
			return true
		}
		w, waited := j.before[r.Name]
		if !has(deferred, r.Name) || !statesContent(r) { // a heartbeat is of what is served
			if waited {
				j.f.passWaiting(r.Name, w)
			}
			return false
		}
		if w.resource = r; !waited {
			_, w.cause = j.f.waitsSince(r.Name)
			w.since, first = j.f.now, append(first, r.Name)
		}
		if j.stated[r.Name] == r {
			w.renewed = j.f.now
		}
		put(&j.set.waiting, r.Name, w)
		return true
	})
	if len(j.set.waiting) > 0 {
		j.set.group.withRemovals[j.set] = struct{}{} // a decision is due
	}
	if len(first) > 0 {
		j.set.group.cfg.Logger.Info("resources wait for the removal of others that exclude them",
			slog.String("type_url", j.set.TypeURL), slog.Int("waiting", len(first)), slog.String("name", first[0]))
	}
	return candidates
}

// passWaiting records that an addition waits no longer.
func (f *filter) passWaiting(name string, w waiting) {
	put(&f.delays, name, pending.Delay{Cause: w.cause, Since: w.since, Reason: string(Replacement)})
}

// replace adds to replaced the names whose removal completes a unit that passes. What the origin has stays: clients decide.
func (j *joining) replace(of *unit, replaced names) {
	for name := range of.excluding {
		if j.standing(name) == removing {
			j.set.markMentioned(name)
			replaced[name] = struct{}{}
			for addition := range of.additions {
				put(&j.f.replacing, addition, struct{}{})
			}
		}
	}
}

// withoutBlocked returns an update without the removals of blocked names, and records these: they are decided, but for their unit.
func (f *filter) withoutBlocked(u wire.Update, blockedNames names) wire.Update {
	s := f.set
	if len(blockedNames) == 0 {
		return u
	}
	for name := range u.RemovedNames() {
		if has(blockedNames, name) {
			since, cause := f.waitsSince(name)
			s.record(name, removal{state: blocked, explicit: true, since: since, cause: cause})
		}
	}
	u.Removed = without(u.Removed, func(name string) bool { return has(blockedNames, name) })
	u.Errors = without(u.Errors, func(e *wire.ResourceError) bool { return has(blockedNames, e.Name) && s.recordError(e) })
	return u
}

// excludedByDropped returns a function that selects the dropped removals of served resources that exclude a resource which waits.
func (f *filter) excludedByDropped(r *wire.Resource) func(name string, change removal) bool {
	j := joining{f: f, set: f.set, keys: make(map[*wire.Resource]names)}
	excluding := make(names)
	for _, key := range j.neededKeys(r) {
		maps.Copy(excluding, f.set.index.names[key])
	}
	return func(name string, change removal) bool {
		return change.state == dropped && change.replacement == nil && has(excluding, name)
	}
}

// oldestWait returns since when an addition waits; zero if none does.
func (s *Set) oldestWait() (since time.Time) {
	for _, w := range s.waiting {
		since = Earlier(since, w.since)
	}
	return since
}

// unitsDue returns when a unit may wait no longer, unless a response or an operator decides before; zero for never.
func (s *Set) unitsDue(now time.Time) (next time.Time) {
	for _, w := range s.waiting {
		for _, d := range []time.Duration{s.group.cfg.ColdWait, unitWaitMax} {
			if at := w.since.Add(min(d, unitWaitMax)); now.Before(at) {
				next = Earlier(next, at)
			}
		}
	}
	return next
}

// A node is what units connect: a name, or a key.
type node struct {
	isKey bool
	text  string
}

// join connects a name with one of its keys.
func join(p *partition.Partition[node], name, key string) {
	p.Join(p.Add(node{text: name}), p.Add(node{isKey: true, text: key}))
}

// unitsIn returns a unit for each set that has an addition, in the order of their first names.
func unitsIn(p *partition.Partition[node], additions, excluding names) (all []*unit) {
	rootOf := func(name string) int { return p.Root(p.Add(node{text: name})) }
	byRoot := make(map[int]*unit)
	for _, name := range slices.Sorted(maps.Keys(additions)) {
		root := rootOf(name)
		if byRoot[root] == nil {
			byRoot[root] = &unit{make(names), make(names)}
			all = append(all, byRoot[root])
		}
		byRoot[root].additions[name] = struct{}{}
	}
	for name := range excluding {
		byRoot[rootOf(name)].excluding[name] = struct{}{}
	}
	return all
}

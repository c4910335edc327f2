package upstream

import (
	"cmp"
	"log/slog"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// alarmEvery is how often it is logged again that removals are held back.
const alarmEvery = 5 * time.Minute

// A removal is a resource that an origin seems to have removed.
type removal struct {
	// emptied takes the place of an assignment that had endpoints; nil if nothing does.
	emptied *wire.Resource

	stated bool                // the origin said so, it was not inferred
	reason *wire.ResourceError // that it gave; nil if it gave none
	again  bool                // the second look inferred it again
}

// removals decides which removals from one set reach clients (B.15). It does no I/O but for the log, and knows no clock. Its zero value holds
// nothing.
//
// A name is in at most one of the maps.
type removals struct {
	suspects map[string]removal // undecided: until the set is confirmed, or as long as something held needs it
	held     map[string]removal // too many to be believed; until a second look or an operator decides
	approved map[string]removal // by an operator
	kept     map[string]removal // by an operator, until the origin mentions it

	unproven bool // some of the suspects were inferred without a control

	// Of the stream that carries the set, until all of it was said there.
	earlier   bool                // something is from before
	mentioned map[string]struct{} // on the stream, if so
	fresh     map[string]struct{} // new resources that are there still, if so

	added int // new resources, if nothing is from before; once all was said, of the last update

	since, until, alarmAt time.Time // of held
	looking               bool      // the second look has begun

	counted int64 // of held, by count
	stays   int   // likewise, by the mirror, of all that is there although it seems to be removed
}

// begin notes that the set begins to be said on a new stream, whether it holds something from before, and whether the origin is
// told what that is. What was suspect is so only if it is seen to be gone on this stream too: an origin that is told of what it
// has need not mention it. For the same reason a second look begins anew if it was interrupted.
func (r *removals) begin(earlier, told bool) {
	r.earlier, r.mentioned, r.added, r.fresh = earlier, nil, 0, nil
	r.suspects, r.unproven = nil, false
	r.looking = r.looking && !told
}

// none reports whether there is nothing to decide.
func (r *removals) none() bool {
	return len(r.suspects)+len(r.held)+len(r.approved)+len(r.kept) == 0
}

// screening is what screen needs to know of a set.
type screening struct {
	confirmed    bool                             // all of the set was said on its stream
	holdExplicit bool                             // also what an origin removes from a confirmed set is suspect
	has          func(name string) *wire.Resource // what the set holds; nil if nothing
	needed       func(name string) bool           // something that is held back or kept needs it
	mayBeNeeded  func(name string) bool           // likewise, or something of which it is not known yet whether it is gone
	asked        map[string]struct{}              // the relay asked for them, to see whether they are gone
	wait         time.Duration                    // for which large removals are held
	now          time.Time
}

// screen returns an update without the removals that must wait, and records these. What the update mentions otherwise is
// suspect no more.
func (r *removals) screen(u wire.Update, s screening) wire.Update {
	if s.confirmed {
		r.mentioned, r.fresh = nil, nil
	}
	u.Resources = r.screenResources(u.Resources, s)
	waiting := make(map[string]struct{})
	for name := range u.RemovedNames() {
		delete(r.fresh, name)
		switch {
		case s.has(name) == nil:
		case r.waits(name, s) || s.holdExplicit && !cache.RemovalsAreData(u.TypeURL):
			waiting[name] = struct{}{}
			r.suspect(name, removal{stated: true}, s.repeats(name))
			continue
		}
		r.forget(name)
	}
	if len(waiting) > 0 {
		u.Removed = without(u.Removed, func(name string) bool { _, waits := waiting[name]; return waits })
	}
	u.Errors = without(u.Errors, func(e *wire.ResourceError) bool {
		_, waits := waiting[e.Name]
		return r.explain(e) || waits
	})
	return u
}

// screenResources is screen for the resources of an update.
func (r *removals) screenResources(resources []*wire.Resource, s screening) []*wire.Resource {
	var emptied []*wire.Resource
	for _, res := range resources {
		if isEmptyAssignment(res) && r.waits(res.Name, s) && s.hadEndpoints(res.Name) { // what is needed is found by a search
			emptied = append(emptied, res)
			r.suspect(res.Name, removal{emptied: res, stated: true}, s.repeats(res.Name))
			continue
		}
		if !r.none() {
			r.mention(res.Name, s)
		}
		if r.earlier && !s.confirmed {
			put(&r.mentioned, res.Name, struct{}{})
		}
	}
	if len(emptied) == 0 {
		return resources
	}
	return without(resources, func(res *wire.Resource) bool { return slices.Contains(emptied, res) })
}

// explain takes what the origin says is wrong with a resource if its removal waits, and reports whether it does.
func (r *removals) explain(e *wire.ResourceError) (waits bool) {
	for _, of := range []map[string]removal{r.suspects, r.held} {
		if as, is := of[e.Name]; is {
			as.reason = e
			of[e.Name], waits = as, true
		}
	}
	return waits
}

// waits reports whether the removal of a name waits: the origin has not mentioned it on a stream of which it has not yet said
// all, or says so since it was asked, or something needs the resource.
func (r *removals) waits(name string, s screening) bool {
	_, mentioned := r.mentioned[name]
	_, asked := s.asked[name]
	return !s.confirmed && r.earlier && !mentioned || asked || s.needed(name)
}

// repeats reports whether what the origin says of a name may be what it has said before: it was asked anew.
func (s *screening) repeats(name string) bool {
	_, asked := s.asked[name]
	return !s.confirmed || asked
}

// without returns the elements of a slice of which out is false, and leaves the slice as it is.
func without[E any](all []E, out func(E) bool) []E {
	if !slices.ContainsFunc(all, out) {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), out)
}

// isEmptyAssignment reports whether a resource is an assignment without endpoints.
func isEmptyAssignment(r *wire.Resource) bool {
	return r.TypeURL == wire.EndpointType && r.TTL == 0 && r.Refusal == nil && r.HasBody() && !r.HasEndpoints()
}

// hadEndpoints reports whether the set holds an assignment with endpoints.
func (s *screening) hadEndpoints(name string) bool {
	old := s.has(name)
	return old != nil && !old.ContentDropped() && old.HasEndpoints()
}

// mention ends every suspicion of a resource that is there. If its removal was held back, the origin may be about to say more:
// the time for the others begins anew.
func (r *removals) mention(name string, s screening) {
	if _, is := r.held[name]; is {
		r.renew(s.now, s.wait)
	}
	r.forget(name)
}

// knows reports whether something was said, or decided, of the removal of a name.
func (r *removals) knows(name string) bool {
	_, suspect := r.suspects[name]
	_, held := r.held[name]
	_, approved := r.approved[name]
	_, kept := r.kept[name]
	return suspect || held || approved || kept
}

func (r *removals) forget(name string) {
	delete(r.suspects, name)
	delete(r.held, name)
	delete(r.approved, name)
	delete(r.kept, name)
}

// suspect records a removal. One that is held back stays so, and one that an operator had approved or kept is as he chose; but
// what he had kept is undecided again if the origin removes it, unless that repeats what he decided on.
func (r *removals) suspect(name string, as removal, repeats bool) {
	_, approved := r.approved[name]
	was, kept := r.kept[name]
	old, held := r.held[name]
	repeats = repeats || as.emptied != nil && was.emptied != nil && as.emptied.SameContent(was.emptied)
	switch {
	case held:
		as.stated, as.again, as.reason = as.stated || old.stated, old.again || r.looking, old.reason
		r.held[name] = as
	case approved || kept && repeats:
	default:
		delete(r.kept, name)
		put(&r.suspects, name, as)
	}
}

// infer records that resources seem to be gone. Unproven means that not one of them may be believed at once.
func (r *removals) infer(names map[string]struct{}, unproven bool) {
	for name := range names {
		delete(r.fresh, name)
		r.suspect(name, removal{}, true)
	}
	r.unproven = r.unproven || unproven && len(r.suspects) > 0
}

// grow counts the resources that an update adds to a set: apply applies it, and returns how many are new.
func (r *removals) grow(u wire.Update, s screening, apply func() cache.Change) cache.Change {
	var absent []string
	if !s.confirmed && r.earlier {
		for _, res := range u.Resources {
			if s.has(res.Name) == nil {
				absent = append(absent, res.Name)
			}
		}
	}
	c := apply()
	for _, name := range absent {
		if s.has(name) != nil { // it may be wanted by nobody
			put(&r.fresh, name, struct{}{})
		}
	}
	switch {
	case s.confirmed:
		r.added = c.New
	case !r.earlier:
		r.added += c.New
	}
	return c
}

// additions returns how many resources are new and there still.
func (r *removals) additions() int { return r.added + len(r.fresh) }

// A verdict is what was decided anew on the removals from a set.
type verdict struct {
	removed  []string         // to be removed, in order
	emptied  []*wire.Resource // to be put, in order of their names
	reasons  []*wire.ResourceError
	released int // of these, that an operator approved
	held     int // removals that are held back from now on
}

func (v *verdict) add(name string, r removal) {
	if r.emptied != nil {
		v.emptied = append(v.emptied, r.emptied)
	} else {
		v.removed = append(v.removed, name)
	}
	if r.reason != nil {
		v.reasons = append(v.reasons, r.reason)
	}
}

// judge decides what can be decided on a set of a type.
func (r *removals) judge(typeURL string, count int, s screening) (v verdict) {
	r.prune(s.has)
	for name, a := range r.approved {
		v.add(name, a)
		v.released++
	}
	clear(r.approved)
	if s.confirmed {
		r.decide(typeURL, count, s, &v)
	}
	slices.Sort(v.removed)
	slices.SortFunc(v.emptied, func(a, b *wire.Resource) int { return cmp.Compare(a.Name, b.Name) })
	return v
}

// decide is judge for a set that is confirmed.
func (r *removals) decide(typeURL string, count int, s screening, v *verdict) {
	if r.looking {
		r.decideHeld(s, v)
	}
	// Those that still wait count too, or a large removal would be made in small parts.
	hold := len(r.held) > 0 || r.unproven || cache.LargeRemoval(typeURL, len(r.suspects), count-r.additions(), r.additions())
	for name, as := range r.suspects {
		switch {
		case hold:
			as.again = false
			put(&r.held, name, as)
			v.held++
		case s.mayBeNeeded(name):
			continue
		default:
			v.add(name, as)
		}
		delete(r.suspects, name)
	}
	if r.unproven = false; v.held > 0 {
		r.renew(s.now, s.wait)
	}
}

// decideHeld removes what was held back, and what the second look has found gone as well.
func (r *removals) decideHeld(s screening, v *verdict) {
	for name, h := range r.held {
		if (h.stated || h.again) && !s.needed(name) {
			v.add(name, h)
			delete(r.held, name)
		}
	}
}

// renew begins the time anew for which removals are held.
func (r *removals) renew(now time.Time, wait time.Duration) {
	if r.until.IsZero() && !r.looking {
		r.since, r.alarmAt = now, now.Add(alarmEvery)
	}
	r.until, r.looking = now.Add(wait), false
}

// prune drops what the set does not hold any more, or, of what was emptied, what has no endpoints by now.
func (r *removals) prune(has func(string) *wire.Resource) {
	for _, of := range []map[string]removal{r.suspects, r.held, r.approved, r.kept} {
		maps.DeleteFunc(of, func(name string, _ removal) bool { return has(name) == nil })
	}
	if len(r.held) == 0 {
		r.since, r.until, r.alarmAt, r.looking = time.Time{}, time.Time{}, time.Time{}, false
	}
}

// due reports whether it is time for the second look, which then has begun, and when to look again.
func (r *removals) due(now time.Time) (look bool, next time.Time) {
	switch {
	case len(r.held) == 0 || r.looking:
		return false, time.Time{}
	case now.Before(r.until):
		return false, r.until
	}
	r.looking = true
	for name, h := range r.held {
		h.again = false
		r.held[name] = h
	}
	return true, time.Time{}
}

// alarm logs now and then that removals are still held back, and returns when it will again.
func (r *removals) alarm(typeURL string, log *slog.Logger, now time.Time) (next time.Time) {
	if len(r.held) == 0 {
		return time.Time{}
	}
	if !now.Before(r.alarmAt) {
		r.alarmAt = now.Add(alarmEvery)
		log.Warn("removals are still held back: tender release makes them, tender discard keeps the resources",
			slog.String("type_url", typeURL), slog.Int("held", len(r.held)), slog.Time("since", r.since))
	}
	return r.alarmAt
}

// count adds to a sum how many more removals are held back than when it was called last.
func (r *removals) count(sum *atomic.Int64) {
	by := int64(len(r.held)) - r.counted
	r.counted += by
	sum.Add(by)
}

// holds returns what waits, and what an operator had kept. Suspects are decided at a time that the caller knows.
func (r *removals) holds(typeURL string, suspectsUntil time.Time) (holds []Hold) {
	if len(r.held) > 0 {
		until := r.until
		if r.looking {
			until = time.Time{}
		}
		holds = append(holds, Hold{TypeURL: typeURL, Names: slices.Sorted(maps.Keys(r.held)), Since: r.since, Until: until})
	}
	if len(r.suspects) > 0 {
		holds = append(holds, Hold{TypeURL: typeURL, Names: slices.Sorted(maps.Keys(r.suspects)), Until: suspectsUntil, Unconfirmed: true})
	}
	if len(r.kept) > 0 {
		holds = append(holds, Hold{TypeURL: typeURL, Names: slices.Sorted(maps.Keys(r.kept)), Discarded: true})
	}
	return holds
}

// release approves the removals of a choice, which judge then returns.
func (r *removals) release(discarded bool) {
	if discarded {
		move(&r.approved, r.kept)
	} else {
		move(&r.approved, r.held, r.suspects)
	}
}

// discard keeps the resources whose removal waits.
func (r *removals) discard() { move(&r.kept, r.held, r.suspects) }

func move(to *map[string]removal, all ...map[string]removal) {
	for _, from := range all {
		for name, as := range from {
			put(to, name, as)
		}
		clear(from)
	}
}

// staying returns the names that are there although the origin seems to have removed them.
func (r *removals) staying() map[string]struct{} {
	names := make(map[string]struct{}, len(r.suspects)+len(r.held)+len(r.kept))
	for _, of := range []map[string]removal{r.suspects, r.held, r.kept} {
		for name := range of {
			names[name] = struct{}{}
		}
	}
	return names
}

// put puts into a map that may not exist yet.
func put[V any](m *map[string]V, name string, v V) {
	if *m == nil {
		*m = make(map[string]V)
	}
	(*m)[name] = v
}

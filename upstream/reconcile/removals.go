package reconcile

import (
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// alarmEvery is how often it is logged again that removals are held.
const alarmEvery = 5 * time.Minute

// A state says how a removal stands.
type state int

const (
	held      state = iota // too many to be believed; until a second look or an operator decides
	suspected              // undecided: until the set is complete, or as long as something held needs it
	kept                   // by an operator, until the origin mentions it
)

// A removal is a resource that an origin seems to have removed.
type removal struct {
	state state

	// emptied takes the place of an assignment that had endpoints; nil if nothing does.
	emptied *wire.Resource

	stated bool                // the origin stated it, it was not inferred
	reason *wire.ResourceError // that the origin gave; nil if it gave none
	again  bool                // the second look inferred it again
}

// Removals are the resources of one set that the origin seems to have removed and that are there still. The zero
// value has none.
type removals struct {
	byName map[string]removal

	unproven bool // some of those that are suspected were inferred without a control

	since, until, alarmAt time.Time // of those that are held
	looking               bool      // the second look has begun
}

// count returns how many there are in a state.
func (r *removals) count(in state) (n int) {
	for _, as := range r.byName {
		if as.state == in {
			n++
		}
	}
	return n
}

// suspect records a removal. One that is held stays so, and what an operator had kept stays kept, unless the
// origin removes it once more, which does not repeat what the operator decided on.
func (r *removals) suspect(name string, as removal, repeats bool) {
	old, is := r.byName[name]
	as.state = suspected
	switch repeats = repeats || as.emptied != nil && old.emptied != nil && as.emptied.SameContent(old.emptied); {
	case is && old.state == held:
		as.state, as.stated, as.again, as.reason = held, as.stated || old.stated, r.looking, old.reason
	case old.state == kept && repeats:
		return
	}
	put(&r.byName, name, as)
}

// explain records what the origin says is wrong with a resource if its removal waits, and reports whether it
// does.
func (r *removals) explain(e *wire.ResourceError) (waits bool) {
	as, is := r.byName[e.Name]
	if waits = is && as.state != kept; waits {
		as.reason = e
		r.byName[e.Name] = as
	}
	return waits
}

// hold begins the time anew for which removals are held.
func (r *removals) hold(now time.Time, wait time.Duration) {
	if r.until.IsZero() {
		r.since, r.alarmAt = now, now.Add(alarmEvery)
	}
	r.until, r.looking = now.Add(wait), false
}

// prune drops what the set does not hold any more.
func (r *removals) prune(holds func(string) *wire.Resource) {
	maps.DeleteFunc(r.byName, func(name string, _ removal) bool { return holds(name) == nil })
	if r.count(held) == 0 {
		r.until = time.Time{}
	}
}

// due reports whether it is time for the second look, which then has begun.
func (r *removals) due(now time.Time) (look bool) {
	if r.count(held) == 0 || r.looking || now.Before(r.until) {
		return false
	}
	r.looking = true
	for name, as := range r.byName {
		as.again = false
		r.byName[name] = as
	}
	return true
}

// alarm logs now and then that removals are still held, and returns when to look again.
func (r *removals) alarm(typeURL string, log *slog.Logger, now time.Time) (next time.Time) {
	n := r.count(held)
	if n == 0 {
		return time.Time{}
	}
	if !now.Before(r.alarmAt) {
		r.alarmAt = now.Add(alarmEvery)
		log.Warn("removals are still held back: tender release carries them out, tender discard keeps the resources",
			slog.String("type_url", typeURL), slog.Int("held", n), slog.Time("since", r.since))
	}
	if r.looking {
		return r.alarmAt
	}
	return Earlier(r.alarmAt, r.until)
}

// holds returns what waits, and what an operator had kept. Suspects are decided at the time that is given.
func (r *removals) holds(typeURL string, suspectsUntil time.Time) []Hold {
	holds := []Hold{
		held:      {TypeURL: typeURL, Since: r.since, Until: r.until},
		suspected: {TypeURL: typeURL, Until: suspectsUntil, Unconfirmed: true},
		kept:      {TypeURL: typeURL, Discarded: true},
	}
	if r.looking {
		holds[held].Until = time.Time{}
	}
	for _, name := range slices.Sorted(maps.Keys(r.byName)) {
		h := &holds[r.byName[name].state]
		h.Names = append(h.Names, name)
	}
	return slices.DeleteFunc(holds, func(h Hold) bool { return len(h.Names) == 0 })
}

// release takes out what waits, or what was kept, and returns it.
func (r *removals) release(discarded bool) (v Removals) {
	for name, as := range r.byName {
		if (as.state == kept) == discarded {
			v.add(name, as)
			delete(r.byName, name)
		}
	}
	return v
}

// discard keeps the resources whose removal waits, and returns how many there are.
func (r *removals) discard() (n int) {
	n = len(r.byName) - r.count(kept)
	for name, as := range r.byName {
		as.state = kept
		r.byName[name] = as
	}
	return n
}

// Removals are what is to be removed from a set.
type Removals struct {
	Names   []string         // to be removed
	Emptied []*wire.Resource // to be put
	Reasons []*wire.ResourceError
}

func (v *Removals) add(name string, r removal) {
	if r.emptied != nil {
		v.Emptied = append(v.Emptied, r.emptied)
	} else {
		v.Names = append(v.Names, name)
	}
	if r.reason != nil {
		v.Reasons = append(v.Reasons, r.reason)
	}
}

// confirm takes out what is held, was seen to be gone by the second look, and is not needed.
func (r *removals) confirm(needed func(string) bool, v *Removals) {
	for name, as := range r.byName {
		if as.state == held && r.looking && (as.stated || as.again) && !needed(name) {
			v.add(name, as)
			delete(r.byName, name)
		}
	}
}

// judge decides on what is suspect or held in a set of a type that is complete. The set has had so many
// resources, and additions of late. Needed returns whether something needs a name that stays, or doubtful
// whether that is not known yet. It returns what is to be removed, and how many removals are held from now on.
func (r *removals) judge(typeURL string, had, additions int, needed, mayBeNeeded func(string) bool, v *Removals) (n int) {
	r.confirm(needed, v)
	// Those that still wait count too, or a large removal would be made in small parts.
	hold := r.unproven || r.count(held) > 0 || cache.LargeRemoval(typeURL, r.count(suspected), had, additions)
	for name, as := range r.byName {
		switch {
		case as.state != suspected:
		case hold:
			as.state = held
			r.byName[name] = as
			n++
		case !mayBeNeeded(name):
			v.add(name, as)
			delete(r.byName, name)
		}
	}
	r.unproven = false
	return n
}

package reconcile

import (
	"cmp"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// alarmEvery is how often it is logged again that removals are held.
const alarmEvery = 5 * time.Minute

// A removal is a resource that an origin seems to have removed.
type removal struct {
	// emptied takes the place of an assignment that had endpoints; nil if nothing does.
	emptied *wire.Resource

	stated bool                // the origin stated it, it was not inferred
	reason *wire.ResourceError // that the origin gave; nil if it gave none
	again  bool                // the second look inferred it again
}

// Removals are the resources of one set that the origin seems to have removed. The zero value has none. A
// name is in at most one of the maps.
type removals struct {
	suspects map[string]removal // undecided: until the set is complete, or as long as something held needs it
	held     map[string]removal // too many to be believed; until a second look or an operator decides
	kept     map[string]removal // by an operator, until the origin mentions it

	unproven bool // some of the suspects were inferred without a control

	since, until, alarmAt time.Time // of held
	looking               bool      // the second look has begun
}

// all returns the maps.
func (r *removals) all() [3]map[string]removal {
	return [...]map[string]removal{r.suspects, r.held, r.kept}
}

// none reports whether there is nothing to decide.
func (r *removals) none() bool {
	return r.staying() == 0
}

// knows reports whether a name is among them.
func (r *removals) knows(name string) bool {
	for _, of := range r.all() {
		if _, is := of[name]; is {
			return true
		}
	}
	return false
}

// forget takes out a name.
func (r *removals) forget(name string) {
	for _, of := range r.all() {
		delete(of, name)
	}
}

// staying returns how many resources the set holds although the origin seems to have removed them.
func (r *removals) staying() int { return len(r.suspects) + len(r.held) + len(r.kept) }

// names yields them.
func (r *removals) names(yield func(name string) bool) {
	for _, of := range r.all() {
		for name := range of {
			if !yield(name) {
				return
			}
		}
	}
}

// suspect records a removal. One that is held stays so, and what an operator had kept stays kept, unless the
// origin removes it once more, which does not repeat what the operator decided on.
func (r *removals) suspect(name string, as removal, repeats bool) {
	was, kept := r.kept[name]
	old, held := r.held[name]
	repeats = repeats || as.emptied != nil && was.emptied != nil && as.emptied.SameContent(was.emptied)
	switch {
	case held:
		as.stated, as.again, as.reason = as.stated || old.stated, old.again || r.looking, old.reason
		r.held[name] = as
	case kept && repeats:
	default:
		delete(r.kept, name)
		put(&r.suspects, name, as)
	}
}

// explain records what the origin says is wrong with a resource if its removal waits, and reports whether it
// does.
func (r *removals) explain(e *wire.ResourceError) (waits bool) {
	for _, of := range []map[string]removal{r.suspects, r.held} {
		if as, is := of[e.Name]; is {
			as.reason = e
			of[e.Name], waits = as, true
		}
	}
	return waits
}

// hold begins the time anew for which removals are held.
func (r *removals) hold(now time.Time, wait time.Duration) {
	if r.until.IsZero() && !r.looking {
		r.since, r.alarmAt = now, now.Add(alarmEvery)
	}
	r.until, r.looking = now.Add(wait), false
}

// prune drops what the set does not hold any more.
func (r *removals) prune(holds func(string) *wire.Resource) {
	for _, of := range r.all() {
		maps.DeleteFunc(of, func(name string, _ removal) bool { return holds(name) == nil })
	}
	if len(r.held) == 0 {
		r.since, r.until, r.alarmAt, r.looking = time.Time{}, time.Time{}, time.Time{}, false
	}
}

// due reports whether it is time for the second look, which then has begun.
func (r *removals) due(now time.Time) (look bool) {
	if len(r.held) == 0 || r.looking || now.Before(r.until) {
		return false
	}
	r.looking = true
	for name, h := range r.held {
		h.again = false
		r.held[name] = h
	}
	return true
}

// alarm logs now and then that removals are still held, and returns when to look again.
func (r *removals) alarm(typeURL string, log *slog.Logger, now time.Time) (next time.Time) {
	if len(r.held) == 0 {
		return time.Time{}
	}
	if !now.Before(r.alarmAt) {
		r.alarmAt = now.Add(alarmEvery)
		log.Warn("removals are still held back: tender release carries them out, tender discard keeps the resources",
			slog.String("type_url", typeURL), slog.Int("held", len(r.held)), slog.Time("since", r.since))
	}
	if r.looking {
		return r.alarmAt
	}
	return Earlier(r.alarmAt, r.until)
}

// holds returns what waits, and what an operator had kept. Suspects are decided at the time that is given.
func (r *removals) holds(typeURL string, suspectsUntil time.Time) (holds []Hold) {
	add := func(of map[string]removal, h Hold) {
		if h.TypeURL, h.Names = typeURL, slices.Sorted(maps.Keys(of)); len(of) > 0 {
			holds = append(holds, h)
		}
	}
	until := r.until
	if r.looking {
		until = time.Time{}
	}
	add(r.held, Hold{Since: r.since, Until: until})
	add(r.suspects, Hold{Until: suspectsUntil, Unconfirmed: true})
	add(r.kept, Hold{Discarded: true})
	return holds
}

// release takes out what waits, or what was kept, and returns it.
func (r *removals) release(kept bool) (v Removals) {
	for _, of := range r.all() {
		for name, as := range of {
			if _, is := r.kept[name]; is == kept {
				v.add(name, as)
				delete(of, name)
			}
		}
	}
	return v
}

// discard keeps the resources whose removal waits.
func (r *removals) discard() {
	for _, of := range []map[string]removal{r.suspects, r.held} {
		for name, as := range of {
			put(&r.kept, name, as)
		}
		clear(of)
	}
}

// Removals are what is to be removed from a set.
type Removals struct {
	Names   []string         // to be removed, in order
	Emptied []*wire.Resource // to be put, in the order of their names
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

func (v *Removals) sort() {
	slices.Sort(v.Names)
	slices.SortFunc(v.Emptied, func(a, b *wire.Resource) int { return cmp.Compare(a.Name, b.Name) })
}

// judge decides on what is suspect or held in a set of a type that is complete. The set has had so many
// resources, and additions of late. Needed returns whether something needs a name that stays, or doubtful
// whether that is not known yet. It returns what is to be removed, and how many removals are held from now on.
func (r *removals) judge(typeURL string, had, additions int, needed, mayBeNeeded func(string) bool, v *Removals) (held int) {
	for name, h := range r.held {
		if r.looking && (h.stated || h.again) && !needed(name) {
			v.add(name, h)
			delete(r.held, name)
		}
	}
	// Those that still wait count too, or a large removal would be made in small parts.
	hold := len(r.held) > 0 || r.unproven || cache.LargeRemoval(typeURL, len(r.suspects), had, additions)
	for name, as := range r.suspects {
		switch {
		case hold:
			as.again = false
			put(&r.held, name, as)
			held++
		case mayBeNeeded(name):
			continue
		default:
			v.add(name, as)
		}
		delete(r.suspects, name)
	}
	r.unproven = false
	return held
}

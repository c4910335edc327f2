package reconcile

import (
	"log/slog"
	"time"

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
	breaking               // clients could not use what is served then (TENDER_VALIDATE=hold)
)

// A removal is a resource that an origin seems to have removed, or an update of one that has to wait.
type removal struct {
	state state

	// replacement takes the place of the resource; nil if nothing does. It is an assignment without endpoints, or a resource
	// that clients cannot use.
	replacement *wire.Resource

	// broken is why clients could not use what is served without the resource as it is; empty if they could. At is since when
	// the change is held for that.
	broken string
	at     time.Time

	stated bool                // the origin stated it, it was not inferred
	reason *wire.ResourceError // that the origin gave; nil if it gave none
	again  int                 // the second look that inferred it again, by its number
}

// Removals are the resources of one set that the origin seems to have removed and that are there still. The zero
// value has none.
type removals struct {
	byName map[string]removal

	unproven bool // some of those that are suspected were inferred without a control

	since, until, alarmAt time.Time // of those that are held
	brokenAlarmAt         time.Time // of those that break clients
	looking               bool      // the second look has begun
	looks                 int       // that have
}

// holdsUpdate reports whether an update was held since clients could not use it.
func (as removal) holdsUpdate(r *wire.Resource) bool {
	return as.broken != "" && as.replacement != nil && as.replacement.SameContent(r)
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

// turn moves the removals in one state to another, and returns how many there are.
func (r *removals) turn(from, to state) (n int) {
	for name, as := range r.byName {
		if as.state == from {
			as.state = to
			r.byName[name] = as
			n++
		}
	}
	return n
}

// takeOut moves the removals that are chosen to an update.
func (r *removals) takeOut(u *wire.Update, chosen func(name string, as removal) bool) {
	for name, as := range r.byName {
		if !chosen(name, as) {
			continue
		}
		delete(r.byName, name)
		if as.replacement != nil {
			u.Resources = append(u.Resources, as.replacement)
		} else {
			u.Removed = append(u.Removed, name)
		}
		if as.reason != nil {
			u.Errors = append(u.Errors, as.reason)
		}
	}
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

// due reports whether it is time for the second look, which then has begun.
func (r *removals) due(now time.Time) (look bool) {
	if r.count(held) == 0 || r.looking || now.Before(r.until) {
		return false
	}
	r.looking = true
	r.looks++
	return true
}

// Suspects reports whether a removal or a held change of a name is recorded.
func (r *removals) Suspects(name string) bool {
	_, is := r.byName[name]
	return is
}

// breakingAttrs returns log attributes of the changes that would break clients: their number, and the first by name.
func (r *removals) breakingAttrs(typeURL string) []slog.Attr {
	first, as := "", removal{}
	for name, change := range r.byName {
		if change.state == breaking && (first == "" || name < first) {
			first, as = name, change
		}
	}
	return []slog.Attr{
		slog.String("type_url", typeURL), slog.Int("held", r.count(breaking)), slog.String("name", first), slog.String("reason", as.broken),
	}
}

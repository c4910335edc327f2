package reconcile

import (
	"log/slog"
	"time"

	"github.com/xdstender/tender/cache/wire"
)

// alarmEvery is the interval between log messages about held changes.
const alarmEvery = 5 * time.Minute

// A state is the state of a removal.
type state int

const (
	held      state = iota // part of a large removal; until a second look or an operator decides
	suspected              // undecided until the set is complete and no held resource needs it
	kept                   // by an operator, until the origin mentions it
	breaking               // clients could not use the result (TENDER_VALIDATE=hold)
)

// A removal is a resource that an origin seems to have removed, or an update of one that has to wait.
type removal struct {
	state state

	// replacement takes the place of the resource; nil if nothing does. It is an assignment without endpoints, or a
	// resource that clients cannot use.
	replacement *wire.Resource

	// breakReason is why clients could not use what is served without the resource as it is; empty if they could. At is
	// since when the change is held for that.
	breakReason string
	at          time.Time

	stated     bool                // the origin stated it, it was not inferred
	reason     *wire.ResourceError // that the origin gave; nil if it gave none
	inferredIn int                 // the second look that inferred it again, by its number
}

// removals are the resources of one set whose removal is pending, by name. The zero value is empty.
type removals struct {
	byName map[string]removal

	unproven bool // some of those that are suspected were inferred without a control

	since, until, alarmAt time.Time // of those that are held
	brokenAlarmAt         time.Time // of those that break clients
	secondLook            bool      // the second look has begun
	secondLooks           int       // that have
}

// holdsUpdate reports whether an update was held since clients could not use it.
func (as removal) holdsUpdate(r *wire.Resource) bool {
	return as.breakReason != "" && as.replacement != nil && as.replacement.SameContent(r)
}

// count returns the number of removals in a state.
func (r *removals) count(in state) (n int) {
	for _, as := range r.byName {
		if as.state == in {
			n++
		}
	}
	return n
}

// changeState moves all removals in one state to another and returns their number.
func (r *removals) changeState(from, to state) (n int) {
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

// recordReason stores the resource error of the origin for a pending removal. It returns whether one is pending.
func (r *removals) recordReason(e *wire.ResourceError) (waits bool) {
	as, is := r.byName[e.Name]
	if waits = is && as.state != kept; waits {
		as.reason = e
		r.byName[e.Name] = as
	}
	return waits
}

// startHold restarts the hold time of the held removals.
func (r *removals) startHold(now time.Time, wait time.Duration) {
	if r.until.IsZero() {
		r.since, r.alarmAt = now, now.Add(alarmEvery)
	}
	r.until, r.secondLook = now.Add(wait), false
}

// startSecondLook starts the second look if the hold time is over. It returns whether it did.
func (r *removals) startSecondLook(now time.Time) (look bool) {
	if r.count(held) == 0 || r.secondLook || now.Before(r.until) {
		return false
	}
	r.secondLook = true
	r.secondLooks++
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
		slog.String("type_url", typeURL), slog.Int("held", r.count(breaking)), slog.String("name", first), slog.String("reason", as.breakReason),
	}
}

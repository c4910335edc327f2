package reconcile

import (
	"log/slog"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// alarmInterval is the interval between log messages about held changes.
const alarmInterval = 5 * time.Minute

// A state is the state of a removal.
type state int

const (
	held      state = iota // part of a large removal; until a second look or an operator decides
	suspected              // undecided until the set is complete and no held resource refers to it
	dropped                // by an operator, until the origin mentions the resource
	breaking               // would break clients (TENDER_VALIDATE=hold)
	blocked                // decided, and waits for the other changes of its unit
	waits                  // of an addition, which no removal has: it waits for its unit
	required               // of a resource that only an operator removes (TENDER_REQUIRED)
	grown                  // grows abnormally, until its time is over (TENDER_HOLD_GROWTH)
)

// A growth is why a change is abnormal growth.
type growth int

const (
	_      growth = iota
	larger        // the resource is much larger than the one that clients have
	more          // the resource is one of too many additions
	naming        // the resource newly names an addition that waits, and clients could not use it without that
	beside        // a removal, for which additions that wait may be the replacement
)

// A removal is a change of a resource that clients have not received yet: its removal, an update that replaces it, or one of
// too many additions.
type removal struct {
	state state

	// replacement is the content of an update: an assignment without endpoints, a resource that clients cannot use, or one
	// that grows abnormally. It is nil for a removal.
	replacement *wire.Resource

	since time.Time   // when it began to wait, or was dropped; zero if that was in an earlier process
	cause cache.Cause // of the change that began to wait
	by    string      // the operator who dropped it

	detail string // why the change would break clients, or how it grows; empty for other changes
	growth growth // what grows; nothing if it would break clients

	explicit    bool                // the origin stated the change; otherwise it was inferred
	asked       bool                // the origin was asked for the resource, and answers for others
	originError *wire.ResourceError // the error with which the origin stated it; nil without one
	inferredIn  int                 // number of the last second look that inferred it
	unstated    bool                // a growth that the origin has not stated on the present stream
}

// removals are the pending and the dropped changes of one set. The zero value is empty.
type removals struct {
	byName map[string]removal

	alwaysHold bool // hold the suspected removals even if they are few

	heldSince, heldUntil time.Time // of the changes in state held
	large                bool      // these are, or were, more than a few

	heldAlarm, breakingAlarm, requiredAlarm, grownAlarm alarm // of the changes in these states

	secondLook  bool // the second look has started
	secondLooks int  // second looks that have started

	silence time.Duration // of the origin, on streams of the second look that have ended
}

// An alarm logs changes that wait, as long as there are any.
type alarm struct {
	at     time.Time // when they are logged again
	logged bool      // there were some at the last call of log
}

// start records that changes begin to wait, which was logged.
func (a *alarm) start(now time.Time) { a.at = now.Add(alarmInterval) }

// log calls wait every alarmInterval while n changes wait, and end when none does any longer, whatever has ended that: the
// origin, an operator or the time. It returns when to call it again; zero if none waits.
func (a *alarm) log(n int, now time.Time, wait, end func()) (next time.Time) {
	before := a.logged
	if a.logged = n > 0; !a.logged {
		if before {
			end()
		}
		return time.Time{}
	}
	if !now.Before(a.at) {
		a.start(now)
		wait()
	}
	return a.at
}

// isHeldUpdate reports whether the change is a statement of the origin that is held for its content, or was dropped since.
func (c removal) isHeldUpdate() bool { return c.detail != "" && c.replacement != nil }

// sameUpdate reports whether both changes are updates to the same content.
func (c removal) sameUpdate(o removal) bool {
	return c.replacement != nil && o.replacement != nil && c.replacement.SameContent(o.replacement)
}

// holdsRemoval reports whether the change is a removal that is decided, and is held for another reason.
func (c removal) holdsRemoval() bool {
	return c.replacement == nil && (c.state == breaking || c.state == grown || c.state == required)
}

// growing reports whether the change is a resource that waits because of abnormal growth.
func (c removal) growing() bool { return c.state == grown && c.replacement != nil }

// holds reports whether r is the statement that is held, or was dropped.
func (c removal) holds(r *wire.Resource) bool {
	return c.isHeldUpdate() && c.replacement.SameContent(r)
}

// follow makes a change wait since the one that it replaces does. That may be the zero value.
func (c *removal) follow(old removal, cause cache.Cause, now time.Time) {
	c.since, c.cause = old.since, old.cause
	if old.state == dropped || old.since.IsZero() {
		c.since, c.cause = now, cause
	}
}

// contains reports whether there is a change that chosen selects.
func (r *removals) contains(chosen func(name string, change removal) bool) bool {
	for name, change := range r.byName {
		if chosen(name, change) {
			return true
		}
	}
	return false
}

// count returns the number of changes in a state.
func (r *removals) count(in state) (n int) {
	for _, change := range r.byName {
		if change.state == in {
			n++
		}
	}
	return n
}

// changeState moves all changes in one state to another and returns their number.
func (r *removals) changeState(from, to state) (n int) {
	for name, change := range r.byName {
		if change.state == from {
			change.state = to
			r.byName[name] = change
			n++
		}
	}
	return n
}

// reason returns the reason of changes in a state.
func (r *removals) reason(in state) Reason {
	switch {
	case in == held && r.large:
		return LargeRemoval
	case in == held:
		return SecondLook
	case in == dropped:
		return Dropped
	case in == breaking:
		return Breaking
	case in == required:
		return Required
	case in == grown:
		return Growth
	case in == suspected:
		return Suspect
	}
	return Replacement
}

// recordError stores a resource error of the origin with the pending change of its resource, and reports whether there
// is one. Clients receive both together.
func (r *removals) recordError(e *wire.ResourceError) (pending bool) {
	change, ok := r.byName[e.Name]
	if pending = ok && change.state != dropped; pending {
		change.originError = e
		r.byName[e.Name] = change
	}
	return pending
}

// startHold starts or restarts the hold time of the held changes. Afterwards, the second look begins.
func (r *removals) startHold(now time.Time, holdTime time.Duration) {
	if r.heldUntil.IsZero() {
		r.heldSince = now
		r.heldAlarm.start(now)
	}
	r.heldUntil, r.secondLook, r.silence = now.Add(holdTime), false, 0
}

// startSecondLook starts the second look if the hold time is over, and reports whether it did.
func (r *removals) startSecondLook(now time.Time) (started bool) {
	if r.count(held) == 0 || r.secondLook || now.Before(r.heldUntil) {
		return false
	}
	r.secondLook = true
	r.secondLooks++
	return true
}

// expectGrowth records that a stream begins: growth that the origin does not state on it ends once the set is complete. What
// it states again has waited since it was stated first.
func (r *removals) expectGrowth() {
	for name, change := range r.byName {
		if change.growth != 0 && (change.state == grown || change.growth == more) {
			change.unstated = true
			r.byName[name] = change
		}
	}
}

// HasRemoval reports whether a change of a resource is pending or was dropped.
func (r *removals) HasRemoval(name string) bool {
	_, ok := r.byName[name]
	return ok
}

// attrs returns log attributes of the changes in a state that have details: their number, and the first by name.
func (r *removals) attrs(in state) []slog.Attr {
	first := ""
	for name, change := range r.byName {
		if change.state == in && (first == "" || name < first) {
			first = name
		}
	}
	return []slog.Attr{slog.Int("held", r.count(in)), slog.String("name", first), slog.String("reason", r.byName[first].detail)}
}

package pending

import (
	"slices"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// Apply applies a response of the origin to a set, like [cache.Writer.Apply], except what must wait. The returned change counts
// what waits, too.
func (l *List) Apply(kind cache.Kind, u wire.Update) cache.Change {
	if !l.isStopped() {
		return l.pace(kind, u)
	}
	var c cache.Change
	if kind == cache.Wildcard && !l.isCommanded() && !l.w.Generation().Type(u.TypeURL).HasLastGood(kind) {
		c = l.w.Apply(kind, u) // a first state waits for no stage
	} else {
		c = l.applyStopped(kind, u)
	}
	l.recordStopped()
	return c
}

// Expire processes the timers of the view that are due, like [cache.Writer.Expire], and returns when to call it again.
func (l *List) Expire(now time.Time) (next time.Time) {
	next = l.w.Expire(now)
	l.reportStaged()
	return next
}

// SetCause sets the cause of the next changes. A change that waits keeps the cause with which it was stated.
func (l *List) SetCause(c cache.Cause) {
	l.cause = c
	l.w.SetCause(c)
}

// Cause returns the cause of the present changes.
func (l *List) Cause() cache.Cause { return l.cause }

// ApplyDelayed is Apply for a response of which a part has waited in front of the list. The change belongs to the trace of
// the oldest part, and counts as received with the response, since what is before the list may decide late.
func (l *List) ApplyDelayed(kind cache.Kind, u wire.Update, d Delay) cache.Change {
	if of := d.End(time.Now()); of.Trace != nil {
		defer l.SetCause(l.cause)
		l.SetCause(cache.Cause{Received: l.cause.Received, Trace: of.Trace})
	}
	return l.Apply(kind, u)
}

// SetConnected records whether the connection to the origin is open, like [cache.Writer.SetConnected]. What waits passes first.
func (l *List) SetConnected(up bool) {
	l.passAll()
	l.w.SetConnected(up)
}

// SetSource records the state of the source, like [cache.Writer.SetSource]. If it is a new connection, what waits passes first.
func (l *List) SetSource(state cache.Source) {
	if old := l.w.Source(); old.Connected != state.Connected || old.Since != state.Since {
		l.passAll()
	}
	l.w.SetSource(state)
}

// SetPhase records the phase of a wildcard set, like [cache.Writer.SetPhase]. A change of phase ends the wait of the type, and of
// what depends on it.
func (l *List) SetPhase(key string, p cache.Phase) {
	if len(l.sets) > 0 && l.w.Generation().Type(key).Phase != p {
		l.hasten(setKey{key: key}.typeURL(), time.Now())
	}
	l.w.SetPhase(key, p)
}

// SetPresumed records that a settled wildcard set is presumed complete, like [cache.Writer.SetPresumed]. It ends waits as SetPhase
// does.
func (l *List) SetPresumed(key string) {
	if len(l.sets) > 0 {
		l.hasten(setKey{key: key}.typeURL(), time.Now())
	}
	l.w.SetPresumed(key)
}

// SetTarget records the address of the origin that sent all resources in their present versions, like
// [cache.Writer.SetTarget]. While changes wait for an operator, the resources that clients have may come from another one.
func (l *List) SetTarget(target string) {
	shown := target
	if l.isStopped() {
		l.target = &target
		if l.countRows(true) > 0 && target != l.w.Source().Target {
			shown = ""
		}
	}
	l.w.SetTarget(shown)
}

// Forget ends the subscription to names, like [cache.Writer.Forget], and drops their rows.
func (l *List) Forget(typeURL string, names []*cache.Name) (kept []*cache.Name) {
	kept = l.w.Forget(typeURL, names)
	set := setKey{typeURL, cache.ByName}
	if len(l.sets[set]) == 0 && l.beforeFreeze == nil {
		return kept
	}
	for _, n := range names {
		if !slices.Contains(kept, n) {
			l.drop(set, n.String())
		}
	}
	l.dropEmpty(typeURL)
	l.recordStopped()
	return kept
}

// ForgetWildcard empties a wildcard set or a collection without subscribers, like [cache.Writer.ForgetWildcard], and drops its
// rows.
func (l *List) ForgetWildcard(key string) bool {
	if !l.w.ForgetWildcard(key) {
		return false
	}
	delete(l.systems, setKey{key, cache.Wildcard})
	set := setKey{key, cache.Wildcard}
	for name := range l.sets[set] {
		l.drop(set, name)
	}
	if l.beforeFreeze != nil {
		for name := range l.beforeFreeze.rows[set] {
			l.drop(set, name)
		}
	}
	l.dropEmpty(set.typeURL())
	l.recordStopped() // also if there was no row: it was the first state of names, whose responses may wait
	return true
}

// Close drops all rows. Nothing in another list waits for this one any longer. It must be called once.
func (l *List) Close() {
	l.close()
	l.compareAll()
	l.recordStopped()
	if l.clock != nil {
		l.clock.drop(l.wake, func(*wait) bool { return true })
	}
}

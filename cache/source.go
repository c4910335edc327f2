package cache

import (
	"time"
)

// Source returns the state of the source.
func (w *Writer) Source() Source { return w.Generation().sources[w.source] }

// SetTarget records the address of the origin that sent all resources in their present versions; empty if there are
// several.
func (w *Writer) SetTarget(target string) {
	source := w.Source()
	source.Target = target
	w.SetSource(source)
}

// SetConnected records whether the stream to the origin is open. A resource that was absent on an earlier connection is
// unknown until the origin reports it again (B.7).
func (w *Writer) SetConnected(up bool) {
	source := w.Source()
	if source.Connected == up {
		return
	}
	source.Connected, source.Since = up, time.Now()
	if up {
		source.epoch++
	} else {
		if source.Responded || !source.lastStreamSilent {
			source.Lost = source.Since
		}
		source.Responded, source.lastStreamSilent = false, !source.Responded
	}
	w.SetSource(source)
}

// SetSource records the state of the source, such as the state of the view from which the writer copies. It includes
// the effects of SetConnected. It wakes all readers if a freeze or a rollback begins or ends: a removal that waited for the
// source may be sent then (Generation.Absent, Generation.SetFrozen), and views that copy from this one follow its source.
func (w *Writer) SetSource(state Source) {
	x := &w.view.index
	x.mu.Lock()
	var wakes []*Watch
	old := w.Source()
	reconnected := state.epoch != old.epoch || state.Connected != old.Connected
	if reconnected {
		x.clearAsked(w.source)
	}
	if reconnected || old.Frozen != state.Frozen || old.RolledBack != state.RolledBack {
		wakes = x.openWatches()
	}
	w.setSource(state, reconnected)
	x.mu.Unlock()
	for _, watch := range wakes {
		watch.wake()
	}
	w.view.cfg.SettledChanged(w.source)
}

// SetFrozen records since when an operator withholds the changes of the source, and since when readers are shown an earlier
// generation; zero for neither.
func (w *Writer) SetFrozen(frozen, rolledBack time.Time) {
	source := w.Source()
	source.Frozen, source.RolledBack = frozen, rolledBack
	w.SetSource(source)
}

// clearAsked clears the requests of a source, because they were sent on an earlier connection. The index must be
// locked.
func (x *index) clearAsked(source int) {
	for _, t := range x.types {
		for _, n := range t.names {
			if n.source == source {
				n.asked.Store(nil)
			}
		}
	}
}

// SetPhase records the phase of the wildcard set of a type.
func (w *Writer) SetPhase(typeURL string, p Phase) {
	if w.Generation().Type(typeURL).Phase == p {
		return
	}
	ed := w.begin(typeURL)
	ed.typ.Phase, ed.wildcardChanged = p, true
	ed.typ.Restored = ed.typ.Restored && p == Settled
	ed.typ.Presumed = ed.typ.Presumed && ed.typ.Restored
	ed.index.lastKnown = ed.index.lastKnown || p == Confirmed
	w.publish(ed)
	w.view.cfg.SettledChanged(w.source)
}

// SetPresumed records that the settled wildcard set of a type is presumed complete.
func (w *Writer) SetPresumed(typeURL string) {
	ed := w.begin(typeURL)
	ed.typ.Presumed, ed.wildcardChanged = true, true
	w.publish(ed)
}

// Settled reports whether the state of a source is complete: the source is connected, has confirmed the wildcard sets and
// collections that were restored from a snapshot, and has responded for the restored names. A source without
// subscriptions and state is settled.
func (v *View) Settled(source int) bool {
	x := &v.index
	x.mu.Lock()
	defer x.mu.Unlock()
	g := v.writers[source].Generation()
	if !g.sources[source].Connected {
		return !x.uses(source)
	}
	if x.sources[source].restored > 0 {
		return false
	}
	for key, t := range x.types {
		if t.source == source && g.Type(key).Restored && g.Type(key).Phase < Confirmed {
			return false
		}
	}
	return true
}

// uses reports whether a source has subscriptions or names. The index must be locked.
func (x *index) uses(source int) bool {
	for _, t := range x.types {
		if t.source == source && (len(t.wildcards) > 0 || t.tracked) {
			return true
		}
		for _, n := range t.names {
			if n.source == source {
				return true
			}
		}
	}
	return false
}

// restoredTimeout is the time after which a restored name counts as confirmed even without a response of the connected
// origin: an origin need not send a resource that the relay reported and that has not changed.
const restoredTimeout = 15 * time.Second

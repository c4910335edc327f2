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
	w.reportSettled()
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
	w.reportSettled()
}

// SetPresumed records that the settled wildcard set of a type is presumed complete.
func (w *Writer) SetPresumed(typeURL string) {
	ed := w.begin(typeURL)
	ed.typ.Presumed, ed.wildcardChanged = true, true
	w.publish(ed)
}

package cache

import (
	"time"
)

// A Writer changes the state of one source of a view. Unless its comment says otherwise, a method may be called only by
// the goroutine that owns the writer. A method that changes state publishes a new generation and wakes the streams that
// the change concerns.
//
// Each embedded type does one job of the writer; see its comment.
type Writer struct {
	view   *View // set at creation; with cohorts, the view of the rest
	source int   // set at creation
	branch       // for the generation that the readers of view see
	gate
	editions
	publisher
	comparison
	reportEvaluator

	// refetchedAt is when the whole wildcard set was last requested because of a heartbeat, by type URL or collection.
	refetchedAt  map[string]time.Time
	scratchNames []*Name // reused by subscribedAs
}

func newWriter(v *View, source int) *Writer {
	w := &Writer{view: v, source: source, refetchedAt: make(map[string]time.Time), branch: newBranch(v)}
	w.editions, w.publisher = editions{w}, publisher{w: w}
	w.comparison, w.reportEvaluator = comparison{w: w}, reportEvaluator{w}
	return w
}

// View returns the view of the writer.
func (w *Writer) View() *View { return w.view }

// Owns reports whether the wildcard set of a type belongs to the source.
func (w *Writer) Owns(typeURL string) bool { return w.view.cfg.Route(typeURL, "") == w.source }

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
// the effects of SetConnected.
func (w *Writer) SetSource(state Source) {
	x := &w.view.index
	x.mu.Lock()
	var wakes []*Watch
	old := w.Source()
	reconnected := state.epoch != old.epoch || state.Connected != old.Connected
	if reconnected {
		x.clearAsked(w.source)
		wakes = x.appendWatches(nil)
	}
	w.setSource(state, reconnected)
	x.mu.Unlock()
	for _, watch := range wakes {
		watch.wake()
	}
	w.reportSettled()
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
	ed.typ.Covered = ed.typ.Covered && ed.typ.Restored
	ed.index.lastKnown = ed.index.lastKnown || p == Confirmed
	w.publish(ed)
	w.reportSettled()
}

// SetCovered records that the origin has sent all restored resources of the wildcard set of a type.
func (w *Writer) SetCovered(typeURL string) {
	ed := w.begin(typeURL)
	ed.typ.Covered, ed.wildcardChanged = true, true
	w.publish(ed)
}

package cache

import (
	"time"
)

// A Writer changes the state that comes from one source of a view. All its methods belong to
// one goroutine. Each publishes a new generation if it changed anything, and then wakes the
// streams that the change concerns.
type Writer struct {
	view   *View // that of the rest, if there are cohorts
	source int
	ledger // of the generation that readers of view see
	gate   // between what readers see and the newest state of the source
	publisher
	comparison
	reportJudge

	refetchedAt map[string]time.Time // when the whole wildcard set was last requested because of a heartbeat, by type URL or collection
	asked       []*Name              // reused by subscribedAs
}

// A ledger is what a writer remembers of the generations that it makes.
type ledger struct {
	view       *View       // whose readers see its generations; nil if nobody does
	gen        *Generation // the newest; nil if that is the view's
	tombstones map[string][]tombstone
	due        deadlines
	kept       int // of due, when it was last rid of what is out of date

	// aliases has the further names under which the set of names holds a
	// resource: type URL, resource name, names. It is guarded by index.mu.
	aliases map[string]map[string][]*Name
}

func newLedger(view *View) ledger {
	return ledger{view: view, tombstones: make(map[string][]tombstone), aliases: make(map[string]map[string][]*Name)}
}

func newWriter(v *View, source int) *Writer {
	w := &Writer{view: v, source: source, refetchedAt: make(map[string]time.Time), ledger: newLedger(v)}
	w.publisher, w.comparison, w.reportJudge = publisher{w: w}, comparison{w: w}, reportJudge{w}
	return w
}

// A tombstone is a removal from the wildcard set that streams may not have seen.
type tombstone struct {
	name *Name
	seq  Seq
	at   time.Time
}

// View returns the view that the writer writes to.
func (w *Writer) View() *View { return w.view }

// Owns reports whether the writer's source has the wildcard set of a type.
func (w *Writer) Owns(typeURL string) bool { return w.view.cfg.Route(typeURL, "") == w.source }

// Source returns how the writer's source stands.
func (w *Writer) Source() Source { return w.Generation().sources[w.source] }

// SetTarget records at which address of the origin all that is held has the versions
// that it has here; an empty one if there is none.
func (w *Writer) SetTarget(target string) {
	from := w.Source()
	from.Target = target
	w.SetSource(from)
}

// SetConnected records whether the origin's stream is up. What was absent on an
// earlier connection counts as unknown until the origin repeats it (B.7). Names
// that streams wait for are asked for again.
func (w *Writer) SetConnected(up bool) {
	from := w.Source()
	if from.Connected == up {
		return
	}
	from.Connected, from.Since = up, time.Now()
	if up {
		from.epoch++
	} else {
		if from.Responded || !from.lastStreamSilent {
			from.Lost = from.Since
		}
		from.Responded, from.lastStreamSilent = false, !from.Responded
	}
	w.SetSource(from)
}

// SetSource records the state of the writer's source: for instance that of another view, from
// which the writer takes what it writes. It has the effects of SetConnected.
func (w *Writer) SetSource(as Source) {
	x := &w.view.index
	x.mu.Lock()
	var wakes []*Watch
	old := w.Source()
	turned := as.epoch != old.epoch || as.Connected != old.Connected
	if turned {
		x.clearAsked(w.source)
		wakes = x.all(nil)
	}
	w.setSource(as, turned)
	x.mu.Unlock()
	for _, watch := range wakes {
		watch.wake()
	}
	w.tellSettled()
}

// clearAsked records that a source has not been asked for anything yet.
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
	ed.typ.Phase, ed.dirty = p, true
	ed.typ.Restored = ed.typ.Restored && p == Settled
	ed.typ.Covered = ed.typ.Covered && ed.typ.Restored
	ed.index.lastKnown = ed.index.lastKnown || p == Confirmed
	w.publish(ed)
	w.tellSettled()
}

// SetCovered records that the origin has sent all restored resources of the wildcard set of a type.
func (w *Writer) SetCovered(typeURL string) {
	ed := w.begin(typeURL)
	ed.typ.Covered, ed.dirty = true, true
	w.publish(ed)
}

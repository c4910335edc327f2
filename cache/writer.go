package cache

import "time"

// A Writer changes the state that comes from one source of a view. All its methods belong to
// one goroutine. Each publishes a new generation if it changed anything, and then wakes the
// streams that the change concerns.
type Writer struct {
	view   *View // that of the rest, if there are cohorts
	source int
	ledger // of the generation that readers of view see
	gate   // between what readers see and the newest state of the source
	comparison
	reportJudge

	cause       Cause                // of its changes
	refetchedAt map[string]time.Time // when the whole wildcard set was last asked for because of a heartbeat, by type URL or collection
	following   openFanouts

	// Reused by each edit.
	wakes   []*Watch
	changed []*Name // of the first edit
	passed  []*edit
	asked   []*Name // by subscribedAs
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
	w.reportJudge = reportJudge{w}
	return w
}

// A tombstone is a removal from the wildcard set that streams may not have seen.
type tombstone struct {
	name *Name
	seq  Seq
	at   time.Time
}

// Kind names one of a type's two sets.
type Kind int

// The sets of a type.
const (
	Wildcard Kind = iota
	ByName
)

var kinds = [...]Kind{Wildcard, ByName}

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

// begin locks the index and copies what is about to change of latest.
func (w *Writer) begin(typeURL string) *edit { return w.beginOn(w.latest, typeURL) }

// beginOn is begin for the newest generation of a ledger.
func (w *Writer) beginOn(of *ledger, typeURL string) *edit {
	w.view.index.mu.Lock()
	w.wakes = w.wakes[:0]
	return w.beginLocked(typeURL, of)
}

// beginLocked copies what is about to change of the newest generation of a ledger. The index must be locked.
func (w *Writer) beginLocked(typeURL string, of *ledger) *edit {
	x := &w.view.index
	old := of.generation()
	generation := *old
	generation.Revision++
	typ := *old.Type(typeURL)
	index := x.typ(typeURL)
	typ.URL, typ.source, typ.revision, typ.shared = typeURL, index.source, generation.Revision, new(memo)
	generation.types.put(&typ)
	ed := &edit{w: w, ledger: of, now: time.Now(), gen: &generation, typ: &typ, index: index, txn: &txn{noting: of == w.latest && w.closed()}}
	ed.changed, w.changed = w.changed[:0], nil
	return ed
}

// publish makes the new generation visible, to the readers of each view as far as it passes the gate, and only then wakes
// them.
func (w *Writer) publish(edited *edit) {
	x := &w.view.index
	pokes, began := edited.pokes, false
	var follow []*Fanout
	for _, ed := range w.passEdit(edited) {
		pokes |= ed.pokes
		f, first := w.publishTo(ed.ledger.view, ed)
		began = began || first
		if f != nil {
			follow = append(follow, f)
		}
	}
	w.changed = edited.changed[:0]
	waits := w.view.cfg.Cohorts > 0 && edited.ledger == w.latest
	if waits {
		w.compareEdit(edited)
	}
	x.mu.Unlock()
	x.poke(pokes)
	if waits {
		w.tellWaiting()
	}
	for i, watch := range w.wakes {
		watch.wake()
		w.wakes[i] = nil
	}
	for _, f := range follow {
		f.release()
	}
	if began {
		w.view.cfg.Began()
	}
}

// publishTo shows the readers of a view an edit, and notes whom to wake. It returns what follows the change, and whether
// something of the type is served for the first time. The index must be locked.
func (w *Writer) publishTo(view *View, ed *edit) (f *Fanout, began bool) {
	x, old, from := &view.index, view.head.Load(), len(w.wakes)
	if ed.change.Changed+ed.change.Removed > 0 {
		ed.typ.changed = ed.now
	}
	ed.typ.Wildcard.recordSum(old.Type(ed.typ.URL).Wildcard.sum, ed.typ.Wildcard.sum, ed.gen.Seq)
	cause := w.cause.receivedBy(ed.now)
	if ed.gen.Seq > old.Seq {
		view.timeline.record(ed.gen.Seq, cause)
	}
	w.hint(ed)
	if ed.dirty {
		for _, wc := range ed.index.wildcards {
			if wc.watch.view == view {
				w.wakes = append(w.wakes, wc.watch)
			}
		}
	}
	f = w.followEdit(ed, cause, w.wakes[from:])
	began = view.cfg.Began != nil && ed.typ.serves() && !old.Type(ed.typ.URL).serves()
	for _, o := range x.observers {
		if o.view == view {
			w.wakes = append(w.wakes, o)
		}
	}
	view.head.Store(ed.gen)
	return f, began
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
}

// SetCovered records that the origin has sent all restored resources of the wildcard set of a type.
func (w *Writer) SetCovered(typeURL string) {
	ed := w.begin(typeURL)
	ed.typ.Covered, ed.dirty = true, true
	w.publish(ed)
}

// SetConnected records whether the origin's stream is up. What was absent on an
// earlier connection counts as unknown until the origin says it again (B.7). Names
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

package cache

// maxHints bounds the hints of a watch: a stream whose client is slow must not cost more
// than another (B.12).
const maxHints = 8

// A hint is a name that a stream watches and that changed, so that the stream need not check all of its names. Those
// of a watch are a list, newest first. Hints are immutable, and streams share them.
type hint struct {
	key   string // of the type
	name  *Name  // nil: this and what came before are names that nobody knows any more
	seq   Seq    // of the first generation with the change
	older *hint
	n     int // of the list, this one included
}

// hint adds hints to the watches of the changed names, of those that read the edited view, and notes whom to wake.
func (w *Writer) hint(ed *edit) {
	if len(ed.changed) == 0 {
		return
	}
	lost := &hint{seq: ed.gen.Seq, n: maxHints}
	for _, n := range ed.changed {
		h := &hint{key: ed.typ.URL, name: n, seq: ed.gen.Seq, n: 1}
		for _, id := range n.watchers {
			watch := w.view.index.watches[id]
			if watch.view != ed.ledger.view {
				continue
			}
			if w.wakes = append(w.wakes, watch); watch.call != nil {
				watch.hint(h, lost)
			}
		}
	}
	clear(ed.changed)
}

// hint adds a hint to a watch. The index is locked, and the generation of the change is not published yet: whoever
// reads that generation finds the hint. If there are too many hints, lost replaces them.
func (w *Watch) hint(h, lost *hint) {
	for {
		top, next := w.hints.Load(), h
		switch {
		case top == nil:
		case top == lost:
			return
		case top.n >= maxHints:
			next = lost
		default:
			next = &hint{key: h.key, name: h.name, seq: h.seq, older: top, n: top.n + 1}
		}
		if w.hints.CompareAndSwap(top, next) {
			return
		}
	}
}

// Hinted appends to names those that the stream watches of a type and that changed after p, some perhaps twice, as
// far as that is known for the generation that the caller has loaded before. It reports false if it is not known, and
// the logs must be read.
func (w *Watch) Hinted(typeURL string, p Seq, names []*Name) (_ []*Name, known bool) {
	if w.call == nil {
		return nil, false
	}
	for h := w.hints.Load(); h != nil && h.seq > p; h = h.older {
		switch {
		case h.name == nil:
			return nil, false
		case h.key == typeURL:
			names = append(names, h.name)
		}
	}
	return names, true
}

// FirstHint returns the position of the oldest hint at a name of a type, or of one that stands
// for several that were too many to be kept, after p and up to upTo; one that no view comes to if there is
// none.
func (w *Watch) FirstHint(typeURL string, p, upTo Seq) Seq {
	first := noSeq
	for h := w.hints.Load(); h != nil && h.seq > p; h = h.older {
		if h.seq <= upTo && (h.name == nil || h.key == typeURL) {
			first = h.seq
		}
	}
	return first
}

// PassHints drops the hints up to p, which the stream must have followed. One goroutine at
// a time may call it. Hints stay as long as newer ones do.
func (w *Watch) PassHints(p Seq) {
	if top := w.hints.Load(); top != nil && top.seq <= p {
		w.hints.CompareAndSwap(top, nil) // or there is a newer one now
	}
}

package cache

func (w *Watch) wake() {
	if w.call != nil {
		w.call()
		return
	}
	select {
	case w.C <- struct{}{}:
	default: // a wake-up is pending
	}
}

// maxHints limits the hints of a watch: a stream with a slow client must not use more memory than others (B.12).
const maxHints = 8

// A hint is a changed name of a stream, so that the stream need not check all of its names. The hints of a watch form
// a linked list, newest first. Hints are immutable, and streams share them.
type hint struct {
	key   string // of the type
	name  *Name  // nil: this and all older hints were dropped
	seq   Seq    // of the first generation with the change
	older *hint
	n     int // length of the list, this hint included
}

// hint adds a hint to a watch. It replaces all hints by dropped if there are too many, or if h is dropped. It must be
// called while the index is locked and before the generation of the change is published, so that each reader of that
// generation finds the hint.
func (w *Watch) hint(h, dropped *hint) {
	for {
		top, next := w.hints.Load(), h
		switch {
		case top == nil:
		case top == dropped:
			return
		case top.n >= maxHints, h == dropped:
			next = dropped
		default:
			next = &hint{key: h.key, name: h.name, seq: h.seq, older: top, n: top.n + 1}
		}
		if w.hints.CompareAndSwap(top, next) {
			return
		}
	}
}

// Hinted appends the names of the stream, of one type, that changed after p and up to the generation that the caller
// loaded before. The result may contain duplicates. It returns false if the hints were dropped: the stream must read
// the logs.
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

// FirstHint returns the position of the oldest hint after p and up to upTo that is about a type, or that stands for
// dropped hints. If there is none, it returns a position after all others.
func (w *Watch) FirstHint(typeURL string, p, upTo Seq) Seq {
	first := noSeq
	for h := w.hints.Load(); h != nil && h.seq > p; h = h.older {
		if h.seq <= upTo && (h.name == nil || h.key == typeURL) {
			first = h.seq
		}
	}
	return first
}

// PassHints drops the hints up to p, whose changes the stream has processed. It drops none while there are newer
// ones. One goroutine at a time may call it.
func (w *Watch) PassHints(p Seq) {
	if top := w.hints.Load(); top != nil && top.seq <= p {
		w.hints.CompareAndSwap(top, nil) // fails if a newer hint was added, which is kept
	}
}

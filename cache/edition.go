package cache

import (
	"time"

	"github.com/xdstender/tender/cache/wire"
)

// An Edition is a generation of latest that may be shown to cohorts, and what it changes for the rest. It is immutable.
type Edition struct {
	of *Generation // nil if an earlier process has cut it

	// Changes are the resources that differ from what the rest was served, by type URL or collection and name: their content
	// in the edition. The zero digest is that of a resource that is gone.
	Changes map[string]map[string]wire.Digest

	// Large reports whether removals of a type are so many that the origin may have lost its state (LargeRemoval).
	Large bool
}

// Resources returns how many resources the edition changes.
func (e *Edition) Resources() (n int) {
	for _, names := range e.Changes {
		n += len(names)
	}
	return n
}

// Waiting says how latest stands to what the rest is served, and to an edition.
type Waiting struct {
	Names   int       // that wait: the rest is served another state of them
	Edited  int       // of the edition's resources, those that have other content in latest
	Behind  int       // names of which latest has another state than the edition
	Changed time.Time // when a name that waits changed last
}

// A comparison is that of latest with an edition. It belongs to its gate.
type comparison struct {
	edition *Edition // nil if there is none
	edited  map[*Name]struct{}
	behind  map[*Name]struct{}
	changed time.Time
	last    Waiting
}

// Pin cuts an edition of all that waits. Nobody must have called Freeze.
func (w *Writer) Pin() *Edition {
	e := &Edition{of: w.Generation(), Changes: make(map[string]map[string]wire.Digest)}
	rest := w.rest().generation()
	for key, names := range w.differ(w.rest(), w.target(e.of)) {
		t, was := e.of.Type(key), rest.Type(key)
		changes := make(map[string]wire.Digest, len(names))
		removed, added := 0, 0
		for _, n := range names {
			is := t.content(n)
			changes[n.text] = is
			switch before := was.present(n); {
			case before && is == (wire.Digest{}):
				removed++
			case !before && is != (wire.Digest{}):
				added++
			}
		}
		e.Changes[key] = changes
		e.Large = e.Large || LargeRemoval(resourceType(key), removed, max(was.Wildcard.Count(), was.ByName.Count()), added)
	}
	return e
}

// content returns the digest of what a type has under a name; zero if that is nothing.
func (t *Type) content(n *Name) (d wire.Digest) {
	for _, kind := range kinds {
		if e := t.set(kind).Get(n); e.Present() {
			d = e.Resource.Digest
		}
	}
	return d
}

// Show shows the readers of a cohort's view what waits as it is in an edition. All else stays as it is. Nobody must have called Freeze.
func (w *Writer) Show(cohort int, e *Edition) { w.showWaiting(cohort, e.of) }

// ShowAs is Show for what the readers of another cohort's view are served.
func (w *Writer) ShowAs(cohort, of int) { w.showWaiting(cohort, w.served[of].generation()) }

func (w *Writer) showWaiting(cohort int, of *Generation) {
	w.show(w.served[cohort], w.target(of))
	w.tellWaiting()
}

// Compare has Waiting compare latest with an edition from now on; nil is none.
func (w *Writer) Compare(e *Edition) {
	x := &w.view.index
	x.mu.Lock()
	c := &w.comparison
	c.edition, c.edited, c.behind = e, make(map[*Name]struct{}), make(map[*Name]struct{})
	if e != nil {
		latest := w.Generation()
		for key, names := range e.Changes {
			for text := range names {
				if n := x.types[key].nameOf(text); n != nil {
					w.compare(latest.Type(key), n)
				}
			}
		}
	}
	x.mu.Unlock()
	w.tellWaiting()
}

func (t *indexType) nameOf(text string) *Name {
	if t == nil {
		return nil
	}
	return t.names[text]
}

// compare notes how latest stands to the edition with a name. The index must be locked.
func (w *Writer) compare(latest *Type, n *Name) {
	c := &w.comparison
	if c.edition == nil {
		return
	}
	note(c.behind, n, c.edition.of != nil && !w.agrees(c.edition.of.Type(latest.URL), latest, n))
	content, is := c.edition.Changes[latest.URL][n.text]
	note(c.edited, n, is && content != latest.content(n))
}

func note(in map[*Name]struct{}, n *Name, is bool) {
	if is {
		in[n] = struct{}{}
	} else {
		delete(in, n)
	}
}

// compareEdit compares the names that an edit of latest has changed, once it has passed to the rest. The index must be locked.
func (w *Writer) compareEdit(ed *edit) {
	for _, n := range ed.txn.noted {
		if _, waits := w.rest().withheld[n]; waits {
			w.comparison.changed = ed.now
		}
		w.compare(ed.typ, n)
	}
}

// tellWaiting publishes how latest stands, and calls Config.Waiting if that has changed.
func (w *Writer) tellWaiting() {
	c := &w.comparison
	now := Waiting{Names: len(w.rest().withheld), Edited: len(c.edited), Behind: len(c.behind), Changed: c.changed}
	if now != c.last {
		c.last = now
		w.view.cfg.Waiting(w.source, now)
	}
}

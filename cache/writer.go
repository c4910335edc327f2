package cache

import (
	"time"

	"github.com/xdstender/tender/cache/fanout"
)

// A Writer changes the state of one source of a view. Unless its comment says otherwise, a method may be called only by
// the goroutine that owns the writer. A method that changes state publishes a new generation and wakes the streams that
// the change concerns.
type Writer struct {
	view     *View     // of the rest; set at creation
	source   int       // set at creation
	branches []*branch // by cohort; that of the rest last; set at creation
	publisher

	restoring bool     // a snapshot is being restored: all of it is the last good state
	edited    []Edited // see TakeEdited

	// refetchedAt is when the whole wildcard set was last requested because of a heartbeat, by type URL or collection.
	refetchedAt  map[string]time.Time
	scratchNames []*Name // reused by subscribedNames
}

// A publisher makes the edits of a writer visible to readers, and wakes the streams that they concern. It belongs to
// the goroutine of the writer.
type publisher struct {
	w       *Writer        // set at creation
	cause   Cause          // of subsequent changes
	fanouts fanout.Tracker // measures the fan-out of changes

	// Reused by each edit.
	wakes   []*Watch
	changed []*Name // of the first edit
	passed  []*edit
}

// Generation returns the newest generation of the rest.
func (w *Writer) Generation() *Generation { return w.view.Generation() }

// View returns the view of the writer.
func (w *Writer) View() *View { return w.view }

// Owns reports whether the wildcard set of a type belongs to the source.
func (w *Writer) Owns(typeURL string) bool { return w.view.cfg.Route(typeURL, "") == w.source }

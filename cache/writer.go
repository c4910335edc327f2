package cache

import (
	"time"

	"github.com/xdstender/tender/cache/fanout"
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
	publisher
	comparison

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

// View returns the view of the writer.
func (w *Writer) View() *View { return w.view }

// Owns reports whether the wildcard set of a type belongs to the source.
func (w *Writer) Owns(typeURL string) bool { return w.view.cfg.Route(typeURL, "") == w.source }

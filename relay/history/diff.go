package history

import (
	"slices"
	"strings"

	"github.com/aymanbagabas/go-udiff"
	"sigs.k8s.io/yaml"

	"github.com/xdstender/tender/cache/wire"
)

// A Diff is a unified diff for display.
type Diff struct {
	// Text is a unified diff of the redacted resource as YAML, without the two header lines. It may be empty.
	Text string

	// Note is the reason why the text is empty or incomplete.
	Note string
}

// Limits of a diff, in bytes.
const (
	maxContent = 1 << 20  // size of each resource
	maxDiff    = 64 << 10 // size of the text
)

// Diff returns the diff of a change that [Journal.Changes] returned. It computes the diff at the first call and stores
// it in the journal. It may be called from any goroutine.
func (j *Journal) Diff(c Change) Diff {
	j.mu.Lock()
	made := c.entry.diff
	j.mu.Unlock()
	if made == nil {
		d := diffOf(c)
		made = &d
		j.keep(c.entry, made)
	}
	return *made
}

// keep stores a diff in its entry, unless the entry has been dropped.
func (j *Journal) keep(e *entry, d *Diff) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if e.diff == nil && j.views[e.view] != nil && slices.Contains(e.of.entries, e) {
		e.diff = d
		j.bytes += int64(len(d.Text))
		j.bound()
	}
}

// diffOf computes the diff of a change, without the lock of the journal: it may take long for a large resource.
func diffOf(c Change) Diff {
	if c.Before == nil && c.Kind != Added {
		return Diff{Note: "the previous state is no longer in the history"}
	}
	before, note := textOf(c.Before)
	if note != "" {
		return Diff{Note: note}
	}
	after, note := textOf(c.After)
	if note != "" {
		return Diff{Note: note}
	}
	if before == after {
		return Diff{Note: "only redacted fields differ"}
	}
	// Remove the header lines "---" and "+++".
	_, text, _ := strings.Cut(udiff.Unified("", "", before, after), "\n")
	_, text, _ = strings.Cut(text, "\n")
	if len(text) > maxDiff {
		return Diff{Text: text[:strings.LastIndexByte(text[:maxDiff], '\n')+1], Note: "the diff goes on: it is cut off after 64 KiB"}
	}
	return Diff{Text: text}
}

// textOf returns a redacted resource as YAML; it is empty for nil. note is the reason if the resource cannot be shown.
func textOf(r *wire.Resource) (text, note string) {
	switch {
	case r == nil:
		return "", ""
	case r.ContentDropped():
		return "", "the content may not be kept"
	case r.Size() > maxContent:
		return "", "the content has more than 1 MiB"
	case !r.HasBody():
		return "", ""
	}
	made, err := r.RedactedJSON()
	if err == nil {
		made, err = yaml.JSONToYAML(made)
	}
	if err != nil {
		return "", err.Error()
	}
	return string(made), ""
}

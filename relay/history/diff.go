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
	// Text is a unified diff of the resource as YAML, redacted, without the line that names files; empty if
	// there is none.
	Text string

	// Note is why the text is absent or incomplete.
	Note string
}

// Bounds of what a diff is made of, and of the diff.
const (
	maxContent = 1 << 20
	maxDiff    = 64 << 10
)

// Diff returns the diff of a change that [Journal.Changes] returned. It is made the first time, and
// kept with the change.
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

// keep keeps a diff with its entry, if that is still there.
func (j *Journal) keep(e *entry, d *Diff) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if e.diff == nil && j.views[e.view] != nil && slices.Contains(e.of.entries, e) {
		e.diff = d
		j.bytes += int64(len(d.Text))
		j.bound()
	}
}

func diffOf(c Change) Diff {
	if c.Before == nil && c.Kind != Added {
		return Diff{Note: "what there was before is remembered no more"}
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
	// Of the two lines that name files there is no use.
	_, text, _ := strings.Cut(udiff.Unified("", "", before, after), "\n")
	_, text, _ = strings.Cut(text, "\n")
	if len(text) > maxDiff {
		return Diff{Text: text[:strings.LastIndexByte(text[:maxDiff], '\n')+1], Note: "the diff goes on: it is cut off after 64 KiB"}
	}
	return Diff{Text: text}
}

// textOf returns a resource as YAML, nothing for none; or why it cannot be shown.
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

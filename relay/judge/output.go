package judge

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
)

// Limits of the output of one process. Envoy may write a line for each resource.
const (
	maxLines     = 100 // further lines are not logged
	maxLineBytes = 512 // the rest of a line is dropped
)

// An output is the io.Writer for the output of one process. It logs the first lines at level debug and keeps the last one.
type output struct {
	log *slog.Logger

	mu    sync.Mutex
	begun []byte // of an incomplete line, at most maxLineBytes
	last  string // the last complete line that is not blank
	lines int    // number of complete lines
}

// Write implements io.Writer. It never fails.
func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for rest := b; ; {
		text, after, ended := bytes.Cut(rest, []byte("\n"))
		o.begun = append(o.begun, text[:min(len(text), maxLineBytes-len(o.begun))]...)
		if !ended {
			return len(b), nil
		}
		o.endLine()
		rest = after
	}
}

// endLine logs the complete line. o.mu must be held.
func (o *output) endLine() {
	line := strings.TrimSpace(strings.ToValidUTF8(string(o.begun), ""))
	if o.begun = o.begun[:0]; line == "" {
		return
	}
	o.last = line
	if o.lines++; o.lines <= maxLines {
		o.log.LogAttrs(context.Background(), slog.LevelDebug, "output of the local Envoy", slog.String("line", line))
	}
}

// lastLine returns the last line, also an incomplete one.
func (o *output) lastLine() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if line := strings.TrimSpace(strings.ToValidUTF8(string(o.begun), "")); line != "" {
		return line
	}
	return o.last
}

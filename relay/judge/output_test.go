package judge

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/xdstender/tender/relay/humanize"
)

// TestB52_OutputIsBounded: the log has the first lines of an Envoy at level debug, cut to a length. The last line is kept,
// also without its end.
func TestB52_OutputIsBounded(t *testing.T) {
	var log bytes.Buffer
	o := &output{log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))}
	write := func(text string) {
		if n, err := o.Write([]byte(text)); n != len(text) || err != nil {
			t.Fatalf("Write: %d, %v", n, err)
		}
	}
	write("first ")
	write("line\n\n" + strings.Repeat("x", 2*maxLineBytes) + "\n")
	if got := o.lastLine(); got != strings.Repeat("x", maxLineBytes) {
		t.Errorf("last line %s of %d bytes", humanize.Quote(got), len(got))
	}
	for range 2 * maxLines {
		write("line\n")
	}
	write("the end")
	if got := o.lastLine(); got != "the end" {
		t.Errorf("last line %q", got)
	}
	if got := strings.Count(log.String(), "level=DEBUG"); got != maxLines || !strings.Contains(log.String(), "first line") {
		t.Errorf("%d lines in the log, want %d:\n%s", got, maxLines, log.String())
	}
}

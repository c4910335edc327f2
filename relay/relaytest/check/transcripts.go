package check

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Transcripts plays the conversations in the files of a pattern, and compares the results with those in the files; with
// update, it writes them there. A line that begins with "> " is an event, indented lines below it are its results, and
// other lines are comments. Play gets each line that is no result, and returns the lines with the results.
func Transcripts(t *testing.T, pattern string, update bool, play func(t *testing.T, lines []string) string) {
	t.Helper()
	files := Must(filepath.Glob(pattern))
	if len(files) == 0 {
		t.Fatalf("no transcripts in %s", pattern)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			written := string(Must(os.ReadFile(file)))
			var lines []string
			for line := range strings.Lines(written) {
				if !strings.HasPrefix(line, "  ") {
					lines = append(lines, strings.TrimSuffix(line, "\n"))
				}
			}
			got := play(t, lines)
			if update {
				OK(t, os.WriteFile(file, []byte(got), 0o644))
			} else if got != written {
				t.Errorf("%s (-written +played):\n%s", file, cmp.Diff(strings.Split(written, "\n"), strings.Split(got, "\n")))
			}
		})
	}
}

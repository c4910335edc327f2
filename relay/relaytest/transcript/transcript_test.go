package transcript_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/relay/relaytest/transcript"
)

var update = flag.Bool("update", false, "write the transcripts")

// An echo is a stage that writes what it is given.
type echo struct {
	settings []string
	last     time.Time
	events   []string
}

// Play implements [transcript.Stage].
func (e *echo) Play(event string) { e.events = append(e.events, event) }

// Results implements [transcript.Stage].
func (e *echo) Results() (lines []string) {
	for _, event := range e.events {
		lines = append(lines, fmt.Sprint(e.settings, " ", event))
	}
	if passed := time.Since(e.last); passed > 0 {
		lines = append(lines, passed.String())
	}
	e.events, e.last = nil, time.Now()
	return lines
}

func echoes(t *testing.T, settings []string, scene func(transcript.Stage)) {
	synctest.Test(t, func(*testing.T) { scene(&echo{settings: settings, last: time.Now()}) })
}

// TestPlay plays scenes with settings, cases, repetitions and waits.
func TestPlay(t *testing.T) { transcript.Play(t, "testdata/*.txt", *update, echoes) }

// TestUpdate writes the results of events into a file, and plays it again.
func TestUpdate(t *testing.T) {
	name := filepath.Join(t.TempDir(), "new.txt")
	check.OK(t, os.WriteFile(name, []byte("# A comment.\n> hello\n  an older result\n"), 0o600))
	for _, update := range []bool{true, false} {
		t.Run(fmt.Sprint(update), func(t *testing.T) { transcript.Play(t, name, update, echoes) })
	}
	t.Cleanup(func() {
		check.Equal(t, "the file", string(check.Must(os.ReadFile(name))), "# A comment.\n> hello\n  [] hello\n")
	})
}

// TestNames expands ranges of numbers, and shortens them again.
func TestNames(t *testing.T) {
	check.Equal(t, "names", transcript.Names("a b{8..10} c{1..2}d"), "a b08 b09 b10 c1d c2d")
	check.Equal(t, "changes", strings.Join(transcript.Changes("cds a@1, eds b{1..2}@7, cds -c"), "|"), "cds a@1|eds b1@7|eds b2@7|cds -c")
	for long, short := range map[string]string{
		"cds a@1 b08@1 b09@1 b10@1 c1@1 c2@1": "cds a@1 b{08..10}@1 c1@1 c2@1",
		"cds {a1@1 a2@1 a3@1}":                "cds {a{1..3}@1}",
		"lds x1@1 x3@1 x4@1":                  "lds x1@1 x3@1 x4@1",
		"eds n1@2 n2@2 n3@2 n4@3":             "eds n{1..3}@2 n4@3",
	} {
		check.Equal(t, long, transcript.Shorten(long), short)
	}
}

// TestNotation writes changes of an origin as the responses that they lead to.
func TestNotation(t *testing.T) {
	n := transcript.NewNotation(t)
	for _, tt := range []struct {
		changes, response string
	}{
		{"cds web@2, cds -old", "cds web@2 -old"},
		{"cds -b, cds -a, cds c@1, cds b@1", "cds b@1 c@1 -a -b"},
		{"rds r@1, rds !s:Unavailable", "rds r@1 !s:Unavailable"},
		{"eds e@1 1m", "eds e@1(1m0s)"},
		{"vhds rc/web@2=rc/a.example, vhds rc/b.example?", "vhds rc/b.example? rc/web@2=rc/a.example"},
		{"acme x@3", "acme x@3"},
		{"lds", "lds"},
	} {
		got := n.Describe(relaytest.NewResponse(n.Response(transcript.Changes(tt.changes)...)))
		check.Equal(t, tt.changes, got, tt.response)
	}
}

package conformance_test

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the transcripts")

// TestTranscripts plays the conversations under testdata/transcripts and compares
// what the relay says with what is written there; -update writes it anew, and the
// review is the diff. A file that begins with codes (R124_…) holds these rules, as a
// test of that name would.
//
// A line that begins with ">" is something that happens; the lines below it are
// what the clients are told then, before anything else happens. "envoy < cds web@1
// -old" reads: the client named envoy is sent revision 1 of the cluster web, and
// told that old is removed. SotW responses have braces: they have no removals. Errors
// of the relay's own have their message.
//
//	> for V = delta, sotw            (play the scene once for each value of V; "" is nothing; one value: V is short for it)
//	> relay TENDER_ACK_WAIT=1s       (first, if at all; with TENDER_ROUTES there is a second origin, west)
//	> envoy connects, delta          (or sotw; "grpc" begins the names of gRPC clients, "tender" of relays)
//	> envoy connects, delta, ready   (accepts everything at once; also: "refuses all", and "as an Envoy", which
//	                                 asks for the endpoints of new clusters first; "wrapped": it understands
//	                                 resources in Resource messages)
//	> envoy/eds/2 connects, delta    (a stream of one type of the same Envoy)
//	> origin cds web@1, eds -web     (a revision appears, a resource goes; all at once)
//	> origin cds web{1..9}@1         (web1 to web9; also in the names that clients ask for)
//	> origin stops, starts, or has a behaviour of player.origin
//	> origin says cds web@1, eds -web (one response, after "origin answers by hand")
//	> origin lists subscriptions     (what it is asked for)
//	> origin lists requests          (that came since it did so last)
//	> envoy subscribes cds a b       (no names: the legacy wildcard; also: unsubscribes)
//	> envoy returns to cds a b, holding a c (its first request of the type; in SotW, it holds some version)
//	> envoy acks cds                 (also: eds …; nacks; no types: all that is unanswered)
//	> envoy closes its stream, or reconnects
//	> operator freezes, thaws, releases, discards, or lists removals
//	> wait 5s
//	> repeat 3: origin cds a@#; wait 1s
//
// Where cases differ, the values that a line is of precede it, such as "[sotw cds lds]".
// A line of four dashes ends a scene. Each has a relay of its own.
func TestTranscripts(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/transcripts/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			t.Parallel()
			written, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var scenes []string
			for script := range strings.SplitSeq(string(written), sceneEnd) {
				scenes = append(scenes, play(t, script))
			}
			got := strings.Join(scenes, sceneEnd)
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got != string(written) {
				t.Errorf("%s (-written +said):\n%s", file, cmp.Diff(strings.Split(string(written), "\n"), strings.Split(got, "\n")))
			}
		})
	}
}

const sceneEnd = "----\n"

// A playedScene is a part of a transcript that is played once for each of its cases.
type playedScene struct {
	lines      []string // without what was said
	variables  []string
	values     [][]string     // by variable
	occurrence *regexp.Regexp // of a variable in an event; nil without variables
}

// A playedCase has a value for each variable of a scene.
type playedCase []string

// play has the events of a scene happen, and returns it with what was said.
func play(t *testing.T, script string) string {
	t.Helper()
	s := new(playedScene)
	for line := range strings.Lines(script) {
		if strings.HasPrefix(line, "  ") {
			continue // what was said
		}
		s.lines = append(s.lines, strings.TrimSuffix(line, "\n"))
		if each, ok := strings.CutPrefix(line, "> for "); ok {
			name, values, _ := strings.Cut(strings.TrimSpace(each), " = ")
			s.variables, s.values = append(s.variables, name), append(s.values, strings.Split(values, ", "))
			s.occurrence = regexp.MustCompile(`\b(?:` + strings.Join(s.variables, "|") + `)\b`)
		}
	}
	cases := []playedCase{nil}
	for _, values := range s.values {
		var longer []playedCase
		for _, c := range cases {
			for _, value := range values {
				longer = append(longer, append(slices.Clone(c), value))
			}
		}
		cases = longer
	}
	said := make([][][]string, len(s.lines)) // by line and case
	for _, c := range cases {
		for i, lines := range s.playCase(t, c) {
			said[i] = append(said[i], lines)
		}
	}
	var out strings.Builder
	for i, line := range s.lines {
		out.WriteString(line + "\n")
		for _, text := range s.merge(cases, said[i]) {
			out.WriteString("  " + text + "\n")
		}
	}
	return out.String()
}

// playCase returns what was said after each line.
func (s *playedScene) playCase(t *testing.T, c playedCase) [][]string {
	t.Helper()
	var env []string
	events := make([]string, len(s.lines)) // empty where nothing happens
	for i, line := range s.lines {
		event, ok := strings.CutPrefix(line, "> ")
		if !ok || strings.HasPrefix(event, "for ") {
			continue
		}
		if s.occurrence != nil {
			event = s.occurrence.ReplaceAllStringFunc(event, func(v string) string {
				return strings.Trim(c[slices.Index(s.variables, v)], `"`)
			})
		}
		if set, ok := strings.CutPrefix(event, "relay "); ok {
			env = append(env, strings.Fields(set)...)
			continue
		}
		events[i] = strings.TrimRight(event, " ")
	}
	said := make([][]string, len(s.lines))
	playerBubble(t, env, func(p *player) {
		for i, event := range events {
			if event == "" {
				continue
			}
			p.happen(event)
			for _, line := range p.said() {
				said[i] = append(said[i], s.generalize(line, c))
			}
		}
	})
	return said
}

// wordValue matches the values that are told apart from other text: types, names of clients, codes.
var wordValue = regexp.MustCompile(`^[a-zA-Z]{3,}$`)

// generalize writes variables in place of their values, so that cases that differ in nothing else are alike, and long
// names have short ones.
func (s *playedScene) generalize(line string, c playedCase) string {
	for i, value := range c {
		if len(s.values[i]) == 1 {
			line = strings.ReplaceAll(line, value, s.variables[i])
		} else if wordValue.MatchString(value) {
			line = regexp.MustCompile(`\b`+value+`\b`).ReplaceAllString(line, s.variables[i])
		}
	}
	return line
}

// merge returns what was said after one line in all cases: once where they agree, and else with labels.
func (s *playedScene) merge(cases []playedCase, said [][]string) (lines []string) {
	var texts []string // different ones, in order
	of := make(map[string][]playedCase)
	for i, c := range cases {
		text := strings.Join(said[i], "\n")
		if of[text] == nil {
			texts = append(texts, text)
		}
		of[text] = append(of[text], c)
	}
	for _, text := range texts {
		if text == "" {
			continue
		}
		for _, label := range s.labels(of[text]) {
			for line := range strings.SplitSeq(text, "\n") {
				lines = append(lines, label+line)
			}
		}
	}
	return lines
}

// labels tells cases from the others by the values of variables. One label stands for all combinations of its values.
func (s *playedScene) labels(cases []playedCase) []string {
	var words []string
	combinations, first := 1, -1
	have := make([][]string, len(s.variables))
	for i := range s.variables {
		for _, c := range cases {
			if !slices.Contains(have[i], c[i]) {
				have[i] = append(have[i], c[i])
			}
		}
		if combinations *= len(have[i]); len(have[i]) > 1 && first < 0 {
			first = i
		}
		if len(have[i]) < len(s.values[i]) {
			words = append(words, have[i]...)
		}
	}
	if combinations == len(cases) {
		if len(words) == 0 {
			return []string{""}
		}
		return []string{"[" + strings.Join(words, " ") + "] "}
	}
	var labels []string
	for _, value := range have[first] {
		labels = append(labels, s.labels(slices.DeleteFunc(slices.Clone(cases), func(c playedCase) bool { return c[first] != value }))...)
	}
	return labels
}

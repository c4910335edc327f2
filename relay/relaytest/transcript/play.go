package transcript

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/xdstender/tender/relay/relaytest/check"
)

// A Stage plays the events of one scene.
type Stage interface {
	// Play plays an event. It fails the test if the event is unknown.
	Play(event string)

	// Results returns a line for each thing that has happened since the last call.
	Results() []string
}

// A Scenery runs a scene on a new stage with settings. It calls scene in a synctest bubble.
type Scenery func(t *testing.T, settings []string, scene func(Stage))

// Play plays the files of a pattern, in parallel, and compares the results with the written ones. With update, it writes them
// to the files.
func Play(t *testing.T, pattern string, update bool, scenery Scenery) {
	t.Helper()
	files := check.Must(filepath.Glob(pattern))
	if len(files) == 0 {
		t.Fatalf("no transcripts in %s", pattern)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			t.Parallel()
			written := string(check.Must(os.ReadFile(file)))
			var scenes []string
			for scene := range strings.SplitSeq(written, sceneEnd) {
				scenes = append(scenes, playScene(t, events(scene), scenery))
			}
			got := strings.Join(scenes, sceneEnd)
			if update {
				check.OK(t, os.WriteFile(file, []byte(got), 0o644))
			} else if got != written {
				t.Errorf("%s (-written +played):\n%s", file, cmp.Diff(strings.Split(written, "\n"), strings.Split(got, "\n")))
			}
		})
	}
}

const sceneEnd = "----\n"

// events returns the lines of a scene without results.
func events(scene string) (lines []string) {
	for line := range strings.Lines(scene) {
		if !strings.HasPrefix(line, "  ") {
			lines = append(lines, strings.TrimSuffix(line, "\n"))
		}
	}
	return lines
}

// A scene is a part of a transcript that is played once for each of its cases.
type scene struct {
	lines      []string // without results
	variables  []string
	values     [][]string     // by variable
	occurrence *regexp.Regexp // of a variable in an event; nil if there are none
}

// playScene plays a scene in all its cases, and returns the lines with the results.
func playScene(t *testing.T, lines []string, scenery Scenery) string {
	t.Helper()
	s := &scene{lines: lines}
	for _, line := range lines {
		if each, ok := strings.CutPrefix(line, "> for "); ok {
			name, values, _ := strings.Cut(strings.TrimSpace(each), " = ")
			s.variables, s.values = append(s.variables, name), append(s.values, strings.Split(values, ", "))
			s.occurrence = regexp.MustCompile(`\b(?:` + strings.Join(s.variables, "|") + `)\b`)
		}
	}
	cases := []sceneCase{nil}
	for _, values := range s.values {
		var longer []sceneCase
		for _, c := range cases {
			for _, value := range values {
				longer = append(longer, append(slices.Clone(c), value))
			}
		}
		cases = longer
	}
	results := make([][][]string, len(s.lines)) // by line and case
	for _, c := range cases {
		for i, lines := range s.play(t, c, scenery) {
			results[i] = append(results[i], lines)
		}
	}
	var out strings.Builder
	for i, line := range s.lines {
		out.WriteString(line + "\n")
		for _, text := range s.merge(cases, results[i]) {
			out.WriteString("  " + text + "\n")
		}
	}
	return out.String()
}

// A sceneCase has one value for each variable of a scene.
type sceneCase []string

// play plays one case, and returns the results of each line.
func (s *scene) play(t *testing.T, c sceneCase, scenery Scenery) [][]string {
	t.Helper()
	var settings []string
	events := make([]string, len(s.lines)) // empty for lines without an event
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
		if set, ok := strings.CutPrefix(event, "relay "); ok && strings.Contains(set, "=") {
			settings = append(settings, strings.Fields(set)...)
			continue
		}
		events[i] = strings.TrimRight(event, " ")
	}
	results := make([][]string, len(s.lines))
	scenery(t, settings, func(stage Stage) {
		for i, event := range events {
			if event == "" {
				continue
			}
			for _, line := range playEvent(stage, event) {
				results[i] = append(results[i], s.generalize(line, c))
			}
		}
	})
	return results
}

// playEvent plays an event of any stage or of this one, and returns its results.
func playEvent(stage Stage, event string) (results []string) {
	what, rest, _ := strings.Cut(event, " ")
	switch what {
	case "wait":
		time.Sleep(check.Must(time.ParseDuration(rest)))
		synctest.Wait()
	case "repeat": // "3: origin cds a@#; wait 1s", where # counts from 1
		times, events, _ := strings.Cut(rest, ": ")
		for i := range check.Must(strconv.Atoi(times)) {
			for event := range strings.SplitSeq(events, "; ") {
				results = append(results, playEvent(stage, strings.ReplaceAll(event, "#", strconv.Itoa(i+1)))...)
			}
		}
		return results
	default:
		stage.Play(event)
	}
	return stage.Results()
}

// wordValue matches the values that generalize can find in text: types, names of clients, codes.
var wordValue = regexp.MustCompile(`^[a-zA-Z]{3,}$`)

// generalize replaces values by their variables, so that equal results of several cases become the same text.
func (s *scene) generalize(line string, c sceneCase) string {
	for i, value := range c {
		if len(s.values[i]) == 1 {
			line = strings.ReplaceAll(line, value, s.variables[i])
		} else if wordValue.MatchString(value) {
			line = regexp.MustCompile(`\b`+value+`\b`).ReplaceAllString(line, s.variables[i])
		}
	}
	return line
}

// merge combines the results of a line in all cases: written once if they agree, otherwise with labels.
func (s *scene) merge(cases []sceneCase, results [][]string) (lines []string) {
	var texts []string // distinct results, in order
	of := make(map[string][]sceneCase)
	for i, c := range cases {
		text := strings.Join(results[i], "\n")
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

// labels returns labels that select the cases. A label stands for all combinations of its values.
func (s *scene) labels(cases []sceneCase) []string {
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
		labels = append(labels,
			s.labels(slices.DeleteFunc(slices.Clone(cases), func(c sceneCase) bool { return c[first] != value }))...)
	}
	return labels
}

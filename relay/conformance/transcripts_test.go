package conformance_test

import (
	"flag"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/xdstender/tender/relay/relaytest/check"
)

var update = flag.Bool("update", false, "write the transcripts")

// TestTranscripts plays the conversations under testdata/transcripts and compares the relay's responses with the
// recorded ones. -update records them; review the diff. A file whose name begins with codes (R124_…) tests these
// rules, as a test of that name would.
//
// A line that begins with ">" is an event; the indented lines below it are its results. The notation is that of
// world: "envoy < cds web@1 -old" is a response to the client envoy with revision 1 of the cluster web and the
// removal of old. Errors that the relay itself reports are written with their message. A line of four dashes ends
// a scene; each scene has a new relay.
//
// For the scene:
//
//	> for V = delta, sotw               (plays the scene once per value of V; "" is empty; one value: V abbreviates it)
//	> relay TENDER_ACK_WAIT=1s          (variables of the relay; with TENDER_ROUTES there is a second origin, west)
//	> relay stops
//	> wait 5s
//	> repeat 3: origin cds a@#; wait 1s
//	> write merged                      (merges the responses of an event by type, where order and number vary)
//	> write states                      (writes the clients' resources after each event; "write responses" ends both)
//	> log text                          (writes how often the relay has logged this message)
//	> operator freezes                  (also: thaws, releases, discards, releases what was discarded, lists removals)
//
// Where results differ between values, the values of a line precede it, such as "[sotw cds lds]".
//
// For clients: names that begin with grpc are gRPC clients, those with tender are relays, all others are Envoys.
//
//	> envoy connects delta              (or sotw; options follow)
//	  auto-ack, auto-nack               (answers each response at once)
//	  auto-eds                          (subscribes to the endpoints of new clusters, then ACKs)
//	  wrapper, ttl, feature=x           (client features)
//	  cluster=x                         (of its node)
//	  untyped                           (its requests have no type URL, on a stream of one type)
//	  versions                          (its responses are written with the number of their version)
//	  below                             (connects to a second relay, whose origin is the first one)
//	> envoy/eds/2 connects delta        (a stream of one type of the same Envoy)
//	> envoy subscribes cds a b{1..9}    (no names: the legacy wildcard; also: unsubscribes)
//	> a+b subscribes cds+lds a          (each of these clients, to each of these types)
//	> envoy returns to cds a b, holding a c@1
//	                                    (first request of a client that holds an unknown version of a, and v1 of c)
//	> envoy acks cds+eds                (the last responses; no types: all unanswered ones; also: nacks)
//	> envoy sends cds a -b, nonce=@2 version=@2 error=text
//	                                    (any request; @2 is the second response of its type, @rds:2 that of another
//	                                    type, other@2 that of another client; the type none is empty)
//	> envoy closes its stream           (also: half-closes, reconnects)
//
// For origins:
//
//	> origin cds web@1, eds -web        (simultaneous changes; names may have ranges)
//	> origin for red cds a@1            (a resource for nodes of this cluster, or with this client feature)
//	> origin forbids caching of cds a@1
//	> origin heartbeats cds a
//	> origin sends cds a@1, cds -b      (an additional response of one type)
//	> origin accepts s                  (names a stream of a manual origin, for "s sends cds a@1")
//	> origin lists subscriptions cds    (writes the subscribed names; no types: all)
//	> origin lists requests             (writes those since the last time)
//	> origin lists nodes cds            (writes the nodes of open streams; also: streams, initial versions)
//	> origin stops                      (also: starts)
//	> origin delays 2s                  (each response)
//	> origin closes streams after 5s    (without a response)
//	> origin omits a                    (names with this prefix, from wildcards)
//	> origin has no a                   (this alias has no resource; also: has virtual hosts on demand)
//	> origin is manual                  (sends nothing by itself on the next streams; also: playedBehaviours)
func TestTranscripts(t *testing.T) {
	t.Parallel()
	check.Transcripts(t, "testdata/transcripts/*.txt", *update, func(t *testing.T, lines []string) string {
		t.Parallel()
		var scenes []string
		for len(lines) > 0 {
			end := slices.Index(append(slices.Clone(lines), sceneEnd), sceneEnd)
			scenes = append(scenes, playScene(t, lines[:end]))
			lines = lines[min(end+1, len(lines)):]
		}
		return strings.Join(scenes, sceneEnd+"\n")
	})
}

const sceneEnd = "----"

// A playedScene is a part of a transcript that is played once for each of its cases.
type playedScene struct {
	lines      []string // script without results
	variables  []string
	values     [][]string     // by variable
	occurrence *regexp.Regexp // of a variable in an event; nil if there are none
}

// A playedCase has one value for each variable of a scene.
type playedCase []string

// playScene plays a scene in all its cases, and returns the script with the results.
func playScene(t *testing.T, script []string) string {
	t.Helper()
	s := &playedScene{lines: script}
	for _, line := range script {
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
	results := make([][][]string, len(s.lines)) // by line and case
	for _, c := range cases {
		for i, lines := range s.playCase(t, c) {
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

// playCase plays one case, and returns the results of each line.
func (s *playedScene) playCase(t *testing.T, c playedCase) [][]string {
	t.Helper()
	var env []string
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
		if set, ok := strings.CutPrefix(event, "relay TENDER_"); ok {
			env = append(env, strings.Fields("TENDER_"+set)...)
			continue
		}
		events[i] = strings.TrimRight(event, " ")
	}
	results := make([][]string, len(s.lines))
	playerBubble(t, env, func(p *player) {
		for i, event := range events {
			if event == "" {
				continue
			}
			p.play(event)
			for _, line := range p.results() {
				results[i] = append(results[i], s.generalize(line, c))
			}
		}
	})
	return results
}

// wordValue matches the values that generalize can find in text: types, names of clients, codes.
var wordValue = regexp.MustCompile(`^[a-zA-Z]{3,}$`)

// generalize replaces values by their variables, so that equal results of several cases become the same text.
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

// merge combines the results of a line in all cases: written once if they agree, otherwise with labels.
func (s *playedScene) merge(cases []playedCase, results [][]string) (lines []string) {
	var texts []string // distinct results, in order
	of := make(map[string][]playedCase)
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
		labels = append(labels,
			s.labels(slices.DeleteFunc(slices.Clone(cases), func(c playedCase) bool { return c[first] != value }))...)
	}
	return labels
}

package conformance_test

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/xdstender/tender/relay/relaytest"
)

// ruleFiles is where the transcripts of rules are. Each has the name of its test, without Test.
const ruleFiles = "testdata/transcripts/rules"

// transcript plays the conversation of the test that calls it, and compares the responses with those in the file.
//
// The events are those of TestTranscripts and, for clients:
//
//	> delta+sotw subscribes cds+lds a   (each of these clients, to each of these types)
//	> x connects, delta ready           (ACKs everything at once; also: ttl, wraps, untyped, versions, cluster=x, below)
//	> x acks                            (every response since the last ACK)
//	> x sends cds a -b, nonce=@2 version=@2 error=text holding=a:v1    (any request; @2 is the second response of its type)
//	> x reconnects
//	> x half-closes
//
// and for the origin:
//
//	> origin for red cds a@1            (for nodes of this cluster, or with this client feature)
//	> origin heartbeats cds a
//	> origin forbids caching of cds a@1, ...
//	> origin injects cds a@1, cds -b    (a response beside what the origin sends by itself; one type)
//	> origin is manual                  (the next streams; "origin accepts s", and then "s says cds a@1, cds -b")
//	> origin delays 2s                  (also: ignores versions, duplicates, behaves, and is SotW)
//	> origin names only a/              (names with this prefix are in no wildcard)
//	> origin has no a                   (this alias means nothing)
//	> origin shows cds                  (writes which names are subscribed, and how often they were requested)
//	> origin asked at most 7 cds a      (writes the number of requests only if there were more)
//	> origin shows streams              (also: nodes cds, the open streams and what they subscribe to of a type; resumed, what the relay reported)
//	> relay stops
//	> log text                          (writes how often the relay has logged this)
//	> let shop = xdstp://one/…          ($shop stands for it)
//	> pace 20ms                         (lets this time pass after each event of a client, for requests to the origin)
//	> write merged                      (the responses of an event as one of each type, since their order and number vary)
//	> write states                      (what clients have after each event)
//	=== title                           (a new origin and relay)
//
// The end of a stream is written, unless the client closed it.
func transcript(t *testing.T) {
	t.Helper()
	t.Parallel()
	rewriteOrCompare(t, filepath.Join(ruleFiles, strings.TrimPrefix(t.Name(), "Test")+".txt"))
}

func rewriteOrCompare(t *testing.T, file string) {
	t.Helper()
	written, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	got := playRule(t, string(written))
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if diff := cmp.Diff(strings.Split(string(written), "\n"), strings.Split(got, "\n")); diff != "" {
		t.Errorf("%s (-want +got):\n%s", file, diff)
	}
}

// TestTranscriptsOfRules checks that each transcript has a test of its name; -update rewrites all of them.
func TestTranscriptsOfRules(t *testing.T) {
	t.Parallel()
	var source strings.Builder
	tests, err := filepath.Glob("*_test.go")
	for _, file := range tests {
		text, readErr := os.ReadFile(file)
		source.Write(text)
		err = errors.Join(err, readErr)
	}
	files, globErr := filepath.Glob(ruleFiles + "/*.txt")
	if err = errors.Join(err, globErr); err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, file := range files {
		name := "Test" + strings.TrimSuffix(filepath.Base(file), ".txt")
		if !regexp.MustCompile(`\nfunc ` + name + `\(t \*testing\.T\) +\{ transcript\(t\) \}`).MatchString(source.String()) {
			t.Errorf("%s: no test %s plays it", file, name)
		}
		if *update {
			t.Run(name, func(t *testing.T) { rewriteOrCompare(t, file) })
		}
	}
}

// playRule plays the worlds of a script one after another, and returns the script with the responses.
func playRule(t *testing.T, script string) string {
	t.Helper()
	var out strings.Builder
	for i, world := range strings.Split(script, "\n=== ") {
		if i > 0 {
			out.WriteString("\n=== ")
		}
		out.WriteString(playWorld(t, world))
	}
	return out.String()
}

func playWorld(t *testing.T, script string) string {
	t.Helper()
	var out strings.Builder
	var env []string
	lines := strings.SplitAfter(script, "\n")
	for _, line := range lines {
		if set, ok := strings.CutPrefix(line, "> relay "); ok {
			env = append(env, slices.DeleteFunc(strings.Fields(set), func(v string) bool { return !strings.Contains(v, "=") })...)
		}
	}
	orderBubble(t, env, func(w *orderWorld) {
		p := &rulePlayer{
			w: w, clients: make(map[string]*orderClient), extra: make(map[string]*ruleClient),
			contents: make(map[string]*relaytest.Content), streams: make(map[string]*relaytest.OriginStream), versions: make(map[string]int),
		}
		for _, line := range lines {
			if strings.HasPrefix(line, "  ") {
				continue
			}
			out.WriteString(line)
			if event, ok := strings.CutPrefix(line, "> "); ok {
				p.happen(p.expand(strings.TrimSpace(event)))
				for _, told := range p.told() {
					out.WriteString("  " + p.shorten(told) + "\n")
				}
			}
		}
	})
	return out.String()
}

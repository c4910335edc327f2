package deploy_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// Limits of a page, so that it can be read.
const (
	maxLine     = 120 // characters of a line outside code
	maxSentence = 30  // words
	maxREADME   = 1500

	// maxRead is the number of words that an operator reads before the reference.
	maxRead = 19_500
)

// edited are the pages that keep to these limits: all but relay/PROTOCOL.md, whose tables list the rules of the specification.
// A page that leaves this list needs a reason.
var edited = []string{
	".github/CONTRIBUTING.md",
	"README.md",
	"deploy/docs/README.md",
	"deploy/docs/attacks.md",
	"deploy/docs/capacity.md",
	"deploy/docs/cli.md",
	"deploy/docs/clients.md",
	"deploy/docs/compatibility.md",
	"deploy/docs/concepts.md",
	"deploy/docs/configuration.md",
	"deploy/docs/control-planes/consul.md",
	"deploy/docs/control-planes/envoy-gateway.md",
	"deploy/docs/control-planes/go-control-plane.md",
	"deploy/docs/control-planes/istio.md",
	"deploy/docs/embedding.md",
	"deploy/docs/faq.md",
	"deploy/docs/faults.md",
	"deploy/docs/gitops.md",
	"deploy/docs/install.md",
	"deploy/docs/kubernetes.md",
	"deploy/docs/log.md",
	"deploy/docs/metrics.md",
	"deploy/docs/migrate.md",
	"deploy/docs/operations.md",
	"deploy/docs/page.md",
	"deploy/docs/production.md",
	"deploy/docs/rollout.md",
	"deploy/docs/security.md",
	"deploy/docs/slo.md",
	"deploy/docs/status.md",
	"deploy/docs/tls.md",
	"deploy/docs/tracing.md",
	"deploy/docs/two-regions.md",
	"deploy/docs/upgrades.md",
	"relay/DESIGN.md",
}

// TestProse checks that pages keep to limits on lines, rows of tables and sentences.
func TestProse(t *testing.T) {
	all := read(t).pages
	for _, page := range edited {
		text, ok := all[page]
		if !ok {
			t.Errorf("there is no page %s", page)
		}
		for _, problem := range proseProblems(text) {
			t.Errorf("%s: %s", page, problem)
		}
	}
	if words := len(strings.Fields(all["README.md"])); words >= maxREADME {
		t.Errorf("README.md has %d words, want less than %d", words, maxREADME)
	}
}

// TestWordsBeforeReference checks the number of words of the README, the index, and the pages that the index lists before
// those of reference. A page of reference lists what a reader looks up: settings, commands, metrics, versions or faults.
func TestWordsBeforeReference(t *testing.T) {
	all := read(t).pages
	const index = "deploy/docs/README.md"
	before, reference, found := strings.Cut(all[index], "\n## Reference\n")
	if !found {
		t.Fatalf("%s has no section Reference", index)
	}
	reference, _, _ = strings.Cut(reference, "\n## ")
	listed := func(text string) (names []string) {
		for _, match := range indexed.FindAllStringSubmatch(text, -1) {
			names = append(names, "deploy/docs/"+match[1])
		}
		return names
	}
	pages := append([]string{"README.md", index}, listed(before)...)
	for _, page := range edited {
		if strings.HasPrefix(page, "deploy/docs/") && !slices.Contains(pages, page) && !slices.Contains(listed(reference), page) {
			t.Errorf("%s does not list %s", index, page)
		}
	}
	words := 0
	for _, page := range pages {
		if all[page] == "" {
			t.Errorf("there is no page %s", page)
		}
		words += len(strings.Fields(all[page]))
	}
	if words > maxRead {
		t.Errorf("pages before the reference have %d words, want at most %d: link to what another page states", words, maxRead)
	}
}

// indexed matches the link to a page in the same directory or below.
var indexed = regexp.MustCompile(`\]\(([a-z][a-z/-]*\.md)\)`)

var (
	linkTarget = regexp.MustCompile(`\]\([^)]*\)`)
	codeSpan   = regexp.MustCompile("`[^`]*`")
	listItem   = regexp.MustCompile(`^\s*([-*]|\d+\.) `)
	sentence   = regexp.MustCompile(`[.!?:;]["*)]*(\s+|$)`)
)

// proseProblems returns the lines, rows of tables and sentences of a page that are too long.
func proseProblems(text string) (problems []string) {
	var paragraph []string
	end := func() {
		for _, s := range sentence.Split(plainText(strings.Join(paragraph, " ")), -1) {
			if words := len(strings.Fields(s)); words > maxSentence {
				problems = append(problems, "a sentence of too many words: "+s)
			}
		}
		paragraph = nil
	}
	code := false
	for line := range strings.SplitSeq(text, "\n") {
		trimmed := strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(trimmed, "```"):
			code = !code
			end()
		case code:
		case strings.HasPrefix(trimmed, "|"):
			end()
			if utf8.RuneCountInString(line) > maxLine {
				problems = append(problems, "a row that is too long: "+line)
			}
		case trimmed == "" || strings.HasPrefix(trimmed, "#") || listItem.MatchString(line):
			end()
			fallthrough
		default:
			if utf8.RuneCountInString(line) > maxLine && strings.Contains(trimmed, " ") {
				problems = append(problems, "a line that is too long: "+line)
			}
			paragraph = append(paragraph, trimmed)
		}
	}
	end()
	return problems
}

// plainText returns Markdown with one word for each link target and span of code.
func plainText(markdown string) string {
	return codeSpan.ReplaceAllString(linkTarget.ReplaceAllString(markdown, "]"), "code")
}

// TestProseProblems checks that each limit detects what exceeds it.
func TestProseProblems(t *testing.T) {
	long := strings.Repeat("word ", maxSentence+1)
	for _, tt := range []struct {
		name, text string
		want       int
	}{
		{"short", "A sentence. Another: " + strings.Repeat("word ", maxSentence/2) + "\n\n```\n" + long + long + "\n```\n", 0},
		{"long line", strings.Repeat("word. ", maxLine/5), 1},
		{"long link", "[a](" + strings.Repeat("x", maxLine) + ")", 0},
		{"long sentence", "It is\n" + strings.ReplaceAll(long, "word ", "it\n"), 1},
		{"long row", "| " + strings.Repeat("word. ", maxLine/5) + " | a |", 1},
		{"list", "- " + strings.Repeat("a ", maxSentence-2) + "\n- " + strings.Repeat("b ", maxSentence-2), 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := proseProblems(tt.text); len(got) != tt.want {
				t.Errorf("proseProblems finds %q, want %d", got, tt.want)
			}
		})
	}
}

package relay

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/xdstender/tender/relay/config"
	"github.com/xdstender/tender/relay/telemetry"
)

// maxREADME is the length of the README, in lines.
const maxREADME = 250

// pages returns the pages that people read, by their paths from here.
func pages(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	for _, pattern := range []string{"../*.md", "../.github/*.md", "../deploy/*/*.md", "../deploy/*/*/*.md", "../bench/*.md", "*.md"} {
		names, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			texts[name] = string(text)
		}
	}
	if len(texts) < 20 {
		t.Fatalf("found %d pages, want 20 at least", len(texts))
	}
	return texts
}

var (
	linked  = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.+)$`)
	unnamed = regexp.MustCompile(`[^\p{L}\p{N}_\- ]`)
)

// TestLinks holds that what a page links to in the module is there, with the heading that
// the link names.
func TestLinks(t *testing.T) {
	found := 0
	known := map[string]map[string]bool{} // the anchors of pages
	for page, text := range pages(t) {
		for _, match := range linked.FindAllStringSubmatch(text, -1) {
			if strings.Contains(match[1], "://") {
				continue
			}
			found++
			name, anchor, _ := strings.Cut(match[1], "#")
			target := page
			if name != "" {
				target = filepath.Join(filepath.Dir(page), name)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s: %v", page, match[1], err)
			} else if anchor != "" {
				if known[target] == nil {
					known[target] = anchors(t, target)
				}
				if !known[target][anchor] {
					t.Errorf("%s links to %s: %s has no such heading", page, match[1], target)
				}
			}
		}
	}
	if found < 20 {
		t.Errorf("found %d links in the module, want those of the README at least", found)
	}
}

// anchors returns what links to the headings of a page end in.
func anchors(t *testing.T, page string) map[string]bool {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]bool{}
	for _, match := range heading.FindAllStringSubmatch(string(text), -1) {
		all[strings.ReplaceAll(unnamed.ReplaceAllString(strings.ToLower(match[1]), ""), " ", "-")] = true
	}
	return all
}

func TestREADMEIsShort(t *testing.T) {
	if lines := strings.Count(pages(t)["../README.md"], "\n"); lines >= maxREADME {
		t.Errorf("README.md has %d lines, want less than %d: move details to deploy/docs", lines, maxREADME)
	}
}

var (
	metric   = regexp.MustCompile("`(tender_[a-z_]+)")
	setting  = regexp.MustCompile(`TENDER_[A-Z0-9_]+`) // TENDER_MAX_, with an ellipsis, is several
	test     = regexp.MustCompile("`(Test[A-Z]\\w+(?:/[\\w-]+)?)`")
	logged   = regexp.MustCompile("[Ll]og: `([^`]+)`")
	declared = regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	former   = regexp.MustCompile("(?m)^- Former name: .*$") // of a variable
)

// ignored reports whether a variable is ignored, as those that Kubernetes sets are.
func ignored(variable string) bool {
	_, err := LoadConfig([]string{variable + "=x"})
	return err == nil
}

// TestNamesOnPages holds that the metrics, variables, tests and lines of the log that
// people are told of are there.
func TestNamesOnPages(t *testing.T) {
	tests, code := source(t)
	table := config.Page()
	for _, of := range []struct {
		what  string
		names *regexp.Regexp
		least int // on all pages
		known func(name string) bool
	}{
		{"metric", metric, 30, func(name string) bool { return strings.Contains(telemetry.Page(), "`"+name+"`") }},
		{"variable", setting, 20, func(name string) bool {
			if several, ok := strings.CutSuffix(name, "_"); ok {
				return strings.Contains(table, "# `"+name) || ignored(several)
			}
			return strings.Contains(table, "# `"+name+"`\n") || ignored(name)
		}},
		{"test", test, 30, func(name string) bool { return tests[name] }},
		{"line of the log", logged, 15, func(text string) bool { return strings.Contains(code, text) }},
	} {
		found := map[string]bool{}
		for page, text := range pages(t) {
			if page != "../README.md" && !strings.HasPrefix(page, "../deploy/docs/") {
				continue
			}
			for _, match := range of.names.FindAllStringSubmatch(former.ReplaceAllString(text, ""), -1) {
				name := match[len(match)-1]
				if found[name] = true; !of.known(name) {
					t.Errorf("%s names %s: there is no such %s", page, name, of.what)
				}
			}
		}
		if len(found) < of.least {
			t.Errorf("pages name %d of kind %s, want at least %d", len(found), of.what, of.least)
		}
	}
}

// TestFaultsAreTested holds that each fault of deploy/docs/faults.md has a test, and each
// row of the tables its four columns.
func TestFaultsAreTested(t *testing.T) {
	faults := 0
	for line := range strings.Lines(pages(t)["../deploy/docs/faults.md"]) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "## Browsers") {
			break // those of other pages are the admin surface's
		}
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| Fault ") || strings.HasPrefix(line, "| ---") {
			continue
		}
		faults++
		if cells := strings.Count(line, " | ") + 1; cells != 4 || !test.MatchString(line[strings.LastIndex(line, " | "):]) {
			t.Errorf("a row has %d columns, want 4, of which the last names a test:\n%s", cells, line)
		}
	}
	if faults < 30 {
		t.Errorf("there are %d faults, want 30 at least", faults)
	}
}

// TestAttacksAreTested holds that each attack of deploy/docs/attacks.md that hostile peers may
// try has a bound, an end and a test. That the tests and the variables exist, TestNamesOnPages holds.
func TestAttacksAreTested(t *testing.T) {
	_, hostile, found := strings.Cut(pages(t)["../deploy/docs/attacks.md"], "\n## Hostile ")
	if !found {
		t.Fatal("attacks.md has no section on hostile peers")
	}
	attacks := 0
	for line := range strings.Lines(hostile) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "## Browsers") {
			break // those of other pages are the admin surface's
		}
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| Attack ") || strings.HasPrefix(line, "| ---") {
			continue
		}
		attacks++
		cells := strings.Split(strings.Trim(line, "| "), " | ")
		if len(cells) != 4 || !test.MatchString(cells[len(cells)-1]) {
			t.Errorf("a row has %d columns, want 4, of which the last names a test:\n%s", len(cells), line)
		}
	}
	if attacks < 20 {
		t.Errorf("there are %d attacks, want 20 at least", attacks)
	}
}

// source returns the names of the module's tests, and the text of what is not a test.
func source(t *testing.T) (tests map[string]bool, code string) {
	t.Helper()
	tests = map[string]bool{}
	var text strings.Builder
	err := filepath.WalkDir("..", func(name string, entry fs.DirEntry, err error) error {
		if played, ok := strings.CutPrefix(filepath.ToSlash(name), "../"+transcripts); ok {
			tests["TestTranscripts/"+strings.TrimSuffix(played, ".txt")] = true
		}
		if err != nil || entry.IsDir() || !strings.HasSuffix(name, ".go") {
			return err
		}
		content, err := os.ReadFile(name)
		if !strings.HasSuffix(name, "_test.go") {
			text.Write(content)
			return err
		}
		for _, match := range declared.FindAllSubmatch(content, -1) {
			tests[string(match[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return tests, text.String()
}

package relay

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/xdstender/tender/relay/config"
	"github.com/xdstender/tender/relay/telemetry"
)

// maxREADME is the maximum length of the README, in lines.
const maxREADME = 250

// pages returns the Markdown pages of the repository, by path relative to this package.
func pages(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	for _, pattern := range []string{
		"../*.md", "../.github/*.md", "../deploy/*/*.md", "../deploy/*/*/*.md", "../bench/*.md", "*.md",
	} {
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
		t.Fatalf("found %d pages, want at least 20", len(texts))
	}
	return texts
}

var (
	linked  = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.+)$`)
	unnamed = regexp.MustCompile(`[^\p{L}\p{N}_\- ]`)
)

// TestLinks checks that the files and headings that pages link to exist.
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
		t.Errorf("found %d links, want at least 20", found)
	}
}

// anchors returns the anchors of the headings of a page.
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
	setting  = regexp.MustCompile(`TENDER_[A-Z0-9_]+`) // TENDER_MAX_ with an ellipsis stands for several
	test     = regexp.MustCompile("`(Test[A-Z]\\w+(?:/[\\w-]+)?)`")
	logged   = regexp.MustCompile("[Ll]og: `([^`]+)`")
	declared = regexp.MustCompile(`(?m)^func (Test\w+)\(`)
)

// ignored reports whether Load ignores a variable, because Kubernetes sets it.
func ignored(variable string) bool {
	_, err := LoadConfig([]string{variable + "=x"})
	return err == nil
}

// TestNamesOnPages checks that the metrics, variables, tests and log messages on the pages exist.
func TestNamesOnPages(t *testing.T) {
	tests, code := source(t)
	table := config.Page()
	for _, of := range []struct {
		what    string
		names   *regexp.Regexp
		minimum int // on all pages
		known   func(name string) bool
	}{
		{"metric", metric, 30, func(name string) bool { return strings.Contains(telemetry.Page(), "`"+name+"`") }},
		{"variable", setting, 20, func(name string) bool {
			if several, ok := strings.CutSuffix(name, "_"); ok {
				return strings.Contains(table, "# `"+name) || ignored(several)
			}
			return strings.Contains(table, "# `"+name+"`\n") || ignored(name)
		}},
		{"test", test, 30, func(name string) bool { return tests[name] }},
		{"log message", logged, 15, func(text string) bool { return strings.Contains(code, text) }},
	} {
		found := map[string]bool{}
		for page, text := range pages(t) {
			if page != "../README.md" && page != faultsPage && !strings.HasPrefix(page, "../deploy/docs/") {
				continue
			}
			for _, match := range of.names.FindAllStringSubmatch(text, -1) {
				name := match[len(match)-1]
				if found[name] = true; !of.known(name) {
					t.Errorf("%s names %s, which is not a %s", page, name, of.what)
				}
			}
		}
		if len(found) < of.minimum {
			t.Errorf("pages name %d of kind %s, want at least %d", len(found), of.what, of.minimum)
		}
	}
}

// items returns the entries of a page that lists faults or attacks. Each entry begins with text in bold and has a
// nested list.
func items(page string) (all []string) {
	for line := range strings.Lines(page) {
		switch {
		case strings.HasPrefix(line, "- **"):
			all = append(all, line)
		case strings.HasPrefix(line, "  ") && len(all) > 0:
			all[len(all)-1] += line
		}
	}
	return all
}

// faultsPage has the tests of each entry of faults.md and attacks.md.
const faultsPage = "FAULTS.md"

// checkItems fails the test unless there are at least minimum entries, each has the fields, and the entries of a section of
// faultsPage are the same and name tests. TestNamesOnPages checks that these exist.
func checkItems(t *testing.T, all, tested []string, minimum int, fields ...string) {
	t.Helper()
	for i, item := range all {
		for _, field := range fields {
			if !strings.Contains(item, "\n  - "+field+": ") {
				t.Errorf("an entry lacks %q:\n%s", field, item)
			}
		}
		if i >= len(tested) || titleOf(tested[i]) != titleOf(item) {
			t.Fatalf("%s lacks the tests of this entry, or has them elsewhere:\n%s", faultsPage, item)
		}
		if !test.MatchString(tested[i]) {
			t.Errorf("an entry of %s names no test:\n%s", faultsPage, tested[i])
		}
	}
	if len(tested) > len(all) {
		t.Errorf("%s has tests of what is not listed:\n%s", faultsPage, strings.Join(tested[len(all):], ""))
	}
	if len(all) < minimum {
		t.Errorf("%d entries, want at least %d", len(all), minimum)
	}
}

// titleOf returns the text in bold with which an entry begins.
func titleOf(item string) string {
	title, _, _ := strings.Cut(strings.TrimPrefix(strings.Join(strings.Fields(item), " "), "- **"), "**")
	return title
}

// TestFaultsAreTested checks that each fault in deploy/docs/faults.md has an effect, a metric and a test.
func TestFaultsAreTested(t *testing.T) {
	all := pages(t)
	tested, _, _ := strings.Cut(all[faultsPage], "\n## Hostile ")
	checkItems(t, items(all["../deploy/docs/faults.md"]), items(tested), 48, "Effect", "Metrics")
}

// TestAttacksAreTested checks that each attack of hostile peers in deploy/docs/attacks.md has a limit, a result and a
// test.
func TestAttacksAreTested(t *testing.T) {
	all := pages(t)
	_, hostile, found := strings.Cut(all["../deploy/docs/attacks.md"], "\n## Hostile ")
	hostile, _, browsers := strings.Cut(hostile, "\n## Browsers\n") // tested with the admin API
	_, tested, has := strings.Cut(all[faultsPage], "\n## Hostile ")
	if !found || !browsers || !has {
		t.Fatalf("attacks.md or %s lacks a section on hostile peers, or the first one on browsers", faultsPage)
	}
	checkItems(t, items(hostile), items(tested), 52, "Limit", "Result")
}

// source returns the names of the module's tests, and the text of all other Go files.
func source(t *testing.T) (tests map[string]bool, code string) {
	t.Helper()
	tests = map[string]bool{}
	var text strings.Builder
	err := filepath.WalkDir("..", func(name string, entry fs.DirEntry, err error) error {
		if played, ok := transcript(strings.TrimPrefix(filepath.ToSlash(name), "../")); ok {
			tests["TestTranscripts/"+path.Base(played)] = true
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

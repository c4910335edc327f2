package relay

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// maxREADME is how many lines somebody reads who only wants to know what this is.
const maxREADME = 250

// pages returns the pages that people read, by their paths from here.
func pages(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	for _, pattern := range []string{"../*.md", "../.github/*.md", "../deploy/docs/*.md", "../bench/*.md", "*.md"} {
		names, err := filepath.Glob(pattern)
		if err != nil || len(names) == 0 {
			t.Fatalf("%s names no page: %v", pattern, err)
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			texts[name] = string(text)
		}
	}
	return texts
}

var (
	linked  = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.+)$`)
	unnamed = regexp.MustCompile(`[^\p{L}\p{N}\- ]`)
)

// TestLinks holds that what a page links to in the module is there, with the heading that
// the link names.
func TestLinks(t *testing.T) {
	found := 0
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
			} else if anchor != "" && !anchors(t, target)[anchor] {
				t.Errorf("%s links to %s: %s has no such heading", page, match[1], target)
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
		t.Errorf("README.md has %d lines, want less than %d: what only operators need belongs into deploy/docs", lines, maxREADME)
	}
}

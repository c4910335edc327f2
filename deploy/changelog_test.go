package deploy_test

import (
	"regexp"
	"strings"
	"testing"
)

// releaseHeading matches the heading of a release: its version, and its date or "unreleased".
var releaseHeading = regexp.MustCompile(`^\[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d|unreleased)$`)

// development is the heading of the changes before the first release, which are not part of its notes.
const development = "Development before 0.1.0"

// TestChangelog checks the headings of the changelog: Unreleased is first, each release has a date and a link, only the
// newest release may be one that is prepared, and the development is last.
func TestChangelog(t *testing.T) {
	text := readText(t, root+"/CHANGELOG.md")
	var sections []string
	for line := range strings.Lines(text) {
		if heading, ok := strings.CutPrefix(strings.TrimSpace(line), "## "); ok {
			sections = append(sections, heading)
		}
	}
	if len(sections) < 2 || sections[0] != "[Unreleased]" {
		t.Fatalf("the sections are %q, want [Unreleased] first, and a release", sections)
	}
	if last := len(sections) - 1; sections[last] != development {
		t.Errorf("the last section is %q, want %q", sections[last], development)
	} else {
		sections = sections[:last]
	}
	for i, heading := range sections {
		if i > 0 {
			match := releaseHeading.FindStringSubmatch(heading)
			if match == nil || i > 1 && match[2] == "unreleased" {
				t.Errorf("the heading %q has no version or no date", heading)
				continue
			}
		}
		name, _, _ := strings.Cut(heading, "]")
		if !strings.Contains(text, "\n"+name+"]: https://") {
			t.Errorf("%s] has no link at the end", name)
		}
	}
}

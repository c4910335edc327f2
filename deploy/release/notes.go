package main

import (
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
)

// writeNotes prints the section of the changelog for the version. For a commit that is no release, it prints the section
// Unreleased, or, if that is empty, the newest one, which the commit may prepare.
func (o options) writeNotes(changelog string, w io.Writer) error {
	text, err := os.ReadFile(changelog)
	if err != nil {
		return err
	}
	heading := "Unreleased"
	if version, ok := o.released(); ok {
		heading = version
	}
	notes := section(string(text), heading)
	if newest := newestHeading.FindStringSubmatch(string(text)); notes == "" && heading == "Unreleased" && newest != nil {
		notes = section(string(text), newest[1])
	}
	if notes == "" {
		return fmt.Errorf("%s: no section [%s], or an empty one; add it before the release", changelog, heading)
	}
	_, err = fmt.Fprintf(w, "# Tender %s\n\n%s\n", o.version, o.absolute(notes))
	return err
}

// repository is the address of the files of the repository at a tag or branch.
const repository = "https://github.com/xdstender/tender/blob/"

// relativeLink matches the beginning of a link in the changelog to a file of the repository. A link to another site has a
// scheme.
var relativeLink = regexp.MustCompile(`\]\(([\w.][^():]*\))`)

// absolute makes the links to files of the repository absolute, because the notes are read elsewhere. They lead to the tag
// of the release; those of another commit to the branch main.
func (o options) absolute(notes string) string {
	at := "main"
	if _, ok := o.released(); ok {
		at = o.version
	}
	return relativeLink.ReplaceAllString(notes, "]("+repository+at+"/$1")
}

// newestHeading matches the heading of the newest version.
var newestHeading = regexp.MustCompile(`(?m)^## \[(\d[^]]*)\]`)

// section returns the text below the heading "## [name]", up to the next heading of that level or the links at the end.
func section(changelog, name string) string {
	var lines []string
	inside := false
	for line := range strings.Lines(changelog) {
		switch {
		case strings.HasPrefix(line, "## "):
			inside = strings.HasPrefix(line, "## ["+name+"]")
		case inside && isLink(line):
			inside = false
		case inside:
			lines = append(lines, line)
		}
	}
	return strings.TrimSpace(strings.Join(lines, ""))
}

// isLink reports whether a line defines the address of a heading, as in "[1.2.3]: https://…".
func isLink(line string) bool {
	return strings.HasPrefix(line, "[") && strings.Contains(line, "]: ")
}

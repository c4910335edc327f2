package docs_test

import (
	"encoding/xml"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestImages holds that each picture is on a page, and that those that are drawn by hand say in words what they
// show, and have colours for dark pages.
func TestImages(t *testing.T) {
	var all strings.Builder
	for _, text := range pages(t) {
		all.WriteString(text)
	}
	names, err := filepath.Glob("images/*")
	if err != nil || len(names) < 5 {
		t.Fatalf("found %d images, %v, want 5 at least", len(names), err)
	}
	for _, name := range names {
		if !strings.Contains(all.String(), "]("+name+")") {
			t.Errorf("no page shows %s", name)
		}
		if filepath.Ext(name) != ".svg" {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var picture struct {
			Title string `xml:"title"`
			Desc  string `xml:"desc"`
			Style string `xml:"style"`
		}
		if err := xml.Unmarshal(text, &picture); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if picture.Title == "" || picture.Desc == "" || !strings.Contains(picture.Style, "prefers-color-scheme: dark") {
			t.Errorf("%s has the title %q, the description %q, and the style %q", name, picture.Title, picture.Desc, picture.Style)
		}
	}
}

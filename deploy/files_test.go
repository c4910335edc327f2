package deploy_test

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"sigs.k8s.io/yaml"

	"github.com/xdstender/tender/deploy/docs"
)

var update = flag.Bool("update", false, "write generated files: docs/openapi.yaml, parts of the chart's README.md and values.schema.json, and copies")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// root is the root of the repository.
const root = ".."

// An object is a mapping of a YAML or JSON document.
type object = map[string]any

// readText returns the content of a file.
func readText(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.FromSlash(name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// readYAML decodes a YAML file.
func readYAML(t *testing.T, name string, into any) {
	t.Helper()
	decodeYAML(t, readText(t, name), into)
}

// decodeYAML decodes YAML.
func decodeYAML(t *testing.T, text string, into any) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(text), into); err != nil {
		t.Fatalf("%.100q: %v", text, err)
	}
}

// hold fails the test unless the file contains exactly the text want. With -update it writes the file instead.
func hold(t *testing.T, name, want string) {
	t.Helper()
	got, err := os.ReadFile(name)
	switch {
	case err == nil && string(got) == want:
	case *update:
		if err := os.WriteFile(name, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	case err != nil:
		t.Error(err)
	default:
		t.Errorf("%s differs from its generated content; go test ./deploy -update writes it", name)
	}
}

// A library has the pages by path, and the blocks of all pages.
type library struct {
	pages  map[string]string
	blocks []*docs.Block
}

var readPages = sync.OnceValues(func() (l library, err error) {
	l.pages, err = docs.Pages(root)
	for page, text := range l.pages {
		blocks, unread := docs.Blocks(page, text)
		l.blocks, err = append(l.blocks, blocks...), errors.Join(err, unread)
	}
	return l, err
})

// read returns all pages. It fails the test if one has an invalid block.
func read(t *testing.T) library {
	t.Helper()
	l, err := readPages()
	if err != nil {
		t.Fatal(err)
	}
	if len(l.pages) < 12 {
		t.Fatalf("found %d pages, want 12 at least", len(l.pages))
	}
	return l
}

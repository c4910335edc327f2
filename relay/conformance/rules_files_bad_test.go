package conformance_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
)

// If four of five files in a directory are invalid, the relay serves the fifth one. The log, the status and a
// metric report each of the others with its error until they are fixed, with and without clients.
func TestH11_BadFilesAreVisible(t *testing.T) {
	t.Parallel()
	cluster := func(name string) string { return "- {'@type': " + typeCDS + ", name: " + name + "}\n" }
	dir := t.TempDir()
	badWrite(t, dir, "a.yaml", cluster("a"))
	for _, name := range []string{"b", "c", "d", "e"} {
		badWrite(t, dir, name+".yaml", cluster(name)+"- {'@type': "+typeCDS+", nome: x}\n")
	}
	r := startFiles(t, dir, operated)
	bad := func(n int) func(admin.Status) bool {
		return func(s admin.Status) bool {
			d := s.Origins[0].Directory
			return d != nil && d.FileCount == 5 && d.BadCount == n && len(d.Bad) == n
		}
	}
	s := awaitStatus(t, r, "four bad files", bad(4))
	for i, f := range s.Origins[0].Directory.Bad {
		name := fmt.Sprintf("%c.yaml", 'b'+i)
		if f.File != name || !strings.Contains(f.Error, name+":2") || f.LastGood != 0 {
			t.Errorf("invalid file %d is %+v, want %s with its line", i, f, name)
		}
		if !strings.Contains(r.Log.String(), name+":2") {
			t.Errorf("the log lacks %s with its line", name)
		}
	}
	if m := metricsOf(t, r); m["tender_origin_files default bad"] != 4 || m["tender_origin_files default good"] != 1 {
		t.Errorf("metrics: got %v bad and %v good files, want 4 and 1", m["tender_origin_files default bad"],
			m["tender_origin_files default good"])
	}
	for _, name := range []string{"b", "c", "d", "e"} {
		badWrite(t, dir, name+".yaml", cluster(name))
	}
	awaitStatus(t, r, "no bad file", bad(0))
	c := r.Client(relaytest.ClientOptions{AutoAck: true})
	c.Subscribe(typeCDS)
	c.WaitState(t.Context(), func(s relaytest.State) bool { return s.Has(typeCDS, "a", "b", "c", "d", "e") })
	badWrite(t, dir, "b.yaml", "nonsense: [\n")
	s = awaitStatus(t, r, "one bad file", bad(1))
	if f := s.Origins[0].Directory.Bad[0]; f.File != "b.yaml" || f.LastGood != 1 {
		t.Errorf("the invalid file is %+v, want b.yaml with its last resource", f)
	}
	if got := c.State().Names(typeCDS); len(got) != 5 {
		t.Errorf("the client has %q, want all five clusters", got)
	}
}

// A badFile is the content of a file, or what exists in its place.
type badFile struct {
	name, content string
	place         func(path string) error
}

// badFiles are the kinds of unreadable files, with their log messages.
var badFiles = []badInput{
	{"YAML: syntax", badFile{name: "bad.yaml", content: "resources:\n- a: [\n"}, codes.OK,
		"bad.yaml:2: did not find expected node content"},
	{"YAML: unknown field", badFile{name: "bad.yaml", content: "- {'@type': " + typeCDS + ", name: c, nome: d}\n"},
		codes.OK, `bad.yaml:1: unknown field \"nome\"`},
	{"YAML: unknown type", badFile{name: "bad.yaml", content: "- {'@type': type.googleapis.com/acme.Foo}\n"}, codes.OK,
		`bad.yaml:1: unknown type \"type.googleapis.com/acme.Foo\"`},
	{"YAML: no name", badFile{name: "bad.yaml", content: "- {'@type': " + typeCDS + "}\n"}, codes.OK,
		`bad.yaml:1: resources[0]: no name in a resource of type \"` + typeCDS},
	{"YAML: a name twice", badFile{name: "bad.yaml", content: strings.Repeat("- {'@type': "+typeCDS+", name: c}\n", 2)},
		codes.OK, `bad.yaml:2: resources[1]: name \"c\" is a duplicate of resources[0]`},
	{"YAML: a resource of another type",
		badFile{name: "bad.yaml", content: "type_url: t\nresources:\n- {'@type': " + typeCDS + ", name: c}\n"}, codes.OK,
		`bad.yaml:3: resources[0]: type \"` + typeCDS + `\" in a response of type \"t\"`},
	{"YAML: a wrapper around nothing",
		badFile{name: "bad.yaml",
			content: "- {'@type': type.googleapis.com/envoy.service.discovery.v3.Resource, name: c}\n"}, codes.OK,
		"bad.yaml:1: resources[0]: the wrapper has no resource"},
	{"YAML: two documents", badFile{name: "bad.yaml", content: "resources: []\n---\nresources: []\n"}, codes.OK,
		"bad.yaml: document 2 in one file"},
	{"JSON: cut short", badFile{name: "bad.json", content: "{\n \"resources\": ["}, codes.OK,
		"bad.json:2: unexpected EOF"},
	{"text: unknown field", badFile{name: "bad.txtpb", content: "resources {\n  nome: 1\n}\n"}, codes.OK,
		`bad.txtpb:2:3: invalid field name \"nome\"`},
	{"binary: invalid bytes", badFile{name: "bad.pb", content: "\xff\xff"}, codes.OK, "bad.pb: not a DiscoveryResponse: "},
	{"nothing in it", badFile{name: "bad.yaml", content: "\n"}, codes.OK, "bad.yaml: file is empty"},
	{"a directory", badFile{name: "bad.yaml", place: func(path string) error { return os.Mkdir(path, 0o700) }}, codes.OK,
		"bad.yaml: not a regular file"},
	{"a dangling link",
		badFile{name: "bad.yaml", place: func(path string) error { return os.Symlink("nowhere", path) }}, codes.OK,
		"bad.yaml: no such file or directory"},
}

// goodFiles contain the cluster a in each format.
var goodFiles = map[string]string{
	".yaml":  "- {'@type': " + typeCDS + ", name: a}\n",
	".json":  `{"resources": [{"@type": "` + typeCDS + `", "name": "a"}]}`,
	".txtpb": "resources { [" + typeCDS + `] { name: "a" } }`,
	".pb": badPart(&discoverypb.DiscoveryResponse{}, "resources",
		badPart(&anypb.Any{}, "type_url", typeCDS, "value", "\x0a\x01a")),
}

// inFile makes a file of a file origin invalid. The relay logs it, keeps the file's resources for all clients, and
// follows changes of other files.
func (row badInput) inFile(t *testing.T) {
	dir, file := t.TempDir(), row.input.(badFile)
	badWrite(t, dir, file.name, goodFiles[filepath.Ext(file.name)])
	badWrite(t, dir, "other.yaml", "- {'@type': "+typeCDS+", name: other, alt_stat_name: before}\n")
	r := startFiles(t, dir)
	c := r.Client(relaytest.ClientOptions{AutoAck: true})
	c.Subscribe(typeCDS, "*")
	c.WaitState(t.Context(), func(s relaytest.State) bool { return s.Has(typeCDS, "a", "other") })
	before := c.State()
	if file.place == nil {
		badWrite(t, dir, file.name, file.content)
	} else if err := errors.Join(os.Remove(filepath.Join(dir, file.name)),
		file.place(filepath.Join(dir, file.name))); err != nil {
		t.Fatal(err)
	}
	badWrite(t, dir, "other.yaml", "- {'@type': "+typeCDS+", name: other, alt_stat_name: after}\n")
	late := r.Client(relaytest.ClientOptions{Variant: relaytest.SotW, AutoAck: true})
	late.Subscribe(typeCDS, "*")
	for _, c := range []*relaytest.Client{c, late} {
		c.WaitState(t.Context(), func(s relaytest.State) bool {
			return len(s[typeCDS]) == 2 && s.Digest(typeCDS, "other") != before.Digest(typeCDS, "other")
		})
		if c.State().Digest(typeCDS, "a") != before.Digest(typeCDS, "a") {
			t.Errorf("%v lost the cluster of the file's last valid content", c)
		}
	}
	row.check(t, codes.OK, r.Log.String())
}

// badWrite writes a file atomically.
func badWrite(t *testing.T, dir, name, content string) {
	t.Helper()
	hidden := filepath.Join(dir, ".writing")
	if err := errors.Join(os.WriteFile(hidden, []byte(content), 0o600),
		os.Rename(hidden, filepath.Join(dir, name))); err != nil {
		t.Fatal(err)
	}
}

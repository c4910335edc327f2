package files

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/google/go-cmp/cmp"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/upstream/reconcile"
)

// TestH11_FileStates checks that a relay serves the current content of the files, and for bad files their last good
// content.
func TestH11_FileStates(t *testing.T) {
	type step struct {
		files string // "a=x,y b=!": file a contains x and y, file b is bad
		want  string // served resources; "and last good" if a relay that starts now serves others
		news  string // reports of update
	}
	tests := []struct {
		name  string
		steps []step
	}{
		{"bad, never good", []step{{"a=x b=!", "a:x", "b: garbage"}, {"a=x b=!", "a:x", ""}, {"a=x b=y", "a:x b:y", "b good"}}},
		{"a bad file keeps its last good content", []step{{"a=x,y", "a:x a:y", ""}, {"a=!", "a:x a:y and last good", "a: garbage"}, {"a=!", "a:x a:y and last good", ""}, {"a=!2", "a:x a:y and last good", "a: garbage"}, {"", "", ""}}},
		{"the first file with a name takes precedence", []step{{"a=x b=x,y", "a:x b:y", `b: t resource "x" is already in a, which takes precedence`}, {"a=z b=x,y", "a:z b:x b:y", "b good"}}},
		{"the first file takes precedence even if it is newer", []step{{"b=x,y", "b:x b:y", ""}, {"a=x b=x,y", "a:x b:y", `b: t resource "x" is already in a, which takes precedence`}, {"b=x,y", "b:x b:y", "b good"}}},
		{"several duplicate names", []step{{"a=x,y,z b=y,x c=z", "a:x a:y a:z", `b: t resource "y" is already in a, which takes precedence; and 1 more, c: t resource "z" is already in a, which takes precedence`}}},
		{"a renamed file is not a duplicate", []step{{"a=x,y", "a:x a:y", ""}, {"b=x,y", "b:x b:y", ""}}},
		{"two files swap a name", []step{{"a=x b=y", "a:x b:y", ""}, {"a=y b=x", "a:y b:x", ""}}},
		{"a name of a bad file moves to an earlier file", []step{{"a=x b=y,z", "a:x b:y b:z", ""}, {"a=x,y b=!", "a:x a:y b:z and last good", "b: garbage"}}},
		{"a name of a bad file moves to a later file", []step{{"a=x,y b=z", "a:x a:y b:z", ""}, {"a=! b=x", "a:y b:x and last good", "a: garbage"}, {"a=x,y b=x", "a:x a:y", `a good, b: t resource "x" is already in a, which takes precedence`}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := make(fileStates)
			for i, step := range tt.steps {
				var news []string
				found, reports := s.update(contents(t, step.files))
				for _, r := range reports {
					if r.Err == nil {
						news = append(news, r.File+" good")
						continue
					}
					news = append(news, r.Err.Error())
				}
				if got := strings.Join(news, ", "); got != step.news {
					t.Errorf("step %d, %q: reports %q, want %q", i, step.files, got, step.news)
				}
				fresh, _ := make(fileStates).update(contents(t, step.files))
				if same := maps.EqualFunc(found, fresh, (*typeSet).equal); same == strings.Contains(step.want, "last good") {
					t.Errorf("step %d, %q: equal to the content of a new relay: %v, want %v", i, step.files, same, !same)
				}
				if got, want := found.String(), strings.TrimSuffix(step.want, " and last good"); got != want {
					t.Errorf("step %d, %q: served %q, want %q", i, step.files, got, want)
				}
			}
		})
	}
}

// String returns the names of type t, each with the file that it comes from.
func (s sets) String() string {
	var text []string
	if set := s["t"]; set != nil {
		for name, r := range set.byName {
			text = append(text, string(r.Version)+":"+name)
		}
	}
	slices.Sort(text)
	return strings.Join(text, " ")
}

// contents returns the contents of files in the format of TestH11_FileStates.
func contents(t *testing.T, text string) map[string]*fileContent {
	t.Helper()
	files := make(map[string]*fileContent)
	for _, f := range strings.Fields(text) {
		file, names, _ := strings.Cut(f, "=")
		c := &fileContent{types: make(map[string][]*wire.Resource)}
		copy(c.digest[:], names)
		if strings.HasPrefix(names, "!") {
			c.err = errors.New(file + ": garbage")
			names = ""
		}
		for _, name := range strings.FieldsFunc(names, func(r rune) bool { return r == ',' }) {
			r, err := wire.NewResource("t", name, file, []byte(file)) // the version is the file, for sets.String
			check.OK(t, err)
			c.types["t"] = append(c.types["t"], r)
		}
		files[file] = c
	}
	return files
}

// TestFileStatesVersions checks that a type has the version of its file, and none if several files contain the type.
func TestFileStatesVersions(t *testing.T) {
	s := make(fileStates)
	of := func(version string, types ...string) *fileContent {
		c := &fileContent{version: version, types: make(map[string][]*wire.Resource)}
		for _, typeURL := range types {
			c.types[typeURL] = nil
		}
		return c
	}
	got, _ := s.update(map[string]*fileContent{"1": of("v1", "t", "u"), "2": of("v2", "u", "v")})
	for typeURL, want := range map[string]string{"t": "v1", "u": "", "v": "v2"} {
		if got[typeURL].version != want {
			t.Errorf("version of %s: %q, want %q", typeURL, got[typeURL].version, want)
		}
	}
}

// TestSameListing checks that sameListing detects each kind of change of a file.
func TestSameListing(t *testing.T) {
	dir := writeFiles(t, t.TempDir(), "a.yaml", "1", "b.yaml", "1")
	list := func() map[string]listing {
		l := check.Must(listDir(dir))
		return l
	}
	last := list()
	if !sameListing(last, list()) {
		t.Error("sameListing of an unchanged directory is false")
	}
	for name, change := range map[string]func(){
		"longer":  func() { writeFiles(t, dir, "a.yaml", "12") },
		"touched": func() { check.OK(t, os.Chtimes(filepath.Join(dir, "a.yaml"), time.Time{}, time.Unix(1, 0))) },
		"renamed": func() { check.OK(t, os.Rename(filepath.Join(dir, "a.yaml"), filepath.Join(dir, "c.yaml"))) },
		"deleted": func() { check.OK(t, os.Remove(filepath.Join(dir, "b.yaml"))) },
	} {
		writeFiles(t, dir, "a.yaml", "1", "b.yaml", "1")
		last := list()
		change()
		if sameListing(last, list()) {
			t.Errorf("sameListing is true after a change of a file: %s", name)
		}
	}
}

// TestReadDirSeesAtomicSwap replaces all files during a read, and checks that the result contains only the new ones.
func TestReadDirSeesAtomicSwap(t *testing.T) {
	dir := writeFiles(t, t.TempDir(), "a.yaml", clusters("x"), "b.yaml", clusters("y"))
	lists := 0
	files, err := readWith(dir, nil, func(dir string) (map[string]listing, error) {
		if lists++; lists == 2 { // both files were read
			writeFiles(t, dir, "a.yaml", clusters("new"), "b.yaml", clusters("newer"))
		}
		return listDir(dir)
	})
	check.OK(t, err)
	a, b := files["a.yaml"].types[wire.ClusterType], files["b.yaml"].types[wire.ClusterType]
	if a[0].Name != "new" || b[0].Name != "newer" {
		t.Errorf("read %q and %q, want new and newer", a[0].Name, b[0].Name)
	}
}

// TestReaderWithoutDirectory checks that the removals of a deleted directory are held, and that they stay held while
// the content is unknown.
func TestReaderWithoutDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "mesh")
	check.OK(t, os.Mkdir(dir, 0o700))
	writeFiles(t, dir, "mesh.yaml", clusters("a"))
	cfg := check.Must(Config{Dir: dir}.withDefaults())
	r, now := newReader(&cfg), time.Now()
	r.read(now)
	check.OK(t, os.RemoveAll(dir))
	r.read(now)
	if holds := r.group.Operate(reconcile.Command{}, now); len(holds) != 1 || !holds[0].Until.Equal(now.Add(10*time.Minute)) {
		t.Errorf("deleted directory: holds %+v, want one until 10m after %v", holds, now)
	}
	check.OK(t, os.WriteFile(dir, nil, 0o600)) // not a directory: its content is unknown
	if over := r.read(now.Add(time.Hour)); !over.IsZero() || r.serving.count() != 1 {
		t.Errorf("unreadable directory: next read at %v, %d resources; want the zero time and 1", over, r.serving.count())
	}
	check.OK(t, os.Remove(dir))
	if r.read(now.Add(time.Hour)); r.serving.count() != 0 {
		t.Errorf("%d resources after the hold, want none", r.serving.count())
	}
	check.OK(t, os.Mkdir(dir, 0o700))
	writeFiles(t, dir, "mesh.yaml", "[")
	if r.read(now.Add(time.Hour)); r.serving.count() != 0 {
		t.Error("a bad file restored its last good content from before all resources were removed")
	}
}

// TestReadDir checks which files of a directory are read, and the errors of invalid ones. Unchanged files must not be
// parsed again.
func TestReadDir(t *testing.T) {
	dir := writeFiles(t, t.TempDir(), "a.yaml", clusters("a"), "README.md", "no", ".hidden.yaml", "no", "empty.json", " \n")
	check.OK(t, os.Mkdir(filepath.Join(dir, "dir.yaml"), 0o700), os.Symlink("nowhere", filepath.Join(dir, "dangling.yaml")))
	first, err := readDir(dir, nil)
	check.OK(t, err)
	got := make(map[string]string)
	for name, c := range first {
		got[name] = "good"
		if c.err != nil {
			got[name] = strings.ReplaceAll(c.err.Error(), dir+"/", "")
		}
	}
	want := map[string]string{
		"a.yaml":        "good",
		"empty.json":    "empty.json: file is empty",
		"dir.yaml":      "dir.yaml: not a regular file",
		"dangling.yaml": "stat dangling.yaml: no such file or directory",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	again, err := readDir(dir, first)
	check.OK(t, err)
	if again["a.yaml"] != first["a.yaml"] || again["empty.json"] != first["empty.json"] {
		t.Error("unchanged files were parsed again")
	}
	if _, err := readDir(filepath.Join(dir, "missing"), nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing directory: %v, want fs.ErrNotExist", err)
	}
}

// TestFileWrapperKeepsAllFields checks that all fields of a Resource wrapper in a file are served.
func TestFileWrapperKeepsAllFields(t *testing.T) {
	for name, wrapper := range map[string]string{
		"own name":      `name: a, ttl: 9s, version: '1'`,
		"resource_name": `resource_name: {name: a}, ttl: 9s, version: '1'`,
		"no name":       `ttl: 9s, version: '1'`,
	} {
		t.Run(name, func(t *testing.T) {
			text := "- {'@type': type.googleapis.com/envoy.service.discovery.v3.Resource, " + wrapper + ", resource: {'@type': " + wire.ClusterType + ", name: a}}\n"
			c := parseFile("a.yaml", []byte(text), [32]byte{})
			check.OK(t, c.err)
			r := c.types[wire.ClusterType][0]
			if r.Name != "a" || r.Version != "1" || r.TTL == 0 {
				t.Errorf("name %q, version %q, TTL %v, want a, 1 and a TTL", r.Name, r.Version, r.TTL)
			}
			check.Equal(t, fmt.Sprintf("names in %x", r.Field()), bytes.Count(r.Field(), []byte("\x1a\x01a")), 1)
		})
	}
}

// TestDirWatchDebounces checks when wait returns after events: when they pause, at the latest after eventWait.
func TestDirWatchDebounces(t *testing.T) {
	tests := []struct {
		name string
		at   []time.Duration // times of events
		want time.Duration   // time of the next read
	}{
		{"no event before the poll", nil, 10 * time.Second},
		{"quiet after one", []time.Duration{time.Second}, 1050 * time.Millisecond},
		{"quiet after several", []time.Duration{time.Second, 1040 * time.Millisecond, 1080 * time.Millisecond}, 1130 * time.Millisecond},
		{"never quiet", slices.Repeat([]time.Duration{0}, 0), 0},
		{"just before the poll", []time.Duration{9980 * time.Millisecond}, 10030 * time.Millisecond},
	}
	for i := range 100 {
		tests[3].at = append(tests[3].at, time.Duration(i)*20*time.Millisecond)
	}
	tests[3].want = eventWait
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				events := make(chan fsnotify.Event, 200)
				d := &dirWatch{events: events}
				start := time.Now()
				for _, at := range tt.at {
					time.AfterFunc(at, func() { events <- fsnotify.Event{} })
				}
				if _, more := d.wait(t.Context(), start.Add(10*time.Second), nil); !more {
					t.Error("wait reports the end of ctx")
				}
				check.Equal(t, "duration of wait", time.Since(start), tt.want)
			})
		})
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, more := (&dirWatch{}).wait(ended, time.Now().Add(time.Hour), nil); more {
		t.Error("wait does not report the end of ctx")
	}
}

// TestOpenFilesErrors: Open refuses a configuration without a readable directory or with negative durations.
func TestOpenFilesErrors(t *testing.T) {
	dir := writeFiles(t, t.TempDir(), "file", "")
	for _, tt := range []struct {
		cfg  Config
		want string
	}{
		{Config{}, "no directory"},
		{Config{Dir: filepath.Join(dir, "missing")}, "no such file or directory"},
		{Config{Dir: filepath.Join(dir, "file")}, "is not a directory"},
		{Config{Dir: dir, MassDeleteHold: -1}, "must not be negative"},
	} {
		if _, err := Open(tt.cfg); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("Open(%+v): %v, want an error with %q", tt.cfg, err, tt.want)
		}
	}
}

package files

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	clusterpb "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/fsnotify/fsnotify"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest/check"
	"github.com/xdstender/tender/upstream"
	"github.com/xdstender/tender/upstream/reconcile"
)

// fileLog hands the log to the test, record by record.
type fileLog struct {
	records chan fileRecord
	attrs   []slog.Attr
}

type fileRecord struct {
	level slog.Level
	msg   string
	attrs map[string]string
}

func newFileLog() *fileLog { return &fileLog{records: make(chan fileRecord, 1000)} }

func (l *fileLog) Enabled(context.Context, slog.Level) bool { return true }
func (l *fileLog) WithGroup(string) slog.Handler            { return l }
func (l *fileLog) WithAttrs(a []slog.Attr) slog.Handler {
	return &fileLog{l.records, slices.Concat(l.attrs, a)}
}

func (l *fileLog) Handle(_ context.Context, r slog.Record) error {
	rec := fileRecord{r.Level, r.Message, make(map[string]string)}
	r.Attrs(func(a slog.Attr) bool { rec.attrs[a.Key] = a.Value.String(); return true })
	l.records <- rec
	return nil
}

// await returns the next record of a level or above, and all before it are
// forgotten.
func (l *fileLog) await(t *testing.T, level slog.Level, part string) fileRecord {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		select {
		case r := <-l.records:
			if r.level >= level && strings.Contains(r.msg, part) {
				return r
			}
		case <-deadline:
			t.Fatalf("no record %q at level %v", part, level)
		}
	}
}

// logged returns the records that wait, of a level or above.
func (l *fileLog) logged(level slog.Level) (got []string) {
	for {
		select {
		case r := <-l.records:
			if r.level >= level {
				got = append(got, r.msg+" "+r.attrs["err"])
			}
		default:
			return got
		}
	}
}

// A mirrored directory is one that a view is kept like.
type mirrored struct {
	t     *testing.T
	dir   string
	log   *fileLog
	files *Origin
	view  *cache.View
	watch *cache.Watch
	stop  func()
}

// mirrorDir begins to mirror a directory, with a client of all clusters.
func mirrorDir(t *testing.T, cfg Config) *mirrored {
	t.Helper()
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) })
	m := &mirrored{t: t, dir: cfg.Dir, log: newFileLog()}
	cfg.Logger = slog.New(m.log)
	files := check.Must(Open(cfg))
	m.files = files
	m.view, m.stop = startMirror(t, files)
	m.watch = m.view.Watch()
	m.watch.SubscribeAll(wire.ClusterType)
	return m
}

func startMirror(t *testing.T, files *Origin) (*cache.View, func()) {
	view, w := cache.New(cache.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { files.Sync(ctx, w, upstream.NewControl(false, nil)) })
	stop := sync.OnceFunc(func() {
		cancel()
		running.Wait()
	})
	t.Cleanup(stop)
	return view, stop
}

// until waits until the view's clusters are these.
func (m *mirrored) until(want string) {
	m.t.Helper()
	awaitHead(m.t, m.view, m.watch, func(g *cache.Generation) string { return clustersOf(g) }, want)
}

func awaitHead(t *testing.T, view *cache.View, watch *cache.Watch, state func(*cache.Generation) string, want string) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		got := state(view.Generation())
		if got == want {
			return
		}
		select {
		case <-watch.C:
		case <-deadline:
			t.Fatalf("the view has %q, want %q", got, want)
		}
	}
}

// clustersOf returns the members as name=alt_stat_name, in order of the names, and
// the phase if they may be incomplete.
func clustersOf(g *cache.Generation) string {
	var got []string
	t := g.Type(wire.ClusterType)
	for e := range t.Wildcard.Since(0) {
		if e.Present() {
			got = append(got, clusterText(e))
		}
	}
	slices.Sort(got)
	if t.Phase != cache.Confirmed {
		got = append(got, t.Phase.String())
	}
	return strings.Join(got, " ")
}

func clusterText(e *cache.Entry) string {
	var c clusterpb.Cluster
	if err := proto.Unmarshal(e.Resource.Value(), &c); err != nil {
		return err.Error()
	}
	if c.AltStatName == "" {
		return c.Name
	}
	return c.Name + "=" + c.AltStatName
}

// clusters returns a YAML file of clusters given as name or name=alt_stat_name.
func clusters(names ...string) string {
	var b strings.Builder
	b.WriteString("resources:\n")
	for _, text := range names {
		name, alt, _ := strings.Cut(text, "=")
		fmt.Fprintf(&b, "- {'@type': %s, name: '%s', alt_stat_name: '%s'}\n", wire.ClusterType, name, alt)
	}
	return b.String()
}

func many(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("c%02d", i))
	}
	return names
}

// writeFiles writes files, each of which is whole as soon as it is there.
func writeFiles(t *testing.T, dir string, nameAndContent ...string) string {
	t.Helper()
	for i := 0; i < len(nameAndContent); i += 2 {
		name, hidden := filepath.Join(dir, nameAndContent[i]), filepath.Join(dir, ".writing")
		check.OK(t, os.WriteFile(hidden, []byte(nameAndContent[i+1]), 0o600), os.Rename(hidden, name))
	}
	return dir
}

func TestR117_FourFormatsSameBytes(t *testing.T) {
	asJSON := check.Must(os.ReadFile("testdata/mesh.json"))
	var response discoverypb.DiscoveryResponse
	check.OK(t, protojson.Unmarshal(asJSON, &response))
	binary := check.Must(proto.Marshal(&response))
	want := ""
	for _, name := range []string{"mesh.yaml", "mesh.json", "mesh.txtpb", "mesh.pb"} {
		content := binary
		if name != "mesh.pb" {
			content = check.Must(os.ReadFile(filepath.Join("testdata", name)))
		}
		m := mirrorDir(t, Config{Dir: writeFiles(t, t.TempDir(), name, string(content))})
		m.until("bare wrapped=front")
		typ := m.view.Generation().Type(wire.ClusterType)
		if got := typ.System(); got != "7" {
			t.Errorf("%s: the type has version %q, want that of the response", name, got)
		}
		got := ""
		for e := range typ.Wildcard.Since(0) {
			got += fmt.Sprintf("%x\n", e.Resource.Field())
			if e.Name.String() == "wrapped" && (e.Resource.Version != "v3" || !slices.Equal(e.Resource.Aliases, []string{"door"})) {
				t.Errorf("%s: wrapped has version %q and aliases %q", name, e.Resource.Version, e.Resource.Aliases)
			}
			if e.Name.String() == "bare" && e.Resource.Version != e.Resource.ContentVersion() {
				t.Errorf("%s: bare has version %q, want one of its content", name, e.Resource.Version)
			}
		}
		if want == "" {
			want = got
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s is not served as mesh.yaml is (-yaml +this):\n%s", name, diff)
		}
		m.stop()
	}
}

func TestR118_BadFileKeepsLastGood(t *testing.T) {
	dir := writeFiles(t, t.TempDir(), "mesh.yaml", clusters("a=1"), "other.yaml", clusters("b"))
	m := mirrorDir(t, Config{Dir: dir, Poll: 20 * time.Millisecond})
	m.until("a=1 b")

	bad := clusters("a=2") + "- {'@type': " + wire.ClusterType + ", name: c, no_such_field: 1}\n"
	writeFiles(t, dir, "mesh.yaml", bad)
	r := m.log.await(t, slog.LevelWarn, "file is bad")
	if got, want := r.attrs["err"], filepath.Join(dir, "mesh.yaml")+":3: "; !strings.HasPrefix(got, want) {
		t.Errorf("logged error %q, want it to begin with %q", got, want)
	}
	if r.attrs["file"] != "mesh.yaml" || r.attrs["last_good"] != "1" {
		t.Errorf("logged %v", r.attrs)
	}

	// Other files are followed, and many polls later nothing was logged again.
	for i := range 3 {
		writeFiles(t, dir, "other.yaml", clusters(fmt.Sprintf("b=%d", i)))
		m.until(fmt.Sprintf("a=1 b=%d", i))
	}
	if got := m.log.logged(slog.LevelWarn); len(got) > 0 {
		t.Errorf("logged again: %q", got)
	}

	writeFiles(t, dir, "mesh.yaml", "resources: [")
	if r := m.log.await(t, slog.LevelWarn, "file is bad"); !strings.Contains(r.attrs["err"], "mesh.yaml:1") {
		t.Errorf("logged error %q, want the new one", r.attrs["err"])
	}
	writeFiles(t, dir, "mesh.yaml", clusters("a=3"))
	m.log.await(t, slog.LevelInfo, "file is good again")
	m.until("a=3 b=2")
}

func TestR119_RenameOver(t *testing.T) {
	dir := writeFiles(t, t.TempDir(), "mesh.yaml", clusters("a=1"))
	m := mirrorDir(t, Config{Dir: dir, Poll: time.Hour}) // only events tell
	m.until("a=1")
	writeFiles(t, dir, "mesh.yaml.tmp", clusters("a=2", "b"))
	check.OK(t, os.Rename(filepath.Join(dir, "mesh.yaml.tmp"), filepath.Join(dir, "mesh.yaml")))
	m.until("a=2 b")
	elsewhere := writeFiles(t, t.TempDir(), "mesh.yaml", clusters("a=3"))
	check.OK(t, os.Rename(filepath.Join(elsewhere, "mesh.yaml"), filepath.Join(dir, "mesh.yaml")))
	m.until("a=3")
	writeFiles(t, dir, "more.yaml", clusters("c"))
	m.until("a=3 c")
	check.OK(t, os.Remove(filepath.Join(dir, "mesh.yaml")))
	m.until("c")
}

// TestB28_FilesWrittenInPlace writes a file as slowly as can be.
func TestB28_FilesWrittenInPlace(t *testing.T) {
	dir := writeFiles(t, t.TempDir(), "mesh.yaml", clusters("a=1", "b"))
	m := mirrorDir(t, Config{Dir: dir, Poll: time.Hour})
	m.until("a=1 b")
	f, err := os.Create(filepath.Join(dir, "mesh.yaml"))
	check.OK(t, err)
	m.log.await(t, slog.LevelWarn, "file is bad") // it is empty
	_, err = f.WriteString("resources: [")
	check.OK(t, err)
	m.log.await(t, slog.LevelWarn, "file is bad")
	m.until("a=1 b")
	_, err = f.WriteString("{'@type': " + wire.ClusterType + ", name: a, alt_stat_name: '2'}]\n")
	check.OK(t, err, f.Close())
	m.log.await(t, slog.LevelInfo, "file is good again")
	m.until("a=2")
}

// TestR119_SymlinkSwap does what Kubernetes does to a mounted ConfigMap.
func TestR119_SymlinkSwap(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	publish := func(version string, nameAndContent ...string) {
		t.Helper()
		check.OK(t, os.Mkdir(at(version), 0o700))
		writeFiles(t, at(version), nameAndContent...)
		check.OK(t, os.Symlink(version, at("..data_tmp")), os.Rename(at("..data_tmp"), at("..data")))
	}
	publish("..v1", "mesh.yaml", clusters("a=1"), "more.yaml", clusters("b=1", "c"))
	check.OK(t, os.Symlink("..data/mesh.yaml", at("mesh.yaml")), os.Symlink("..data/more.yaml", at("more.yaml")))
	m := mirrorDir(t, Config{Dir: dir, Poll: time.Hour})
	m.until("a=1 b=1 c")

	publish("..v2", "mesh.yaml", clusters("a=2", "c"), "more.yaml", clusters("b=2")) // c moves
	check.OK(t, os.RemoveAll(at("..v1")))
	m.until("a=2 b=2 c")

	publish("..v3", "mesh.yaml", clusters("a=3", "c"))
	check.OK(t, os.Remove(at("more.yaml")), os.RemoveAll(at("..v2")))
	m.until("a=3 c")
}

func TestFilesDirectoryReplaced(t *testing.T) {
	link := filepath.Join(t.TempDir(), "current")
	one := writeFiles(t, t.TempDir(), "mesh.yaml", clusters("a=1"))
	two := writeFiles(t, t.TempDir(), "mesh.yaml", clusters("a=2"))
	check.OK(t, os.Symlink(one, link))
	m := mirrorDir(t, Config{Dir: link, Poll: 20 * time.Millisecond})
	m.until("a=1")
	check.OK(t, os.Symlink(two, link+".tmp"), os.Rename(link+".tmp", link))
	m.until("a=2")
	writeFiles(t, two, "mesh.yaml", clusters("a=3"))
	m.until("a=3")
}

func TestB28_AVanishedDirectoryRemovesNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "mesh")
	check.OK(t, os.Mkdir(dir, 0o700))
	writeFiles(t, dir, "mesh.yaml", clusters("a=1"))
	m := mirrorDir(t, Config{Dir: dir, Poll: 20 * time.Millisecond, MassDeleteHold: time.Hour})
	m.until("a=1")
	check.OK(t, os.Rename(dir, dir+".away"))
	m.log.await(t, slog.LevelWarn, "directory cannot be read")
	if r := m.log.await(t, slog.LevelError, "held back"); r.attrs["held"] != "1" || r.attrs["hold"] != "1h0m0s" {
		t.Errorf("logged %v", r.attrs)
	}
	m.until("a=1")
	writeFiles(t, dir+".away", "mesh.yaml", clusters("a=2"))
	check.OK(t, os.Rename(dir+".away", dir))
	m.log.await(t, slog.LevelInfo, "no removal is held back")
	m.until("a=2")
}

// TestH11_DuplicateNames: of a name that two files have, a relay that runs serves the same as one that
// starts: that of the first file, with all else of both. It says what is wrong.
func TestH11_DuplicateNames(t *testing.T) {
	dir := writeFiles(t, t.TempDir(), "b.yaml", clusters("x=b", "b"))
	m := mirrorDir(t, Config{Dir: dir})
	m.until("b x=b")

	writeFiles(t, dir, "a.yaml", clusters("x=a", "a"))
	r := m.log.await(t, slog.LevelWarn, "file is bad")
	if want := `b.yaml: cds resource "x" is in a.yaml already, which counts`; r.attrs["err"] != want {
		t.Errorf("logged error %q, want %q", r.attrs["err"], want)
	}
	m.until("a b x=a")
	fresh := mirrorDir(t, Config{Dir: dir})
	fresh.until("a b x=a")
	for _, files := range []*Origin{m.files, fresh.files} {
		if s := files.Status(); s.Files != 2 || len(s.Bad) != 1 || s.Bad[0].File != "b.yaml" || s.Bad[0].LastGood != 2 || s.Trouble != nil {
			t.Errorf("status %+v, want b.yaml bad of two", s)
		}
	}
	writeFiles(t, dir, "b.yaml", clusters("b"))
	m.log.await(t, slog.LevelInfo, "file is good again")
	if s := m.files.Status(); s.Files != 2 || len(s.Bad) != 0 {
		t.Errorf("status %+v, want no bad file", s)
	}
}

func TestB28_SubscribersGetWhatTheFilesHave(t *testing.T) {
	dir := writeFiles(t, t.TempDir(), "mesh.yaml", clusters("a=1", "b=1")+
		"- {'@type': type.googleapis.com/envoy.service.discovery.v3.Resource, name: front, aliases: [door], resource: {'@type': "+wire.ClusterType+", name: front, alt_stat_name: '1'}}\n")
	m := mirrorDir(t, Config{Dir: dir, Poll: time.Hour})
	named, all := m.view.Watch(), m.view.Watch()
	names := named.Subscribe(wire.ClusterType, []string{"a", "door", "nobody"})
	all.SubscribeAll(wire.ListenerType)

	state := func(g *cache.Generation) string {
		var got []string
		for _, n := range names {
			switch e, _ := g.Type(wire.ClusterType).Lookup(n); {
			case e.Present():
				got = append(got, clusterText(e))
			case g.Absent(e):
				got = append(got, "absent")
			default:
				got = append(got, "unknown")
			}
		}
		return strings.Join(got, " ")
	}
	awaitHead(t, m.view, named, state, "a=1 front=1 absent")
	awaitHead(t, m.view, all, func(g *cache.Generation) string { return g.Type(wire.ListenerType).Phase.String() }, "confirmed")

	writeFiles(t, dir, "mesh.yaml", clusters("b=2", "nobody"))
	awaitHead(t, m.view, named, state, "absent absent nobody")
	m.until("b=2 nobody")
	writeFiles(t, dir, "more.yaml", "- {'@type': "+wire.ListenerType+", name: in}\n")
	awaitHead(t, m.view, all, func(g *cache.Generation) string {
		return fmt.Sprint(g.Type(wire.ListenerType).Wildcard.Count())
	}, "1")
}

// TestFilesManyMirrors ends the mirror that reads for the others.
func TestFilesManyMirrors(t *testing.T) {
	dir := writeFiles(t, t.TempDir(), "mesh.yaml", clusters("a=0"))
	m := mirrorDir(t, Config{Dir: dir, Poll: time.Hour})
	type one struct {
		*mirrored
		stop func()
	}
	mirrors := []one{{m, m.stop}}
	for range 4 {
		view, stop := startMirror(t, m.files)
		watch := view.Watch()
		watch.SubscribeAll(wire.ClusterType)
		mirrors = append(mirrors, one{&mirrored{t: t, view: view, watch: watch}, stop})
	}
	for i := range mirrors {
		for _, m := range mirrors[i:] {
			m.until(fmt.Sprintf("a=%d", i))
		}
		writeFiles(t, dir, "mesh.yaml", clusters(fmt.Sprintf("a=%d", i+1)))
		mirrors[i].stop()
		if mirrors[i].view.Generation().First().Connected {
			t.Errorf("mirror %d ended, and its view counts as connected", i)
		}
	}
	// What changed while there was no mirror is not missed by the next, nor is what
	// was there before shown to it.
	writeFiles(t, dir, "mesh.yaml", clusters("z"))
	view, _ := startMirror(t, m.files)
	watch := view.Watch()
	watch.SubscribeAll(wire.ClusterType)
	seen := make(map[string]bool)
	awaitHead(t, view, watch, func(g *cache.Generation) string { s := clustersOf(g); seen[s] = true; return s }, "z")
	for s := range seen {
		if strings.Contains(s, "a=") {
			t.Errorf("the view showed %q, which was over when the mirror began", s)
		}
	}
}

// TestFilesNothingGoodYet starts with nothing but a broken file: a client that
// holds state must not be told that all of it is gone.
func TestFilesNothingGoodYet(t *testing.T) {
	for name, content := range map[string]string{"none": "", "bad": "resources: ["} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if content != "" {
				writeFiles(t, dir, "mesh.yaml", content)
			}
			m := mirrorDir(t, Config{Dir: dir})
			m.log.await(t, slog.LevelWarn, "no valid file yet")
			names := m.watch.Subscribe(wire.ClusterType, []string{"a"})
			writeFiles(t, dir, "mesh.yaml", clusters("a"))
			for clustersOf(m.view.Generation()) != "a" {
				g := m.view.Generation()
				if e, _ := g.Type(wire.ClusterType).Lookup(names[0]); e != nil && !e.Present() {
					t.Fatalf("%q was said to be absent", names[0])
				}
				<-m.watch.C
			}
		})
	}
}

// TestMassDeleteHoldOfFiles lets ten minutes pass in a directory that tells of no
// events.
func TestMassDeleteHoldOfFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := writeFiles(t, t.TempDir(), "mass.yaml", clusters(many(20)...), "few.yaml", clusters("x", "y"))
		m := mirrorDir(t, Config{Dir: dir, noEvents: true})
		count := func() int { return m.view.Generation().Type(wire.ClusterType).Wildcard.Count() }
		m.until(strings.Join(many(20), " ") + " x y")
		start := time.Now()
		check.OK(t, os.Remove(filepath.Join(dir, "mass.yaml")))
		writeFiles(t, dir, "few.yaml", clusters("x=1", "z")) // which says that y is gone
		m.until(strings.Join(many(20), " ") + " x=1 z")
		m.log.await(t, slog.LevelError, "held back")
		check.Equal(t, "additions and changes came after", time.Since(start), 10*time.Second)
		time.Sleep(10*time.Minute - time.Nanosecond)
		check.Equal(t, "clusters just before the hold is over", count(), 22)
		m.until("x=1 z")
		check.Equal(t, "removed after", time.Since(start), 10*time.Minute+10*time.Second)
		if got := m.log.logged(slog.LevelError); len(got) > 0 {
			t.Errorf("logged more than once: %q", got)
		}
		check.OK(t, os.Remove(filepath.Join(dir, "few.yaml")))
		time.Sleep(10 * time.Minute)
		m.until("x=1 z")
		m.until("") // an empty directory is believed in the end, however little it had
		m.stop()
	})
}

// vanishing is a look at a directory in which the files are gone that had what is missing.
func vanishing(serving, found sets) look {
	vanished := make(map[string]map[string]struct{})
	for typeURL, set := range serving {
		vanished[typeURL] = set.without(found.of(typeURL))
	}
	return look{found, vanished, found == nil}
}

// TestH03_FileHolds: removals from a directory are held back by the rule that holds for every origin.
func TestH03_FileHolds(t *testing.T) {
	type step struct {
		at       time.Duration
		found    int // c00 … of so many
		extra    string
		doubtful bool
		want     string // number served, then what is news
	}
	tests := []struct {
		name  string
		steps []step
	}{
		{"half goes at once", []step{{0, 20, "", false, "20"}, {1, 10, "", false, "10 -10"}}},
		{"a tenth goes at once", []step{{0, 200, "", false, "200"}, {1, 180, "", false, "180 -20"}}},
		{"more than ten and a tenth is held", []step{{0, 100, "", false, "100"}, {1, 89, "", false, "100 held 11"}, {2, 89, "", false, "100"}}},
		{"more than half is held", []step{{0, 9, "", false, "9"}, {1, 4, "", false, "9 held 5"}}},
		{"the only one is held", []step{{0, 1, "", false, "1"}, {1, 0, "new", false, "2 held 1"}}},
		{"the hold ends", []step{{0, 100, "", false, "100"}, {1, 80, "", false, "100 held 20"}, {10, 80, "", false, "100"}, {11, 80, "", false, "80 -20 over"}, {12, 80, "", false, "80"}}},
		{"additions are not held", []step{{0, 100, "", false, "100"}, {1, 80, "new", false, "101 held 20"}, {11, 80, "new", false, "81 -20 over"}}},
		{"what comes back is not removed", []step{{0, 100, "", false, "100"}, {1, 80, "", false, "100 held 20"}, {2, 100, "", false, "100 over"}, {12, 100, "", false, "100"}}},
		{"others missing begin anew", []step{{0, 100, "", false, "100"}, {1, 80, "", false, "100 held 20"}, {10, 70, "", false, "100 held 10"}, {11, 70, "", false, "100"}, {20, 70, "", false, "70 -30 over"}}},
		{"what comes back begins it anew", []step{{0, 100, "", false, "100"}, {1, 80, "", false, "100 held 20"}, {2, 95, "", false, "100"}, {11, 95, "", false, "100"}, {12, 95, "", false, "95 -5 over"}}},
		{"doubt holds even one", []step{{0, 1, "", false, "1"}, {1, 0, "", true, "1 held 1"}, {11, 0, "", true, "0 -1 over"}, {12, 0, "", true, "0"}}},
		{"nothing is no news", []step{{0, 0, "", true, "0"}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := holdingReader()
			for i, s := range tt.steps {
				now := time.Unix(0, 0).Add(s.at * time.Minute)
				found := sets{wire.ClusterType: {byName: make(map[string]*wire.Resource)}}
				for _, name := range append(many(s.found), strings.Fields(s.extra)...) {
					found[wire.ClusterType].byName[name] = &wire.Resource{Name: name}
				}
				if s.doubtful {
					found = nil
				}
				counts, holding := r.group.Counts(), r.group.Holding()
				held, applied := counts.Held.Load(), counts.Applied.Load()
				r.admit(vanishing(r.serving, found), now)
				got := fmt.Sprint(r.serving.count())
				if n := counts.Held.Load() - held; n > 0 {
					got += fmt.Sprint(" held ", n)
				}
				if n := counts.Applied.Load() - applied; n > 0 {
					got += fmt.Sprint(" -", n)
				}
				if holding > 0 && r.group.Holding() == 0 {
					got += " over"
				}
				if got != s.want {
					t.Errorf("step %d: %s, want %s", i, got, s.want)
				}
			}
		})
	}
}

// TestB15_FilesReleaseOneOfTwoHolds: what was discarded and what is held back anew are decided on
// apart, be they of one type; of what was released goes what is still missing.
func TestB15_FilesReleaseOneOfTwoHolds(t *testing.T) {
	now := time.Unix(0, 0)
	look := func(r *reader, names ...string) {
		found := sets{wire.ClusterType: {byName: make(map[string]*wire.Resource)}}
		for _, name := range names {
			found[wire.ClusterType].byName[name] = &wire.Resource{Name: name}
		}
		r.admit(vanishing(r.serving, found), now)
	}
	for _, discarded := range []bool{false, true} {
		r := holdingReader()
		all := many(60)
		look(r, all...)
		look(r, all[:40]...)
		r.group.Discard(reconcile.HoldChoice{}, now) // 20 of the end
		look(r, all[20:40]...)
		before := r.group.Holds(now)
		if len(before) != 2 || r.serving.count() != 60 {
			t.Fatalf("holds %+v, %d resources; want two holds, and all", before, r.serving.count())
		}
		released, left := before[:1], before[1:]
		if discarded {
			released, left = left, released
		}
		released, left = slices.Clone(released), slices.Clone(left)
		if got := r.group.Release(reconcile.HoldChoice{Discarded: discarded}, now); !cmp.Equal(got, released) {
			t.Errorf("released %+v, want %+v", got, released)
		}
		if r.serving.count() != 40 {
			t.Errorf("discarded %t: %d resources, want 20 of 60 released", discarded, r.serving.count())
		}
		if look(r, append(slices.Clone(all[20:40]), released[0].Names[:5]...)...); r.serving.count() != 45 {
			t.Errorf("discarded %t: %d resources, want those that are back", discarded, r.serving.count())
		}
		if got := r.group.Holds(now); !cmp.Equal(got, left) {
			t.Errorf("discarded %t: holds %+v, want %+v", discarded, got, left)
		}
	}
}

// holdingReader returns a reader that holds for 10 minutes.
func holdingReader() *reader {
	cfg, _ := Config{Dir: "none", MassDeleteHold: 10 * time.Minute}.withDefaults()
	return newReader(&cfg)
}

// TestH11_Shelf: what counts depends on what the files hold now, but for what bad ones last held.
func TestH11_Shelf(t *testing.T) {
	type step struct {
		files string // "a=x,y b=!": file a has x and y, b is bad
		want  string // what counts
		news  string
	}
	tests := []struct {
		name  string
		steps []step
	}{
		{"bad, never good", []step{{"a=x b=!", "a:x", "b: garbage"}, {"a=x b=!", "a:x", ""}, {"a=x b=y", "a:x b:y", "b good"}}},
		{"bad keeps what it had", []step{{"a=x,y", "a:x a:y", ""}, {"a=!", "a:x a:y and last good", "a: garbage"}, {"a=!", "a:x a:y and last good", ""}, {"a=!2", "a:x a:y and last good", "a: garbage"}, {"", "", ""}}},
		{"the first name counts", []step{{"a=x b=x,y", "a:x b:y", `b: t resource "x" is in a already, which counts`}, {"a=z b=x,y", "a:z b:x b:y", "b good"}}},
		{"the first name counts if it came later", []step{{"b=x,y", "b:x b:y", ""}, {"a=x b=x,y", "a:x b:y", `b: t resource "x" is in a already, which counts`}, {"b=x,y", "b:x b:y", "b good"}}},
		{"more than one name", []step{{"a=x,y,z b=y,x c=z", "a:x a:y a:z", `b: t resource "y" is in a already, which counts; and 1 more, c: t resource "z" is in a already, which counts`}}},
		{"a file renamed is no duplicate", []step{{"a=x,y", "a:x a:y", ""}, {"b=x,y", "b:x b:y", ""}}},
		{"two swap a name", []step{{"a=x b=y", "a:x b:y", ""}, {"a=y b=x", "a:y b:x", ""}}},
		{"what a bad file had is in another", []step{{"a=x b=y,z", "a:x b:y b:z", ""}, {"a=x,y b=!", "a:x a:y b:z and last good", "b: garbage"}}},
		{"what a bad file had is in a later one", []step{{"a=x,y b=z", "a:x a:y b:z", ""}, {"a=! b=x", "a:y b:x and last good", "a: garbage"}, {"a=x,y b=x", "a:x a:y", `a good, b: t resource "x" is in a already, which counts`}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := make(shelf)
			for i, step := range tt.steps {
				var news []string
				found, reports := s.take(contents(t, step.files))
				for _, r := range reports {
					if r.Err == nil {
						news = append(news, r.File+" good")
						continue
					}
					news = append(news, r.Err.Error())
				}
				if got := strings.Join(news, ", "); got != step.news {
					t.Errorf("step %d, %q: news %q, want %q", i, step.files, got, step.news)
				}
				fresh, _ := make(shelf).take(contents(t, step.files))
				if same := maps.EqualFunc(found, fresh, (*typeSet).equal); same == strings.Contains(step.want, "last good") {
					t.Errorf("step %d, %q: a relay that starts now serves the same: %v", i, step.files, same)
				}
				if got, want := found.String(), strings.TrimSuffix(step.want, " and last good"); got != want {
					t.Errorf("step %d, %q: %q, want %q", i, step.files, got, want)
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
			r, err := wire.NewResource("t", name, file, []byte(file)) // told apart by what it holds
			check.OK(t, err)
			c.types["t"] = append(c.types["t"], r)
		}
		files[file] = c
	}
	return files
}

func TestShelfVersions(t *testing.T) {
	s := make(shelf)
	of := func(version string, types ...string) *fileContent {
		c := &fileContent{version: version, types: make(map[string][]*wire.Resource)}
		for _, typeURL := range types {
			c.types[typeURL] = nil
		}
		return c
	}
	got, _ := s.take(map[string]*fileContent{"1": of("v1", "t", "u"), "2": of("v2", "u", "v")})
	for typeURL, want := range map[string]string{"t": "v1", "u": "", "v": "v2"} {
		if got[typeURL].version != want {
			t.Errorf("version of %s: %q, want %q", typeURL, got[typeURL].version, want)
		}
	}
}

// TestFilesMakeBeforeBreak looks at the order of what one swap of all files
// changes.
func TestFilesMakeBeforeBreak(t *testing.T) {
	set := func(typeURL string, names ...string) *typeSet {
		s := &typeSet{byName: make(map[string]*wire.Resource)}
		for _, name := range names {
			r := check.Must(wire.NewResource(typeURL, name, "", nil))
			s.byName[name] = r
		}
		return s
	}
	from := sets{wire.ClusterType: set(wire.ClusterType, "c-old"), wire.ListenerType: set(wire.ListenerType, "l-old")}
	to := sets{wire.ClusterType: set(wire.ClusterType, "c-new"), wire.ListenerType: set(wire.ListenerType, "l-new")}
	view, w := cache.New(cache.Config{})
	l := NewLocal(w)
	l.replace(nil, from)
	before := view.Generation().Seq
	l.replace(from, to)
	var entries []*cache.Entry
	for _, typeURL := range []string{wire.ClusterType, wire.ListenerType} {
		entries = slices.AppendSeq(entries, view.Generation().Type(typeURL).Wildcard.Since(before))
	}
	slices.SortFunc(entries, func(a, b *cache.Entry) int { return int(a.Seq) - int(b.Seq) })
	var got []string
	for _, e := range entries {
		got = append(got, fmt.Sprintf("%s %t", e.Name, e.Present()))
	}
	if want := []string{"c-new true", "l-new true", "l-old false", "c-old false"}; !slices.Equal(got, want) {
		t.Errorf("changes in the order %q, want %q", got, want)
	}
}

func TestSameListing(t *testing.T) {
	dir := writeFiles(t, t.TempDir(), "a.yaml", "1", "b.yaml", "1")
	list := func() map[string]listed {
		l := check.Must(listDir(dir))
		return l
	}
	last := list()
	if !sameListing(last, list()) {
		t.Error("the same directory looks different")
	}
	for name, change := range map[string]func(){
		"longer":  func() { writeFiles(t, dir, "a.yaml", "12") },
		"touched": func() { check.OK(t, os.Chtimes(filepath.Join(dir, "a.yaml"), time.Time{}, time.Unix(1, 0))) },
		"renamed": func() { check.OK(t, os.Rename(filepath.Join(dir, "a.yaml"), filepath.Join(dir, "c.yaml"))) },
		"gone":    func() { check.OK(t, os.Remove(filepath.Join(dir, "b.yaml"))) },
	} {
		writeFiles(t, dir, "a.yaml", "1", "b.yaml", "1")
		last := list()
		change()
		if sameListing(last, list()) {
			t.Errorf("a file was %s, and the directory looks the same", name)
		}
	}
}

// TestReadDirSeesSwapsWhole swaps all files while they are read.
func TestReadDirSeesSwapsWhole(t *testing.T) {
	dir := writeFiles(t, t.TempDir(), "a.yaml", clusters("x"), "b.yaml", clusters("y"))
	lists := 0
	files, err := readListed(dir, nil, func(dir string) (map[string]listed, error) {
		if lists++; lists == 2 { // a and b were read
			writeFiles(t, dir, "a.yaml", clusters("new"), "b.yaml", clusters("newer"))
		}
		return listDir(dir)
	})
	check.OK(t, err)
	a, b := files["a.yaml"].types[wire.ClusterType], files["b.yaml"].types[wire.ClusterType]
	if a[0].Name != "new" || b[0].Name != "newer" {
		t.Errorf("read %q and %q, want what was there in the end", a[0].Name, b[0].Name)
	}
}

// TestReaderWithoutDirectory reads where a hold is over, but nothing is known.
func TestReaderWithoutDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "mesh")
	check.OK(t, os.Mkdir(dir, 0o700))
	writeFiles(t, dir, "mesh.yaml", clusters("a"))
	cfg := check.Must(Config{Dir: dir}.withDefaults())
	r, now := newReader(&cfg), time.Now()
	r.read(now)
	check.OK(t, os.RemoveAll(dir))
	r.read(now)
	if holds := r.group.Holds(now); len(holds) != 1 || !holds[0].Until.Equal(now.Add(10*time.Minute)) {
		t.Errorf("a vanished directory: holds %+v, want one until 10m from %v", holds, now)
	}
	check.OK(t, os.WriteFile(dir, nil, 0o600)) // neither there nor gone
	if over := r.read(now.Add(time.Hour)); !over.IsZero() || r.serving.count() != 1 {
		t.Errorf("without a directory to read: again at %v, %d resources; want the next poll, and 1", over, r.serving.count())
	}
	check.OK(t, os.Remove(dir))
	if r.read(now.Add(time.Hour)); r.serving.count() != 0 {
		t.Errorf("%d resources after the hold, want none", r.serving.count())
	}
	check.OK(t, os.Mkdir(dir, 0o700))
	writeFiles(t, dir, "mesh.yaml", "[")
	if r.read(now.Add(time.Hour)); r.serving.count() != 0 {
		t.Error("what a file held before all was removed came back with a bad file")
	}
}

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
		t.Errorf("(-want +got):\n%s", diff)
	}
	again, err := readDir(dir, first)
	check.OK(t, err)
	if again["a.yaml"] != first["a.yaml"] || again["empty.json"] != first["empty.json"] {
		t.Error("files that did not change were parsed again")
	}
	if _, err := readDir(filepath.Join(dir, "missing"), nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("of a missing directory: %v", err)
	}
}

// TestFileWrapperKeepsAll holds what a file wraps to what is served.
func TestFileWrapperKeepsAll(t *testing.T) {
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
				t.Errorf("name %q, version %q, TTL %v", r.Name, r.Version, r.TTL)
			}
			check.Equal(t, fmt.Sprintf("names in %x", r.Field()), bytes.Count(r.Field(), []byte("\x1a\x01a")), 1)
		})
	}
}

func TestDirWatchDebounces(t *testing.T) {
	tests := []struct {
		name string
		at   []time.Duration // of events
		want time.Duration
	}{
		{"no event: the poll", nil, 10 * time.Second},
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
					t.Error("wait says that ctx ended")
				}
				check.Equal(t, "waited", time.Since(start), tt.want)
			})
		})
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, more := (&dirWatch{}).wait(ended, time.Now().Add(time.Hour), nil); more {
		t.Error("wait goes on although ctx ended")
	}
}

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
			t.Errorf("OpenFiles(%+v): %v, want it to say %q", tt.cfg, err, tt.want)
		}
	}
}

// A name that is asked for with parameters is answered as without: files have no
// variants.
func TestB24_FilesAnswerWhateverTheParameters(t *testing.T) {
	view, w := cache.New(cache.Config{})
	l := NewLocal(w)
	r := check.Must(wire.NewResource(wire.EndpointType, "a", "", []byte("x")))
	l.Set(wire.EndpointType, "1", []*wire.Resource{r})
	texts := []string{"a", wire.WithParameters("a", map[string]string{"env": "prod"}), wire.WithParameters("b", map[string]string{"env": "prod"})}
	names := view.Watch().Subscribe(wire.EndpointType, texts)
	l.Answer()
	for i, want := range []bool{true, true, false} {
		if e, _ := view.Generation().Type(wire.EndpointType).Lookup(names[i]); e.Present() != want {
			t.Errorf("%q exists: %t, want %t", texts[i], e.Present(), want)
		}
	}
}

// TestR107_LocalContentDoesNotExpire: it is there, so it lives on, whatever it says.
func TestR107_LocalContentDoesNotExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const glob = "xdstp://a/envoy.config.cluster.v3.Cluster/x/*"
		view, w := cache.New(cache.Config{})
		watch := view.Watch()
		watch.SubscribeAll(wire.ClusterType)
		watch.SubscribeAll(cache.Collection(wire.ClusterType, glob))
		watch.Subscribe(wire.ClusterType, []string{"a"})
		local := NewLocal(w)
		local.Answer()
		text := "- {'@type': type.googleapis.com/envoy.service.discovery.v3.Resource, name: %q, ttl: 9s, resource: {'@type': " + wire.ClusterType + ", name: a}}\n"
		given := func(name string) *wire.Resource {
			c := parseFile("a.yaml", fmt.Appendf(nil, text, name), [32]byte{})
			check.OK(t, c.err)
			r := c.types[wire.ClusterType][0]
			if r.TTL == 0 {
				t.Fatalf("%s has no TTL that could be ignored", name)
			}
			return r
		}
		local.Set(wire.ClusterType, "1", []*wire.Resource{given("a")})
		local.Update(wire.Update{TypeURL: wire.ClusterType, Resources: []*wire.Resource{given("b"), given("xdstp://a/envoy.config.cluster.v3.Cluster/x/c")}})
		watch.Subscribe(wire.ClusterType, []string{"b"})
		local.Answer()
		time.Sleep(time.Hour)
		if next := w.Expire(time.Now()); !next.IsZero() {
			t.Errorf("something expires at %v", next)
		}
		g := view.Generation()
		typ, members := g.Type(wire.ClusterType), g.Type(cache.Collection(wire.ClusterType, glob)).Wildcard
		if n, m, c := typ.ByName.Count(), typ.Wildcard.Count(), members.Count(); n != 2 || m != 3 || c != 1 {
			t.Errorf("after an hour: %d named, %d members, %d in the collection, want 2, 3 and 1", n, m, c)
		}
	})
}

// TestB15_FilesReleaseAndDiscard: an operator decides on what is held back of files: it goes
// at once, or it stays until a file has it again.
func TestB15_FilesReleaseAndDiscard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := writeFiles(t, t.TempDir(), "mass.yaml", clusters(many(20)...), "few.yaml", clusters("x"))
		m := mirrorDir(t, Config{Dir: dir, noEvents: true})
		lose := func() {
			t.Helper()
			m.until(strings.Join(many(20), " ") + " x")
			check.OK(t, os.Remove(filepath.Join(dir, "mass.yaml")))
			time.Sleep(time.Minute)
			if h := m.files.Holds(t.Context()); len(h) != 1 || len(h[0].Names) != 20 || h[0].Discarded || m.files.Held() != 20 {
				t.Fatalf("holds %+v, and %d resources; want one of 20", h, m.files.Held())
			}
		}
		lose()
		if got := m.files.Discard(t.Context(), reconcile.HoldChoice{}); len(got) != 1 || len(got[0].Names) != 20 {
			t.Errorf("discarded %+v, want one hold of 20", got)
		}
		time.Sleep(time.Hour)
		m.until(strings.Join(many(20), " ") + " x")
		if h := m.files.Holds(t.Context()); len(h) != 1 || !h[0].Discarded || m.files.Held() != 0 {
			t.Errorf("holds %+v, and %d resources, an hour later; want one that is discarded, and none", h, m.files.Held())
		}
		if got := m.files.Release(t.Context(), reconcile.HoldChoice{Discarded: true}); len(got) != 1 {
			t.Errorf("released %+v, want what was discarded", got)
		}
		m.until("x")

		writeFiles(t, dir, "mass.yaml", clusters(many(20)...))
		lose()
		if got := m.files.Release(t.Context(), reconcile.HoldChoice{TypeURL: wire.ListenerType}); len(got) != 0 {
			t.Errorf("released %+v of another type, want none", got)
		}
		if got := m.files.Release(t.Context(), reconcile.HoldChoice{}); len(got) != 1 || len(got[0].Names) != 20 {
			t.Errorf("released %+v, want one hold of 20", got)
		}
		m.until("x")

		writeFiles(t, dir, "mass.yaml", clusters(many(20)...))
		lose()
		m.files.Discard(t.Context(), reconcile.HoldChoice{})
		writeFiles(t, dir, "mass.yaml", clusters(many(20)...))
		time.Sleep(time.Minute)
		if h := m.files.Holds(t.Context()); len(h) != 0 {
			t.Errorf("holds %+v of what is there again, want none", h)
		}
		lose() // is another loss
		m.stop()
		if h := m.files.Holds(t.Context()); len(h) != 1 {
			t.Errorf("holds %+v while nobody follows the directory, want the last one", h)
		}
	})
}

// TestFreeze_Files: a frozen view of files shows what they held, also by names that nobody had
// asked for; thawed, what they hold.
func TestFreeze_Files(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := writeFiles(t, t.TempDir(), "few.yaml", clusters("a", "b"))
		control := upstream.NewControl(false, nil)
		files := check.Must(Open(Config{Dir: dir, noEvents: true}))
		view, w := cache.New(cache.Config{})
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { files.Sync(ctx, w, control) })
		watch := view.Watch()
		watch.SubscribeAll(wire.ClusterType)
		time.Sleep(time.Second)
		control.Freeze(t.Context())
		writeFiles(t, dir, "few.yaml", clusters("a=2", "c"))
		watch.Subscribe(wire.ClusterType, []string{"b"})
		time.Sleep(time.Minute)
		check.Equal(t, "frozen", clustersOf(view.Generation()), "a b")
		if e, _ := view.Generation().Type(wire.ClusterType).Lookup(view.Find(wire.ClusterType, []string{"b"})[0]); !e.Present() {
			t.Error("frozen: b was asked for by name and is not there, want what the file held")
		}
		control.Thaw(t.Context())
		time.Sleep(time.Second)
		check.Equal(t, "thawed", clustersOf(view.Generation()), "a=2 c")
		cancel()
		running.Wait()
	})
}

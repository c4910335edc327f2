package files

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/pending"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// TestR117_FourFormatsSameBytes checks that a DiscoveryResponse in YAML, JSON, text format and binary form yields the
// same resources and versions.
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
			t.Errorf("%s: the type has version %q, want 7 as in the response", name, got)
		}
		got := ""
		for e := range typ.Wildcard.Since(0) {
			got += fmt.Sprintf("%x\n", e.Resource.Field())
			if e.Name.String() == "wrapped" && (e.Resource.Version != "v3" || !slices.Equal(e.Resource.Aliases, []string{"door"})) {
				t.Errorf("%s: wrapped has version %q and aliases %q, want v3 and door", name, e.Resource.Version, e.Resource.Aliases)
			}
			if e.Name.String() == "bare" && e.Resource.Version != e.Resource.ContentVersion() {
				t.Errorf("%s: bare has version %q, want the version of its content", name, e.Resource.Version)
			}
		}
		if want == "" {
			want = got
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: resources differ from those of mesh.yaml (-yaml +this):\n%s", name, diff)
		}
		m.stop()
	}
}

// TestR118_BadFileKeepsLastGood checks that the last good content of a bad file is served. Each error is logged once.
func TestR118_BadFileKeepsLastGood(t *testing.T) {
	dir := writeFiles(t, t.TempDir(), "mesh.yaml", clusters("a=1"), "other.yaml", clusters("b"))
	m := mirrorDir(t, Config{Dir: dir, Poll: 20 * time.Millisecond})
	m.until("a=1 b")

	bad := clusters("a=2") + "- {'@type': " + wire.ClusterType + ", name: c, no_such_field: 1}\n"
	writeFiles(t, dir, "mesh.yaml", bad)
	r := m.log.await(t, slog.LevelWarn, "file is bad")
	if got, want := r.attrs["err"], filepath.Join(dir, "mesh.yaml")+":3: "; !strings.HasPrefix(got, want) {
		t.Errorf("logged error %q, want prefix %q", got, want)
	}
	if r.attrs["file"] != "mesh.yaml" || r.attrs["last_good"] != "1" {
		t.Errorf("logged attributes %v, want file=mesh.yaml and last_good=1", r.attrs)
	}

	// Changes of other files are still applied. Later polls do not log the bad file again.
	for i := range 3 {
		writeFiles(t, dir, "other.yaml", clusters(fmt.Sprintf("b=%d", i)))
		m.until(fmt.Sprintf("a=1 b=%d", i))
	}
	if got := m.log.logged(slog.LevelWarn); len(got) > 0 {
		t.Errorf("later polls logged %q, want nothing", got)
	}

	writeFiles(t, dir, "mesh.yaml", "resources: [")
	if r := m.log.await(t, slog.LevelWarn, "file is bad"); !strings.Contains(r.attrs["err"], "mesh.yaml:1") {
		t.Errorf("logged error %q, want the new error in line 1", r.attrs["err"])
	}
	writeFiles(t, dir, "mesh.yaml", clusters("a=3"))
	m.log.await(t, slog.LevelInfo, "file is good again")
	m.until("a=3 b=2")
}

// TestR119_RenameOver checks that events report files that are renamed, moved into the directory, added or removed.
func TestR119_RenameOver(t *testing.T) {
	dir := writeFiles(t, t.TempDir(), "mesh.yaml", clusters("a=1"))
	m := mirrorDir(t, Config{Dir: dir, Poll: time.Hour}) // changes are detected by events only
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

// TestB28_FilesWrittenInPlace checks that the last good content is served while a file is written slowly in place.
func TestB28_FilesWrittenInPlace(t *testing.T) {
	dir := writeFiles(t, t.TempDir(), "mesh.yaml", clusters("a=1", "b"))
	m := mirrorDir(t, Config{Dir: dir, Poll: time.Hour})
	m.until("a=1 b")
	f, err := os.Create(filepath.Join(dir, "mesh.yaml"))
	check.OK(t, err)
	m.log.await(t, slog.LevelWarn, "file is bad") // the file is empty
	_, err = f.WriteString("resources: [")
	check.OK(t, err)
	m.log.await(t, slog.LevelWarn, "file is bad")
	m.until("a=1 b")
	_, err = f.WriteString("{'@type': " + wire.ClusterType + ", name: a, alt_stat_name: '2'}]\n")
	check.OK(t, err, f.Close())
	m.log.await(t, slog.LevelInfo, "file is good again")
	m.until("a=2")
}

// TestR119_SymlinkSwap replaces files in the way in which Kubernetes updates a mounted ConfigMap.
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

	publish("..v2", "mesh.yaml", clusters("a=2", "c"), "more.yaml", clusters("b=2")) // c moves to another file
	check.OK(t, os.RemoveAll(at("..v1")))
	m.until("a=2 b=2 c")

	publish("..v3", "mesh.yaml", clusters("a=3", "c"))
	check.OK(t, os.Remove(at("more.yaml")), os.RemoveAll(at("..v2")))
	m.until("a=3 c")
}

// TestFilesDirectoryReplaced checks that the reader follows a link to the directory that gets another target.
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

// TestB28_DeletedDirectoryRemovesNothing checks that removals of a deleted directory are held until it exists again.
func TestB28_DeletedDirectoryRemovesNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "mesh")
	check.OK(t, os.Mkdir(dir, 0o700))
	writeFiles(t, dir, "mesh.yaml", clusters("a=1"))
	m := mirrorDir(t, Config{Dir: dir, Poll: 20 * time.Millisecond, MassDeleteHold: time.Hour})
	m.until("a=1")
	check.OK(t, os.Rename(dir, dir+".away"))
	m.log.await(t, slog.LevelWarn, "directory cannot be read")
	if r := m.log.await(t, slog.LevelError, "removals held"); r.attrs["held"] != "1" || r.attrs["hold"] != "1h0m0s" {
		t.Errorf("logged attributes %v, want held=1 and hold=1h0m0s", r.attrs)
	}
	m.until("a=1")
	writeFiles(t, dir+".away", "mesh.yaml", clusters("a=2"))
	check.OK(t, os.Rename(dir+".away", dir))
	m.log.await(t, slog.LevelInfo, "removals no longer held")
	m.until("a=2")
}

// TestH11_DuplicateNames checks that a running relay and a new one serve the same if two files contain a name: the
// resource of the first file, and all other resources of both. The relay logs the error.
func TestH11_DuplicateNames(t *testing.T) {
	dir := writeFiles(t, t.TempDir(), "b.yaml", clusters("x=b", "b"))
	m := mirrorDir(t, Config{Dir: dir})
	m.until("b x=b")

	writeFiles(t, dir, "a.yaml", clusters("x=a", "a"))
	r := m.log.await(t, slog.LevelWarn, "file is bad")
	if want := `b.yaml: cds resource "x" is already in a.yaml, which takes precedence`; r.attrs["err"] != want {
		t.Errorf("logged error %q, want %q", r.attrs["err"], want)
	}
	m.until("a b x=a")
	fresh := mirrorDir(t, Config{Dir: dir})
	fresh.until("a b x=a")
	for _, files := range []*Origin{m.files, fresh.files} {
		if s := files.Status(); s.Files != 2 || len(s.Bad) != 1 || s.Bad[0].File != "b.yaml" || s.Bad[0].LastGood != 2 || s.Err != nil {
			t.Errorf("status %+v, want 2 files, with b.yaml bad and 2 resources of it last good", s)
		}
	}
	writeFiles(t, dir, "b.yaml", clusters("b"))
	m.log.await(t, slog.LevelInfo, "file is good again")
	if s := m.files.Status(); s.Files != 2 || len(s.Bad) != 0 {
		t.Errorf("status %+v, want 2 files and no bad one", s)
	}
}

// TestB28_SubscribersReceiveFileContent checks subscriptions by name, by alias and by wildcard, before and after
// changes of the files.
func TestB28_SubscribersReceiveFileContent(t *testing.T) {
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

// TestFilesManyMirrors ends the sync that reads the directory for all views, and checks that another one takes over.
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
			t.Errorf("the view of mirror %d is still connected after the end of its sync", i)
		}
	}
	// The files change while there is no mirror. The next mirror has only the new content at all times.
	writeFiles(t, dir, "mesh.yaml", clusters("z"))
	view, _ := startMirror(t, m.files)
	watch := view.Watch()
	watch.SubscribeAll(wire.ClusterType)
	seen := make(map[string]bool)
	awaitHead(t, view, watch, func(g *cache.Generation) string { s := clustersOf(g); seen[s] = true; return s }, "z")
	for s := range seen {
		if strings.Contains(s, "a=") {
			t.Errorf("the view contained %q, which was replaced before the mirror started", s)
		}
	}
}

// TestFilesNoGoodFileYet starts with a directory without a good file. Clients with resources must not receive removals.
func TestFilesNoGoodFileYet(t *testing.T) {
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
					t.Fatalf("%q is absent before a file is good", names[0])
				}
				<-m.watch.C
			}
		})
	}
}

// TestFilesMakeBeforeBreak checks the order of changes when all files are swapped at once.
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
	l := NewLocal(pending.New(w, nil))
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
		t.Errorf("order of changes %q, want %q", got, want)
	}
}

// TestB24_FilesIgnoreDynamicParameters checks that a name with dynamic parameters has the same resource as the name
// without them, since files contain no variants.
func TestB24_FilesIgnoreDynamicParameters(t *testing.T) {
	view, w := cache.New(cache.Config{})
	l := NewLocal(pending.New(w, nil))
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

// TestR107_LocalContentDoesNotExpire checks that a resource in a file does not expire, even if it has a TTL.
func TestR107_LocalContentDoesNotExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const glob = "xdstp://a/envoy.config.cluster.v3.Cluster/x/*"
		view, w := cache.New(cache.Config{})
		watch := view.Watch()
		watch.SubscribeAll(wire.ClusterType)
		watch.SubscribeAll(cache.Collection(wire.ClusterType, glob))
		watch.Subscribe(wire.ClusterType, []string{"a"})
		local := NewLocal(pending.New(w, nil))
		local.Answer()
		text := "- {'@type': type.googleapis.com/envoy.service.discovery.v3.Resource, name: %q, ttl: 9s, resource: {'@type': " + wire.ClusterType + ", name: a}}\n"
		given := func(name string) *wire.Resource {
			c := parseFile("a.yaml", fmt.Appendf(nil, text, name), [32]byte{})
			check.OK(t, c.err)
			r := c.types[wire.ClusterType][0]
			if r.TTL == 0 {
				t.Fatalf("%s has no TTL", name)
			}
			return r
		}
		local.Set(wire.ClusterType, "1", []*wire.Resource{given("a")})
		local.Update(wire.Update{TypeURL: wire.ClusterType, Resources: []*wire.Resource{given("b"), given("xdstp://a/envoy.config.cluster.v3.Cluster/x/c")}})
		watch.Subscribe(wire.ClusterType, []string{"b"})
		local.Answer()
		time.Sleep(time.Hour)
		if next := w.Expire(time.Now()); !next.IsZero() {
			t.Errorf("a resource expires at %v, want none", next)
		}
		g := view.Generation()
		typ, members := g.Type(wire.ClusterType), g.Type(cache.Collection(wire.ClusterType, glob)).Wildcard
		if n, m, c := typ.ByName.Count(), typ.Wildcard.Count(), members.Count(); n != 2 || m != 3 || c != 1 {
			t.Errorf("after an hour: %d resources by name, %d members, %d in the collection, want 2, 3 and 1", n, m, c)
		}
	})
}

// TestB43_DirectoryIsWatchedAgain checks that the log has the end of a failed watch of a directory, once.
func TestB43_DirectoryIsWatchedAgain(t *testing.T) {
	var log strings.Builder
	d := newDirWatch(Config{Dir: t.TempDir(), Logger: slog.New(slog.NewTextHandler(&log, nil))})
	defer d.close()
	d.warn(errors.New("no watch left"))
	d.renew()
	d.renew()
	for _, line := range []string{"directory cannot be watched", "directory is watched again"} {
		if n := strings.Count(log.String(), line); n != 1 {
			t.Errorf("logged %d times %q, want once:\n%s", n, line, log.String())
		}
	}
}

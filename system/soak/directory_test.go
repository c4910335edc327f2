package soak

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	routepb "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/certs"
)

// A directory is the origin of scoped routes. Both relays read it, and all groups receive the same resources.
//
// A relay notices a change within half a second. A client that receives a new name from one relay and switches to the
// other one meanwhile loses the name again, which is correct. Therefore names are added only between rounds, and all
// clients agree on them before the next round begins.
type directory struct {
	t      *testing.T
	path   string
	groups []*group
	files  map[string]map[string]proto.Message // resources by file and name, as the file was last readable
	broken map[string]bool                     // files that cannot be read
}

// ownFiles are the regular files of the directory. Faults add others.
var ownFiles = []string{"b.json", "c.json", "d.json", "e.json"}

// scopesOfFile is the number of resources of each regular file.
const scopesOfFile = 8

func scope(file string, i int) string { return fmt.Sprintf("scope-%s-%d", file, i) }

// newDirectory creates the directory with all regular files.
func newDirectory(t *testing.T, groups []*group) *directory {
	t.Helper()
	d := &directory{t: t, path: filepath.Join(t.TempDir(), "files"), groups: groups, files: make(map[string]map[string]proto.Message), broken: make(map[string]bool)}
	if err := os.Mkdir(d.path, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, file := range ownFiles {
		d.fill(file)
	}
	return d
}

// content returns a scoped route that differs from all earlier ones.
func (d *directory) content(name string) proto.Message {
	return &routepb.ScopedRouteConfiguration{
		Name: name, RouteConfigurationName: d.groups[0].unique(),
		Key: &routepb.ScopedRouteConfiguration_Key{Fragments: []*routepb.ScopedRouteConfiguration_Key_Fragment{{
			Type: &routepb.ScopedRouteConfiguration_Key_Fragment_StringKey{StringKey: name},
		}}},
	}
}

// served returns the resources that a relay must serve. Readable files take precedence over broken ones, of which the
// last readable content counts. Among several files with a name, the first one by file name takes precedence.
func (d *directory) served() map[string]proto.Message {
	all := make(map[string]proto.Message)
	for _, broken := range []bool{false, true} {
		for _, file := range slices.Sorted(maps.Keys(d.files)) {
			for name, msg := range d.files[file] {
				if _, taken := all[name]; !taken && d.broken[file] == broken {
					all[name] = msg
				}
			}
		}
	}
	return all
}

// update applies change to the fields and records in the ledgers what relays must serve then. It must be called
// before the files change.
func (d *directory) update(change func()) {
	before := d.served()
	change()
	after := d.served()
	for _, g := range d.groups {
		for name, msg := range after {
			if before[name] != msg {
				g.ledger.Put(nil, msg)
			}
		}
		for name := range before {
			if after[name] == nil {
				g.ledger.Remove(nil, relaytest.ScopedRouteType, name)
			}
		}
	}
}

// write changes the resources of a file, which it creates if needed. A broken file becomes readable.
func (d *directory) write(file string, change func(of map[string]proto.Message)) {
	of := make(map[string]proto.Message)
	maps.Copy(of, d.files[file])
	change(of)
	d.update(func() { d.files[file] = of; delete(d.broken, file) })
	d.put(file, encode(d.t, of))
}

// fill writes a regular file with all of its resources, with new content.
func (d *directory) fill(file string) {
	d.write(file, func(of map[string]proto.Message) {
		for i := range scopesOfFile {
			of[scope(file, i)] = d.content(scope(file, i))
		}
	})
}

// remove removes a file and its resources.
func (d *directory) remove(file string) {
	d.update(func() { delete(d.files, file); delete(d.broken, file) })
	if err := os.Remove(filepath.Join(d.path, file)); err != nil {
		d.t.Error(err)
	}
}

// spoil replaces a file by content that relays cannot read.
func (d *directory) spoil(file string, content []byte) {
	d.update(func() { d.broken[file] = true })
	d.put(file, content)
}

// put writes a file atomically.
func (d *directory) put(file string, content []byte) {
	whole := certs.WriteFile(d.t, filepath.Dir(d.path), "whole", content)
	if err := os.Rename(whole, filepath.Join(d.path, file)); err != nil {
		d.t.Error(err)
	}
}

// encode returns resources as a JSON array, sorted by name.
func encode(t *testing.T, of map[string]proto.Message) []byte {
	var items []string
	for _, name := range slices.Sorted(maps.Keys(of)) {
		body, err := anypb.New(of[name])
		if err != nil {
			t.Fatal(err)
		}
		item, err := protojson.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		items = append(items, string(item))
	}
	return []byte("[" + strings.Join(items, ",\n") + "]\n")
}

// repeated reports whether another file contains a resource of the same name.
func (d *directory) repeated(file, name string) bool {
	for other, of := range d.files {
		if _, has := of[name]; has && other != file {
			return true
		}
	}
	return false
}

// own returns the regular files that exist, are readable and share no name with another file.
func (d *directory) own() (files []string) {
	for _, file := range ownFiles {
		shares := slices.ContainsFunc(slices.Collect(maps.Keys(d.files[file])), func(name string) bool { return d.repeated(file, name) })
		if d.files[file] != nil && !d.broken[file] && !shares {
			files = append(files, file)
		}
	}
	return files
}

// refill adds the missing resources of the regular files. It reports whether any was missing.
func (d *directory) refill() (did bool) {
	for _, file := range ownFiles {
		if len(d.files[file]) < scopesOfFile {
			d.fill(file)
			did = true
		}
	}
	return did
}

// change makes one random change in a regular file: usually new content, sometimes a removal.
func (d *directory) change(random *rand.Rand) {
	file, i, drops := ownFiles[random.IntN(len(ownFiles))], random.IntN(scopesOfFile), random.IntN(8) == 0
	if d.files[file] == nil || d.broken[file] {
		return
	}
	d.write(file, func(of map[string]proto.Message) {
		name := scope(file, i)
		if of[name] == nil {
			return
		}
		if drops && len(of) > scopesOfFile/2 && !d.repeated(file, name) {
			delete(of, name)
		} else {
			of[name] = d.content(name)
		}
	})
}

// vanish removes one or two files. round writes them again, with new content, once all clients agree on the removal.
func (w *world) vanish() (heal func()) {
	d := w.directory
	files := d.own()
	w.random.Shuffle(len(files), func(i, j int) { files[i], files[j] = files[j], files[i] })
	files = files[:min(len(files), 1+w.random.IntN(2))]
	for _, file := range files {
		d.remove(file)
	}
	w.seen.add("files that vanished", len(files))
	return nothing // round refills the directory
}

// repeatNames adds a file that contains names of another one, until all clients agree. Relays must serve the
// resources of the first file by name, also when they start while both files exist.
func (w *world) repeatNames() (heal func()) {
	d := w.directory
	if len(d.own()) == 0 {
		return nothing
	}
	file := []string{"a.json", "z.json"}[w.random.IntN(2)]
	of := d.own()[w.random.IntN(len(d.own()))]
	names := slices.Sorted(maps.Keys(d.files[of]))[:3]
	d.write(file, func(all map[string]proto.Message) {
		for _, name := range names {
			all[name] = d.content(name)
		}
	})
	w.seen.add("names in two files", len(names))
	w.later = append(w.later, func() {
		d.fill(of) // new content: no content may return after another one was served under its name
		d.remove(file)
		w.agree("the removal of a file that repeated names")
	})
	return nothing
}

// breakFile makes a file unreadable. Relays must report it as bad and serve its last readable content. A readable
// file with one of its names must take precedence. heal makes the file readable.
func (w *world) breakFile() (heal func()) {
	w.agree("changes before a file becomes unreadable")
	d := w.directory
	own := d.own()
	i := w.random.IntN(len(own))
	file, other := own[i], own[(i+1)%len(own)]
	whole := encode(w.t, d.files[file])
	d.spoil(file, [][]byte{whole[:len(whole)/2], []byte("nonsense: ["), []byte(strings.Replace(string(whole), "routeConfigurationName", "nome", 1))}[w.random.IntN(3)])
	w.showsBad(1)
	w.churn(10)
	w.agree("changes while a file is unreadable")
	name := slices.Sorted(maps.Keys(d.files[file]))[0]
	d.write(other, func(of map[string]proto.Message) { of[name] = d.content(name) })
	w.agree("a name of an unreadable file was added to another file")
	w.showsBad(1)
	w.seen.add("files that could not be read", 1)
	return func() {
		d.fill(file)
		w.showsBad(1) // a file that repeats a name is bad
		w.agree("two files contain the same name")
		d.write(other, func(of map[string]proto.Message) { delete(of, name) })
		w.showsBad(0)
	}
}

// goAway renames the directory and renames it back. Relays must hold the removals back, and no client may lose a
// resource.
func (w *world) goAway() (heal func()) {
	w.agree("changes before the directory is renamed")
	away := w.directory.path + "-away"
	if err := os.Rename(w.directory.path, away); err != nil {
		w.t.Fatal(err)
	}
	w.heldBack(relaytest.ScopedRouteType, true)
	if err := os.Rename(away, w.directory.path); err != nil {
		w.t.Fatal(err)
	}
	return nothing
}

// showsBad waits until both relays report n bad files and all others as good.
func (w *world) showsBad(n int) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, relaytest.Patience)
	defer cancel()
	for _, r := range w.relays() {
		for {
			m, err := r.operator().metrics()
			if err != nil {
				w.t.Fatal(err)
			}
			if m[`tender_origin_files{origin="files",state="bad"}`] == float64(n) && m[`tender_origin_files{origin="files",state="good"}`] == float64(len(w.directory.files)-n) {
				break
			}
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
				w.t.Fatalf("of %d files %d are bad, but a relay reports %v", len(w.directory.files), n, m[`tender_origin_files{origin="files",state="bad"}`])
			}
		}
	}
}

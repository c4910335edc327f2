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

// A directory is the origin of scoped routes, which both relays read, and of which all groups are told the same.
//
// Each relay reads a change when it notices it, within half a second. A client that was told of a new name by one of them and goes to the
// other one in the meantime loses the name again, and rightly so. So names come only between rounds, and all agree on them
// before the next round begins.
type directory struct {
	t      *testing.T
	path   string
	groups []*group
	files  map[string]map[string]proto.Message // resources by file and name: what the file holds, or held while it could be read
	broken map[string]bool                     // files that cannot be read
}

// What files there are. Others are of faults.
var ownFiles = []string{"b.json", "c.json", "d.json", "e.json"}

const scopesOfFile = 8

func scope(file string, i int) string { return fmt.Sprintf("scope-%s-%d", file, i) }

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

// content returns a scoped route that is like no other.
func (d *directory) content(name string) proto.Message {
	return &routepb.ScopedRouteConfiguration{
		Name: name, RouteConfigurationName: d.groups[0].unique(),
		Key: &routepb.ScopedRouteConfiguration_Key{Fragments: []*routepb.ScopedRouteConfiguration_Key_Fragment{{
			Type: &routepb.ScopedRouteConfiguration_Key_Fragment_StringKey{StringKey: name},
		}}},
	}
}

// served returns what every relay has to serve of the directory: of a name that several files have, that of the first
// file by name that can be read; and what the others last held beside that.
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

// update changes files, and writes down what relays have to serve then. It comes before the change that they see.
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

// write changes what a file holds, or makes one. It can be read then.
func (d *directory) write(file string, change func(of map[string]proto.Message)) {
	of := make(map[string]proto.Message)
	maps.Copy(of, d.files[file])
	change(of)
	d.update(func() { d.files[file] = of; delete(d.broken, file) })
	d.put(file, encode(d.t, of))
}

// fill writes a file that has all of its own resources, with new content.
func (d *directory) fill(file string) {
	d.write(file, func(of map[string]proto.Message) {
		for i := range scopesOfFile {
			of[scope(file, i)] = d.content(scope(file, i))
		}
	})
}

func (d *directory) remove(file string) {
	d.update(func() { delete(d.files, file); delete(d.broken, file) })
	if err := os.Remove(filepath.Join(d.path, file)); err != nil {
		d.t.Error(err)
	}
}

// spoil has a file hold what cannot be read.
func (d *directory) spoil(file string, content []byte) {
	d.update(func() { d.broken[file] = true })
	d.put(file, content)
}

// put writes a file whole.
func (d *directory) put(file string, content []byte) {
	whole := certs.WriteFile(d.t, filepath.Dir(d.path), "whole", content)
	if err := os.Rename(whole, filepath.Join(d.path, file)); err != nil {
		d.t.Error(err)
	}
}

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

// repeated reports whether another file has a name too.
func (d *directory) repeated(file, name string) bool {
	for other, of := range d.files {
		if _, has := of[name]; has && other != file {
			return true
		}
	}
	return false
}

// own returns the files there are that are not of faults and share no name with another.
func (d *directory) own() (files []string) {
	for _, file := range ownFiles {
		shares := slices.ContainsFunc(slices.Collect(maps.Keys(d.files[file])), func(name string) bool { return d.repeated(file, name) })
		if d.files[file] != nil && !d.broken[file] && !shares {
			files = append(files, file)
		}
	}
	return files
}

// refill has all of the own files hold all of their names, and reports whether one did not.
func (d *directory) refill() (did bool) {
	for _, file := range ownFiles {
		if len(d.files[file]) < scopesOfFile {
			d.fill(file)
			did = true
		}
	}
	return did
}

// change makes one change in a file: most often other content, now and then a removal.
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

// vanish has one or two files go away, and come back with other content once all agree that they are gone.
func (w *world) vanish() (heal func()) {
	d := w.directory
	files := d.own()
	w.random.Shuffle(len(files), func(i, j int) { files[i], files[j] = files[j], files[i] })
	files = files[:min(len(files), 1+w.random.IntN(2))]
	for _, file := range files {
		d.remove(file)
	}
	w.seen.add("files that vanished", len(files))
	return nothing // the round refills them
}

// repeatNames has a file come that repeats names of another one: the first file by name counts, in relays that run and in those
// that start, until after all agree.
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
		d.fill(of) // nobody sees it; else content would come back, and all content of a name has to be different
		d.remove(file)
		w.agree("a file that repeated names went away")
	})
	return nothing
}

// breakFile has a file that cannot be read: relays serve what it last held, and say that it is bad. Names of it in another file are
// that file's. It is mended in the end.
func (w *world) breakFile() (heal func()) {
	w.agree("before a file is broken")
	d := w.directory
	own := d.own()
	i := w.random.IntN(len(own))
	file, other := own[i], own[(i+1)%len(own)]
	whole := encode(w.t, d.files[file])
	d.spoil(file, [][]byte{whole[:len(whole)/2], []byte("nonsense: ["), []byte(strings.Replace(string(whole), "routeConfigurationName", "nome", 1))}[w.random.IntN(3)])
	w.showsBad(1)
	w.churn(10)
	w.agree("while a file is broken")
	name := slices.Sorted(maps.Keys(d.files[file]))[0]
	d.write(other, func(of map[string]proto.Message) { of[name] = d.content(name) })
	w.agree("while another file has a name of one that is broken")
	w.showsBad(1)
	w.seen.add("files that could not be read", 1)
	return func() {
		d.fill(file)
		w.showsBad(1) // a name is in both
		w.agree("while a name is in two files")
		d.write(other, func(of map[string]proto.Message) { delete(of, name) })
		w.showsBad(0)
	}
}

// goAway has the directory go away and come back: relays hold all of it back, and no client loses any of it.
func (w *world) goAway() (heal func()) {
	w.agree("before a directory goes away")
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

// showsBad waits until both relays say that so many files are bad.
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
				w.t.Fatalf("of %d files %d are bad, and a relay says %v", len(w.directory.files), n, m[`tender_origin_files{origin="files",state="bad"}`])
			}
		}
	}
}

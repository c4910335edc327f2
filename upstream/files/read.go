package files

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/cache/wire/schema"
)

// maxReadTries is the maximum number of times that a directory is read because it changes during the read.
const maxReadTries = 3

// A fileContent is the content of one file. It is immutable.
type fileContent struct {
	digest  [sha256.Size]byte // of the file; zero if it could not be read
	err     error             // why the file is bad
	version string
	types   map[string][]*wire.Resource // by type URL; a declared type may have no resources
}

// readDir returns the content of the files of a directory by name. It does not parse files that have not changed since
// before. Errors of a file are part of its content; readDir returns only errors of the directory.
//
// If the directory changes during the read, readDir reads it again, up to maxReadTries times. So an atomic swap of all
// files takes effect as a whole.
func readDir(dir string, before map[string]*fileContent) (map[string]*fileContent, error) {
	return readWith(dir, before, listDir)
}

// readWith is readDir with a replaceable list, for tests.
func readWith(
	dir string, before map[string]*fileContent, list func(dir string) (map[string]listing, error),
) (map[string]*fileContent, error) {
	now, err := list(dir)
	if err != nil {
		return nil, err
	}
	for try := 1; ; try++ {
		files := make(map[string]*fileContent, len(now))
		for name, l := range now {
			files[name] = l.readFile(filepath.Join(dir, name), before[name])
		}
		then := now
		if now, err = list(dir); err != nil {
			return nil, err
		}
		if try == maxReadTries || sameListing(then, now) {
			return files, nil
		}
	}
}

// A listing is the metadata of one file, or of the target of a symbolic link.
type listing struct {
	info fs.FileInfo // nil if err is set
	err  error
}

// listDir returns the files of a directory that the relay reads, by name.
func listDir(dir string) (map[string]listing, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	files := make(map[string]listing)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") || !schema.IsFile(e.Name()) {
			continue
		}
		info, err := os.Stat(filepath.Join(dir, e.Name()))
		if errors.Is(err, fs.ErrNotExist) && e.Type()&fs.ModeSymlink == 0 {
			continue // deleted since; but a broken link is a bad file
		}
		files[e.Name()] = listing{info, err}
	}
	return files, nil
}

// sameListing reports whether two listings contain the same unchanged files.
func sameListing(a, b map[string]listing) bool {
	if len(a) != len(b) {
		return false
	}
	for name, x := range a {
		y, ok := b[name]
		if !ok || (x.err == nil) != (y.err == nil) {
			return false
		}
		if x.err == nil && !sameFile(x.info, y.info) {
			return false
		}
	}
	return true
}

// sameFile reports whether a file is the same and unchanged, judged by its identity, size and modification time.
func sameFile(a, b fs.FileInfo) bool {
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

// readFile reads the file, and parses it if it has changed since before. before may be nil.
func (l listing) readFile(path string, before *fileContent) *fileContent {
	if l.err != nil {
		return &fileContent{err: l.err}
	}
	if !l.info.Mode().IsRegular() {
		return &fileContent{err: fmt.Errorf("%s: not a regular file", path)} // reading a pipe would block
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return &fileContent{err: err}
	}
	digest := sha256.Sum256(data)
	if before != nil && before.digest == digest {
		return before
	}
	return parseFile(path, data, digest)
}

// parseFile returns the content of a file. An error in one resource makes the whole file bad.
func parseFile(path string, data []byte, digest [sha256.Size]byte) *fileContent {
	doc, err := schema.ParseFile(path, data)
	if err != nil {
		return &fileContent{digest: digest, err: err}
	}
	c := &fileContent{digest: digest, version: doc.Version, types: make(map[string][]*wire.Resource)}
	if doc.TypeURL != "" {
		c.types[doc.TypeURL] = nil
	}
	for _, r := range doc.Resources {
		made, err := newFileResource(r)
		if err != nil {
			return &fileContent{digest: digest, err: fmt.Errorf("%s: resource %q: %w", path, r.Name, err)}
		}
		c.types[r.TypeURL] = append(c.types[r.TypeURL], made)
	}
	return c
}

// Field numbers of a DeltaDiscoveryResponse and of the Resource in it.
const (
	deltaResources protowire.Number = 2
	deltaTypeURL   protowire.Number = 4
	wrapperName    protowire.Number = 3
)

// newFileResource returns the resource to send to clients. If the file contains a Resource wrapper, its fields are
// kept.
func newFileResource(r schema.Resource) (*wire.Resource, error) {
	if r.Wrapper == nil {
		return wire.NewResource(r.TypeURL, r.Name, "", r.Value)
	}
	made, err := unwrap(r.TypeURL, r.Wrapper)
	if err == nil && made.Name == r.Name || err != nil && !errors.Is(err, wire.ErrUnnamed) {
		return made, err
	}
	// The wrapper has no name: use the name of the resource in it.
	named := protowire.AppendTag(append([]byte(nil), r.Wrapper...), wrapperName, protowire.BytesType)
	return unwrap(r.TypeURL, protowire.AppendString(named, r.Name))
}

// unwrap decodes a wrapper as a response that contains only that resource.
func unwrap(typeURL string, wrapper []byte) (*wire.Resource, error) {
	var msg []byte
	msg = protowire.AppendTag(msg, deltaResources, protowire.BytesType)
	msg = protowire.AppendBytes(msg, wrapper)
	msg = protowire.AppendTag(msg, deltaTypeURL, protowire.BytesType)
	msg = protowire.AppendString(msg, typeURL)
	u, err := wire.Decoder{}.Decode(msg)
	if err != nil {
		return nil, err
	}
	return u.Resources[0], nil
}

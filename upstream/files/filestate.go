package files

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/cache/wire/schema"
)

// sets are the complete sets of resources by type URL. They are immutable once another goroutine can see them.
type sets map[string]*typeSet

// of returns the set of a type; an empty set if there is none.
func (s sets) of(typeURL string) *typeSet { return cmp.Or(s[typeURL], new(typeSet)) }

// count returns the number of resources.
func (s sets) count() (n int) {
	for _, set := range s {
		n += len(set.byName)
	}
	return n
}

// A typeSet contains all resources of a type. It is immutable once another goroutine can see it.
type typeSet struct {
	version string // shown only to operators
	byName  map[string]*wire.Resource
}

// changedSince returns the resources that differ from an older set.
func (s *typeSet) changedSince(old *typeSet) (changed []*wire.Resource) {
	for name, r := range s.byName {
		if old.byName[name] != r {
			changed = append(changed, r)
		}
	}
	return changed
}

// without returns the names of s that o does not contain.
func (s *typeSet) without(o *typeSet) map[string]struct{} {
	names := make(map[string]struct{})
	for name := range s.byName {
		if o.byName[name] == nil {
			names[name] = struct{}{}
		}
	}
	return names
}

// equal reports whether two sets have the same version and the same content.
func (s *typeSet) equal(o *typeSet) bool {
	return s.version == o.version && maps.EqualFunc(s.byName, o.byName, func(a, b *wire.Resource) bool {
		return a == b || a.SameContent(b) && a.OriginVersion == b.OriginVersion
	})
}

// fileStates are the states of the files of a directory by file name. They do no I/O and belong to the reader.
type fileStates map[string]*fileState

// A fileState contains the current and the last good content of one file.
type fileState struct {
	current  *fileContent // at the last read
	lastGood *fileContent // at the last read without an error; nil if there was none
	err      error        // why current is bad, or bad for some names
}

// current returns the content of the files at the last read.
func (s fileStates) current() map[string]*fileContent {
	files := make(map[string]*fileContent, len(s))
	for name, f := range s {
		files[name] = f.current
	}
	return files
}

// anyGood reports whether any file was ever good.
func (s fileStates) anyGood() bool {
	for _, f := range s {
		if f.lastGood != nil {
			return true
		}
	}
	return false
}

// deletedNames returns the names of the resources in files that files no longer contains, by type URL.
func (s fileStates) deletedNames(files map[string]*fileContent) map[string]map[string]struct{} {
	names := make(map[string]map[string]struct{})
	for file, f := range s {
		if files[file] != nil || f.lastGood == nil {
			continue
		}
		for typeURL, resources := range f.lastGood.types {
			of := names[typeURL]
			if of == nil {
				of = make(map[string]struct{})
			}
			for _, r := range resources {
				of[r.Name] = struct{}{}
			}
			names[typeURL] = of
		}
	}
	return names
}

// update replaces the files. It returns the resources to serve, and the files whose error has changed, sorted by file
// name. A returned file without an error is good again.
func (s fileStates) update(files map[string]*fileContent) (found sets, changed []BadFile) {
	maps.DeleteFunc(s, func(name string, _ *fileState) bool { return files[name] == nil })
	before := make(map[string]*fileState, len(files))
	for name, current := range files {
		state := &fileState{current: current, lastGood: current, err: current.err}
		before[name] = s[name]
		if current.err != nil {
			state.lastGood = nil
			if was := s[name]; was != nil {
				state.lastGood = was.lastGood
			}
		}
		s[name] = state
	}
	found = s.merge()
	for _, name := range slices.Sorted(maps.Keys(s)) {
		state, was := s[name], before[name]
		switch {
		case state.err != nil && was.sameError(state):
		case state.err != nil:
			changed = append(changed, BadFile{name, state.err, state.lastGood.count()})
		case was != nil && was.err != nil:
			changed = append(changed, BadFile{File: name})
		}
	}
	return found, changed
}

// sameError reports whether both states of a file are bad with the same error and content. f may be nil.
func (f *fileState) sameError(o *fileState) bool {
	return f != nil && f.err != nil && f.err.Error() == o.err.Error() && f.current.digest == o.current.digest
}

// precedence returns the files in order of precedence: good files before bad ones, each by name.
func (s fileStates) precedence() []string {
	return slices.SortedFunc(maps.Keys(s), func(a, b string) int {
		if badA, badB := s[a].current.err != nil, s[b].current.err != nil; badA != badB {
			if badA {
				return 1
			}
			return -1
		}
		return strings.Compare(a, b)
	})
}

// merge returns the resources of all files. If several files contain a name, the first one in order takes precedence,
// and the others are bad for that name. If only one file contains a type, the version of the type is that of the file.
func (s fileStates) merge() sets {
	all := make(sets)
	owners := make(map[*wire.Resource]string)
	for _, file := range s.precedence() {
		f := s[file]
		if f.lastGood == nil {
			continue
		}
		repeats, first := 0, error(nil)
		// sorted, so that the error is deterministic
		for _, typeURL := range slices.Sorted(maps.Keys(f.lastGood.types)) {
			resources := f.lastGood.types[typeURL]
			set := all[typeURL]
			if set == nil {
				set = &typeSet{version: f.lastGood.version, byName: make(map[string]*wire.Resource, len(resources))}
				all[typeURL] = set
			} else {
				set.version = ""
			}
			for _, r := range resources {
				was := set.byName[r.Name]
				if was == nil {
					set.byName[r.Name], owners[r] = r, file
					continue
				}
				if repeats++; first == nil {
					first = fmt.Errorf("%s: %s is already in %s, which takes precedence", file, describe(typeURL, r.Name), owners[was])
				}
			}
		}
		if repeats > 1 {
			first = fmt.Errorf("%w; and %d more", first, repeats-1)
		}
		if f.err == nil {
			f.err = first
		}
	}
	return all
}

// describe returns the short name of the type and the name of a resource, for errors.
func describe(typeURL, name string) string {
	if short, ok := schema.ShortName(typeURL); ok {
		typeURL = short
	}
	return fmt.Sprintf("%s resource %q", typeURL, name)
}

// A BadFile is a file that is bad, or bad for some names. See Origin for the meaning of bad.
type BadFile struct {
	File string // file name in the directory
	Err  error  // with the line, if known

	// LastGood is the number of resources in the file when it was last good, which are still served. Zero if this
	// process has never read the file without an error.
	LastGood int
}

// bad returns the files that are bad, or bad for some names, by file name.
func (s fileStates) bad() (all []BadFile) {
	for _, name := range slices.Sorted(maps.Keys(s)) {
		if f := s[name]; f.err != nil {
			all = append(all, BadFile{File: name, Err: f.err, LastGood: f.lastGood.count()})
		}
	}
	return all
}

// count returns the number of resources. c may be nil.
func (c *fileContent) count() (n int) {
	if c == nil {
		return 0
	}
	for _, resources := range c.types {
		n += len(resources)
	}
	return n
}

package upstream

import (
	"fmt"
	"maps"
	"slices"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/cache/wire/schema"
)

// sets are the complete sets of types, by type URL.
type sets map[string]*typeSet

// count returns the number of resources.
func (s sets) count() (n int) {
	for _, set := range s {
		n += len(set.byName)
	}
	return n
}

// A typeSet is all resources of a type. It is immutable once another goroutine can
// see it. A nil one is empty.
type typeSet struct {
	version string // for people
	byName  map[string]*wire.Resource
}

// changedSince returns the resources that are not the same in an older set.
func (s *typeSet) changedSince(old *typeSet) (changed []*wire.Resource) {
	for name, r := range s.byName {
		if old == nil || old.byName[name] != r {
			changed = append(changed, r)
		}
	}
	return changed
}

// without returns the names that another set does not have.
func (s *typeSet) without(o *typeSet) map[string]struct{} {
	names := make(map[string]struct{})
	if s == nil {
		return names
	}
	for name := range s.byName {
		if o == nil || o.byName[name] == nil {
			names[name] = struct{}{}
		}
	}
	return names
}

// equal reports whether nobody could tell another set from this one, of which nothing is damaged.
func (s *typeSet) equal(o *typeSet) bool {
	return s != nil && o != nil && s.version == o.version && maps.EqualFunc(s.byName, o.byName, func(a, b *wire.Resource) bool {
		return a == b || a.SameContent(b) && a.OriginVersion == b.OriginVersion && a.Intact()
	})
}

// A shelf remembers of each file that is there what it last held while it was
// good. It does no I/O.
//
// Invariant: no name of a type is in the good content of two files.
type shelf map[string]*shelved

type shelved struct {
	seen *fileContent // as it was read last
	good *fileContent // what counts; nil if the file was never good
	err  error        // why seen does not count
}

// A report says that a file turned bad, or is bad in another way; without an error,
// that it is good again.
type report struct {
	file string
	err  error
	kept int // resources of its last good content
}

// seen returns the files as they were read last.
func (s shelf) seen() map[string]*fileContent {
	files := make(map[string]*fileContent, len(s))
	for name, f := range s {
		files[name] = f.seen
	}
	return files
}

// has reports whether the files are just those that were taken last.
func (s shelf) has(files map[string]*fileContent) bool { return maps.Equal(s.seen(), files) }

// anyGood reports whether anything counts.
func (s shelf) anyGood() bool {
	for _, f := range s {
		if f.good != nil {
			return true
		}
	}
	return false
}

// vanished returns the names, by type URL, that files had which are not there any more.
func (s shelf) vanished(files map[string]*fileContent) map[string]map[string]struct{} {
	names := make(map[string]map[string]struct{})
	for file, f := range s {
		if files[file] != nil || f.good == nil {
			continue
		}
		for typeURL, resources := range f.good.types {
			of := names[typeURL]
			for _, r := range resources {
				put(&of, r.Name, struct{}{})
			}
			names[typeURL] = of
		}
	}
	return names
}

// take replaces what is known by what was read. It returns what was not reported
// before, in the order of the files' names.
func (s shelf) take(files map[string]*fileContent) (reports []report) {
	maps.DeleteFunc(s, func(name string, _ *shelved) bool { return files[name] == nil })
	chosen, errs := s.choose(files)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		was := s[name]
		is := &shelved{seen: files[name], good: chosen[name], err: errs[name]}
		s[name] = is
		switch {
		case is.err != nil && was != nil && was.err != nil && was.err.Error() == is.err.Error() && was.seen.digest == is.seen.digest:
		case is.err != nil:
			reports = append(reports, report{name, is.err, is.good.count()})
		case was != nil && was.err != nil:
			reports = append(reports, report{file: name})
		}
	}
	return reports
}

// choose returns what counts of each file: what was read, but the last good
// content of those that are bad.
func (s shelf) choose(files map[string]*fileContent) (chosen map[string]*fileContent, errs map[string]error) {
	chosen, errs = make(map[string]*fileContent, len(files)), make(map[string]error)
	for name, c := range files {
		chosen[name] = c
		if c.err != nil {
			chosen[name], errs[name] = s.good(name), c.err
		}
	}
	// What a file falls back to may conflict with what is new in yet another. That
	// ends, at the latest when all have fallen back: then the invariant holds.
	for {
		loser, err := s.conflict(chosen)
		if err == nil {
			return chosen, errs
		}
		chosen[loser], errs[loser] = s.good(loser), err
	}
}

func (s shelf) good(name string) *fileContent {
	if f := s[name]; f != nil {
		return f.good
	}
	return nil
}

// conflict finds a name that two files have, and says which of the two is wrong.
func (s shelf) conflict(chosen map[string]*fileContent) (loser string, err error) {
	type key struct{ typeURL, name string }
	owners := make(map[key]string)
	for _, file := range slices.Sorted(maps.Keys(chosen)) {
		if chosen[file] == nil {
			continue
		}
		for _, typeURL := range slices.Sorted(maps.Keys(chosen[file].types)) { // so that it is always the same one
			for _, r := range chosen[file].types[typeURL] {
				k := key{typeURL, r.Name}
				owner, taken := owners[k]
				if !taken || owner == file {
					owners[k] = file
					continue
				}
				loser, keeper := file, owner
				if s.holds(file, k.typeURL, k.name) && !s.holds(owner, k.typeURL, k.name) {
					loser, keeper = owner, file
				}
				return loser, fmt.Errorf("%s: %s is in %s already", loser, describe(k.typeURL, k.name), keeper)
			}
		}
	}
	return "", nil
}

// holds reports whether a resource is in the last good content of a file.
func (s shelf) holds(file, typeURL, name string) bool {
	good := s.good(file)
	return good != nil && slices.ContainsFunc(good.types[typeURL], func(r *wire.Resource) bool { return r.Name == name })
}

func describe(typeURL, name string) string {
	if short, ok := schema.ShortName(typeURL); ok {
		typeURL = short
	}
	return fmt.Sprintf("%s resource %q", typeURL, name)
}

// sets returns the good content of all files. The version of a type is that of
// the file that speaks of it, if only one does.
func (s shelf) sets() sets {
	all := make(sets)
	for _, f := range s {
		if f.good == nil {
			continue
		}
		for typeURL, resources := range f.good.types {
			set := all[typeURL]
			if set == nil {
				set = &typeSet{version: f.good.version, byName: make(map[string]*wire.Resource, len(resources))}
				all[typeURL] = set
			} else {
				set.version = ""
			}
			for _, r := range resources {
				set.byName[r.Name] = r
			}
		}
	}
	return all
}

// count returns the number of resources.
func (c *fileContent) count() (n int) {
	if c == nil {
		return 0
	}
	for _, resources := range c.types {
		n += len(resources)
	}
	return n
}

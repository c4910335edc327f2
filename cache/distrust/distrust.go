// Package distrust lists resources for which the versions that returning clients report prove nothing.
//
// A client may have applied a part of an edition that was rejected, sent a NACK, and still report the versions from
// before (envoy#12592). So it is sent such a resource although its version is equal, and the removal of one that the
// view does not have (B.3).
//
// The package is not a stable API: programs that embed Tender use package relay.
package distrust

import (
	"maps"
	"sync/atomic"
)

// A List has the distrusted resources of a view. The zero value is empty. Its methods may be called from any
// goroutine.
type List struct {
	current   atomic.Pointer[state] // nil if the list is empty
	revisions atomic.Uint64
}

// Resources are names by type URL or collection.
type Resources = map[string]map[string]struct{}

// A state of a list is immutable.
type state struct {
	bySource map[int]Resources
	revision uint64
}

// Set replaces the resources of a source; nil removes them. Nobody may change the maps afterwards.
func (l *List) Set(source int, resources Resources) {
	for {
		last, now := l.current.Load(), &state{bySource: make(map[int]Resources)}
		if last != nil {
			now.bySource, now.revision = maps.Clone(last.bySource), last.revision
		}
		switch {
		case len(resources) == 0:
			delete(now.bySource, source)
		case maps.EqualFunc(now.bySource[source], resources, func(a, b map[string]struct{}) bool { return maps.Equal(a, b) }):
			return // clients that were sent these resources since are not sent them again
		default:
			now.bySource[source], now.revision = resources, l.revisions.Add(1)
		}
		if len(now.bySource) == 0 {
			now = nil
		}
		if l.current.CompareAndSwap(last, now) {
			return
		}
	}
}

// Names returns the names of a type or collection, some perhaps twice.
func (l *List) Names(key string) (names []string) {
	s := l.current.Load()
	if s == nil {
		return nil
	}
	for _, of := range s.bySource {
		for name := range of[key] {
			names = append(names, name)
		}
	}
	return names
}

// Has reports whether a resource is in the list, by its type URL or collection and name.
func (l *List) Has(key, name string) bool {
	s := l.current.Load()
	if s == nil {
		return false
	}
	for _, of := range s.bySource {
		if _, has := of[key][name]; has {
			return true
		}
	}
	return false
}

// HasType reports whether any resource of a type or collection is in the list.
func (l *List) HasType(key string) bool {
	s := l.current.Load()
	if s == nil {
		return false
	}
	for _, of := range s.bySource {
		if len(of[key]) > 0 {
			return true
		}
	}
	return false
}

// Revision returns a number that grows whenever resources are added; zero if the list is empty.
func (l *List) Revision() uint64 {
	if s := l.current.Load(); s != nil {
		return s.revision
	}
	return 0
}

package generations

import (
	"slices"
	"sync"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// overhead is the approximate memory of a former resource or of a generation in bytes, without the resource itself.
const overhead = 256

// A Store contains the generations of all lines. Its methods may be called from any goroutine.
type Store struct {
	limit int64 // maximum of bytes

	// Guarded by mu.
	mu    sync.Mutex
	lines []*Line
	order []*generation          // earlier generations of all lines, in the order in which they were added
	refs  map[*wire.Resource]int // number of formers that refer to a resource
	bytes int64                  // size of earlier generations; a resource in several of them counts once
}

// A generation is an earlier generation of a line. It is immutable once it is added to the store.
type generation struct {
	line *Line
	Generation
	formers []cache.Former // resources that differ in the next generation, as they were in this one
}

// A Generation describes a generation for display.
type Generation struct {
	Digest                  string    // digest of the content; equal on replicas that serve the same resources
	Since                   time.Time // when it was first served
	Until                   time.Time // zero for the generation that is served now
	Added, Changed, Removed int       // number of resources that differ from the previous generation
	Bytes                   int64     // size of the resources that differ in the next generation
}

// New returns a store that limits the size of earlier generations to a number of bytes.
func New(limit int64) *Store {
	return &Store{limit: limit, refs: make(map[*wire.Resource]int)}
}

// Stats returns the number of earlier generations and their size in bytes. Both exclude the newest generations.
func (s *Store) Stats() (generations int, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.order), s.bytes
}

// Lines returns all lines.
func (s *Store) Lines() []*Line {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.lines)
}

// add appends an earlier generation to its line, and drops the oldest generations of all lines above the limit. mu must
// be held.
func (s *Store) add(g *generation) {
	g.Bytes = 0
	s.bytes += overhead
	for _, f := range g.formers {
		s.bytes += overhead
		if f.Resource == nil {
			continue
		}
		g.Bytes += int64(f.Resource.Size())
		if s.refs[f.Resource]++; s.refs[f.Resource] == 1 {
			s.bytes += int64(f.Resource.Size())
		}
	}
	g.line.past = append(g.line.past, g)
	s.order = append(s.order, g)
	for len(s.order) > 0 && s.bytes > s.limit {
		oldest := s.order[0]
		s.order = s.order[1:]
		oldest.line.past, oldest.line.dropped = oldest.line.past[1:], true
		s.release(oldest)
	}
}

// release subtracts a generation from refs and bytes. mu must be held.
func (s *Store) release(g *generation) {
	s.bytes -= overhead
	for _, f := range g.formers {
		s.bytes -= overhead
		if f.Resource == nil {
			continue
		}
		if s.refs[f.Resource]--; s.refs[f.Resource] == 0 {
			delete(s.refs, f.Resource)
			s.bytes -= int64(f.Resource.Size())
		}
	}
}

// clear drops all earlier generations of a line. mu must be held.
func (s *Store) clear(l *Line) {
	for _, g := range l.past {
		s.release(g)
	}
	s.order = slices.DeleteFunc(s.order, func(g *generation) bool { return g.line == l })
	l.past, l.dropped = nil, true
}

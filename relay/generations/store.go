package generations

import (
	"slices"
	"sync"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// overhead is about what a former resource, or a generation, takes in memory beside the bytes of its resource.
const overhead = 256

// A Store has the generations of all lines.
type Store struct {
	limit int64 // of bytes

	// Guarded by mu.
	mu    sync.Mutex
	lines []*Line
	order []*generation          // of all lines, the oldest first
	refs  map[*wire.Resource]int // how many former resources have it
	bytes int64                  // that only earlier generations hold
}

// A generation is an earlier one of a line. It is immutable.
type generation struct {
	line *Line
	Generation
	formers []cache.Former // what it had of the resources that differ in the next one
}

// A Generation is what people are shown of a generation.
type Generation struct {
	Digest                  string // of its content: equal on replicas
	Since                   time.Time
	Until                   time.Time // zero while it is served
	Added, Changed, Removed int       // resources, compared with the generation before
	Bytes                   int64     // of the resources that it has and the next one has not
}

// New returns a store that holds so many bytes of resources that are served no longer.
func New(limit int64) *Store {
	return &Store{limit: limit, refs: make(map[*wire.Resource]int)}
}

// Stats returns how many generations are kept beside those that are served, and how many bytes only they hold.
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

// add keeps the generation that a line has left. mu must be held.
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

// release undoes what add has counted. mu must be held.
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

// clear gives up the earlier generations of a line. mu must be held.
func (s *Store) clear(l *Line) {
	for _, g := range l.past {
		s.release(g)
	}
	s.order = slices.DeleteFunc(s.order, func(g *generation) bool { return g.line == l })
	l.past, l.dropped = nil, true
}

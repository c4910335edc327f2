package content

import (
	"slices"
	"sync"
	"time"
)

// A Set is what a control plane holds: every resource of some kinds, each at its
// latest change. Its methods may be called at once.
type Set struct {
	kinds []Kind // read-only

	// Guarded by mu.
	mu      sync.Mutex
	latest  map[string][]Stamp
	encoded map[string][][]byte // by type and index, as in a SotW response; nil after a change
}

// NewSet returns a set in which nothing has changed yet.
func NewSet(kinds []Kind) *Set {
	s := &Set{kinds: kinds, latest: map[string][]Stamp{}, encoded: map[string][][]byte{}}
	for _, k := range kinds {
		stamps := make([]Stamp, k.Count)
		for i := range stamps {
			stamps[i].Index = i
		}
		s.latest[k.TypeURL], s.encoded[k.TypeURL] = stamps, make([][]byte, k.Count)
	}
	return s
}

// Kinds returns what the set is made of.
func (s *Set) Kinds() []Kind { return s.kinds }

// Kind returns the kind of a type; ok is false if the set has none.
func (s *Set) Kind(typeURL string) (k Kind, ok bool) {
	i := slices.IndexFunc(s.kinds, func(k Kind) bool { return k.TypeURL == typeURL })
	if i < 0 {
		return Kind{}, false
	}
	return s.kinds[i], true
}

// Change makes a change of one resource now, and returns its stamp.
func (s *Set) Change(typeURL string, index int) Stamp {
	s.mu.Lock()
	defer s.mu.Unlock()
	stamp := &s.latest[typeURL][index]
	stamp.Change++
	stamp.Made = time.Now().UnixNano()
	s.encoded[typeURL][index] = nil
	return *stamp
}

// Latest returns the stamps of a type, by index.
func (s *Set) Latest(typeURL string) []Stamp {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.latest[typeURL])
}

// Delta returns the stamped resources as bodies of Delta responses, each about
// limit bytes at most, without what [Finish] appends.
func (k Kind) Delta(stamps []Stamp, limit int) (bodies [][]byte) {
	var body []byte
	for _, s := range stamps {
		if len(body) > 0 && len(body)+k.Bytes > limit {
			bodies, body = append(bodies, body), nil
		}
		body = k.AppendDelta(body, s)
	}
	return append(bodies, body)
}

// SotW returns all resources of a kind as the body of one SotW response. Each
// change is encoded once.
func (s *Set) SotW(k Kind) (body []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	encoded := s.encoded[k.TypeURL]
	body = make([]byte, 0, k.Count*(k.Bytes+128))
	for i, b := range encoded {
		if b == nil {
			b = k.AppendSotW(nil, s.latest[k.TypeURL][i])
			encoded[i] = b
		}
		body = append(body, b...)
	}
	return body
}

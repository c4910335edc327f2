package content

import (
	"slices"
	"sync"
	"time"
)

// A Set holds the resources of a control plane: every resource of some kinds, at its
// latest change. It is safe for concurrent use.
type Set struct {
	kinds []Kind // read-only

	// Guarded by mu.
	mu      sync.Mutex
	latest  map[string][]Stamp
	encoded map[string][][]byte // by type and index, as in a SotW response; nil after a change
}

// NewSet returns a set with all resources at change 0.
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

// Kinds returns the kinds of the set. The caller must not change the slice.
func (s *Set) Kinds() []Kind { return s.kinds }

// Kind returns the kind of a type; ok is false if the set has no resources of that type.
func (s *Set) Kind(typeURL string) (k Kind, ok bool) {
	i := slices.IndexFunc(s.kinds, func(k Kind) bool { return k.TypeURL == typeURL })
	if i < 0 {
		return Kind{}, false
	}
	return s.kinds[i], true
}

// Change changes one resource, with the current time in its stamp, and returns the stamp.
func (s *Set) Change(typeURL string, index int) Stamp {
	s.mu.Lock()
	defer s.mu.Unlock()
	stamp := &s.latest[typeURL][index]
	stamp.Change++
	stamp.Made = time.Now().UnixNano()
	s.encoded[typeURL][index] = nil
	return *stamp
}

// Latest returns a copy of the stamps of a type, by index.
func (s *Set) Latest(typeURL string) []Stamp {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.latest[typeURL])
}

// Delta returns the stamped resources as bodies of Delta responses, each of about
// limit bytes at most. The caller must complete each body with [Finish].
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

// SotW returns all resources of a kind as the body of one SotW response, to be completed
// with [Finish]. It caches the encoding of each resource until its next change.
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

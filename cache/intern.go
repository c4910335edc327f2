package cache

import (
	"bytes"
	"hash/maphash"
	"runtime"
	"sync"
	"weak"

	"github.com/xdstender/tender/cache/wire"
)

// An Interner keeps one copy of equal resources, over all views that share it:
// node groups of one origin mostly get the same bytes. It holds its resources
// weakly, so it needs no bookkeeping of who uses what. Only writers use it, once
// for each resource received. Its zero value is ready to use.
type Interner struct {
	mu   sync.Mutex
	refs map[uint64]weak.Pointer[wire.Resource] // by hash of the resource's field and TTL
}

// Intern returns a resource equal to r, the first one that was received and is still
// in use.
func (i *Interner) Intern(r *wire.Resource) *wire.Resource {
	key := maphash.Bytes(seed, r.Field()) ^ uint64(r.TTL)
	i.mu.Lock()
	defer i.mu.Unlock()
	if p, ok := i.refs[key]; ok {
		if same := p.Value(); same != nil {
			if bytes.Equal(same.Field(), r.Field()) && same.OriginVersion == r.OriginVersion && same.TTL == r.TTL {
				return same
			}
			return r // another resource with the same hash
		}
	}
	if i.refs == nil {
		i.refs = make(map[uint64]weak.Pointer[wire.Resource])
	}
	i.refs[key] = weak.Make(r)
	runtime.AddCleanup(r, i.forget, key)
	return r
}

// Len returns the number of different resources in use.
func (i *Interner) Len() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return len(i.refs)
}

func (i *Interner) forget(key uint64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if p, ok := i.refs[key]; ok && p.Value() == nil {
		delete(i.refs, key)
	}
}

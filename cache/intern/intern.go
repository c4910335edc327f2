// Package intern keeps one copy of equal resources. Node groups of one origin mostly receive the same bytes.
//
// The package is not a stable API: programs that embed Tender use package relay.
package intern

import (
	"bytes"
	"hash/maphash"
	"runtime"
	"sync"
	"weak"

	"github.com/xdstender/tender/cache/wire"
)

// A Pool has one copy of each resource that some view uses. It holds resources weakly, so nobody has to count or to
// release them. The zero value is ready to use, and methods may be called from any goroutine.
type Pool struct {
	mu   sync.Mutex
	refs map[uint64]weak.Pointer[wire.Resource] // by hash of the resource's field and TTL; guarded by mu
}

// seed makes the hashes unpredictable, so that no origin can choose resources with equal ones.
var seed = maphash.MakeSeed()

// keyOf returns the key of a resource in a pool.
func keyOf(r *wire.Resource) uint64 { return maphash.Bytes(seed, r.Field()) ^ uint64(r.TTL) }

// Intern returns a resource equal to r: the first one that was received and is still in use.
func (p *Pool) Intern(r *wire.Resource) *wire.Resource {
	key := keyOf(r)
	p.mu.Lock()
	defer p.mu.Unlock()
	if ref, ok := p.refs[key]; ok {
		if same := ref.Value(); same != nil {
			if bytes.Equal(same.Field(), r.Field()) && same.OriginVersion == r.OriginVersion && same.TTL == r.TTL {
				return same
			}
			return r // another resource with the same hash
		}
	}
	if p.refs == nil {
		p.refs = make(map[uint64]weak.Pointer[wire.Resource])
	}
	p.refs[key] = weak.Make(r)
	runtime.AddCleanup(r, p.forget, key)
	return r
}

// Len returns the number of different resources in use.
func (p *Pool) Len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.refs)
}

// forget removes a resource that was freed, unless an equal one has taken its place.
func (p *Pool) forget(key uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if ref, ok := p.refs[key]; ok && ref.Value() == nil {
		delete(p.refs, key)
	}
}

package cache

import (
	"sync/atomic"
	"time"
)

// Config shapes a view. Its zero value works.
type Config struct {
	// VersionSource says what SotW versions are made from.
	VersionSource VersionSource

	// Interner shares equal resources with other views; nil shares nothing.
	Interner *Interner

	// TombstoneAge is how long a removal is remembered for wildcard streams that
	// have not been told. Zero means 130s, twice the longest time for which a
	// stream may hold one back.
	TombstoneAge time.Duration
}

const defaultTombstoneAge = 130 * time.Second

// A View is what one origin says to one node group.
type View struct {
	cfg   Config
	head  atomic.Pointer[Head]
	index index
}

// New returns an empty view and the right to write to it, which belongs to one
// goroutine.
func New(cfg Config) (*View, *Writer) {
	if cfg.TombstoneAge == 0 {
		cfg.TombstoneAge = defaultTombstoneAge
	}
	v := &View{cfg: cfg}
	v.index.types = make(map[string]*indexType)
	v.index.poke = make(chan struct{}, 1)
	v.head.Store(&Head{types: map[string]*Type{}})
	return v, &Writer{view: v, tombs: make(map[string][]tomb), aliases: make(map[string]map[string][]*Name)}
}

// Head returns the newest version of the view.
func (v *View) Head() *Head { return v.head.Load() }

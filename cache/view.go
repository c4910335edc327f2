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

	// Sources is the number of origins that make up the view, each with a writer of
	// its own; at most MaxSources. Zero means one.
	Sources int

	// Quotas count and bound, by source, the names that streams want of its origin. Nil
	// means that none are.
	Quotas []Quota

	// Route returns which source answers for a name of a type, or, for an empty name,
	// for its members. It must be a pure function. Nil means source 0.
	Route func(typeURL, name string) int

	// Cohorts is the number of views beside that of NewRouted, each for clients that changes of waiting types reach earlier
	// (Writer.Show), and Waits reports which types those are. Without cohorts, no change waits.
	Cohorts int
	Waits   func(typeURL string) bool

	// Waiting is called when it changes how a source's latest stands to what the rest is served, by the writer: it must not
	// wait. Nil is not called.
	Waiting func(source int, now Waiting)

	// Fanout is called when what became of a change at all streams that it concerns is known, or is given
	// up, or the change was not followed, by whoever brought that about: it must not wait. Nil follows no change.
	Fanout func(*Fanout)

	// Began is called when there is something of a type to serve for the first time: its wildcard set has
	// settled, or the origin answered for a name. It must not wait. Nil is not called.
	Began func()
}

const defaultTombstoneAge = 130 * time.Second

// A View is the state that one cohort of a node group is served: as a rule of one origin, but different
// types and names may come from different ones. The views of a group have positions of their own.
type View struct {
	*shared
	head     atomic.Pointer[Generation]
	timeline timeline
}

// shared is what the views of a node group share: the interest of their clients, and who writes them.
type shared struct {
	cfg     Config
	index   index
	writers []*Writer // by source
	views   []*View   // by cohort; the last is that of the rest
}

// New returns an empty view of one source, and the right to write to it, which
// belongs to one goroutine.
func New(cfg Config) (*View, *Writer) {
	cfg.Sources = 1
	v, writers := NewRouted(cfg)
	return v, writers[0]
}

// NewRouted returns an empty view and the right to write to it, one for each source.
// Each writer belongs to one goroutine, and writes only what is routed to its source.
func NewRouted(cfg Config) (*View, []*Writer) {
	if cfg.TombstoneAge == 0 {
		cfg.TombstoneAge = defaultTombstoneAge
	}
	if cfg.Route == nil {
		cfg.Route = func(string, string) int { return 0 }
	}
	if cfg.Waiting == nil {
		cfg.Waiting = func(int, Waiting) {}
	}
	n := max(cfg.Sources, 1)
	if n > MaxSources {
		panic("cache: too many sources")
	}
	v := &View{shared: &shared{cfg: cfg, index: index{
		types: make(map[string]*indexType), reported: make(map[*indexType]struct{}), typesOpenedBy: make(map[string]int), route: cfg.Route,
	}}}
	for range cfg.Cohorts {
		v.views = append(v.views, &View{shared: v.shared})
	}
	v.views = append(v.views, v)
	writers := make([]*Writer, n)
	for i := range writers {
		from := &source{poke: make(chan struct{}, 1)}
		if cfg.Quotas != nil {
			from.quota = cfg.Quotas[i]
		}
		v.index.sources = append(v.index.sources, from)
		writers[i] = newWriter(v, i)
	}
	v.writers, v.index.anonymous = writers, v.index.sharesOf("")
	for _, of := range v.views {
		of.head.Store(&Generation{sources: make([]Source, n), route: cfg.Route})
	}
	for _, w := range writers {
		w.gate = newGate(w)
	}
	return v, writers
}

// Cohort returns the view of a cohort: the view itself for Config.Cohorts, which is the rest.
func (v *View) Cohort(cohort int) *View { return v.views[cohort] }

// Generation returns the newest version of the view.
func (v *View) Generation() *Generation { return v.head.Load() }

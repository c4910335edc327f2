package cache

import (
	"time"
)

const defaultTombstoneAge = 130 * time.Second

// New returns an empty view of one source, and its writer.
func New(cfg Config) (*View, *Writer) {
	cfg.Sources = 1
	v, writers := NewRouted(cfg)
	return v, writers[0]
}

// NewRouted returns an empty view, and a writer for each source. A writer changes only state that Config.Route assigns
// to its source.
func NewRouted(cfg Config) (*View, []*Writer) {
	if cfg.TombstoneAge == 0 {
		cfg.TombstoneAge = defaultTombstoneAge
	}
	if cfg.Route == nil {
		cfg.Route = func(string, string) int { return 0 }
	}
	if cfg.Waits == nil {
		cfg.Waits = func(string) bool { return false }
	}
	if cfg.SettledChanged == nil {
		cfg.SettledChanged = func(int) {}
	}
	n := max(cfg.Sources, 1)
	if n > MaxSources {
		panic("cache: too many sources")
	}
	v := &View{shared: &shared{cfg: cfg, index: index{
		types:         make(map[string]*indexType),
		reported:      make(map[*indexType]struct{}),
		typesOpenedBy: make(map[string]int),
		route:         cfg.Route,
	}}}
	for range cfg.Cohorts {
		v.views = append(v.views, &View{shared: v.shared})
	}
	v.views = append(v.views, v)
	writers := make([]*Writer, n)
	for i := range writers {
		from := &source{demandReady: make(chan struct{}, 1)}
		if cfg.Quotas != nil {
			from.quota = cfg.Quotas[i]
		}
		v.index.sources = append(v.index.sources, from)
		writers[i] = newWriter(v, i)
	}
	v.writers, v.index.anonymous = writers, v.index.sharesOf("")
	for _, of := range v.views {
		of.current.Store(&Generation{sources: make([]Source, n), route: cfg.Route})
	}
	return v, writers
}

func newWriter(v *View, source int) *Writer {
	w := &Writer{view: v, source: source, refetchedAt: make(map[string]time.Time)}
	for _, of := range v.views {
		b := newBranch(of)
		if of != v {
			b.apart = make(map[*Name]*indexType)
		}
		w.branches = append(w.branches, b)
	}
	w.publisher = publisher{w: w}
	return w
}

package cache

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/xdstender/tender/cache/distrust"
	"github.com/xdstender/tender/cache/fanout"
	"github.com/xdstender/tender/cache/intern"
	"github.com/xdstender/tender/cache/quota"
	"github.com/xdstender/tender/cache/wire"
)

// Config configures the views of a node group. The zero value is valid.
type Config struct {
	// Interner shares equal resources with other node groups; nil shares nothing.
	Interner *intern.Pool

	// TombstoneAge is how long a tombstone is kept for wildcard streams that have not been sent the removal. Zero
	// means 130s, twice the longest time for which a stream may delay one.
	TombstoneAge time.Duration

	// Sources is the number of origins of the view, at most MaxSources. Each has one writer. Zero means one.
	Sources int

	// Quotas limit, by source, the names that streams subscribe to. Nil means no limit.
	Quotas []quota.Names

	// Route returns the source of a name of a type, or for an empty name, of its wildcard set. It must be a pure
	// function. Nil means source 0.
	Route func(typeURL, name string) int

	// Cohorts is the number of views in addition to that of NewRouted, for clients that are sent changes earlier
	// (Writer.RestateCohort). Waits reports whether changes of a type reach cohorts first, and without cohorts, wait while
	// an operator has rolled the source back; nil reports false.
	Cohorts int
	Waits   func(typeURL string) bool

	// SettledChanged, if not nil, is called by the writer of a source when the result of View.Settled may have changed. It
	// must not block.
	SettledChanged func(source int)

	// Fanout, if not nil, is called when the fan-out of a change has ended, or if the fan-out is not measured. It is
	// called from any goroutine and must not block. If it is nil, no fan-out is measured.
	Fanout func(*fanout.Fanout)

	// FirstServed, if not nil, is called when clients of a type get responses for the first time: the wildcard set has
	// settled, or the origin has responded for a name. It must not block.
	FirstServed func()
}

// A View is the state that one cohort of a node group is served. It comes from one or several origins. Positions of one
// view are not valid in another view, even of the same group. Any goroutine may call its methods.
type View struct {
	*shared
	current  atomic.Pointer[Generation]
	timeline timeline

	// Distrust lists the resources that returning clients are sent even if they report the present version.
	Distrust distrust.List
}

// shared has the parts that all views of a node group use.
type shared struct {
	cfg     Config
	index   index
	writers []*Writer // by source; set at creation
	views   []*View   // by cohort; that of the rest last; set at creation
}

// Cohort returns the view of a cohort. The number Config.Cohorts stands for the rest, the clients in no cohort.
func (v *View) Cohort(cohort int) *View { return v.views[cohort] }

// Cohorts returns the number of cohorts, without the rest.
func (v *View) Cohorts() int { return v.cfg.Cohorts }

// Waits returns the value of Config.Waits for a type.
func (v *View) Waits(typeURL string) bool { return v.cfg.Waits(typeURL) }

// Generation returns the newest version of the view.
func (v *View) Generation() *Generation { return v.current.Load() }

// Unknown returns how many of the names and globs of a type are not in the index. The wildcard counts as known.
func (v *View) Unknown(typeURL string, names []string) (unknown int) {
	x := &v.index
	x.mu.Lock()
	defer x.mu.Unlock()
	t := x.types[typeURL]
	for _, name := range names {
		known := name == wire.Wildcard || t.find(name) != nil || wire.Glob(name) && x.types[Collection(typeURL, name)] != nil
		if !known {
			unknown++
		}
	}
	return unknown
}

// Find returns the Names of texts, nil for a text that is not in the index.
func (v *View) Find(typeURL string, texts []string) []*Name {
	out := make([]*Name, len(texts))
	x := &v.index
	x.mu.Lock()
	defer x.mu.Unlock()
	if t := x.types[typeURL]; t != nil {
		for i, text := range texts {
			out[i] = t.names[text]
		}
	}
	return out
}

// FindName returns the Name of a text, nil if it is not in the index.
func (v *View) FindName(typeURL, text string) *Name {
	x := &v.index
	x.mu.Lock()
	defer x.mu.Unlock()
	if t := x.types[typeURL]; t != nil {
		return t.names[text]
	}
	return nil
}

// Wanted reports whether any stream subscribes to a name of the view.
func (v *View) Wanted(n *Name) bool {
	x := &v.index
	x.mu.Lock()
	defer x.mu.Unlock()
	return n.watchers != nil
}

// HasType reports whether a type has subscribers or state, and returns the number of such types, without collections.
func (v *View) HasType(typeURL string) (known bool, types int) {
	x := &v.index
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.types[typeURL] != nil, len(x.types) - x.collections
}

// TypesOf returns the number of unknown types to which a peer was the first to subscribe.
func (v *View) TypesOf(peer string) int {
	x := &v.index
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.typesOpenedBy[peer]
}

// Stale reports whether the view has resources although an origin is not connected, or has not confirmed restored
// state yet.
func (v *View) Stale(now time.Time) bool {
	g := v.Generation()
	disconnected := slices.ContainsFunc(g.sources, func(s Source) bool { return s.Stale(now) > 0 })
	for t := range g.ChangedSince(0) {
		if t.Wildcard.Count()+t.ByName.Count() > 0 && (disconnected || t.Restored) {
			return true
		}
	}
	return false
}

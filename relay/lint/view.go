package lint

import (
	"slices"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// settle is how long a reference has to lead nowhere before it is a finding: a control plane may send a route on one
// stream slightly earlier than its cluster on another.
const settle = 3 * time.Second

// mostListed is how many findings of a view are kept, the most serious ones. All are counted.
const mostListed = 200

// A View is a view of a node group.
type View struct {
	*cache.View
	Group string
}

// A count is a number of findings.
type count struct {
	typeURL string
	kind    Kind
}

// A result is what is wrong with a view. It is immutable.
type result struct {
	group    string
	counts   map[count]int
	findings []Finding // in order, at most mostListed
}

// A place is where a view has a resource: under a name in one of the sets of a type or collection.
type place struct {
	key  string
	kind cache.Kind
	name *cache.Name
}

// in returns the set in a generation.
func (p place) in(g *cache.Generation) *cache.Set {
	if t := g.Type(p.key); p.kind == cache.ByName {
		return &t.ByName
	} else {
		return &t.Wildcard
	}
}

// An absence is since when a resource that others name has been absent, and whether it was there before.
type absence struct {
	since   time.Time
	removed bool
}

// A followed view is one whose changes are checked. It belongs to the goroutine of its Linter.
type followed struct {
	View
	linter *Linter
	seen   *cache.Generation // up to which it was checked
	facts  map[place]*Facts  // of all resources about which there is something to report
	absent map[Reference]absence
	again  time.Time // when to look again although nothing changes; zero if there is no need
	last   *result

	onDemand int // facts with OnDemand
}

func (l *Linter) follow(v View) *followed {
	return &followed{View: v, linter: l, seen: new(cache.Generation), facts: make(map[place]*Facts), last: &result{group: v.Group}}
}

// due reports whether there is something to check.
func (f *followed) due(now time.Time) bool {
	return f.Generation() != f.seen || !f.again.IsZero() && !now.Before(f.again)
}

// look checks what has changed. It reports false if it was interrupted.
func (f *followed) look(now time.Time, pace func() bool) bool {
	g := f.Generation()
	for t := range g.ChangedSince(f.seen.Revision) {
		for _, kind := range []cache.Kind{cache.Wildcard, cache.ByName} {
			at := place{key: t.URL, kind: kind}
			for e := range at.in(g).Since(f.seen.Seq) {
				if at.name = e.Name; !f.inspect(at, e) {
					continue
				}
				if !pace() {
					return false
				}
			}
		}
	}
	r, ok := f.evaluate(g, now, pace)
	if ok {
		f.seen, f.last = g, r
	}
	return ok
}

// inspect keeps the facts of a resource that has changed. It reports whether there was one to look at.
func (f *followed) inspect(at place, e *cache.Entry) (looked bool) {
	if !e.Present() || !Checks(e.Resource.TypeURL) || e.Resource.ContentDropped() {
		f.keep(at, none)
		return false
	}
	f.keep(at, f.linter.Facts(e.Resource))
	return true
}

// keep replaces the facts of a resource.
func (f *followed) keep(at place, facts *Facts) {
	if old := f.facts[at]; old != nil && old.OnDemand {
		f.onDemand--
	}
	if facts.OnDemand {
		f.onDemand++
	}
	if facts == none {
		delete(f.facts, at)
	} else {
		f.facts[at] = facts
	}
}

// evaluate returns what is wrong with the resources of a generation; false if it was interrupted.
func (f *followed) evaluate(g *cache.Generation, now time.Time, pace func() bool) (*result, bool) {
	x := &examination{followed: f, g: g, now: now, absent: make(map[Reference]absence), known: make(map[Reference]*Finding)}
	var all []Finding
	for at, facts := range f.facts {
		if !at.in(g).Get(at.name).Present() { // a set may forget a removal before it is read here
			f.keep(at, none)
			continue
		}
		typeURL, _, _ := cache.SplitCollection(at.key)
		for finding := range x.findings(facts) {
			finding.TypeURL, finding.Name = typeURL, at.name.String()
			all = append(all, finding)
		}
		if !pace() {
			return nil, false
		}
	}
	f.absent, f.again = x.absent, x.again
	return newResult(f.Group, all), true
}

func newResult(group string, all []Finding) *result {
	slices.SortFunc(all, Finding.Compare)
	all = slices.Compact(all)
	r := &result{group: group, counts: make(map[count]int)}
	for _, finding := range all {
		r.counts[count{finding.TypeURL, finding.Kind}]++
	}
	r.findings = slices.Clone(all[:min(len(all), mostListed)])
	return r
}

// An examination looks for references in one generation that lead nowhere.
type examination struct {
	*followed
	g      *cache.Generation
	now    time.Time
	again  time.Time
	absent map[Reference]absence
	known  map[Reference]*Finding // nil for one that leads somewhere
}

// findings yields what is wrong with a resource of which these are the facts.
func (x *examination) findings(facts *Facts) func(yield func(Finding) bool) {
	return func(yield func(Finding) bool) {
		for _, finding := range facts.Findings {
			if !yield(finding) {
				return
			}
		}
		for _, r := range facts.References {
			if finding := x.resolve(r); finding != nil && !yield(*finding) {
				return
			}
		}
	}
}

// resolve returns what is wrong with a reference, nil if nothing is.
func (x *examination) resolve(r Reference) *Finding {
	if finding, is := x.known[r]; is {
		return finding
	}
	x.known[r] = x.judge(r)
	return x.known[r]
}

func (x *examination) judge(r Reference) *Finding {
	if r.TypeURL == wire.ClusterType && (x.onDemand > 0 || x.linter.cfg.Static.Match(r.Name)) {
		return nil
	}
	why := Absent(x.View.View, x.g, r)
	if why == "" {
		return nil
	}
	as, is := x.followed.absent[r]
	if !is {
		as = absence{since: x.now, removed: x.had(r)}
	}
	x.absent[r] = as
	if at := as.since.Add(settle); x.now.Before(at) {
		if x.again.IsZero() || at.Before(x.again) {
			x.again = at
		}
		return nil
	}
	if as.removed {
		return &Finding{Kind: Removed, Detail: "names " + r.Describe() + ", which the control plane has removed"}
	}
	return &Finding{Kind: Missing, Detail: "names " + r.Describe() + ", which does not exist: " + why}
}

// had reports whether the view had a resource when it was last looked at.
func (x *examination) had(r Reference) bool {
	n := x.FindName(r.TypeURL, r.Name)
	return n != nil && has(x.seen.Type(r.TypeURL), n)
}

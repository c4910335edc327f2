package lint

import (
	"slices"
	"time"

	"github.com/xdstender/tender/cache"
)

// settle is the minimum time for which a referenced resource must be absent to be reported. A control plane may send a
// route on one stream slightly earlier than its cluster on another.
const settle = 3 * time.Second

// mostListed is the maximum number of findings that are kept per view, the most serious ones. All are counted.
const mostListed = 200

// A View is a cached view and its node group.
type View struct {
	*cache.View
	Group string // for messages
}

// A count is the key of a number of findings.
type count struct {
	typeURL string
	kind    Kind
}

// A result contains the findings of a view. It is immutable.
type result struct {
	group    string
	counts   map[count]int // number of all findings
	findings []Finding     // sorted, at most mostListed
}

// A place identifies an entry of a view: a name in one of the sets of a type or collection.
type place struct {
	key  string // type URL or collection
	kind cache.Kind
	name *cache.Name
}

// in returns the set of the place in a generation.
func (p place) in(g *cache.Generation) *cache.Set { return g.Type(p.key).Set(p.kind) }

// An absence records that a referenced resource does not exist.
type absence struct {
	since   time.Time // first check without the resource
	removed bool      // the resource existed at the check before since
}

// A followed is a view with the state of its checks. It is owned by the goroutine of its Linter.
type followed struct {
	View
	linter *Linter
	seen   *cache.Generation     // last generation that was checked
	facts  map[place]*Facts      // facts of the present resources, without those equal to none
	absent map[Reference]absence // referenced resources that did not exist at the last check
	again  time.Time             // time of the next check without a change; zero if none is needed
	last   *result               // result of the last check; never nil

	onDemand int // number of facts with OnDemand
}

// follow returns the state of a view of which nothing was checked yet.
func (l *Linter) follow(v View) *followed {
	return &followed{View: v, linter: l, seen: new(cache.Generation), facts: make(map[place]*Facts), last: &result{group: v.Group}}
}

// due reports whether the view must be checked: it has changed, or an absence has become old enough to be reported.
func (f *followed) due(now time.Time) bool {
	return f.Generation() != f.seen || !f.again.IsZero() && !now.Before(f.again)
}

// look checks the changes since the last check. It reports false, and keeps the last result, if pace reported false.
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

// inspect updates the facts for a changed entry. It reports whether the entry had a resource to check.
func (f *followed) inspect(at place, e *cache.Entry) (looked bool) {
	if !e.Present() || !Checks(e.Resource.TypeURL) || e.Resource.ContentDropped() {
		f.keep(at, none)
		return false
	}
	f.keep(at, f.linter.Facts(e.Resource))
	return true
}

// keep replaces the facts of a resource. It deletes them if facts is none.
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

// evaluate returns the result for a generation. It reports false if pace reported false.
func (f *followed) evaluate(g *cache.Generation, now time.Time, pace func() bool) (*result, bool) {
	x := &examination{followed: f, g: g, now: now, absent: make(map[Reference]absence), known: make(map[Reference]*Finding)}
	var all []Finding
	for at, facts := range f.facts {
		if !at.in(g).Get(at.name).Present() { // the set may have dropped the tombstone before look saw the removal
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

// newResult sorts all findings of a view, removes duplicates and counts them.
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

// An examination resolves the references of all resources in one generation.
type examination struct {
	*followed
	g      *cache.Generation
	now    time.Time
	again  time.Time              // next value of followed.again
	absent map[Reference]absence  // next value of followed.absent
	known  map[Reference]*Finding // results of resolve; nil if there is no finding
}

// findings yields the findings of a resource with these facts, including those about its references.
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

// resolve returns the finding about a reference, or nil if there is none. Each reference is judged once.
func (x *examination) resolve(r Reference) *Finding {
	if finding, is := x.known[r]; is {
		return finding
	}
	x.known[r] = x.judge(r)
	return x.known[r]
}

// judge is resolve without the cached results. It records an absence that is too recent to be reported, and sets again.
func (x *examination) judge(r Reference) *Finding {
	if r.Exempt(x.onDemand > 0, x.linter.cfg.Static) {
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

// had reports whether the resource existed in the generation of the last check.
func (x *examination) had(r Reference) bool {
	n := x.FindName(r.TypeURL, r.Name)
	return n != nil && has(x.seen.Type(r.TypeURL), n)
}

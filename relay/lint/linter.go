package lint

import (
	"cmp"
	"context"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/time/rate"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

const (
	// every is the interval between two checks of all views. For an unchanged view, a check compares two pointers.
	every = time.Second

	// A linter works for at most the duration work in each tick. It uses at most a twentieth of one core, regardless of
	// the number of resources.
	tick = 100 * time.Millisecond
	work = 5 * time.Millisecond

	// largest is the maximum size in bytes of a resource that is checked. Decoding needs a multiple of the size in memory.
	largest = 1 << 20

	// remembered is the number of resources whose facts are cached. Node groups mostly have the same resources.
	remembered = 1 << 14
)

// Config configures a Linter. Views and Logger are required.
type Config struct {
	// Views returns the views to check. Several views of one group are those of its cohorts.
	Views func() []View

	// Static matches the names of static clusters, which clients have in their bootstrap configuration.
	Static Patterns

	// Logger receives new findings. The number of lines is limited.
	Logger *slog.Logger
}

// A Linter checks all views of a relay periodically, on one goroutine and at a limited rate. It reads the immutable
// generations of the views, so it blocks no writer and no stream.
type Linter struct {
	cfg     Config
	cached  *lru.Cache[wire.Digest, *Facts]
	lines   *rate.Limiter // limits the log lines
	checked atomic.Int64  // number of resources that were decoded

	views map[*cache.View]*followed // owned by Run

	mu      sync.Mutex
	results []*result // guarded by mu; results of the last check of each view
}

// New returns a linter. The caller calls Run on a goroutine.
func New(cfg Config) *Linter {
	cached, err := lru.New[wire.Digest, *Facts](remembered)
	if err != nil {
		panic(err) // only for a size that is not positive
	}
	return &Linter{cfg: cfg, cached: cached, lines: rate.NewLimiter(rate.Every(time.Minute/10), 10), views: make(map[*cache.View]*followed)}
}

// Run checks the views until ctx ends.
func (l *Linter) Run(ctx context.Context) {
	pace := pacer(ctx)
	ticks := time.NewTicker(every)
	defer ticks.Stop()
	for {
		select {
		case <-ticks.C:
			l.look(pace)
		case <-ctx.Done():
			return
		}
	}
}

// look checks the views that have changed. It calls pace after each piece of work and returns early if pace reports
// false.
func (l *Linter) look(pace func() bool) {
	views := l.cfg.Views()
	changed := len(views) != len(l.views)
	for _, v := range views {
		f := l.views[v.View]
		if f == nil {
			f = l.follow(v)
			l.views[v.View], changed = f, true
		}
		if !f.due(time.Now()) {
			continue
		}
		before := f.last
		if !f.look(time.Now(), pace) {
			return
		}
		l.log(f, before)
		changed = true
	}
	if changed {
		l.forget(views)
		l.publish()
	}
}

// forget drops the state of views other than these.
func (l *Linter) forget(views []View) {
	there := make(map[*cache.View]bool)
	for _, v := range views {
		there[v.View] = true
	}
	maps.DeleteFunc(l.views, func(v *cache.View, _ *followed) bool { return !there[v] })
}

// publish makes the results available to Report.
func (l *Linter) publish() {
	var results []*result
	for _, f := range l.views {
		results = append(results, f.last)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.results = results
}

// Facts returns the facts of a resource, from a cache if possible. It may be called from any goroutine.
func (l *Linter) Facts(r *wire.Resource) *Facts {
	if facts, is := l.cached.Get(r.Digest); is {
		return facts
	}
	facts := InspectBounded(r)
	l.cached.Add(r.Digest, facts)
	l.checked.Add(1)
	return facts
}

// Clusters yields the names of the clusters that must exist for a resource to work. It excludes static clusters, and
// clusters with xdstp names, which may come from another origin. It returns nil if there are none.
func (l *Linter) Clusters(facts *Facts) iter.Seq[string] {
	needs := func(r Reference) bool {
		return r.TypeURL == wire.ClusterType && r.ByWildcard() && !l.cfg.Static.Match(r.Name)
	}
	if !slices.ContainsFunc(facts.References, needs) {
		return nil
	}
	return func(yield func(string) bool) {
		for _, r := range facts.References {
			if needs(r) && !yield(r.Name) {
				return
			}
		}
	}
}

// InspectBounded is Inspect for resources of untrusted size. It does not decode a resource of more than 1 MiB: an empty
// message of 2 bytes needs about 90 bytes of memory once it is decoded.
func InspectBounded(r *wire.Resource) *Facts {
	if r.Size() > largest && Checks(r.TypeURL) {
		return &Facts{Findings: []Finding{{Kind: Unchecked, Detail: "larger than 1 MiB"}}}
	}
	return Inspect(r.TypeURL, r.Value())
}

// log logs the findings of a view that are not in the result before, and those of it that have ended.
func (l *Linter) log(f *followed, before *result) {
	unlogged := 0
	for _, finding := range f.last.findings {
		if _, known := slices.BinarySearchFunc(before.findings, finding, Finding.Compare); known {
			continue
		}
		if !l.lines.Allow() {
			unlogged++
			continue
		}
		l.cfg.Logger.Warn("resource failed validation", slog.String("group", f.Group), slog.String("type_url", finding.TypeURL),
			slog.String("name", finding.Name), slog.String("kind", string(finding.Kind)), slog.String("detail", finding.Detail))
	}
	for _, finding := range before.findings {
		if _, remains := slices.BinarySearchFunc(f.last.findings, finding, Finding.Compare); !remains && l.lines.Allow() {
			l.cfg.Logger.Info("resource no longer fails validation", slog.String("group", f.Group),
				slog.String("type_url", finding.TypeURL), slog.String("name", finding.Name),
				slog.String("kind", string(finding.Kind)))
		}
	}
	if unlogged > 0 {
		l.cfg.Logger.Warn("more resources failed validation than are logged", slog.String("group", f.Group), slog.Int("more", unlogged))
	}
}

// A Report contains the findings of all views.
type Report struct {
	Checked  int64          // number of resources decoded since the linter was made
	Counts   []Count        // sorted by kind, then by type
	Findings []GroupFinding // sorted; at most the 200 most serious ones of each view
}

// A Count is the number of findings of a kind in the resources of a type, summed over all groups.
type Count struct {
	TypeURL string
	Kind    Kind
	Number  int
}

// A GroupFinding is a finding with the node group of its view.
type GroupFinding struct {
	Group string
	Finding
}

// Report returns the findings of the last check of each view. It may be called from any goroutine.
func (l *Linter) Report() Report {
	l.mu.Lock()
	results := l.results
	l.mu.Unlock()
	counts, findings := make(map[string]map[count]int), []GroupFinding{}
	for _, r := range results {
		of := counts[r.group]
		if of == nil {
			of = make(map[count]int)
			counts[r.group] = of
		}
		for c, n := range r.counts {
			of[c] = max(of[c], n) // the views of a group's cohorts mostly have the same findings; do not add them up
		}
		for _, finding := range r.findings {
			findings = append(findings, GroupFinding{r.group, finding})
		}
	}
	slices.SortFunc(findings, GroupFinding.compare)
	return Report{Checked: l.checked.Load(), Counts: total(counts), Findings: slices.Compact(findings)}
}

// compare orders findings as Finding.Compare does, then by group.
func (f GroupFinding) compare(o GroupFinding) int {
	return cmp.Or(f.Compare(o.Finding), cmp.Compare(f.Group, o.Group))
}

// total returns the sums of the counts over all groups, sorted by kind, then by type.
func total(groups map[string]map[count]int) (all []Count) {
	sums := make(map[count]int)
	for _, of := range groups {
		for c, n := range of {
			sums[c] += n
		}
	}
	for c, n := range sums {
		all = append(all, Count{c.typeURL, c.kind, n})
	}
	slices.SortFunc(all, func(a, b Count) int {
		return cmp.Or(slices.Index(Kinds, a.Kind)-slices.Index(Kinds, b.Kind), cmp.Compare(a.TypeURL, b.TypeURL))
	})
	return all
}

// pacer returns a function to call after each piece of work. It sleeps until the next tick once the time for work is
// used up, and reports false if ctx has ended.
func pacer(ctx context.Context) func() bool {
	began := time.Now()
	return func() bool {
		now := time.Now()
		switch worked := now.Sub(began); {
		case worked >= tick: // the caller has slept or was not scheduled since; a new tick begins
			began = now
			return ctx.Err() == nil
		case worked < work:
			return true
		}
		defer func() { began = time.Now() }()
		return sleep(ctx, tick-work)
	}
}

// sleep waits for a duration. It returns early, and reports false, if ctx ends.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

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
	// every is how often a linter looks for changes. A look at a view that has not changed is a comparison of pointers.
	every = time.Second

	// Of each tick, a linter works for work: it takes at most a twentieth of one core, however much there is to check.
	tick = 100 * time.Millisecond
	work = 5 * time.Millisecond

	// largest is the size of a resource up to which it is checked, as to decode it takes a multiple of its size.
	largest = 1 << 20

	// remembered is of how many different resources the facts are remembered: node groups mostly have the same ones.
	remembered = 1 << 14
)

// Config says what a Linter checks. Views and Logger are required.
type Config struct {
	// Views returns the views to check. Several of one group are those of its cohorts.
	Views func() []View

	// Static matches the clusters that clients have by themselves, from their bootstrap.
	Static Patterns

	// Logger receives new findings, a bounded number of lines.
	Logger *slog.Logger
}

// A Linter checks all views of a relay, again and again, on one goroutine and at a bounded rate. It reads the immutable
// generations of the views, as streams do: nothing waits for it, and it wakes nobody.
type Linter struct {
	cfg     Config
	cached  *lru.Cache[wire.Digest, *Facts]
	lines   *rate.Limiter // of the log
	checked atomic.Int64

	views map[*cache.View]*followed // owned by Run

	mu      sync.Mutex
	results []*result // guarded by mu
}

// New returns a linter, which works once Run is called.
func New(cfg Config) *Linter {
	cached, err := lru.New[wire.Digest, *Facts](remembered)
	if err != nil {
		panic(err) // only for a size that is not positive
	}
	return &Linter{cfg: cfg, cached: cached, lines: rate.NewLimiter(rate.Every(time.Minute/10), 10), views: make(map[*cache.View]*followed)}
}

// Run checks until ctx ends.
func (l *Linter) Run(ctx context.Context) {
	pace := pacer(ctx)
	for sleep(ctx, every) {
		l.look(pace)
	}
}

// look checks the views that have changed.
func (l *Linter) look(pace func() bool) {
	there := make(map[*cache.View]bool)
	for _, v := range l.cfg.Views() {
		there[v.View] = true
		f := l.views[v.View]
		if f == nil {
			f = l.follow(v)
			l.views[v.View] = f
		}
		if !f.due(time.Now()) {
			continue
		}
		before := f.last
		if !f.look(time.Now(), pace) {
			return
		}
		l.log(f, before)
	}
	maps.DeleteFunc(l.views, func(v *cache.View, _ *followed) bool { return !there[v] })
	l.publish()
}

// publish lets others see the results.
func (l *Linter) publish() {
	var results []*result
	for _, f := range l.views {
		results = append(results, f.last)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.results = results
}

// Facts returns the facts of a resource. It may be called from any goroutine.
func (l *Linter) Facts(r *wire.Resource) *Facts {
	if facts, is := l.cached.Get(r.Digest); is {
		return facts
	}
	facts := InspectBounded(r)
	l.cached.Add(r.Digest, facts)
	l.checked.Add(1)
	return facts
}

// Clusters yields the clusters that have to exist for a resource to work: not those that clients have by themselves, nor
// those whose name is a URL, which may be of any origin. It returns nil if there are none.
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

// InspectBounded is Inspect for a resource of any origin: one that is larger than 1 MiB is not decoded, since an empty
// message of 2 bytes takes about 90 bytes when it is decoded.
func InspectBounded(r *wire.Resource) *Facts {
	if r.Size() > largest && Checks(r.TypeURL) {
		return &Facts{Findings: []Finding{{Kind: Unchecked, Detail: "larger than 1 MiB"}}}
	}
	return Inspect(r.TypeURL, r.Value())
}

// log logs the findings of a view that are new.
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
	if unlogged > 0 {
		l.cfg.Logger.Warn("more resources failed validation than are logged", slog.String("group", f.Group), slog.Int("more", unlogged))
	}
}

// A Report is what is wrong with the resources of all views.
type Report struct {
	Checked  int64 // different resources that were decoded, since the linter began
	Counts   []Count
	Findings []GroupFinding // at most 200 of each group: the most serious ones
}

// A Count is how many findings of a kind there are in the resources of a type, over all groups.
type Count struct {
	TypeURL string
	Kind    Kind
	Number  int
}

// A GroupFinding is a finding in the view of a node group.
type GroupFinding struct {
	Group string
	Finding
}

// Report returns the findings of the last look at each view.
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
			of[c] = max(of[c], n) // cohorts mostly have the same findings
		}
		for _, finding := range r.findings {
			findings = append(findings, GroupFinding{r.group, finding})
		}
	}
	slices.SortFunc(findings, GroupFinding.compare)
	return Report{Checked: l.checked.Load(), Counts: total(counts), Findings: slices.Compact(findings)}
}

// Add adds findings that were found elsewhere.
func (r *Report) Add(more ...GroupFinding) {
	for _, f := range more {
		is := func(c Count) bool { return c.TypeURL == f.TypeURL && c.Kind == f.Kind }
		i := slices.IndexFunc(r.Counts, is)
		if i < 0 {
			i = len(r.Counts)
			r.Counts = append(r.Counts, Count{TypeURL: f.TypeURL, Kind: f.Kind})
		}
		r.Counts[i].Number++
	}
	r.Findings = append(r.Findings, more...)
	slices.SortFunc(r.Findings, GroupFinding.compare)
}

func (f GroupFinding) compare(o GroupFinding) int {
	return cmp.Or(f.Compare(o.Finding), cmp.Compare(f.Group, o.Group))
}

// total sums counts over groups, in order.
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

// pacer returns a function to call after each piece of work: it waits once the share of a tick has been worked, and
// reports whether ctx still lives.
func pacer(ctx context.Context) func() bool {
	began := time.Now()
	return func() bool {
		now := time.Now()
		switch worked := now.Sub(began); {
		case worked >= tick: // it has slept since
			began = now
			return ctx.Err() == nil
		case worked < work:
			return true
		}
		defer func() { began = time.Now() }()
		return sleep(ctx, tick-work)
	}
}

// sleep waits, and reports whether ctx still lives then.
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

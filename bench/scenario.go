package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/xdstender/tender/bench/serve"
)

// A scenario is a list of rows that run one after the other in each round, and the
// targets that compare them.
type scenario struct {
	id, title string
	rounds    int // default number of runs of each row
	rows      []row
	checks    []check
	conclude  func(result) string // further text for the report; may be nil
}

// A row is one server in one setup, and the measurement that runs on it.
type row struct {
	label string
	kind  string // of server; the suffix + selects Tender's gRPC options
	once  bool   // run in the first round only
	free  bool   // measure a build of Tender without accounting of client traffic, see buildUnbounded
	setup setup
	act   func(*stage, *figures) error
}

// A check is a target: the maximum for a figure of row a. The maximum is a multiple of
// the figure of row b, or a difference from it, or an absolute value if b is empty.
type check struct {
	what   string
	figure func(figures) float64
	a, b   string
	most   float64
	more   bool // compare the difference of a and b, not the ratio

	reported bool // report the figure only; most is ignored
}

// Accessors for the figures that checks compare.
func cpu(f figures) float64      { return f.cpu }
func p99(f figures) float64      { return f.p99 }
func longest(f figures) float64  { return f.max }
func p50(f figures) float64      { return f.p50 }
func synced(f figures) float64   { return f.sync }
func syncCPU(f figures) float64  { return f.syncCPU }
func resident(f figures) float64 { return f.resident }
func peak(f figures) float64     { return f.peak }
func again(f figures) float64    { return f.again }
func heap(f figures) float64     { return f.heap }
func idle(f figures) float64     { return f.idle }
func looked(f figures) float64   { return f.turns }
func grown(f figures) float64    { return f.grown }
func held(f figures) float64     { return f.held }
func reached(f figures) float64  { return f.reached }
func cores(f figures) float64    { return f.cores }
func joined(f figures) float64   { return f.joined }
func volume(f figures) float64   { return f.bytes }
func rate(f figures) float64     { return f.rate }
func byCPU(f figures) float64    { return f.byCPU }
func kept(f figures) float64     { return f.kept }

// changing returns an act that connects all clients, makes the changes c and measures their delivery.
func changing(c serve.Changes) func(*stage, *figures) error {
	return func(st *stage, f *figures) error {
		if err := st.fill(f); err != nil {
			return err
		}
		return st.warmAndFollow(f, c)
	}
}

// warmAndFollow makes up to four unmeasured changes, then makes the changes c and measures them.
func (st *stage) warmAndFollow(f *figures, c serve.Changes) error {
	warm := c
	warm.Count, warm.First = min(4, c.Count), c.First+c.Count
	if _, err := st.change(warm); err != nil {
		return err
	}
	if err := st.inSync(); err != nil {
		return err
	}
	return st.follow(f, c)
}

// scaled returns n times the scale, but at least 4, or n if n is smaller.
func (o options) scaled(n int) int { return max(int(float64(n)*o.scale), min(n, 4)) }

// scenarios returns all scenarios, in the order in which they run.
func scenarios(o options) []scenario {
	return []scenario{
		o.idle(), o.wildcard(), o.bounds(), o.manyClusters(), o.sotw(), o.sets(), o.cold(), o.envoys(), o.sparse(), o.names(), o.byName(),
		o.bulk(), o.demand(), o.single(), o.storm(), o.stalled(),
		o.tree(), o.atScale(), o.observer(), o.secured(), o.traces(), o.compressed(), o.rollouts(), o.hostile(), o.fleet(), o.returned(), o.model(),
	}
}

// A result holds the figures of a scenario: one entry per round, by row label.
type result struct {
	scenario scenario
	rounds   int
	figures  map[string][]figures
}

// run runs a scenario. Odd rounds run the rows in reverse order, so that the state of
// the machine (warm caches, load) does not always favour the same row.
func (s scenario) run(o options, progress io.Writer) (result, error) {
	rounds := s.rounds
	if o.rounds > 0 {
		rounds = o.rounds
	}
	r := result{scenario: s, rounds: rounds, figures: map[string][]figures{}}
	for round := range rounds {
		for i := range s.rows {
			if round%2 == 1 {
				i = len(s.rows) - 1 - i
			}
			row := s.rows[i]
			if row.once && round > 0 {
				continue
			}
			start := time.Now()
			f, err := row.run(o)
			if err != nil {
				return r, fmt.Errorf("%s, %s: %w", s.id, row.label, err)
			}
			r.figures[row.label] = append(r.figures[row.label], f)
			_, _ = fmt.Fprintf(progress, "%s round %d %s (%.1fs): %+v\n", s.id, round+1, row.label, time.Since(start).Seconds(), f)
		}
	}
	return r, nil
}

// run starts the servers of a row, measures once, and stops the servers.
func (r row) run(o options) (f figures, err error) {
	if o.gogc != "" {
		r.setup.environ = append([]string{"GOGC=" + o.gogc}, r.setup.environ...) // if both set GOGC, the later entry applies
	}
	if r.free {
		dir, err := os.MkdirTemp("", "tender-unbounded-")
		if err != nil {
			return f, err
		}
		defer func() { _ = os.RemoveAll(dir) }()
		if o.tender, err = buildUnbounded("..", dir); err != nil {
			return f, err
		}
	}
	st, err := raise(r.kind, o.tender, r.setup)
	if err != nil {
		return f, err
	}
	defer st.strike()
	if err := r.act(st, &f); err != nil {
		return f, fmt.Errorf("%w%s", err, st.said())
	}
	return f, st.total(&f)
}

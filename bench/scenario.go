package main

import (
	"fmt"
	"io"
	"time"

	"github.com/xdstender/tender/bench/content"
	"github.com/xdstender/tender/bench/load"
	"github.com/xdstender/tender/bench/serve"
)

// A scenario is some rows that are run one after the other in each round, and the
// targets that compare them.
type scenario struct {
	id, title string
	rounds    int
	rows      []row
	checks    []check
}

// A row is a server in a setup, and what is done with it.
type row struct {
	label string
	kind  string // of server; with a + with Tender's gRPC options
	once  bool   // run in the first round only: a peer, which is no part of a target
	setup setup
	act   func(*stage, *figures) error
}

// A check is a target: what a figure of row a may be at most, as a multiple of
// that of row b, or by itself where b is empty.
type check struct {
	what   string
	figure func(figures) float64
	a, b   string
	most   float64
}

// The figures that targets are about.
func cpu(f figures) float64      { return f.cpu }
func p99(f figures) float64      { return f.p99 }
func p50(f figures) float64      { return f.p50 }
func synced(f figures) float64   { return f.sync }
func syncCPU(f figures) float64  { return f.syncCPU }
func resident(f figures) float64 { return f.resident }
func peak(f figures) float64     { return f.peak }
func again(f figures) float64    { return f.again }
func heap(f figures) float64     { return f.heap }

// changing returns an act: connect, change, measure.
func changing(c serve.Changes) func(*stage, *figures) error {
	return func(st *stage, f *figures) error {
		if err := st.fill(f); err != nil {
			return err
		}
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
}

// clusters is count clusters of 1 KiB for wildcard clients.
func clusters(count, clients int) setup {
	return setup{
		kinds:     []content.Kind{{TypeURL: content.Cluster, Count: count, Bytes: 1024}},
		interests: []load.Interest{{TypeURL: content.Cluster, Wildcard: true, Of: count}},
		clients:   clients,
		workers:   2,
	}
}

// scaled returns n times the scale, at least a few.
func (o options) scaled(n int) int { return max(int(float64(n)*o.scale), min(n, 4)) }

// scenarios returns all scenarios.
func scenarios(o options) []scenario {
	return []scenario{
		o.wildcard(), o.manyClusters(),
	}
}

// wildcard is S1.
func (o options) wildcard() scenario {
	s := clusters(100, o.scaled(1000))
	act := changing(o.s1Changes())
	return scenario{
		id: "S1", title: "delta wildcard CDS, 100 clusters of 1 KiB, 1,000 clients, one changed every 250 ms", rounds: 3,
		rows: []row{
			{label: "raw", kind: "raw", setup: s, act: act},
			{label: "grpc", kind: "grpc", setup: s, act: act},
			{label: "tender", kind: "tender", setup: s, act: act},
			{label: "gcp-linear", kind: "gcp-linear", once: true, setup: s, act: act},
			{label: "gcp-linear+", kind: "gcp-linear+", once: true, setup: s, act: act},
			{label: "gcp-snapshot", kind: "gcp-snapshot", once: true, setup: s, act: act},
			{label: "gcp-snapshot+", kind: "gcp-snapshot+", once: true, setup: s, act: act},
		},
		checks: []check{
			{"CPU a delivery", cpu, "tender", "grpc", 1.15},
			{"CPU a delivery", cpu, "tender", "raw", 2.1},
			{"p99 delay", p99, "tender", "grpc", 1.3},
		},
	}
}

func (o options) s1Changes() serve.Changes {
	return serve.Changes{TypeURL: content.Cluster, Count: o.scaled(20), Every: 250 * time.Millisecond}
}

// manyClusters is S2.
func (o options) manyClusters() scenario {
	act := changing(o.s1Changes())
	clients := o.scaled(1000)
	return scenario{
		id: "S2", title: "as S1, with 2,000 and with 10,000 clusters", rounds: 2,
		rows: []row{
			{label: "tender, 100", kind: "tender", setup: clusters(100, clients), act: act},
			{label: "tender, 2,000", kind: "tender", setup: clusters(2000, clients), act: act},
			{label: "tender, 10,000", kind: "tender", setup: clusters(10_000, clients), act: act},
		},
		checks: []check{
			{"CPU a delivery", cpu, "tender, 2,000", "tender, 100", 1.1},
			{"CPU a delivery", cpu, "tender, 10,000", "tender, 100", 1.1},
		},
	}
}

// A result is what the rounds of a scenario showed, by label.
type result struct {
	scenario scenario
	rounds   int
	figures  map[string][]figures
}

// run runs a scenario. Odd rounds go through the rows backwards: whoever comes
// later does not always have the warmer, or the busier, machine.
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

// run runs a row once.
func (r row) run(o options) (f figures, err error) {
	st, err := raise(r.kind, o.tender, r.setup)
	if err != nil {
		return f, err
	}
	defer st.strike()
	if err := r.act(st, &f); err != nil {
		return f, fmt.Errorf("%w%s", err, st.said())
	}
	return f, nil
}

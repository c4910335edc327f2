package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestMedian(t *testing.T) {
	for _, tt := range []struct {
		values []float64
		want   float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{9, 1, 2}, 2}, {[]float64{4, 1, 2, 100}, 3}} {
		if got := median(tt.values); got != tt.want {
			t.Errorf("median(%v) = %v, want %v", tt.values, got, tt.want)
		}
	}
}

// TestMedianOfRatios includes a round in which both measurements were slow.
func TestMedianOfRatios(t *testing.T) {
	if got, ok := medianOfRatios([]float64{11, 120, 13}, []float64{10, 100, 10}); got != 1.2 || !ok {
		t.Errorf("median of 1.1, 1.2, 1.3 = %v, %v, want 1.2", got, ok)
	}
	for _, b := range [][]float64{nil, {1}, {1, 0, 1}} {
		if got, ok := medianOfRatios([]float64{1, 1, 1}, b); ok {
			t.Errorf("ratios to %v = %v, want none", b, got)
		}
	}
}

func TestPercentile(t *testing.T) {
	var delays []time.Duration
	if got := percentile(delays, 50); got != 0 {
		t.Errorf("percentile of no delays = %v, want 0", got)
	}
	for i := range 200 {
		delays = append(delays, time.Duration(i+1))
	}
	for p, want := range map[int]time.Duration{0: 1, 50: 100, 99: 198, 100: 200} {
		if got := percentile(delays, p); got != want {
			t.Errorf("percentile %d = %v, want %v", p, got, want)
		}
	}
}

func TestReport(t *testing.T) {
	s := scenario{
		id: "S0", title: "a test", rows: []row{{label: "a"}, {label: "b"}},
		checks: []check{
			{what: "CPU", figure: cpu, a: "a", b: "b", most: 1.5},
			{what: "p99", figure: p99, a: "a", most: 2},
			{what: "p50", figure: p50, a: "a", b: "b", most: 0.5, more: true},
			{what: "heap", figure: heap, a: "c", most: 1},
			{what: "resent", figure: again, a: "a", most: 0},
			{what: "delay", figure: p50, a: "a", b: "b", reported: true},
		},
	}
	r := result{scenario: s, figures: map[string][]figures{
		"a": {{cpu: 3, p99: 3, p50: 2}, {cpu: 3, p99: 3, p50: 2}},
		"b": {{cpu: 3, p50: 1.6}, {cpu: 2, p50: 1.6}},
	}}
	p := newReport(options{scale: 1, commit: "abc"}.head(time.Unix(0, 0)))
	p.add(r)
	report := p.text([]scenario{s})
	for _, want := range []string{
		"# Tender abc, 1970-01-01 00:00 UTC\n",
		"| S0 | CPU | a | 3.00 | b | 1.25 | 1.50 | held |\n",
		"| S0 | p99 | a | 3.00 | – | – | 2.00 | **missed** |\n",
		"| S0 | p50 | a | 2.00 | b | + 0.40 | 0.50 | held |\n",
		"| S0 | heap | c | not measured | | | 1.00 | ? |\n",
		"| S0 | resent | a | 0 | – | – | 0 | held |\n",
		"| S0 | delay | a | 2.00 | b | 1.25 | – | reported |\n",
		"| a | 2 | 3.00 | 2.00 | 3.00 |\n| b | 2 | 2.50 | 1.60 | – |\n",
	} {
		if !strings.Contains(report, want) {
			t.Errorf("report lacks %q:\n%s", want, report)
		}
	}
}

// TestReportGrows: a commit has one file of results. A run adds its scenarios, or replaces those that it measures again, also if
// it was on a later day.
func TestReportGrows(t *testing.T) {
	fixed := func(id, label string, cost float64) (scenario, result) {
		s := scenario{id: id, title: "a test", rows: []row{{label: label}}, checks: []check{{what: "CPU", figure: cpu, a: label, most: 1}}}
		return s, result{scenario: s, figures: map[string][]figures{label: {{cpu: cost}}}}
	}
	first, is := fixed("S1", "a", 1)
	second, other := fixed("S2", "b", 2)
	second.conclude = func(result) string { return "\n### Concluded\n\nFrom it.\n" }
	other.scenario = second
	_, changed := fixed("S1", "a", 3)
	all := []scenario{first, second}
	o := options{scale: 1, commit: "abc", results: t.TempDir()}
	for i, r := range []result{other, is, changed} {
		file, p, err := o.reopen(time.Unix(int64(i)*100_000, 0))
		if err != nil {
			t.Fatal(err)
		}
		p.add(r)
		if err := p.write(file, all); err != nil {
			t.Fatal(err)
		}
	}
	want := newReport(o.head(time.Unix(0, 0)))
	want.add(changed)
	want.add(other)
	text, err := os.ReadFile(filepath.Join(o.results, "1970-01-01-abc.md"))
	if err != nil || string(text) != want.text(all) {
		t.Errorf("the file has %v\n%s\nwant\n%s", err, text, want.text(all))
	}
	elsewhere := strings.Replace(string(text), " × ", " × another ", 1)
	if err := os.WriteFile(filepath.Join(o.results, "1970-01-01-abc.md"), []byte(elsewhere), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := o.reopen(time.Unix(0, 0)); err == nil || !strings.Contains(err.Error(), "was measured elsewhere") {
		t.Errorf("results of another machine: %v", err)
	}
}

func TestCollectionTrace(t *testing.T) {
	const trace = `gc 12 @0.512s 3%: 0.014+1.2+0.003 ms clock, 0.02+0.3/1.1/0+0.006 ms cpu, 40->44->37 MB, 45 MB goal, 1 MB stacks, 0 MB globals, 2 P
{"level":"WARN"}
gc 13 @0.612s 3%: 0.014+1.2+0.003 ms clock, 0.02+0.3/1.1/0+0.006 ms cpu, 40->44->35 MB, 45 MB goal, 1 MB stacks, 0 MB globals, 2 P (forced)
`
	got, err := leastAlive(collection.FindAllStringSubmatch(trace, -1))
	if err != nil || got != 35<<20 {
		t.Errorf("least alive = %v, %v, want 35 MiB", got, err)
	}
}

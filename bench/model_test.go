package main

import (
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

// TestLeastSquares fits a line to points that do not lie on it. The result by hand is 1/3 + 3/2 x.
func TestLeastSquares(t *testing.T) {
	x, err := leastSquares([][]float64{{1, 0}, {1, 1}, {1, 2}}, []float64{0, 2.5, 3})
	if err != nil || math.Abs(x[0]-1./3) > 1e-9 || math.Abs(x[1]-1.5) > 1e-9 {
		t.Errorf("got %v, %v, want 1/3 and 3/2", x, err)
	}
	for name, a := range map[string][][]float64{
		"two of one kind": {{1, 2}, {2, 4}, {3, 6}},
		"none of a kind":  {{1, 0}, {2, 0}},
		"too few":         {{1, 2}},
	} {
		if x, err := leastSquares(a, []float64{1, 2, 3}); !errors.Is(err, errDependent) {
			t.Errorf("%s: got %v, %v, want %v", name, x, err, errDependent)
		}
	}
}

// TestModelIsFound fits costs that were computed from known coefficients, without noise
// and with noise of up to 5 %.
func TestModelIsFound(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, tt := range []struct {
		terms []term
		want  []float64
	}{
		{cpuTerms, []float64{50e-6, 14e-6, 4e-6, 1e-6}},
		{memoryTerms, []float64{20, 0.03, 20e-6, 300e-6, 1. / 1024}},
	} {
		for _, noise := range []float64{0, 0.05} {
			var costs []float64
			made := fit{terms: tt.terms, coefficients: tt.want}
			for _, p := range points {
				costs = append(costs, made.at(p)*(1+noise*(2*random.Float64()-1)))
			}
			f, err := fitted(tt.terms, points, costs)
			if err != nil {
				t.Fatal(err)
			}
			for j, want := range tt.want {
				if noise == 0 && math.Abs(f.coefficients[j]/want-1) > 1e-6 {
					t.Errorf("%s: got %v, want %v", tt.terms[j].what, f.coefficients[j], want)
				}
			}
			p := point{eachRelay, 100, 0, 1024, 4}
			if got, want := f.at(p), made.at(p); math.Abs(got/want-1) > 2*noise+1e-6 || f.worst > 2*noise+1e-6 || f.mean > f.worst {
				t.Errorf("with costs off by up to %v: got %v, want %v; errors %v, at most %v", noise, got, want, f.mean, f.worst)
			}
		}
	}
}

// TestNoTermIsBelowZero checks that fitted drops a term whose coefficient would be
// negative, and fits the other terms without it.
func TestNoTermIsBelowZero(t *testing.T) {
	made := fit{terms: memoryTerms, coefficients: []float64{20, 0.03, 20e-6, -300e-6, 1. / 1024}}
	var costs []float64
	for _, p := range points {
		costs = append(costs, made.at(p))
	}
	f, err := fitted(memoryTerms, points, costs)
	if err != nil {
		t.Fatal(err)
	}
	for j, c := range f.coefficients {
		if c < 0 {
			t.Errorf("%s: coefficient %v, want none below 0", memoryTerms[j].what, c)
		}
	}
	if f.coefficients[3] != 0 || f.worst == 0 {
		t.Errorf("coefficient of a resource is %v, want 0; error of the fit is %v, want more than 0", f.coefficients[3], f.worst)
	}
}

func TestTree(t *testing.T) {
	for _, tt := range []struct {
		load   point
		relays []int
		want   point // the load of the highest relay
	}{
		{point{clients: 5000, resources: 100}, []int{1}, point{clients: 5000, resources: 100}},
		{point{clients: 10_000, resources: 100}, []int{2, 1}, point{clients: 2, resources: 100}},
		{point{clients: 10_001, resources: 10_000, names: 50}, []int{3, 1}, point{clients: 3, resources: 10_000, names: 10_000}},
		{point{clients: 6000, resources: 1e6, names: 2}, []int{2, 1}, point{clients: 2, resources: 1e6, names: 6000}},
		{point{clients: 50_000_000, resources: 100}, []int{10_000, 2, 1}, point{clients: 2, resources: 100}},
	} {
		levels := tree(tt.load, 5000)
		var relays []int
		for _, l := range levels {
			relays = append(relays, l.relays)
		}
		if got := levels[len(levels)-1].load; len(relays) != len(tt.relays) || got != tt.want {
			t.Errorf("tree of %+v: %v, the highest %+v; want %v, %+v", tt.load, relays, got, tt.relays, tt.want)
			continue
		}
		for i := range relays {
			if relays[i] != tt.relays[i] {
				t.Errorf("tree of %+v: %v, want %v", tt.load, relays, tt.relays)
			}
		}
	}
}

// TestConclusion reports a model on measurements that match it, except for the CPU of the checks.
func TestConclusion(t *testing.T) {
	c, m := fit{terms: cpuTerms, coefficients: []float64{50e-6, 14e-6, 4e-6, 1e-6}}, fit{terms: memoryTerms, coefficients: []float64{20, 0.03, 20e-6, 300e-6, 1. / 1024}}
	s := options{scale: 1}.model()
	r := result{scenario: s, figures: map[string][]figures{}}
	for i, p := range points {
		r.figures[s.rows[i].label] = []figures{{cores: c.at(p), held: m.at(p)}}
	}
	check := point{eachRelay, 100, 0, 1024, 4}
	for i, levels := range [][]level{tree(check, 5000), tree(check, 2500)} {
		r.figures[s.rows[len(points)+i].label] = []figures{{cores: 2 * c.over(levels), held: m.over(levels)}}
	}
	report := s.conclude(r)
	for _, want := range []string{
		"| CPU of a delivery | 14.0 | µs |\n",
		"| RSS of a client | 30.7 | KiB |\n",
		"| CPU | 0 % | 0 % |\n",
		"| RSS | 0 % | 0 % |\n",
		"| 5000 clients, 100 resources of 1024 B, wildcard, 4/s | 0.600 | 0.300 | -50 % | 170 | 170 | 0 % |\n",
		", tree of three | 0.601 | 0.301 | -50 % | 210 | 210 | 0 % |\n",
		"| 1000000 clients, 10000 resources of 256 B, 50 names each, 100/s | 1 + 200 | ",
	} {
		if !strings.Contains(report, want) {
			t.Errorf("report lacks %q:\n%s", want, report)
		}
	}
}

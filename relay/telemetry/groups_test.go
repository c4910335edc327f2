package telemetry

import (
	"math/rand/v2"
	"testing"

	"github.com/xdstender/tender/downstream"
	"github.com/xdstender/tender/relay/admin"
)

// TestGroupLabels checks for random groups that the number of labels is limited, that a label belongs to one key, that
// a group keeps its label, and that the counters of the label other never decrease.
func TestGroupLabels(t *testing.T) {
	const maxNamed, keys, steps = 3, 8, 2_000
	type live struct {
		key, label string
		responses  int64
	}
	rng := rand.New(rand.NewPCG(1, 2))
	labels := NewGroupLabels(maxNamed)
	var groups []live
	other := func() (n int64) {
		_, ended := labels.Labels()
		n = ended.Types["t"].Responses
		for _, g := range groups {
			if g.label == Other {
				n += g.responses
			}
		}
		return n
	}
	before, crowded := int64(0), 0
	for range steps {
		switch i := rng.IntN(max(1, 2*len(groups))); {
		case len(groups) == 0 || rng.IntN(3) == 0:
			key := string(rune('a' + rng.IntN(keys)))
			groups = append(groups, live{key: key, label: labels.Begin(key)})
		case i < len(groups):
			groups[i].responses++
		default:
			i %= len(groups)
			labels.End(groups[i].label, map[string]downstream.TypeStats{"t": {Responses: groups[i].responses}})
			groups = append(groups[:i], groups[i+1:]...)
		}
		named, _ := labels.Labels()
		if len(named) > maxNamed {
			t.Fatalf("%d labels, want at maxNamed %d", len(named), maxNamed)
		}
		for _, g := range groups {
			if g.label != Other && (g.label != g.key || !named[g.key]) {
				t.Fatalf("group %s has the label %s, but %v have labels", g.key, g.label, named)
			}
			if g.label == Other {
				crowded++
			}
		}
		if n := other(); n < before {
			t.Fatalf("the counter of the label other decreased from %d to %d", before, n)
		} else {
			before = n
		}
	}
	if crowded == 0 || before == 0 {
		t.Error("no group had the label other")
	}
}

// TestGroupNamedOther checks that a node group with the key "other" shares the metrics of groups without a label of
// their own. Otherwise its end would decrease a counter.
func TestGroupNamedOther(t *testing.T) {
	if got := NewGroupLabels(5).Begin(Other); got != Other || len(NewGroupLabels(5).named) != 0 {
		t.Errorf("label %q", got)
	}
}

// TestGaugesOfOther checks that a gauge of several groups has the worst of their values.
func TestGaugesOfOther(t *testing.T) {
	r := Reading{Named: map[string]bool{"a": true}, Status: admin.Status{Views: []admin.View{
		{Group: "a", Origin: "o", Connected: true},
		{Group: "b", Origin: "o", Connected: true, StaleSeconds: 2},
		{Group: "c", Origin: "o", StaleSeconds: 3},
		{Group: "d", Origin: "o", Connected: true},
	}}}
	families := scrape(t, r)
	for name, want := range map[string]float64{
		"tender_view_connected": 0, "tender_view_stale_seconds": 3,
	} {
		metrics := families[name].GetMetric()
		if len(metrics) != 2 {
			t.Fatalf("%s has %d series, want one for a and one for other", name, len(metrics))
		}
		for _, m := range metrics {
			for _, l := range m.GetLabel() {
				if l.GetName() == "group" && l.GetValue() == Other && m.GetGauge().GetValue() != want {
					t.Errorf("%s of other is %v, want %v", name, m.GetGauge().GetValue(), want)
				}
			}
		}
	}
}

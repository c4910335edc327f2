package rollout_test

import (
	"strings"
	"testing"
	"time"

	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/rollout"
)

// TestPrometheusIsAsked asks a real Prometheus, which has no samples but those of the query itself.
func TestPrometheusIsAsked(t *testing.T) {
	check := rollout.Check{URL: envoytest.StartPrometheus(t, "{}\n")}
	for query, want := range map[string]struct {
		allowed         bool
		refuse, problem string
	}{
		"vector(1) > 2": {allowed: true},
		`label_replace(vector(7), "job", "x", "", "") > 2`: {refuse: `the query has 1 sample, the first is {"job":"x"}: 7`},
		"vector({changed}) == 1000000000":                  {refuse: "the query has 1 sample, the first is {}: 1000000000"},
		"vector(":                                          {problem: "status 400"},
		"1":                                                {problem: "not a scalar"},
	} {
		check.Query = query
		v, err := check.Ask(t.Context(), rollout.Question{Changed: time.Unix(1e9, 5e8)})
		if v.Go != want.allowed || v.Refuse != want.refuse || (err != nil) != (want.problem != "") || err != nil && !strings.Contains(err.Error(), want.problem) {
			t.Errorf("%s: %+v, %v; want %+v", query, v, err, want)
		}
	}
}

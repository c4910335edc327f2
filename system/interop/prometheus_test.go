package interop_test

import (
	"strings"
	"testing"
	"time"

	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/rollout"
)

// TestCheckQueriesPrometheus queries a real Prometheus server, which has only the samples of the query itself.
func TestCheckQueriesPrometheus(t *testing.T) {
	check := rollout.Check{URL: envoytest.StartPrometheus(t, "{}\n")}
	const one = "the query returned 1 sample, the first is "
	for query, want := range map[string]struct {
		allowed      bool
		rejectReason string
		wantErr      string
	}{
		"vector(1) > 2": {allowed: true},
		`label_replace(vector(7), "job", "x", "", "") > 2`: {rejectReason: one + `{"job":"x"}: 7`},
		"vector({changed}) == 1000000000":                  {rejectReason: one + "{}: 1000000000"},
		"vector(":                                          {wantErr: "status 400"},
		"1":                                                {wantErr: "not a scalar"},
	} {
		check.Query = query
		v, err := check.Send(t.Context(), rollout.CheckRequest{Changed: time.Unix(1e9, 5e8)})
		errOK := (err != nil) == (want.wantErr != "") && (err == nil || strings.Contains(err.Error(), want.wantErr))
		if v.Allowed != want.allowed || v.RejectReason != want.rejectReason || !errOK {
			t.Errorf("query %s: verdict %+v, error %v; want %+v", query, v, err, want)
		}
	}
}

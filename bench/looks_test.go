package main

import (
	"strings"
	"testing"
)

// TestReadLooks checks that readLooks finds both counters among other metrics, and fails if one is missing.
func TestReadLooks(t *testing.T) {
	const (
		other = "# TYPE tender_client_turns_total counter\ntender_client_streams 3\n"
		sent  = "tender_client_turns_total{otel_scope_name=\"tender\",outcome=\"sent\"} 1.98e+06\n"
		idle  = "tender_client_turns_total{otel_scope_name=\"tender\",outcome=\"idle\"} 20000\n"
	)
	got, err := readLooks(strings.NewReader(other + idle + sent))
	if err != nil || got != (looks{sent: 1.98e6, nothing: 20_000}) {
		t.Errorf("got %+v, %v", got, err)
	}
	if part := got.since(looks{sent: 980_000, nothing: 10_000}).idle(); part < 0.99 || part > 0.9902 {
		t.Errorf("%.4f %% since, want 0.9901", part)
	}
	for _, metrics := range []string{"", other + sent, sent + sent + idle, strings.Replace(sent, "1.98e+06", "many", 1)} {
		if got, err := readLooks(strings.NewReader(metrics)); err == nil {
			t.Errorf("%q: got %+v, want an error", metrics, got)
		}
	}
}

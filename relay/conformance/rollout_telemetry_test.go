package conformance_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/xdstender/tender/relay/relaytest"
)

// traced restarts the relay with recorded spans.
func (w *rolloutWorld) traced() *tracedRelay {
	w.relay.Stop()
	r := startTraced(w.t, w.origin, w.env...)
	w.relay = r.running
	return r
}

// metrics fails the test unless the relay has these rollout metrics, by name and label values.
func (w *rolloutWorld) metrics(when string, want map[string]float64) {
	w.t.Helper()
	got := metricsOf(w.t, w.relay)
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if value, ok := got[name]; !ok || value != want[name] {
			w.t.Errorf("%s: %s is %v (exported: %t), want %v", when, name, value, ok, want[name])
		}
	}
}

// messagesOf returns the types of the received responses that an edition's span links to. They must be marked as
// waiting.
func messagesOf(t testing.TB, r *tracedRelay, edition tracetest.SpanStub) (types []string) {
	t.Helper()
	for _, l := range edition.Links {
		for _, s := range r.spans.GetSpans() {
			if s.SpanContext.SpanID() != l.SpanContext.SpanID() {
				continue
			}
			if s.Name == "origin.receive" && len(s.Events) == 1 && s.Events[0].Name == "waits" {
				url := attributes(s, "type_url")
				types = append(types, url[strings.LastIndex(url, ".")+1:])
			} else if s.Name != "rollout" {
				t.Errorf("the edition links to %+v, want a waiting response", s)
			}
		}
	}
	return types
}

// B.43: a promoted and a halted edition each have metrics and a trace.
func TestB43_TelemetryOfRollouts(t *testing.T) {
	t.Parallel()
	rolloutBubble(t, func(w *rolloutWorld, v relaytest.Variant) {
		r := w.traced()
		rejects := w.client(v, "canary", w.rejecting("lds l@2"))
		w.clients(v, "second", "other")
		w.metrics("initially", map[string]float64{
			"tender_rollout_state default current": 1, "tender_rollout_stage default": 0,
			"tender_rollout_age_seconds default": 0, "tender_rollout_cold default": 1,
			"tender_rollout_clients 1 default": 1, "tender_rollout_clients 2 default": 1,
			"tender_rollout_clients rest default":    1,
			"tender_rollouts_total default promoted": 0, "tender_rollout_halted_time_seconds default": 0,
		})
		r.spans.Reset()
		w.change("cds a@2")
		w.change("eds a@2") // is not rolled out in stages
		w.sleep(time.Second)
		w.metrics("gathering", map[string]float64{
			"tender_rollout_state default gathering": 1,
			"tender_pending_changes default stage":   1, "tender_pending_changes default frozen": 0,
		})
		w.sleep(2 * time.Second)
		w.metrics("stage 1", map[string]float64{
			"tender_rollout_state default rolling": 1, "tender_rollout_stage default": 1,
			"tender_rollout_answers 1 default accepted": 1, "tender_rollout_answers 1 default rejected": 0,
			"tender_rollout_answers 1 default unanswered": 0, "tender_rollout_answers 2 default accepted": 0,
		})
		if age := metricsOf(w.t, w.relay)["tender_rollout_age_seconds default"]; age < 2.9 || age > 3 { // updated every 50 ms
			w.t.Errorf("the oldest change has waited for %v s, want 3", age)
		}
		w.sleep(20 * time.Minute)
		w.metrics("promoted", map[string]float64{
			"tender_rollout_state default current": 1, "tender_rollouts_total default promoted": 1,
			"tender_rollout_cold default":          0,
			"tender_pending_changes default stage": 0, "tender_rollout_age_seconds default": 0,
		})
		editions := r.await("rollout", 1)
		good := editions[0]
		if got := attributes(good, "origin", "resources", "messages", "stages",
			"outcome"); got != "origin=default resources=1 messages=1 stages=2 outcome=promoted" ||
			good.EndTime.Sub(good.StartTime) != 20*time.Minute || good.Status.Code == codes.Error || len(good.Events) != 2 {
			w.t.Errorf("the promoted edition has the span %+v", good)
		}
		if got := messagesOf(w.t, r, good); !slices.Equal(got, []string{"Cluster"}) {
			w.t.Errorf("the promoted edition links to responses of %q", got)
		}

		w.change("lds l@2")
		w.change("cds b@2")
		w.sleep(3 * time.Second)
		w.expectResources("lds l@1", rejects)
		w.metrics("halted", map[string]float64{
			"tender_rollout_state default halted": 1, "tender_rollouts_total default halted": 1,
			"tender_pending_changes default halted": 1, "tender_pending_changes default stage": 1,
		})
		if at := metricsOf(w.t,
			w.relay)["tender_rollout_halted_time_seconds default"]; time.Since(time.Unix(int64(at), 0)) > 3*time.Second {
			w.t.Errorf("the rollout was halted at %v, want the current time %d", at, time.Now().Unix())
		}
		bad := r.await("rollout", 2)[1]
		if got := attributes(bad, "resources", "messages", "stages",
			"outcome"); got != "resources=1 messages=2 stages=1 outcome=halted" ||
			bad.Status.Code != codes.Error || !strings.Contains(bad.Status.Description, "l is not valid") ||
			bad.Events[len(bad.Events)-1].Name != "halt" {
			w.t.Errorf("the halted edition has the span %+v", bad)
		}
		if got := messagesOf(w.t, r, bad); !slices.Equal(got, []string{"Listener", "Cluster"}) {
			w.t.Errorf("the halted edition links to responses of %q", got)
		}
	})
}

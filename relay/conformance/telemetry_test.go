package conformance_test

import (
	"maps"
	"strings"
	"testing"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/instance"
)

// metricsOf returns the relay's metrics, by name and label values in the order of the label names. For a histogram
// the value is its count.
func metricsOf(t testing.TB, r *running) map[string]float64 {
	t.Helper()
	code, text := httpGet(t, r.DialAdmin, "/metrics")
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if code != 200 || err != nil {
		t.Fatalf("/metrics: %d, %v\n%s", code, err, text)
	}
	values := make(map[string]float64)
	for name, family := range families {
		for _, m := range family.GetMetric() {
			key := []string{name}
			for _, label := range m.GetLabel() {
				key = append(key, label.GetValue())
			}
			values[strings.Join(key, " ")] = m.GetCounter().GetValue() + m.GetGauge().GetValue() +
				float64(m.GetHistogram().GetSampleCount())
		}
	}
	return values
}

// awaitMetrics waits until the metrics have at least these values.
func awaitMetrics(t testing.TB, r *running, want map[string]float64) map[string]float64 {
	t.Helper()
	deadline := time.Now().Add(relaytest.Patience)
	for {
		got := metricsOf(t, r)
		missing := maps.Clone(want)
		maps.DeleteFunc(missing, func(name string, least float64) bool { return got[name] >= least })
		if len(missing) == 0 {
			return got
		}
		if time.Now().After(deadline) {
			for name := range missing {
				t.Errorf("%s = %v, want at least %v", name, got[name], want[name])
			}
			t.FailNow()
		}
		time.Sleep(5 * time.Millisecond) // polls
	}
}

// B.43: metrics count deliveries, ACKs, NACKs, the origin's refused responses, its outages and restarts, and the
// duration of the outages.
func TestB43_C20_Metrics(t *testing.T) {
	o := relaytest.NewOrigin(t, relaytest.OriginOptions{})
	o.Put(relaytest.Cluster("a"))
	r := start(t, o, operated, "TENDER_NODE_GROUP_BY=none")
	c := r.Client(relaytest.ClientOptions{AutoAck: true})
	c.Subscribe(relaytest.ClusterType)
	c.WaitState(t.Context(), func(s relaytest.State) bool { return s.Has(relaytest.ClusterType, "a") })
	rejects := r.Client(relaytest.ClientOptions{})
	rejects.Subscribe(relaytest.ClusterType, "a", "b")
	rejects.Nack(rejects.Recv(t.Context()), "no")
	got := awaitMetrics(t, r, map[string]float64{
		"tender_ready": 1, "tender_build_info test": 1,
		"tender_client_streams": 2, "tender_client_streams_accepted_total": 2, "tender_client_group_streams all": 2,
		"tender_client_responses_total all cds": 2, "tender_client_sent_bytes_total all cds": 20,
		"tender_client_acks_total all cds": 1, "tender_client_nacks_total all cds": 1, "tender_client_turns_total sent": 2,
		"tender_client_subscriptions all wildcard cds": 1, "tender_client_subscriptions all name cds": 2,
		"tender_view_resources all default cds": 1, "tender_view_size_bytes all default cds": 10,
		"tender_view_connected all default": 1,
		"tender_origin_connected default":   1, "tender_origin_connections_total default": 1,
		"tender_origin_streams_total default":       1,
		"tender_origin_responses_total default cds": 1,
	})
	for _, name := range []string{"tender_view_stale_seconds all default",
		"tender_origin_connections_lost_total default"} {
		if value, ok := got[name]; !ok || value != 0 {
			t.Errorf("%s = %v (present: %t), want 0", name, value, ok)
		}
	}
	o.Put(relaytest.Cluster("a", "other"))
	rejects.Nack(rejects.Recv(t.Context()), "no")
	awaitMetrics(t, r, map[string]float64{
		"tender_client_propagation_seconds all cds": 1, "tender_client_fanout_seconds all cds": 1,
		"tender_client_nacks_total all cds": 2,
	})
	rejects.Close()
	awaitMetrics(t, r, map[string]float64{"tender_client_streams_ended_total client": 1})
	o.Stop()
	awaitMetrics(t, r, map[string]float64{
		"tender_view_stale_seconds all default": 0.01, "tender_origin_connections_lost_total default": 1, "tender_ready": 1,
		"tender_origin_streams_ended_total default UNAVAILABLE": 1,
	})
	o.Restart()
	got = awaitMetrics(t, r,
		map[string]float64{"tender_origin_connections_total default": 2, "tender_view_connected all default": 1})
	if stale := got["tender_view_stale_seconds all default"]; stale != 0 {
		t.Errorf("after the origin restarted, tender_view_stale_seconds = %v, want 0", stale)
	}
}

// B.43: metrics count changes of the origin's address, and responses that the relay NACKs.
func TestB43_MetricsOfABadOrigin(t *testing.T) {
	first, dead, bad := relaytest.NewOrigin(t, relaytest.OriginOptions{}),
		relaytest.NewOrigin(t, relaytest.OriginOptions{}), relaytest.NewOrigin(t, relaytest.OriginOptions{})
	bad.Put(relaytest.Cluster("a"))
	dead.Stop()
	r := startRelay(t, instance.Options{Origins: []*relaytest.Origin{first},
		Named: map[string][]*relaytest.Origin{"west": {dead, bad}}},
		operated, "TENDER_ROUTES=type:cds=west", "TENDER_NODE_GROUP_BY=none")
	c := r.Client(relaytest.ClientOptions{AutoAck: true})
	c.Subscribe(relaytest.ClusterType)
	c.WaitState(t.Context(), func(s relaytest.State) bool { return s.Has(relaytest.ClusterType, "a") })
	bad.Inject(&discoverypb.DeltaDiscoveryResponse{TypeUrl: relaytest.ClusterType, RemovedResources: []string{"b"},
		Resources: []*discoverypb.Resource{{Name: "b"}, {Name: "b"}}})
	got := awaitMetrics(t, r, map[string]float64{
		"tender_origin_failovers_total west": 1, "tender_origin_responses_total west cds": 1,
		"tender_origin_nacks_total west cds": 1,
		"tender_view_resources all west cds": 1, "tender_origin_connected west": 1,
	})
	if n, ok := got["tender_origin_failovers_total default"]; n != 0 || !ok {
		t.Errorf("got %v failovers of an origin with one address", n)
	}
}

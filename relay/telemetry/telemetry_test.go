package telemetry

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.uber.org/goleak"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/downstream"
	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/rollout"
	"github.com/xdstender/tender/relay/snapshot"
	"github.com/xdstender/tender/upstream"
)

var update = flag.Bool("update", false, "write the table of metrics into deploy/docs/metrics.md")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	clusters  = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	endpoints = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
)

// full returns a reading whose numbers are distinct and not zero.
func full() Reading {
	origin := admin.Origin{
		Name: "default", Connected: true, Frozen: true, Directory: &admin.Directory{FileCount: 127, BadCount: 64},
		FailedAddresses: make([]admin.FailedAddress, 3), Pending: map[string]int{"large-removal": 13, "stage": 50},
	}
	return Reading{
		Memory: 0.5, Generations: 7, GenerationBytes: 70, AuditPasses: 5, AuditFaults: map[AuditFault]int64{
			{"user_agent_name=envoy", "members"}: 6, {"all", "interest"}: 46,
		},
		Server: downstream.Stats{
			Connections: 47, Unread: 48, Streams: 2, Accepted: 3, Turns: 10, IdleTurns: 4, Waiting: 42, Coalesced: 32,
			Throttled: 33, Saved: 74,
			Ended: map[guard.Ending]int64{guard.EndedStalled: 34, guard.EndedDrained: 35},
			Refused: map[guard.Cause]int64{
				guard.LimitNames: 36, guard.DeniedSecret: 47, guard.InvalidText: 71, guard.HandshakeUnknownCA: 72,
				guard.AcceptFiles: 73,
			},
		},
		Snapshots: snapshot.Stats{
			Fault: "read-only", Written: 37, Failures: 38, Restored: 39, Refused: map[snapshot.Reason]int64{"foreign": 40},
		},
		Origins: []Origin{{Status: origin, Names: 47, Stats: upstream.Stats{
			Connected: 7, Lost: 8, Failovers: 9, Streams: 10, Held: 11, Applied: 12, Isolated: 51, Dropped: 43, Audits: 44,
			Drifted: 45,
			Ended:   map[string]int64{upstream.EndResync: 14, "UNAVAILABLE": 15},
			Types:   map[string]upstream.TypeStats{clusters: {Responses: 16, Refused: 17}, "": {Responses: 18, Refused: 19}},
		}}},
		Groups: []Group{{
			Key: "user_agent_name=envoy", Streams: 20,
			Types: map[string]downstream.TypeStats{
				clusters: {Responses: 21, Bytes: 22, Acks: 23, Nacks: 24, Propagation: distributionOf(1, 2, 15), GivenUp: 48,
					Unfollowed: 49}, endpoints: {Responses: 25},
			},
			Interest: map[string]cache.InterestStats{clusters: {Wildcards: 26, Names: 27}},
		}},
		Clients: []admin.TypeTotals{
			{Group: "user_agent_name=envoy", TypeURL: clusters, Lagging: 60, Rejecting: 61, LagSeconds: 62},
			{Group: "user_agent_name=envoy", TypeURL: "example.com/a.B", Lagging: 1, LagSeconds: 1},
			{Group: "user_agent_name=envoy", TypeURL: "example.com/a.C", Lagging: 2, LagSeconds: 2},
		},
		Status: admin.Status{
			Log: &admin.Log{Dropped: map[string]int64{"debug": 66, "audit": 67}, StalledSeconds: 68},
			Validation: &admin.Validation{
				Checked: 64, Counts: []admin.FindingCount{{Kind: "invalid", TypeURL: clusters, Count: 65}},
			},
			Relay:   admin.Relay{Version: "v1", Ready: true},
			Origins: []admin.Origin{origin},
			Files: []admin.Files{
				{Files: []admin.File{{Variable: "TENDER_TLS_CERT"}}, NotAfter: time.Unix(48, 0), Refused: 49},
			},
			Views: []admin.View{
				{Group: "user_agent_name=envoy", Origin: "default", Connected: true, Types: []admin.Type{
					{TypeURL: clusters, Entries: 28, Bytes: 29}, {TypeURL: "example.com/a.B", Entries: 30, Bytes: 31},
					{TypeURL: "example.com/a.C", Entries: 1, Bytes: 1},
				}},
				{Group: "all", Origin: "default", Shared: true, StaleSeconds: 90, FrozenAt: at},
				{Group: "other", Origin: "default"},
			},
		},
		At: at.Add(1000 * time.Second),
		Rollouts: []*rollout.Status{{
			Origin: "default", Phase: rollout.Rolling, Stage: 2, Oldest: at.Add(949 * time.Second),
			Failing: at.Add(948 * time.Second),
			Await:   rollout.AwaitCheck, Halted: &rollout.Halt{At: at}, Unobserved: true, Cold: true,
			Cohorts: []rollout.Cohort{
				{Name: "5% 10m", Clients: 53, Subscribed: 57, Accepted: 19, Rejected: 18}, {Name: "25% approve", Clients: 54},
				{Name: "the rest", Clients: 55},
			},
			Outcomes: rollout.Outcomes{Promoted: 56, Halted: 57, Reverted: 58, Superseded: 59, Undone: 63},
		}},
	}
}

// at is the time of a reading.
var at = time.Unix(1e9, 1)

// scrape returns the metrics that Prometheus would scrape, by name.
func scrape(t *testing.T, r Reading) map[string]*dto.MetricFamily {
	t.Helper()
	m, err := New(t.Context(), Config{Read: func() Reading { return r }, Version: "v1", Instance: "i"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = m.Shutdown(context.Background()) }()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(w.Body)
	if err != nil || w.Code != http.StatusOK {
		t.Fatalf("/metrics: %d, %v\n%s", w.Code, err, w.Body)
	}
	return families
}

// TestEveryMetricIsExported checks that /metrics has each row of the table with its name, labels and kind, and no other
// metric of Tender.
func TestEveryMetricIsExported(t *testing.T) {
	families := scrape(t, full())
	kinds := map[kind]dto.MetricType{
		counter: dto.MetricType_COUNTER, sum: dto.MetricType_GAUGE, gauge: dto.MetricType_GAUGE,
		histogram: dto.MetricType_HISTOGRAM,
	}
	for _, row := range rows() {
		family := families[row.prometheus()]
		if family == nil {
			t.Errorf("%s is not exported as %s", row.name, row.prometheus())
			continue
		}
		delete(families, row.prometheus())
		if family.GetType() != kinds[row.kind] || family.GetHelp() != row.help {
			t.Errorf("%s: %s with the help %q, want %s with %q", row.prometheus(), family.GetType(), family.GetHelp(), row.kind,
				row.help)
		}
		for _, m := range family.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName())
				if l.GetValue() == "" {
					t.Errorf("%s: the label %s is empty", row.prometheus(), l.GetName())
				}
			}
			if want := slices.Sorted(slices.Values(strings.Fields(row.labels))); !slices.Equal(labels, want) {
				t.Errorf("%s: labels %q, want %q", row.prometheus(), labels, want)
			}
		}
	}
	for name := range families {
		if !strings.HasPrefix(name, "go_") && !strings.HasPrefix(name, "process_") && name != "target_info" {
			t.Errorf("%s is exported, but not in the table", name)
		}
	}
}

// TestValues checks the value of each series.
func TestValues(t *testing.T) {
	got := map[string]float64{}
	for name, family := range scrape(t, full()) {
		if !strings.HasPrefix(name, "tender_") || family.GetType() == dto.MetricType_HISTOGRAM {
			continue
		}
		for _, m := range family.GetMetric() {
			labels := []string{}
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetValue())
			}
			key := strings.TrimPrefix(name, "tender_")
			if len(labels) > 0 {
				key += " " + strings.Join(labels, " ")
			}
			got[key] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	const envoy, shared = "user_agent_name=envoy", "xdstp:all"
	want := map[string]float64{
		"build_info v1": 1, "ready": 1,
		"origin_connected default": 1, "origin_connections_total default": 7, "origin_connections_lost_total default": 8,
		"origin_failovers_total default": 9, "origin_addresses_failed default": 3, "origin_names default": 47, "origin_streams_total default": 10,
		"origin_streams_ended_total default resync": 14, "origin_streams_ended_total default UNAVAILABLE": 15,
		"origin_responses_total default cds": 16, "origin_responses_total default other": 18,
		"origin_nacks_total default cds": 17, "origin_nacks_total default other": 19,
		"origin_deletions_held_total default":    11,
		"origin_deletions_applied_total default": 12,
		"origin_isolated default":                51,
		"origin_deletions_dropped_total default": 43, "origin_audits_total default": 44, "origin_drifted_total default": 45,
		"origin_frozen default":                1,
		"origin_files default good":            63,
		"origin_files default bad":             64,
		"view_connected " + envoy + " default": 1, "view_connected " + shared + " default": 0,
		"view_stale_seconds " + envoy + " default": 0, "view_stale_seconds " + shared + " default": 90,
		"view_connected other default":     0,
		"view_stale_seconds other default": 0,
		"pending_changes default suspect":  0, "pending_changes default second-look": 0,
		"pending_changes default large-removal": 13, "pending_changes default replacement": 0, "pending_changes default required": 0,
		"pending_changes default breaking": 0, "pending_changes default dropped": 0, "pending_changes default interval": 0,
		"pending_changes default frozen":      0,
		"pending_changes default growth":      0,
		"pending_changes default rolled-back": 0, "pending_changes default stage": 50, "pending_changes default halted": 0,
		"rollout_state default current": 0, "rollout_state default gathering": 0, "rollout_state default held": 0,
		"rollout_state default rolling": 1, "rollout_state default halted": 0,
		"rollout_stage default": 2, "rollout_clients 1 default": 53, "rollout_clients 2 default": 54,
		"rollout_clients rest default":       55,
		"rollout_answers 1 default accepted": 19, "rollout_answers 1 default rejected": 18,
		"rollout_answers 1 default unanswered": 20,
		"rollout_answers 2 default accepted":   0, "rollout_answers 2 default rejected": 0,
		"rollout_answers 2 default unanswered": 0,
		"rollout_age_seconds default":          51, "rollout_check_failing_seconds default": 52,
		"rollout_halted_time_seconds default": 1e9,
		"rollout_waiting default origin":      0, "rollout_waiting default hold": 0, "rollout_waiting default approval": 0,
		"rollout_waiting default envoy":   0,
		"rollout_waiting default answers": 0, "rollout_waiting default check": 1,
		"rollout_unobserved default": 1, "rollout_cold default": 1,
		"rollouts_total default promoted": 56, "rollouts_total default halted": 57, "rollouts_total default reverted": 58,
		"rollouts_total default superseded": 59, "rollouts_total default undone": 63,
		"view_resources " + envoy + " default cds": 28, "view_resources " + envoy + " default other": 31,
		"view_size_bytes " + envoy + " default cds": 29, "view_size_bytes " + envoy + " default other": 32,
		"log_dropped_total debug": 66, "log_dropped_total audit": 67, "log_stalled_seconds": 68,
		"tls_expiry_seconds TENDER_TLS_CERT": 48, "tls_refusals_total TENDER_TLS_CERT": 49,
		"snapshots_total": 37, "snapshots_failed_total": 38, "snapshots_restored_total": 39, "snapshots_unusable": 1,
		"snapshots_refused_total foreign": 40,
		"memory_utilization":              0.5, "generations": 7, "generations_size_bytes": 70, "audit_passes_total": 5,
		"audit_faults_total " + envoy + " members": 6, "audit_faults_total all interest": 46,
		"validation_checked_total": 64, "validation_findings invalid cds": 65,
		"client_connections": 47, "client_unread_bytes": 48, "client_streams": 2, "client_streams_waiting": 42,
		"client_streams_accepted_total":      3,
		"client_streams_ended_total stalled": 34, "client_streams_ended_total drained": 35,
		"client_refusals_total TENDER_MAX_NAMES": 36,
		"client_denials_total secret":            47,
		"client_requests_invalid_total not_utf8": 71, "client_handshakes_failed_total unknown_ca": 72,
		"client_accepts_failed_total file_descriptors": 73,
		"client_changes_coalesced_total":               32, "client_requests_throttled_total": 33, "client_turns_total sent": 6,
		"client_compression_saved_bytes_total":            74,
		"client_turns_total idle":                         4,
		"client_group_streams " + envoy:                   20,
		"client_subscriptions " + envoy + " wildcard cds": 26,
		"client_subscriptions " + envoy + " name cds":     27,
		"client_responses_total " + envoy + " cds":        21,
		"client_responses_total " + envoy + " eds":        25,
		"client_sent_bytes_total " + envoy + " cds":       22,
		"client_sent_bytes_total " + envoy + " eds":       0,
		"client_acks_total " + envoy + " cds":             23,
		"client_acks_total " + envoy + " eds":             0,
		"client_nacks_total " + envoy + " cds":            24,
		"client_nacks_total " + envoy + " eds":            0,

		"client_lag_seconds " + envoy + " cds": 62, "client_lag_seconds " + envoy + " other": 2,
		"client_lagging " + envoy + " cds": 60, "client_lagging " + envoy + " other": 3,
		"client_rejecting " + envoy + " cds": 61, "client_rejecting " + envoy + " other": 0,
		"client_fanouts_unmeasured_total " + envoy + " unanswered cds": 48,
		"client_fanouts_unmeasured_total " + envoy + " crowded cds":    49,
		"client_fanouts_unmeasured_total " + envoy + " unanswered eds": 0,
		"client_fanouts_unmeasured_total " + envoy + " crowded eds":    0,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("values (-want +got):\n%s", diff)
	}
}

// TestRollouts checks the metrics that depend on the state of a rollout, and that they are absent without rollouts.
func TestRollouts(t *testing.T) {
	halt := &rollout.Halt{At: at}
	for _, tt := range []struct {
		phase   rollout.Phase
		halt    *rollout.Halt
		failing time.Time
		want    string
	}{
		{rollout.Current, nil, at, "check 0, halted at 0"},
		{rollout.Gathering, nil, at, "check 0, halted at 0"},
		{rollout.Held, nil, at, "check 1000, halted at 0"},
		{rollout.Rolling, nil, at, "check 1000, halted at 0"},
		{rollout.Rolling, nil, time.Time{}, "check 0, halted at 0"},
		{rollout.Halted, halt, at, "check 0, halted at 1e+09"},
	} {
		r := full()
		s := r.Rollouts[0]
		s.Phase, s.Halted, s.Failing = tt.phase, tt.halt, tt.failing
		families := scrape(t, r)
		value := func(name string) float64 { return families[name].GetMetric()[0].GetGauge().GetValue() }
		got := fmt.Sprintf("check %v, halted at %v",
			value("tender_rollout_check_failing_seconds"), value("tender_rollout_halted_time_seconds"))
		if got != tt.want {
			t.Errorf("%v: %s, want %s", tt.phase, got, tt.want)
		}
	}
	r := full()
	r.Rollouts = nil
	for name, family := range scrape(t, r) {
		if strings.Contains(name, "rollout") {
			t.Errorf("without rollouts, %s is %v", name, family.GetMetric())
		}
	}
}

// distributionOf returns a distribution with one duration in each of some buckets, and a sum of 9 s.
func distributionOf(classes ...int) downstream.Distribution {
	d := downstream.Distribution{Sum: 9 * time.Second}
	for _, class := range classes {
		d.Buckets[class] = 1
	}
	return d
}

// TestHistograms checks the cumulative buckets of a histogram in Prometheus.
func TestHistograms(t *testing.T) {
	for _, m := range scrape(t, full())["tender_client_propagation_seconds"].GetMetric() {
		if m.GetLabel()[1].GetValue() != "cds" {
			continue
		}
		var bounds []float64
		var counts []uint64
		for _, b := range m.GetHistogram().GetBucket()[:4] {
			bounds, counts = append(bounds, b.GetUpperBound()), append(counts, b.GetCumulativeCount())
		}
		wantBounds, wantCounts := []float64{0.001, 0.0025, 0.005, 0.01}, []uint64{0, 1, 2, 2}
		if h := m.GetHistogram(); !slices.Equal(bounds, wantBounds) || !slices.Equal(counts, wantCounts) ||
			h.GetSampleCount() != 3 || h.GetSampleSum() != 9 {
			t.Errorf("bounds %v: %v, count %d, sum %v; want bounds %v: %v, 3 and 9", bounds, counts, h.GetSampleCount(),
				h.GetSampleSum(), wantBounds, wantCounts)
		}
		return
	}
	t.Error("no histogram of the recorded durations")
}

// TestExemplars checks that a histogram has its newest traced duration as an exemplar: in OTLP, and on the page if a client
// accepts OpenMetrics. The series of the page are the same in both formats.
func TestExemplars(t *testing.T) {
	r := full()
	traced := r.Groups[0].Types[clusters]
	traced.Propagation.Newest = &downstream.Exemplar{
		TraceID: "0102030405060708090a0b0c0d0e0f10", SpanID: "0102030405060708", Took: 2 * time.Millisecond, Ended: at,
	}
	r.Groups[0].Types[clusters] = traced
	p := producer{read: func() Reading { return r }}
	scopes, err := p.Produce(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []metricdata.Exemplar[float64]
	for _, m := range scopes[0].Metrics {
		for _, point := range m.Data.(metricdata.Histogram[float64]).DataPoints {
			got = append(got, point.Exemplars...)
		}
	}
	want := []metricdata.Exemplar[float64]{{
		Value: 0.002, Time: at, TraceID: []byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}, SpanID: []byte{1, 2, 3, 4, 5, 6, 7, 8},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("exemplars of all histograms (-want +got):\n%s", diff)
	}

	m, err := New(t.Context(), Config{Read: p.read})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = m.Shutdown(context.Background()) }()
	page := func(accept string) (text string, series map[string]bool) {
		req, w := httptest.NewRequest(http.MethodGet, "/metrics", nil), httptest.NewRecorder()
		req.Header.Set("Accept", accept)
		m.Handler().ServeHTTP(w, req)
		text, series = w.Body.String(), map[string]bool{}
		for line := range strings.Lines(text) {
			if !strings.HasPrefix(line, "#") {
				series[line[:strings.IndexAny(line, "{ ")]] = true
			}
		}
		return text, series
	}
	open, openSeries := page("application/openmetrics-text; version=1.0.0")
	exemplar := regexp.MustCompile(`tender_client_propagation_seconds_bucket\{.*le="0.0025"\} 1 # \{(.*),(.*)\} 0.002 1e\+09\n`).FindStringSubmatch(open)
	labels := []string{`span_id="0102030405060708"`, `trace_id="0102030405060708090a0b0c0d0e0f10"`}
	if exemplar == nil || !slices.Equal(slices.Sorted(slices.Values(exemplar[1:])), labels) || strings.Count(open, "trace_id") != 1 {
		t.Errorf("the page in OpenMetrics has the exemplar %q, want one with %q:\n%s", exemplar, labels, open)
	}
	plain, plainSeries := page("text/plain")
	if diff := cmp.Diff(plainSeries, openSeries); diff != "" || strings.Contains(plain, "trace_id") {
		t.Errorf("series as text and in OpenMetrics (-text +OpenMetrics):\n%s", diff)
	}
}

// TestTable checks that names and units follow the rules of Prometheus and OpenTelemetry, and that help is a sentence.
func TestTable(t *testing.T) {
	seen := map[string]bool{}
	for _, row := range rows() {
		if !regexp.MustCompile(`^tender(\.[a-z]+)+$`).MatchString(row.name) || seen[row.name] {
			t.Errorf("%s: name is a duplicate, or not tender and words", row.name)
		}
		seen[row.name] = true
		if !regexp.MustCompile(`^(s|By|\{[a-z]+\}|)$`).MatchString(row.unit) || row.kind != gauge && row.unit == "" {
			t.Errorf("%s: unit %q; allowed: s, By, {things}, or none for a state", row.name, row.unit)
		}
		if !strings.HasSuffix(row.help, ".") || strings.ContainsAny(row.help, "|\n") {
			t.Errorf("%s: help is not a sentence, or not suited for a table: %q", row.name, row.help)
		}
		for _, label := range strings.Fields(row.labels) {
			if !slices.Contains([]string{"origin", "group", "type", "reason", "kind", "outcome", "version", "limit", "part",
				"file", "state", "cohort", "level"}, label) {
				t.Errorf("%s: unknown label %s; if it is bounded, add it to this test", row.name, label)
			}
		}
	}
}

// TestLabelsAreBounded checks that clients and origins cannot create arbitrary labels.
func TestLabelsAreBounded(t *testing.T) {
	long := strings.Repeat("é", 100)
	if a, b := groupLabel(long+"a"), groupLabel(long+"b"); a == b || len(a) > maxGroupLabel ||
		!strings.HasPrefix(a, "éé") {
		t.Errorf("groups %sa and …b have the labels %q and %q", long, a, b)
	}
	r := Reading{Status: admin.Status{Views: []admin.View{{Group: "g", Origin: "o"}}}}
	for _, typeURL := range []string{"a/b.C", "a/b.D", ""} {
		r.Status.Views[0].Types = append(r.Status.Views[0].Types, admin.Type{TypeURL: typeURL, Entries: 1})
	}
	if m := scrape(t, r)["tender_view_resources"].GetMetric(); len(m) != 1 || m[0].GetGauge().GetValue() != 3 {
		t.Errorf("unknown types have the series %v, want one with the value 3", m)
	}
}

// Markers of the generated part of the page of metrics.
const tableBegins, tableEnds = "<!-- metrics -->\n\n", "\n<!-- end of metrics -->"

// TestPage checks that deploy/docs/metrics.md has the metrics of the table. With -update, it writes them.
func TestPage(t *testing.T) {
	const name = "../../deploy/docs/metrics.md"
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, begins := strings.Cut(string(text), tableBegins)
	old, after, ends := strings.Cut(rest, tableEnds)
	if !begins || !ends {
		t.Fatalf("%s lacks the lines %q and %q", name, tableBegins, tableEnds)
	}
	if *update {
		if err := os.WriteFile(name, []byte(before+tableBegins+Page()+tableEnds+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(Page(), old); diff != "" {
		t.Errorf("%s is outdated; run\n\tgo test ./relay/telemetry -run TestPage -update\n(-want +got)\n%s", name, diff)
	}
}

// TestExport checks that metrics are exported only if the environment configures an exporter.
func TestExport(t *testing.T) {
	received := make(chan []byte, 16)
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err == nil && r.URL.Path == "/v1/metrics" {
			received <- body
		}
	}))
	defer collector.Close()
	for _, tt := range []struct {
		env  map[string]string
		want bool
	}{
		{nil, false},
		{map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": collector.URL}, true},
		{map[string]string{"OTEL_METRICS_EXPORTER": "otlp",
			"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": collector.URL + "/v1/metrics"}, true},
		{map[string]string{"OTEL_METRICS_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": collector.URL}, false},
		{map[string]string{"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": collector.URL}, false},
	} {
		for _, name := range []string{
			"OTEL_SDK_DISABLED", "OTEL_METRICS_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
		} {
			t.Setenv(name, tt.env[name])
		}
		m, err := New(t.Context(), Config{
			Read: full, Version: "v1", Instance: "i", NoPage: true, Environment: ReadEnvironment(),
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Shutdown(t.Context()); err != nil {
			t.Errorf("%v: Shutdown: %v", tt.env, err)
		}
		select {
		case body := <-received:
			if !tt.want || !bytes.Contains(body, []byte("tender.client.responses")) ||
				!bytes.Contains(body, []byte("tender.client.propagation")) || !bytes.Contains(body, []byte("service.name")) {
				t.Errorf("%v: exported %d bytes, want an export: %t", tt.env, len(body), tt.want)
			}
		default:
			if tt.want {
				t.Errorf("%v: no export", tt.env)
			}
		}
	}
	if _, err := New(t.Context(), Config{}); err == nil {
		t.Error("New without Read: no error")
	}
}

// TestReadersTakeOwnReadings checks that a scrape does not return series of an earlier reading.
func TestReadersTakeOwnReadings(t *testing.T) {
	r := full()
	m, err := New(t.Context(), Config{Read: func() Reading { return r }})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = m.Shutdown(context.Background()) }()
	series := func() []string {
		w := httptest.NewRecorder()
		m.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		parser := expfmt.NewTextParser(model.LegacyValidation)
		families, err := parser.TextToMetricFamilies(w.Body)
		if err != nil {
			t.Fatal(err)
		}
		return slices.Sorted(maps.Keys(families))
	}
	if !slices.Contains(series(), "tender_client_group_streams") {
		t.Fatal("no series for the streams of a group")
	}
	r.Groups = nil
	if slices.Contains(series(), "tender_client_group_streams") {
		t.Error("series for the streams of a removed group")
	}
}

// TestNoPage checks that a relay without an address for /metrics and without an exporter has no instruments.
func TestNoPage(t *testing.T) {
	m, err := New(t.Context(), Config{Read: full, NoPage: true})
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if w.Code != http.StatusNotFound {
		t.Errorf("/metrics: code %d, want 404", w.Code)
	}
	if err := m.Shutdown(t.Context()); err != nil {
		t.Errorf("Shutdown: %v", err)
	}
}

// BenchmarkNew measures the telemetry's part of the start of a relay, with and without an address for /metrics.
func BenchmarkNew(b *testing.B) {
	for _, noPage := range []bool{false, true} {
		b.Run(fmt.Sprintf("NoPage=%t", noPage), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				m, err := New(b.Context(), Config{Read: full, NoPage: noPage})
				if err != nil {
					b.Fatal(err)
				}
				_ = m.Shutdown(b.Context())
			}
		})
	}
}

// BenchmarkScrape measures a scrape of a relay with a hundred node groups, without the time to read the counters.
func BenchmarkScrape(b *testing.B) {
	r := full()
	for i := range 100 {
		group, view := r.Groups[0], r.Status.Views[0]
		group.Key = "cluster=" + strings.Repeat("x", i)
		view.Group = group.Key
		r.Groups, r.Status.Views = append(r.Groups, group), append(r.Status.Views, view)
	}
	m, err := New(b.Context(), Config{Read: func() Reading { return r }})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = m.Shutdown(context.Background()) }()
	b.ReportAllocs()
	for b.Loop() {
		w := httptest.NewRecorder()
		m.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		if w.Code != http.StatusOK {
			b.Fatal(w.Code)
		}
	}
}

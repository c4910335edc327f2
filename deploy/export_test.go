package deploy_test

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/xdstender/tender/downstream"
	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/rollout"
	"github.com/xdstender/tender/relay/telemetry"
)

// A series holds the labels of all series of a metric, with the values of each label. An empty set allows any value.
type series map[string]set

type set map[string]bool

func (s series) add(label string, values ...string) {
	if s[label] == nil {
		s[label] = set{}
	}
	for _, v := range values {
		s[label][v] = true
	}
}

// exported returns the metrics that Prometheus has of a relay, by name: those of the table of package telemetry, which
// a relay exports as soon as they have a value, those of the process, and ALERTS.
func exported(t *testing.T) map[string]series {
	t.Helper()
	all := map[string]series{
		// Prometheus itself exports alerts.
		"ALERTS": {"alertname": nil, "alertstate": {"firing": true, "pending": true}, "severity": nil, "job": nil, "instance": nil},
	}
	readTable(t, all)
	for name, family := range scrape(t) {
		for _, m := range family.GetMetric() {
			if family.GetType() != dto.MetricType_HISTOGRAM {
				learn(all, name, m)
				continue
			}
			for _, b := range m.GetHistogram().GetBucket() {
				all[name+"_bucket"].add("le", strconv.FormatFloat(b.GetUpperBound(), 'g', -1, 64))
			}
		}
	}
	return all
}

// metric matches a row of the table of metrics: the name in Prometheus, the kind and the labels.
var metric = regexp.MustCompile("- `(tender_\\w+)` \\(`[^`]*`\\), (\\w+)(?: by ([^.]*))?\\.")

// readTable adds the names and labels of the table of metrics, with any values.
func readTable(t *testing.T, all map[string]series) {
	t.Helper()
	rows := metric.FindAllStringSubmatch(strings.Join(strings.Fields(telemetry.Page()), " "), -1)
	if len(rows) < 60 {
		t.Fatalf("the table of metrics has %d rows, want 60 at least", len(rows))
	}
	for _, row := range rows {
		names := []string{row[1]}
		if row[2] == "histogram" {
			names = []string{row[1] + "_bucket", row[1] + "_sum", row[1] + "_count"}
		}
		for _, name := range names {
			all[name] = targetLabels()
			for label := range strings.SplitSeq(row[3], ", ") {
				if label != "" {
					all[name].add(strings.Trim(label, "`"))
				}
			}
		}
	}
}

// targetLabels are labels that Prometheus adds: its own, and those by which its configuration usually tells regions apart.
func targetLabels() series {
	return series{"job": nil, "instance": nil, "namespace": nil, "cluster": nil, "region": nil}
}

// open are labels whose values depend on the configuration, the clients or the origins.
var open = []string{"origin", "group", "type", "file", "version"}

// learn adds the labels of a metric to the series of a name, with the values of labels that have a fixed set of values.
func learn(all map[string]series, name string, m *dto.Metric) {
	if all[name] == nil {
		all[name] = targetLabels() // a metric of the process
	}
	for _, l := range m.GetLabel() {
		if slices.Contains(open, l.GetName()) {
			all[name].add(l.GetName())
		} else {
			all[name].add(l.GetName(), l.GetValue())
		}
	}
}

// scrape returns the metrics of a reading that has all values of the labels with fixed sets of values, except those of
// findings and audit faults.
func scrape(t *testing.T) map[string]*dto.MetricFamily {
	t.Helper()
	counters, zero := guard.NewCounters(slog.New(slog.DiscardHandler)), map[string]downstream.TypeStats{"": {}}
	reading := telemetry.Reading{
		Server:   downstream.Stats{Ended: counters.Ended(), Refused: counters.Causes()},
		Origins:  []telemetry.Origin{{Status: admin.Origin{Name: "default", Directory: new(admin.Directory)}}},
		Rollouts: []*rollout.Status{{Origin: "default", Cohorts: make([]rollout.Cohort, 2)}},
		Groups:   []telemetry.Group{{Key: "all", Types: zero}},
		Status:   admin.Status{Views: []admin.View{{Group: "all", Origin: "default"}}},
	}
	m, err := telemetry.New(t.Context(), telemetry.Config{Read: func() telemetry.Reading { return reading }})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := m.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	page := httptest.NewRecorder()
	m.Handler().ServeHTTP(page, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(page.Body)
	if err != nil || page.Code != http.StatusOK {
		t.Fatalf("/metrics: %d, %v", page.Code, err)
	}
	return families
}

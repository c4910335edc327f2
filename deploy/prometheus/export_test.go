package prometheus_test

import (
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/xdstender/tender/relay"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/certs"
	"github.com/xdstender/tender/relay/relaytest/instance"
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

// rare are the metrics that a relay exports only after events that do not occur in this test. Their labels are
// read from the page of metrics, which package telemetry compares with the code.
var rare = []string{"tender_audit_faults_total", "tender_origin_streams_ended_total", "tender_validation_findings"}

// exported returns the metrics that Prometheus has of a relay, by name. It reads them from a real relay whose
// clients receive, accept and reject changes, and adds the rare ones.
func exported(t *testing.T) map[string]series {
	t.Helper()
	all := map[string]series{
		// Prometheus itself exports alerts.
		"ALERTS": {"alertname": nil, "alertstate": {"firing": true, "pending": true}, "severity": nil, "job": nil, "instance": nil},
	}
	for name, family := range scrape(t, newRelay(t)) {
		for _, m := range family.GetMetric() {
			if family.GetType() != dto.MetricType_HISTOGRAM {
				learn(all, name, m)
				continue
			}
			for _, part := range []string{"_bucket", "_sum", "_count"} {
				learn(all, name+part, m)
			}
			for _, b := range m.GetHistogram().GetBucket() {
				all[name+"_bucket"].add("le", strconv.FormatFloat(b.GetUpperBound(), 'g', -1, 64))
			}
		}
	}
	for _, name := range rare {
		if all[name] != nil {
			t.Errorf("%s is not rare: a relay exports it", name)
		}
		all[name] = series{"job": nil, "instance": nil}
		for _, label := range labelsOnPage(t, name) {
			all[name].add(label)
		}
	}
	return all
}

// learn adds the labels of a metric to the series of a name.
func learn(all map[string]series, name string, m *dto.Metric) {
	if all[name] == nil {
		all[name] = series{"job": nil, "instance": nil} // labels that Prometheus adds
	}
	for _, l := range m.GetLabel() {
		all[name].add(l.GetName(), l.GetValue())
	}
}

// labelsOnPage returns the labels of a metric according to deploy/docs/metrics.md.
func labelsOnPage(t *testing.T, name string) (labels []string) {
	t.Helper()
	row := regexp.MustCompile("- `" + name + "` \\(`[^`]*`\\), ([^.]*)\\.").FindStringSubmatch(telemetry.Page())
	if row == nil {
		t.Fatalf("%s is not on the page of metrics", name)
	}
	for _, label := range regexp.MustCompile("`([a-z]+)`").FindAllStringSubmatch(row[1], -1) {
		labels = append(labels, label[1])
	}
	return labels
}

// newRelay starts a relay that has sent a change to clients, and returns its admin address.
func newRelay(t *testing.T) string {
	t.Helper()
	o := relaytest.NewOrigin(t, relaytest.OriginOptions{})
	o.Put(relaytest.Cluster("a"))
	cert, key := certs.NewCA(t).Sign(certs.Leaf{Names: []string{"127.0.0.1"}}).Write(t, t.TempDir())
	r := instance.Start(t, instance.Options{Env: []string{
		"TENDER_ADMIN_LISTEN=127.0.0.1:0", "TENDER_ORIGIN=" + o.Addr(), "TENDER_ORIGINS=files=file://" + t.TempDir(), "TENDER_ROUTES=type:rtds=files", "TENDER_SNAPSHOT_DIR=" + t.TempDir(),
		"TENDER_ROLLOUT=5% 10m", "TENDER_DELTA_VERSIONS=content",
		"TENDER_TLS_LISTEN=127.0.0.1:0", "TENDER_TLS_CERT=" + cert, "TENDER_TLS_KEY=" + key,
	}, Options: relay.Options{Version: "v1"}})
	conn := r.Conn()

	refuses := relaytest.NewClient(t, conn, relaytest.ClientOptions{})
	refuses.Subscribe(relaytest.ClusterType)
	refuses.Nack(refuses.Recv(t.Context()), "no")
	c := relaytest.NewClient(t, conn, relaytest.ClientOptions{AutoAck: true})
	c.Subscribe(relaytest.ClusterType)
	c.WaitState(t.Context(), func(s relaytest.State) bool { return s.Has(relaytest.ClusterType, "a") })
	o.Put(relaytest.Cluster("b"))
	c.WaitState(t.Context(), func(s relaytest.State) bool { return s.Has(relaytest.ClusterType, "a", "b") })
	return r.AdminAddrs()[0].String()
}

// scrape reads and parses the metrics of a relay.
func scrape(t *testing.T, admin string) map[string]*dto.MetricFamily {
	t.Helper()
	resp, err := http.Get("http://" + admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer http.DefaultClient.CloseIdleConnections()
	defer func() { _ = resp.Body.Close() }() // the body was read completely
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("/metrics: %s, %v", resp.Status, err)
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	return families
}

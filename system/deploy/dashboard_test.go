package deploy_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/xdstender/tender/relay/envoytest"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/certs"
)

// A dashboardPanel holds the fields of a panel of tender.json that the test reads.
type dashboardPanel struct {
	Type, Title string
	Targets     []struct{ Expr, LegendFormat string }
}

// A sample is a series in the result of a query, with its value.
type sample struct {
	Metric map[string]string
	Value  [2]any // time, and the value as a string
}

// value returns the value of the sample. Prometheus returns only values that parse.
func (s sample) value() float64 {
	text, _ := s.Value[1].(string)
	v, _ := strconv.ParseFloat(text, 64)
	return v
}

// An observed deployment is two relays in two regions with two origins each, five clients, and a Prometheus that scrapes
// both relays and evaluates the alerts without their waiting times.
type observed struct {
	t            *testing.T
	main, west   *relaytest.Origin
	a, b         *envoytest.RelayProcess
	unresponsive *relaytest.Client // of region a; it acknowledges no change
	prometheus   string            // URL
}

// forPattern matches the waiting time of an alert.
var forPattern = regexp.MustCompile(`(?m)^(\s+for:) \w+$`)

// newObserved starts the deployment. Relay a validates. Relay b has a rollout, whose check answers with an error, and TLS.
func newObserved(t *testing.T) *observed {
	t.Helper()
	o := &observed{t: t, main: relaytest.NewOrigin(t, relaytest.OriginOptions{}), west: relaytest.NewOrigin(t, relaytest.OriginOptions{})}
	o.main.Put(relaytest.Cluster("web"), relaytest.Cluster("keep"), relaytest.Route("front", []string{"*"}, "missing"))
	o.west.Put(relaytest.Endpoints("web", "127.0.0.1:8080"), relaytest.Endpoints("keep", "127.0.0.1:8080"))
	check := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "the check has an error", http.StatusInternalServerError)
	}))
	t.Cleanup(check.Close)
	cert, key := certs.NewCA(t).Sign(certs.Leaf{Names: []string{"127.0.0.1"}}).Write(t, t.TempDir())
	shared := []string{"TENDER_ORIGINS=west=" + o.west.Addr(), "TENDER_ROUTES=type:eds=west", "TENDER_REQUIRED=cds:keep"}
	o.a = envoytest.StartRelay(t, o.main.Addr(), shared...)
	o.b = envoytest.StartRelay(t, o.main.Addr(), append(shared, "TENDER_SNAPSHOT_DIR="+t.TempDir(), "TENDER_DELTA_VERSIONS=content",
		"TENDER_ROLLOUT=id=canary 1h", "TENDER_ROLLOUT_CHECK="+check.URL,
		"TENDER_TLS_LISTEN=127.0.0.1:0", "TENDER_TLS_CERT="+cert, "TENDER_TLS_KEY="+key)...)
	o.startPrometheus()
	o.startClients()
	return o
}

// startPrometheus starts Prometheus with the alerts.
func (o *observed) startPrometheus() {
	o.t.Helper()
	rules := filepath.Join(o.t.TempDir(), "rules.yaml")
	text := forPattern.ReplaceAllString(readText(o.t, root+"/deploy/prometheus/tender.rules.yaml"), "$1 0s")
	if err := os.WriteFile(rules, []byte(text), 0o600); err != nil {
		o.t.Fatal(err)
	}
	o.prometheus = envoytest.StartPrometheus(o.t, fmt.Sprintf(`
global: {scrape_interval: 500ms, evaluation_interval: 500ms}
rule_files: [%q]
scrape_configs:
- job_name: tender
  static_configs:
  - {targets: [%q], labels: {region: a}}
  - {targets: [%q], labels: {region: b}}
`, rules, o.a.Admin, o.b.Admin))
}

// startClients connects the clients, and returns once they have the state of both origins.
func (o *observed) startClients() {
	o.t.Helper()
	clients := map[string]*relaytest.Client{}
	for _, c := range []struct {
		id      string
		relay   *envoytest.RelayProcess
		rejects bool
	}{{"accepts", o.a, false}, {"rejects", o.a, true}, {"canary", o.b, false}, {"edge", o.b, false}} {
		options := relaytest.ClientOptions{Node: relaytest.EnvoyNode(c.id), AutoAck: true}
		if c.rejects {
			options.Reject = func(r *relaytest.Response) error {
				if r.Resource("bad") != nil {
					return fmt.Errorf("cluster bad: unknown extension")
				}
				return nil
			}
		}
		clients[c.id] = o.client(c.relay, options)
		clients[c.id].Subscribe(relaytest.ClusterType)
		clients[c.id].Subscribe(relaytest.EndpointType, "web")
		clients[c.id].Subscribe(relaytest.RouteType, "front")
	}
	o.unresponsive = o.client(o.a, relaytest.ClientOptions{Node: relaytest.EnvoyNode("unresponsive")})
	o.unresponsive.Subscribe(relaytest.ClusterType)
	o.unresponsive.Ack(o.unresponsive.Recv(o.t.Context()))
	for _, c := range clients {
		c.WaitState(o.t.Context(), func(s relaytest.State) bool {
			return s.Has(relaytest.ClusterType, "keep", "web") && s.Has(relaytest.EndpointType, "web") && s.Has(relaytest.RouteType, "front")
		})
	}
}

// confirmed waits until the relay of region b has a last good configuration, to which its rollout can return.
func (o *observed) confirmed() {
	o.t.Helper()
	o.b.Await("confirmed set", func() error {
		var status struct {
			Views []struct {
				Types []struct{ Name, Phase string }
			}
		}
		if err := json.Unmarshal(o.b.Get("/api/v1/status"), &status); err != nil {
			return err
		}
		for _, view := range status.Views {
			for _, of := range view.Types {
				if of.Name == "cds" && of.Phase == "confirmed" {
					return nil
				}
			}
		}
		return fmt.Errorf("the views are %+v", status.Views)
	})
}

// client opens a stream to a relay.
func (o *observed) client(r *envoytest.RelayProcess, options relaytest.ClientOptions) *relaytest.Client {
	o.t.Helper()
	conn, err := grpc.NewClient(r.Addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		o.t.Fatal(err)
	}
	o.t.Cleanup(func() { _ = conn.Close() }) // the client has been closed
	return relaytest.NewClient(o.t, conn, options)
}

// get reads an answer of the HTTP API of Prometheus.
func (o *observed) get(path string, form url.Values, data any) error {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: relaytest.Patience}
	resp, err := client.Get(o.prometheus + path + "?" + form.Encode())
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	answer := struct {
		Status, Error string
		Data          any
	}{Data: data}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || answer.Status != "success" {
		return fmt.Errorf("%s: %s: %s %w", path, resp.Status, answer.Error, err)
	}
	return nil
}

// query evaluates a query of the dashboard with all values of the variables.
func (o *observed) query(expr string) ([]sample, error) {
	expr = strings.NewReplacer("$__rate_interval", "1m", "$job", ".*", "$instance", ".*", "$group", ".*").Replace(expr)
	var data struct{ Result []sample }
	err := o.get("/api/v1/query", url.Values{"query": {expr}}, &data)
	return data.Result, err
}

// await waits until a query returns samples with these values, in any order. With no values it must return samples.
func (o *observed) await(what, expr string, want ...float64) {
	o.t.Helper()
	o.a.Await(what, func() error {
		samples, err := o.query(expr)
		if err != nil {
			return err
		}
		var got []float64
		for _, s := range samples {
			got = append(got, s.value())
		}
		slices.Sort(got)
		if len(want) > 0 && !slices.Equal(got, want) || len(got) == 0 {
			return fmt.Errorf("the query returns %v, want %v:\n%s", got, want, expr)
		}
		return nil
	})
}

// fail brings the deployment into the state of the test: each relay has lost the origin west, and holds the removal of a
// required cluster. In region a one client rejects a cluster, and one does not answer. In region b the same cluster
// waits for the stage of a rollout.
func (o *observed) fail() {
	o.t.Helper()
	bad := relaytest.StaticCluster("bad")
	bad.ConnectTimeout = durationpb.New(0) // which Envoy's validator rejects
	o.main.Put(bad)
	o.main.Remove(relaytest.ClusterType, "keep")
	o.west.Stop()
}

// change changes a cluster twice, and waits until Prometheus has the fan-out of both changes from region a. In region b the
// changes pass the stages.
func (o *observed) change() {
	o.t.Helper()
	const measured = `sum(tender_client_fanout_seconds_count{region="a", type="cds"})`
	for i := range 2 {
		before := 0.0
		if samples, _ := o.query(measured); len(samples) > 0 {
			before = samples[0].value()
		}
		c := relaytest.Cluster("web")
		c.AltStatName = fmt.Sprint("web-", i)
		o.main.Put(c)
		o.unresponsive.Ack(o.unresponsive.Recv(o.t.Context()))
		o.await("fan-out", fmt.Sprintf(`%s > %g`, measured, before))
		o.await("edition", `tender_rollout_state{state="current", origin="default"}`, 0)
		o.b.Tender("rollout", "promote", "--all", "--origin=default")
	}
}

// dashboardPanels returns the panels of tender.json by row.
func dashboardPanels(t *testing.T) (rows []string, panels map[string][]dashboardPanel) {
	t.Helper()
	var d struct{ Panels []dashboardPanel }
	if err := json.Unmarshal([]byte(readText(t, root+"/deploy/grafana/tender.json")), &d); err != nil {
		t.Fatal(err)
	}
	panels = map[string][]dashboardPanel{}
	for _, p := range d.Panels {
		if p.Type == "row" {
			rows = append(rows, p.Title)
		} else {
			row := rows[len(rows)-1]
			panels[row] = append(panels[row], p)
		}
	}
	return rows, panels
}

// silent are the queries that return nothing in this deployment, with the reason.
var silent = map[string]string{
	"tender_audit_faults_total":    "the relay has no defect",
	"tender_log_dropped_total":     "the log is read",
	"tender_client_refusals_total": "no limit is reached",
}

// isSilent reports whether a query is one of silent.
func isSilent(expr string) bool {
	for name := range silent {
		if strings.Contains(expr, name) {
			return true
		}
	}
	return false
}

// legendLabel matches a label in the template for the name of a line.
var legendLabel = regexp.MustCompile(`{{(\w+)}}`)

// checkPanel waits until each query of a panel returns data, with all labels that name its lines.
func (o *observed) checkPanel(p dashboardPanel) {
	o.t.Helper()
	for _, target := range p.Targets {
		if isSilent(target.Expr) {
			if samples, err := o.query(target.Expr); err != nil || len(samples) > 0 {
				o.t.Errorf("%s: got %v and %v, want no data\n%s", p.Title, samples, err, target.Expr)
			}
			continue
		}
		o.await(p.Title, target.Expr)
		samples, err := o.query(target.Expr)
		if err != nil {
			o.t.Errorf("%s: %v", p.Title, err)
		}
		for _, label := range legendLabel.FindAllStringSubmatch(target.LegendFormat, -1) {
			for _, s := range samples {
				if s.Metric[label[1]] == "" {
					o.t.Errorf("%s: a line %q has no label %s", p.Title, s.Metric, label[1])
				}
			}
		}
	}
}

// checkAlerts waits until exactly the wanted alerts fire, except for TenderClientLags, which fires after two minutes, and checks that Prometheus evaluates all rules without errors.
func (o *observed) checkAlerts(want ...string) {
	o.t.Helper()
	o.a.Await("alerts", func() error {
		samples, err := o.query(`count by (alertname, region) (ALERTS{alertstate="firing", alertname!="TenderClientLags"})`)
		var got []string
		for _, s := range samples {
			got = append(got, s.Metric["alertname"]+" "+s.Metric["region"])
		}
		if slices.Sort(got); err == nil && !slices.Equal(got, want) {
			err = fmt.Errorf("got %q, want %q", got, want)
		}
		return err
	})
	var data struct {
		Groups []struct {
			Rules []struct{ Name, Health, LastError string }
		}
	}
	if err := o.get("/api/v1/rules", nil, &data); err != nil {
		o.t.Fatal(err)
	}
	rules := 0
	for _, g := range data.Groups {
		for _, r := range g.Rules {
			if rules++; r.Health != "ok" {
				o.t.Errorf("%s: health is %s: %s", r.Name, r.Health, r.LastError)
			}
		}
	}
	if want := strings.Count(readText(o.t, root+"/deploy/prometheus/tender.rules.yaml"), "- alert:"); rules != want {
		o.t.Errorf("Prometheus evaluates %d alerts, want %d", rules, want)
	}
}

// overview are the first panels of the dashboard, in the order of the questions of an on-call engineer, with their values
// in the state of fail. Without values, the value is a time, which the test checks on its own.
var overview = []struct {
	title string
	want  []float64
}{
	{"Clients not in sync", []float64{2}}, // one that rejects and one that does not answer
	{"Maximum lag", nil},
	{"Pending changes", []float64{3}}, // two removals, and one change that waits for a stage
	{"Origins disconnected", []float64{2}},
	{"Maximum staleness", nil},
	{"Clients rejecting", []float64{1}},
	{"Fan-out (p99)", nil},
	{"Relays not ready", []float64{0}},
	{"Pending changes by reason", []float64{1, 1, 1}},
	{"Disconnected origins", nil},
	{"Rejecting clients by type", []float64{1}},
	{"Firing alerts", nil},
}

// B.43: in a Prometheus that scrapes two regions, each query of the dashboard returns data, and the first row shows the
// clients that are not in sync, the pending changes, the lost origin, the rejecting client and the fan-out. The alerts of
// this state fire in their region, and no others.
func TestB43_DashboardShowsTheState(t *testing.T) {
	o := newObserved(t)
	o.confirmed()
	o.change()
	rows, panels := dashboardPanels(t)
	first := panels[rows[0]]
	if len(first) != len(overview) {
		t.Fatalf("the first row has %d panels, want %d", len(first), len(overview))
	}
	for _, p := range first[:8] {
		switch p.Title {
		case "Fan-out (p99)":
			o.await(p.Title, "0 < ("+p.Targets[0].Expr+") < 60")
		case "Pending changes", "Clients not in sync", "Origins disconnected", "Clients rejecting", "Maximum lag", "Maximum staleness":
			o.await(p.Title+" without faults", p.Targets[0].Expr, 0)
		}
	}

	o.fail()
	for i, p := range first {
		if p.Title != overview[i].title {
			t.Errorf("panel %d is %q, want %q", i, p.Title, overview[i].title)
		}
		o.await(p.Title, p.Targets[0].Expr, overview[i].want...)
	}
	o.await("lag", "0 < ("+first[1].Targets[0].Expr+")")
	o.await("staleness", "0 < ("+first[4].Targets[0].Expr+")")
	o.await("names of the origins", `count by (origin) (`+first[9].Targets[0].Expr+`) == 2`, 2)
	for _, row := range rows {
		for _, p := range panels[row] {
			o.checkPanel(p)
		}
	}
	o.checkAlerts("TenderCertificateExpires b", "TenderCertificateExpiresSoon b", // a certificate of an hour
		"TenderClientRejects a", "TenderOriginNotConnected a", "TenderOriginNotConnected b",
		"TenderRemovalsPending a", "TenderRemovalsPending b", "TenderResourcesBroken a", "TenderResourcesBroken b",
		"TenderRolloutCold b") // b began without a snapshot
}

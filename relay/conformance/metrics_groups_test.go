package conformance_test

import (
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/xdstender/tender/relay/admin"
	"github.com/xdstender/tender/relay/relaytest"
)

// seriesOf returns the values of the relay's own metrics, by name and labels as they are in /metrics.
func seriesOf(t *testing.T, r *running) map[string]float64 {
	t.Helper()
	code, page := httpGet(t, r.DialAdmin, "/metrics")
	if code != http.StatusOK {
		t.Fatalf("/metrics: code %d", code)
	}
	series := make(map[string]float64)
	for line := range strings.Lines(page) {
		if !strings.HasPrefix(line, "tender_") {
			continue
		}
		at := strings.LastIndexByte(line, ' ')
		value, err := strconv.ParseFloat(strings.TrimSpace(line[at:]), 64)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		series[line[:at]] = value
	}
	return series
}

// inCluster connects a client of a node cluster that subscribes to clusters, endpoints and listeners, and waits
// for their first responses.
func inCluster(t *testing.T, r *running, cluster string) *relaytest.Client {
	t.Helper()
	node := relaytest.EnvoyNode("node-of-" + cluster)
	node.Cluster = cluster
	c := r.Client(relaytest.ClientOptions{Node: node, AutoAck: true})
	c.Subscribe(relaytest.ClusterType)
	c.Recv(t.Context())
	c.Subscribe(relaytest.EndpointType, "a")
	c.Recv(t.Context())
	c.Subscribe(relaytest.ListenerType)
	c.Recv(t.Context())
	return c
}

// The number of series is that in metrics.md, and groups have at most TENDER_METRICS_GROUPS labels and "other".
func TestMetricsGroups_Series(t *testing.T) {
	page, err := os.ReadFile("../../deploy/docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	series := regexp.MustCompile("`series = (\\d+) G \\+ (\\d+) G T`[^`]*\\n?[^`]*at most\\s(\\d+) ")
	formula := series.FindStringSubmatch(string(page))
	if formula == nil {
		t.Fatal("metrics.md has no formula for the number of series")
	}
	var figures [3]int
	for i := range figures {
		figures[i], _ = strconv.Atoi(formula[1+i])
	}
	for _, tt := range []struct{ most, labels int }{{50, 5}, {2, 3}, {0, 1}} {
		originBubble(t, func(t *testing.T, o *relaytest.Origin) {
			o.Put(relaytest.Cluster("a"))
			o.Put(relaytest.Endpoints("a"))
			o.Put(relaytest.Listener("a", "r"))
			r := start(t, o, operated, "TENDER_NODE_GROUP_BY=cluster", fmt.Sprint("TENDER_METRICS_GROUPS=", tt.most))
			for i := range 5 {
				inCluster(t, r, fmt.Sprint("c", i))
			}
			const types = 3
			grouped, further, labels := 0, 0, make(map[string]bool)
			for series := range seriesOf(t, r) {
				if label := regexp.MustCompile(`group="([^"]*)"`).FindStringSubmatch(series); label != nil {
					labels[label[1]] = true
					grouped++
				} else {
					further++
				}
			}
			if want := figures[0]*tt.labels + figures[1]*tt.labels*types; grouped != want || len(labels) != tt.labels ||
				further > figures[2] {
				t.Errorf("TENDER_METRICS_GROUPS=%d: got %d series with the labels %v and %d without; "+
					"metrics.md has %d with %d labels, at most %d",
					tt.most, grouped, labels, further, want, tt.labels, figures[2])
			}
		})
	}
}

// Counters of "other" keep the values of ended groups. A new group under a free label starts at zero.
func TestMetricsGroups_NoCounterDecreases(t *testing.T) {
	originBubble(t, func(t *testing.T, o *relaytest.Origin) {
		o.Put(relaytest.Cluster("a"))
		o.Put(relaytest.Endpoints("a"))
		o.Put(relaytest.Listener("a", "r"))
		r := start(t, o, operated, "TENDER_NODE_GROUP_BY=cluster", "TENDER_METRICS_GROUPS=1", "TENDER_LINGER=1s")
		named, unnamed := inCluster(t, r, "first"), inCluster(t, r, "second")
		const responses = `tender_client_responses_total{group="other",type="cds"}`
		before := seriesOf(t, r)[responses]
		if before < 1 {
			t.Fatalf("%s is %v, want at least 1", responses, before)
		}
		named.Close()
		unnamed.Close()
		sleep(10 * time.Second) // until the groups have ended
		awaitStatus(t, r, "no node group", func(s admin.Status) bool { return len(s.Views) == 0 })
		if after := seriesOf(t, r)[responses]; after < before {
			t.Errorf("%s decreased from %v to %v when its group ended", responses, before, after)
		}
		inCluster(t, r, "second")
		after := seriesOf(t, r)
		own := 0.0
		for series, value := range after {
			if strings.HasPrefix(series, "tender_client_responses_total") && strings.Contains(series, "second") &&
				strings.Contains(series, `type="cds"`) {
				own += value
			}
		}
		if after[responses] < before || own != 1 {
			t.Errorf("%s is %v, want at least %v; the group's own label has %v responses, want 1", responses, after[responses],
				before, own)
		}
	})
}
